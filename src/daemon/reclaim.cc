// SPDX-License-Identifier: Apache-2.0
#include "daemon/reclaim.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "daemon/usage.h"

namespace gpumux::daemon {

uint64_t Reclaim::Listen(uint64_t session, Tenant& tenant, core::ProcessKey process) {
  uint64_t before = 0;
  for (const auto& [id, listener] : listeners_) {
    if (listener.tenant == tenant.id && listener.process == process) before = id;
  }
  Listener& listener = listeners_[session];
  listener.tenant = tenant.id;
  listener.process = process;
  ++tenant.reclaims.listening;
  return before;
}

void Reclaim::Forget(uint64_t session) {
  const auto it = listeners_.find(session);
  if (it == listeners_.end()) return;
  if (Tenant* tenant = tenants_.Find(it->second.tenant)) --tenant->reclaims.listening;
  listeners_.erase(it);
}

std::optional<uint64_t> Reclaim::CommittedBytes(const Listener& listener, unsigned slot) const {
  const Tenant* tenant = tenants_.Find(listener.tenant);
  if (!tenant || slot >= tenant->gpus.size()) return std::nullopt;
  const auto member = tenant->members.find(listener.process);
  if (member == tenant->members.end() || member->second.died || !member->second.page) return std::nullopt;
  const core::Ledger& ledger = machine_.gpus()[tenant->gpus[slot]]->ledger;
  const auto* entry = ledger.Find(tenant->id, listener.process);
  if (!entry) return std::nullopt;
  return std::min(member->second.page->Read(slot, 0, ledger.TotalBytes()).committed_bytes,
                  entry->granted_bytes);
}

bool Reclaim::Done(uint64_t session, uint32_t ask) {
  const auto it = listeners_.find(session);
  if (it == listeners_.end() || !it->second.record.UnderWay() || it->second.ask != ask) return false;
  Listener& listener = it->second;
  const uint64_t now = CommittedBytes(listener, listener.slot).value_or(0);
  const uint64_t given = listener.committed_bytes > now ? listener.committed_bytes - now : 0;
  listener.record.Answered(clock_.Now(), given);
  Tenant* tenant = tenants_.Find(listener.tenant);
  if (!tenant || listener.slot >= tenant->gpus.size()) return true;
  tenant->reclaims.given_bytes += given;
  tenant->reclaims.last_given_bytes = given;
  if (given > 0) {
    Event event = About(EventKind::kRecalled, *tenant,
                        fmt::format("gave back {} that it only cached", FormatBytes(given)));
    event.gpus = {tenant->shares[listener.slot].gpu};
    events_.Note(std::move(event));
  }
  RecallCredit(*tenant, listener.slot, *machine_.gpus()[tenant->gpus[listener.slot]]);
  return true;
}

std::vector<Reclaim::Candidate> Reclaim::Candidates(size_t gpu_index, const std::string& own, bool own_only,
                                                    core::ProcessKey except) const {
  std::vector<Candidate> candidates;
  for (const auto& [session, listener] : listeners_) {
    if (own_only && listener.tenant != own) continue;
    if (listener.process == except || allocating(listener.process)) continue;
    const Tenant* tenant = tenants_.Find(listener.tenant);
    const auto slot = tenant ? SlotOf(*tenant, gpu_index) : std::nullopt;
    if (!slot) continue;
    uint64_t could_give = CommittedBytes(listener, *slot).value_or(0);
    if (listener.tenant != own) {
      const auto* entry = machine_.gpus()[gpu_index]->ledger.Find(listener.tenant);
      const uint64_t burst = entry ? entry->ChargedBytes() - entry->guaranteed_bytes : 0;
      could_give = std::min(could_give, burst);
    }
    if (could_give > 0) candidates.push_back({session, *slot, could_give});
  }
  return candidates;
}

bool Reclaim::Ask(const std::vector<Candidate>& candidates, uint64_t missing_bytes) {
  const Time now = clock_.Now();
  std::vector<const Candidate*> may_ask;
  std::vector<uint64_t> could_give;
  for (const Candidate& each : candidates) {
    const core::AskRecord& record = listeners_.at(each.session).record;
    if (record.Awaited(now)) return true;
    if (!record.MayAsk(now)) continue;
    may_ask.push_back(&each);
    could_give.push_back(each.could_give_bytes);
  }
  bool asked = false;
  for (const size_t i : core::WhomToAsk(could_give, missing_bytes)) {
    const Candidate& each = *may_ask[i];
    asked |= AskOne(each, std::min(missing_bytes, each.could_give_bytes));
  }
  return asked;
}

bool Reclaim::AskOne(const Candidate& candidate, uint64_t wanted_bytes) {
  Listener& listener = listeners_.at(candidate.session);
  if (++last_ask_ == 0) ++last_ask_;
  listener.ask = last_ask_;
  listener.slot = candidate.slot;
  // Before it is asked: it may be quicker than this line.
  listener.committed_bytes = CommittedBytes(listener, candidate.slot).value_or(0);
  if (!send(candidate.session, last_ask_, candidate.slot, wanted_bytes)) return false;
  listener.record.Asked(clock_.Now(), wanted_bytes);
  Reclaims& reclaims = tenants_.Find(listener.tenant)->reclaims;
  ++reclaims.asked;
  reclaims.asked_wall = clock_.WallTime();
  return true;
}

unsigned Reclaim::AskForAll(const Tenant& tenant) {
  std::vector<Candidate> candidates;
  for (const auto& [session, listener] : listeners_) {
    if (listener.tenant != tenant.id || allocating(listener.process)) continue;
    if (!listener.record.MayAsk(clock_.Now())) continue;
    Candidate most{session, 0, 0};
    for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot) {
      const uint64_t bytes = CommittedBytes(listener, slot).value_or(0);
      if (bytes > most.could_give_bytes) most = {session, slot, bytes};
    }
    if (most.could_give_bytes > 0) candidates.push_back(most);
  }
  unsigned asked = 0;
  for (const Candidate& each : candidates) asked += AskOne(each, each.could_give_bytes) ? 1 : 0;
  return asked;
}

