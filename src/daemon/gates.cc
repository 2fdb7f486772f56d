// SPDX-License-Identifier: Apache-2.0
#include "daemon/gates.h"

#include <algorithm>

#include "base/log.h"
#include "daemon/turn_desk.h"
#include "gpumux/abi/gate.h"

namespace gpumux::daemon {

namespace {

using core::Urgency;

bool Lives(const Tenant& tenant) { return tenant.pages && tenant.state != TenantState::kEnded; }

bool ShareAGpu(const Tenant& one, const Tenant& other) {
  return std::any_of(one.gpus.begin(), one.gpus.end(), [&](size_t gpu) {
    return std::find(other.gpus.begin(), other.gpus.end(), gpu) != other.gpus.end();
  });
}

// Latency-critical processes close it.
bool MakesWay(const Tenant& tenant) { return tenant.request.ask.urgency == Urgency::kBestEffort; }

}  // namespace

bool HasGate(const Tenant& tenant) {
  return tenant.request.ask.urgency == Urgency::kBestEffort || InTurns(tenant);
}

Gates::Members Gates::GatesFor(const Tenant& owner) const {
  Members gates;
  for (const auto& [id, tenant] : tenants_.live()) {
    if (tenant.get() == &owner || !Lives(*tenant) || !MakesWay(*tenant) || !ShareAGpu(owner, *tenant))
      continue;
    for (auto& [key, member] : tenant->members) {
      if (member.gate && !member.died) gates.push_back(&member);
    }
  }
  return gates;
}

bool Gates::MayBeClosed(const Tenant& tenant) const {
  return std::any_of(tenants_.live().begin(), tenants_.live().end(), [&](const auto& entry) {
    const Tenant& owner = *entry.second;
    return &owner != &tenant && Lives(owner) && owner.request.ask.urgency == Urgency::kLatency &&
           ShareAGpu(owner, tenant) &&
           std::any_of(owner.members.begin(), owner.members.end(),
                       [](const auto& each) { return each.second.owner_bit && !each.second.died; });
  });
}

std::optional<unsigned> Gates::FreeBit(unsigned wanted) {
  uint64_t taken = 0;
  for (const auto& [id, tenant] : tenants_.live()) {
    for (const auto& [key, member] : tenant->members) {
      if (member.owner_bit) taken |= uint64_t{1} << *member.owner_bit;
    }
  }
  const auto is_free = [&](unsigned bit) { return bit < GPUMUX_GATE_OWNERS && !(taken >> bit & 1); };
  if (is_free(wanted)) return wanted;
  // The one that was given longest ago: an opener that has just found the last holder of a bit
  // dead shall not clear it for the next.
  for (unsigned i = 0; i < GPUMUX_GATE_OWNERS; ++i) {
    const unsigned bit = (next_bit_ + i) % GPUMUX_GATE_OWNERS;
    if (!is_free(bit)) continue;
    next_bit_ = bit + 1;
    return bit;
  }
  return std::nullopt;
}

std::optional<Gates::Answer> Gates::Ask(Tenant& tenant, Member& member, uint32_t first,
                                        std::vector<UniqueFd>& own) {
  if (own.size() > 1 || member.died) return std::nullopt;
  Answer answer;
  if (!member.gate) {
    auto page = own.empty() ? GatePage::Create() : GatePage::Adopt(std::move(own[0]));
    if (!page) {
      LogWarning("tenant {}: no gate page for pid {}: {}", tenant.id, member.process.pid,
                 page.error().message);
      return std::nullopt;
    }
    member.gate = std::make_shared<GatePage>(std::move(*page));
    if (tenant.request.ask.urgency == Urgency::kLatency) {
      // With the same bit as under the daemon before: it may have gates closed by it.
      member.owner_bit = FreeBit(member.gate->OwnerBit());
      if (!member.owner_bit)
        LogWarning("tenant {}: pid {} closes no gates: {} processes do already", tenant.id,
                   member.process.pid, GPUMUX_GATE_OWNERS);
    }
    member.gate->SetOwnerBit(member.owner_bit.value_or(GPUMUX_GATE_NO_BIT));
    Update();
  }
  answer.reply.call = tenant.pages->GatesCall();
  answer.reply.owner_bit = member.owner_bit.value_or(GPUMUX_GATE_NO_BIT);
  answer.reply.first = first;
  answer.reply.min_open_ns = static_cast<uint64_t>(times_.min_open.count());
  answer.reply.max_closed_ns = static_cast<uint64_t>(times_.max_closed.count());
  answer.reply.budget_ns = static_cast<uint64_t>(times_.budget.count());
  if (first == 0) {
    answer.reply.own = 1;
    answer.fds.push_back(member.gate->fd());
  }
  if (!member.owner_bit) return answer;
  const Members gates = GatesFor(tenant);
  answer.reply.total = static_cast<uint32_t>(gates.size());
  for (size_t i = first; i < gates.size() && answer.fds.size() < GPUMUX_MAX_FDS; ++i) {
    answer.fds.push_back(gates[i]->gate->fd());
    ++answer.reply.count;
  }
  return answer;
}

void Gates::Died(Member& member) {
  if (!member.gate) return;
  member.gate->OpenForGood();
  member.owner_bit.reset();
  Update();
}

void Gates::Update() {
  for (const auto& [id, tenant] : tenants_.live()) {
    if (!Lives(*tenant)) continue;
    const Urgency urgency = tenant->request.ask.urgency;
    tenant->pages->SetGate(HasGate(*tenant) || urgency == Urgency::kLatency);
    uint32_t launch = 0;
    if (tenant->ViaMps() && tenant->draining) launch |= GPUMUX_LAUNCH_STOPS;
    if (MakesWay(*tenant) && MayBeClosed(*tenant)) launch |= GPUMUX_LAUNCH_GATED;
    if (InTurns(*tenant) && TakesTurns(*tenant, tenants_)) launch |= GPUMUX_LAUNCH_TURNS;
    if (urgency == Urgency::kLatency) {
      std::vector<core::ProcessKey> gates;
      for (const Member* member : GatesFor(*tenant)) gates.push_back(member->key);
      // Alone it has nothing to do at its launches.
      if (!gates.empty()) launch |= GPUMUX_LAUNCH_LATENCY;
      if (auto& called = called_[id]; called != gates) {
        called = std::move(gates);
        tenant->pages->CallForGates();
      }
    }
    tenant->pages->SetLaunch(launch);
  }
  std::erase_if(called_, [&](const auto& entry) { return !tenants_.live().contains(entry.first); });
  if (on_updated) on_updated();
}

}  // namespace gpumux::daemon
