// SPDX-License-Identifier: Apache-2.0
#include "daemon/machine.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "modes/sharing_mode.h"

namespace gpumux::daemon {

namespace {
// Of the attempts (one a second) that ask a silent owner again who it is.
constexpr unsigned kAskEvery = 60;
}  // namespace

GpuState::GpuState(gpu::Device d, const gpu::DeviceMemory& memory, core::ContextCost c)
    : device(std::move(d)),
      cost(c),
      // The first context on a GPU costs more than each further one: never promised.
      ledger(memory.total_bytes, memory.reserved_bytes + c.first_share_bytes) {}

core::GpuSnapshot GpuState::Snapshot() const {
  core::GpuSnapshot snapshot;
  snapshot.uuid = device.uuid;
  snapshot.index = device.index;
  snapshot.name = device.name;
  snapshot.total_bytes = ledger.TotalBytes();
  snapshot.reserve_bytes = ledger.ReserveBytes();
  snapshot.guaranteed_bytes = ledger.GuaranteedBytes();
  for (const auto& [id, tenant] : ledger.Tenants()) {
    snapshot.burst_bytes += tenant.ChargedBytes() - tenant.guaranteed_bytes;
  }
  snapshot.unmanaged_bytes = ledger.UnmanagedBytes();
  snapshot.unmanaged_pids = unmanaged_pids;
  snapshot.unexplained_bytes = ledger.UnexplainedBytes();
  snapshot.promisable_bytes = ledger.PromisableBytes();
  snapshot.mode = mode;
  snapshot.tenants = ledger.Tenants().size();
  snapshot.context = cost;
  if (lost) {
    snapshot.closed_error = *lost;
  } else if (!claim && !ledger.Tenants().empty()) {
    snapshot.closed_error = {
        Code::kConflict, fmt::format("GPU {} is being taken over from an earlier gpumuxd", device.index), ""};
    snapshot.opens_soon = true;
  } else if (!claim) {
    snapshot.closed_error = other_owner
                                ? DescribeOwner(device.index, *other_owner)
                                : Error{Code::kUnavailable, "the ledger of the GPU could not be claimed", ""};
  }
  for (const core::Mode each : {core::Mode::kExclusive, core::Mode::kTimeslice}) {
    const Status status = modes::ModeOf(each).Supports(compute_mode);
    if (!status) snapshot.forbidden_modes[each] = status.error();
  }
  return snapshot;
}

Machine::Machine(gpu::GpuSource source, gpu::Nvml& nvml, EventLoop& loop, EventLog& events,
                 std::string api_path)
    : source_(std::move(source)), nvml_(nvml), loop_(loop), events_(events), api_path_(std::move(api_path)) {}

void Machine::Start(std::vector<UniqueFd> kept) {
  for (const gpu::Device& device : nvml_.Devices()) {
    const auto memory = nvml_.Memory(device.uuid);
    auto gpu = std::make_unique<GpuState>(device, memory.value_or(gpu::DeviceMemory{}),
                                          core::ContextCostOf(device.name));
    if (!memory) {
      gpu->lost = memory.error();
      events_.Note(
          {.kind = EventKind::kGpuLost,
           .text = fmt::format("GPU {}: {}; no new promises", device.index, memory.error().ToString()),
           .gpus = {device.uuid}});
    }
    gpu->compute_mode = nvml_.Mode(device.uuid).value_or(gpu::ComputeMode::kUnknown);
    gpu->near = gpu::FindLocality(nvml_, device);
    const std::string name = OwnershipName(source_, device.uuid);
    const auto ours = std::find_if(kept.begin(), kept.end(), [&](const UniqueFd& socket) {
      return socket && IsClaimOf(socket.get(), name);
    });
    if (ours != kept.end())
      Own(*gpu, std::move(*ours));
    else
      Claim(*gpu);
    gpus_.push_back(std::move(gpu));
  }
}

void Machine::ClaimFree() {
  for (auto& gpu : gpus_) {
    if (!gpu->claim) Claim(*gpu);
  }
}

void Machine::Claim(GpuState& gpu) {
  const bool ask_anew = gpu.claims++ % kAskEvery == 0;
  auto claim = ClaimGpu(OwnershipName(source_, gpu.device.uuid), ask_anew ? std::nullopt : gpu.other_owner);
  if (!claim) {
    LogError("GPU {}: {}", gpu.device.index, claim.error().ToString());
    return;
  }
  // A queue that is full says less than what is known.
  if (claim->other && claim->other->pid == 0 && gpu.other_owner) claim->other = gpu.other_owner;
  const bool news = claim->socket || !gpu.other_owner || gpu.other_owner->pid != claim->other->pid;
  gpu.other_owner = claim->other;
  if (!claim->socket) {
    if (news) LogWarning("{}", DescribeOwner(gpu.device.index, *gpu.other_owner).ToString());
    return;
  }
  Own(gpu, std::move(claim->socket));
}

void Machine::TakeClaim(UniqueFd socket) {
  for (auto& gpu : gpus_) {
    if (gpu->claim || !IsClaimOf(socket.get(), OwnershipName(source_, gpu->device.uuid))) continue;
    return Own(*gpu, std::move(socket));
  }
}

void Machine::Own(GpuState& gpu, UniqueFd socket) {
  gpu.other_owner.reset();
  gpu.claim = std::move(socket);
  gpu.claim_watch =
      loop_.OnReadable(gpu.claim.get(), [this, &gpu] { GreetClaimants(gpu.claim.get(), api_path_); });
  events_.Note({.kind = EventKind::kGpuOwned,
                .text = fmt::format("GPU {} ({}, {}) is ours", gpu.device.index, gpu.device.name,
                                    gpu.device.uuid.ToString()),
                .gpus = {gpu.device.uuid}});
}

std::vector<core::GpuSnapshot> Machine::Snapshot() const {
  std::vector<core::GpuSnapshot> snapshots;
  for (const auto& gpu : gpus_) snapshots.push_back(gpu->Snapshot());
  return snapshots;
}

std::optional<size_t> Machine::Find(const gpu::Uuid& uuid) const {
  for (size_t i = 0; i < gpus_.size(); ++i) {
    if (gpus_[i]->device.uuid == uuid) return i;
  }
  return std::nullopt;
}

}  // namespace gpumux::daemon
