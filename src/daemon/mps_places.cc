// SPDX-License-Identifier: Apache-2.0
#include "daemon/mps_places.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/mps.h"
#include "daemon/usage.h"
#include "gpumux/abi/session.h"

namespace gpumux::daemon {

namespace {

// Its guard asks every 0.1 s.
constexpr Time kAsksNoMore = std::chrono::seconds(3);

// What of a client's first attempt means that there will be room, or a server (guard/mps.cc).
constexpr uint32_t kServerNotReady = 807;
constexpr uint32_t kNoRoom[] = {46, 808, 809};

bool IsClient(const Member::Gpu& on) {
  // One that died has its place until its bytes are free.
  return on.mps_place || on.pending_contexts > 0 || on.IsUsed();
}

unsigned ClientsOf(const Tenant& tenant, unsigned slot) {
  return static_cast<unsigned>(
      std::count_if(tenant.members.begin(), tenant.members.end(),
                    [&](const auto& member) { return IsClient(member.second.gpus[slot]); }));
}

}  // namespace

void SettlePlace(Member::Gpu& on) {
  on.mps_place = on.contexts > 0;
  if (on.mps_place) on.waits.reset();
}

unsigned PlacesTaken(const Tenants& tenants, size_t gpu_index) {
  unsigned taken = 0;
  for (const auto& [id, tenant] : tenants.live()) {
    const auto slot = tenant->ViaMps() ? SlotOf(*tenant, gpu_index) : std::nullopt;
    if (slot) taken += std::max(tenant->request.ask.processes, ClientsOf(*tenant, *slot));
  }
  return taken;
}

bool MpsPlaces::IsFree(const Tenant& tenant, const Member& member, unsigned slot) const {
  if (ClientsOf(tenant, slot) < tenant.request.ask.processes) return true;
  const size_t gpu_index = tenant.gpus[slot];
  const unsigned most = core::MpsClientsOf(machine_.nvml_version()), taken = PlacesTaken(tenants_, gpu_index);
  // Those who came before go first.
  const Member::Gpu& on = member.gpus[slot];
  const Time since = on.waits ? on.waits->since : clock_.Now();
  unsigned before = 0;
  for (const auto& [id, other] : tenants_.live()) {
    const auto its = other->ViaMps() ? SlotOf(*other, gpu_index) : std::nullopt;
    if (!its || ClientsOf(*other, *its) < other->request.ask.processes) continue;
    before += static_cast<unsigned>(
        std::count_if(other->members.begin(), other->members.end(), [&](const auto& each) {
          const auto& waits = each.second.gpus[*its].waits;
          return !each.second.died && each.first != member.key && waits && waits->since < since &&
                 !IsClient(each.second.gpus[*its]);
        }));
  }
  return taken + before < most;
}

uint32_t MpsPlaces::Wait(const Tenant& tenant, Member::Gpu& on, bool queues, std::string reason) {
  const Time now = clock_.Now();
  if (!on.waits) on.waits = WaitForPlace{.reason = "", .since = now, .asked = now};
  on.waits->asked = now;
  on.waits->reason = std::move(reason);
  // As the tenant itself would have waited for its start.
  const RunRequest& request = tenant.request;
  const bool over =
      queues && (!request.wait || (request.wait_limit && now - on.waits->since >= *request.wait_limit));
  if (!over && tenant.state != TenantState::kStopping) return GPUMUX_MPS_PLACE_WAIT;
  on.waits.reset();
  return GPUMUX_MPS_PLACE_NO;
}

uint32_t MpsPlaces::Ask(Tenant& tenant, Member& member, unsigned slot, uint32_t driver_error) {
  if (!tenant.ViaMps()) return GPUMUX_MPS_PLACE_YES;
  Member::Gpu& on = member.gpus[slot];
  const std::string index = machine_.gpus()[tenant.gpus[slot]]->device.index.Label();
  if (driver_error != 0) {
    on.mps_place = false;
    if (driver_error == kServerNotReady)
      return Wait(tenant, on, false, fmt::format("the MPS server of GPU {} recovers (error 807)", index));
    if (std::ranges::find(kNoRoom, driver_error) != std::end(kNoRoom)) {
      return Wait(
          tenant, on, true,
          fmt::format("the MPS server of GPU {} takes no more clients (error {})", index, driver_error));
    }
    on.waits.reset();
    return GPUMUX_MPS_PLACE_NO;
  }
  if (!IsFree(tenant, member, slot)) {
    const unsigned most = core::MpsClientsOf(machine_.nvml_version());
    const unsigned taken = PlacesTaken(tenants_, tenant.gpus[slot]);
    return Wait(tenant, on, true,
                fmt::format("GPU {} has {} of {} MPS clients{}", index, std::min(taken, most), most,
                            taken < most ? ", and others came before" : ""));
  }
  on.mps_place = true;
  return GPUMUX_MPS_PLACE_YES;
}

void MpsPlaces::Tick() {
  for (const auto& [id, tenant] : tenants_.live()) {
    for (auto& [key, member] : tenant->members) {
      for (Member::Gpu& on : member.gpus) {
        if (on.waits && clock_.Now() - on.waits->asked >= kAsksNoMore) on.waits.reset();
      }
    }
  }
}

}  // namespace gpumux::daemon