bool Reclaim::MakeRoom(const Tenant& tenant, core::ProcessKey process, size_t gpu_index,
                       uint64_t missing_bytes, bool of_own_limit) {
  if (listeners_.empty()) return false;
  return Ask(Candidates(gpu_index, tenant.id, of_own_limit, process), missing_bytes);
}

std::set<uint64_t> Reclaim::MakeRoomFor(const std::deque<core::Queue::Waiting>& waiting) {
  if (listeners_.empty() || waiting.empty()) return {};
  std::vector<std::vector<Candidate>> candidates;
  std::vector<uint64_t> could_give;
  for (size_t i = 0; i < machine_.gpus().size(); ++i) {
    // Several processes of one tenant share what is beyond its guarantee.
    std::map<std::string, uint64_t> of_tenant;
    candidates.push_back(Candidates(i, "", /*own_only=*/false, /*except=*/0));
    for (const Candidate& each : candidates.back()) {
      const std::string& tenant = listeners_.at(each.session).tenant;
      const auto* entry = machine_.gpus()[i]->ledger.Find(tenant);
      of_tenant[tenant] = std::min(of_tenant[tenant] + each.could_give_bytes,
                                   entry->ChargedBytes() - entry->guaranteed_bytes);
    }
    uint64_t sum = 0;
    for (const auto& [id, bytes] : of_tenant) sum += bytes;
    could_give.push_back(sum);
  }
  std::set<uint64_t> awaited;
  for (const auto& room : core::RoomThatWaitersLack(waiting, machine_.Snapshot(), could_give)) {
    if (Ask(candidates[room.gpu], room.bytes)) awaited.insert(room.request_id);
  }
  return awaited;
}

}  // namespace gpumux::daemon
