// SPDX-License-Identifier: Apache-2.0
#include "daemon/monitor.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/process.h"
#include "base/units.h"
#include "core/context_cost.h"
#include "daemon/process_tree.h"
#include "daemon/strangers.h"
#include "daemon/usage.h"

namespace gpumux::daemon {

namespace {

uint64_t Minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

constexpr unsigned kReadingsOfAJump = 3;

// A dead member's pid in NVML's list may already be another process's.
bool PidIsReused(const ProcessName& dead) {
  const auto now = NameProcess(dead.pid);
  return now && now->start_time != dead.start_time;
}

// Looked at only where a guard should be and is not connected: one whose
// program closed its descriptor comes back with its next request.
bool MayHaveGuard(pid_t pid) { return MayMap(pid, "/libgpumux-guard.so"); }

}  // namespace

bool Monitor::ReadOnce(size_t gpu_index) {
  GpuState& gpu = *machine_.gpus()[gpu_index];
  // First what was promised on it is promised again (Machine::on_found).
  if (!gpu.Known()) return false;

  if (gpu.gone) return false;
  // The pages before and after NVML's answer: calls go on meanwhile.
  std::vector<Before> members;
  for (const auto& [id, entry] : gpu.ledger.Tenants()) {
    Tenant* tenant = tenants_.Find(id);
    const auto slot = tenant ? SlotOf(*tenant, gpu_index) : std::nullopt;
    if (!slot) continue;
    for (auto& [key, member] : tenant->members) {
      const auto* process = gpu.ledger.Find(id, key);
      ProcessWords words;
      if (member.page && process)
        words = member.page->Read(*slot, process->granted_bytes, gpu.ledger.TotalBytes());
      members.push_back({&member, tenant, *slot, words});
    }
  }
  // Memory first: an allocation between the two answers then makes less
  // unexplained, not more.
  const auto memory = machine_.nvml().Memory(gpu.device.uuid);
  const auto processes = machine_.nvml().Processes(gpu.device.uuid);
  if (!memory || !processes) {
    const bool news = !gpu.lost;
    gpu.lost = WhyLost(gpu.device, memory ? processes.error() : memory.error());
    if (news) machine_.NoteLost(gpu);
    return false;
  }
  if (gpu.lost) {
    gpu.lost.reset();
    machine_.NoteBack(gpu);
  }
  gpu.last_reading = clock_.Now();
  gpu.device_used_bytes = memory->used_bytes;
  gpu.busy_ratio = machine_.nvml().Busy(gpu.device.uuid);
  // An administrator may change it at any time; it decides who may be admitted.
  if (const auto mode = machine_.nvml().Mode(gpu.device.uuid)) gpu.compute_mode = *mode;

  std::map<pid_t, uint64_t> own;
  for (const auto& use : *processes) own[use.pid] = use.used_bytes.value_or(0);
  for (const Before& before : members) {
    Member::Gpu& on = before.member->gpus[before.slot];
    const auto listed = own.find(before.member->process.pid);
    on.own_bytes.reset();
    if (listed == own.end()) continue;
    if (before.member->died && PidIsReused(before.member->process)) continue;
    on.own_bytes = listed->second;
    own.erase(listed);
  }

  const uint64_t unmanaged = TakeStrangers(gpu_index, own, members);
  uint64_t explained = unmanaged + (processes->empty() ? 0 : gpu.cost.first_share_bytes);
  for (const Before& before : members) {
    Assess(gpu, before);
    explained += ExplainedBytes(gpu, before);
  }
  // The two answers are of two moments: only what two readings agree on counts.
  // Of a partitioned GPU its instances explain what is used.
  const uint64_t unexplained = gpu.partitioned ? 0 : Minus(memory->used_bytes, explained);
  gpu.ledger.SetOutside(unmanaged, std::min(unexplained, gpu.previous_unexplained_bytes));
  gpu.previous_unexplained_bytes = unexplained;

  FreezeAboveLimit(gpu_index, gpu);
  WatchRisk(gpu, gpu_index, tenants_, events_, clock_.Now());
  Publish(gpu_index);
  return true;
}

bool Monitor::Refresh(size_t gpu_index) {
  bool answered = true;
  for (unsigned i = 0; i < kReadingsOfAJump && answered; ++i) {
    look_again_ = false;
    answered = ReadOnce(gpu_index);
    if (!look_again_) break;
  }
  return answered;
}

// Who is left in NVML's list belongs to nobody, or to a tenant whose guard is
// not loaded and becomes its member. Returns the unmanaged bytes.
uint64_t Monitor::TakeStrangers(size_t gpu_index, const std::map<pid_t, uint64_t>& own,
                                std::vector<Before>& members) {
  GpuState& gpu = *machine_.gpus()[gpu_index];
  uint64_t unmanaged = 0;
  std::map<pid_t, uint64_t> strangers;
  for (const auto& [id, tenant] : tenants_.live()) tenant->unpromised.erase(gpu_index);
  gpu.mps_server_bytes = 0;
  for (const auto& [pid, bytes] : own) {
    if (is_mps_server && is_mps_server(gpu.device.uuid, pid)) {
      gpu.mps_server_bytes = bytes + gpu.cost.driver_share_bytes;
      unmanaged += gpu.mps_server_bytes;
      continue;
    }
    Tenant* tenant = tenants_.FindOwner(pid, static_cast<uid_t>(-1), "");
    const auto slot = tenant ? SlotOf(*tenant, gpu_index) : std::nullopt;
    const auto name = slot ? NameProcess(pid) : std::nullopt;
    Member* member = name && adopt ? adopt(*tenant, *name) : nullptr;
    if (member) {
      member->gpus[*slot].own_bytes = bytes;
      members.push_back({member, tenant, *slot, {}});
      continue;
    }
    if (tenant && !slot)
      tenant->unpromised[gpu_index] =
          "pid " + std::to_string(pid) + " uses a GPU that was not promised to it";
    strangers[pid] = bytes + gpu.cost.driver_share_bytes;
    unmanaged += strangers[pid];
  }
  NoteStrangers(gpu, strangers, events_);
  return unmanaged;
}

// What the device's used figure holds because of this process.
uint64_t Monitor::ExplainedBytes(const GpuState& gpu, const Before& before) const {
  const Member::Gpu& on = before.member->gpus[before.slot];
  if (!on.own_bytes && !before.member->page) return 0;
  const auto* entry = gpu.ledger.Find(before.tenant->id, before.member->key);
  // Managed memory is in the device's figure and not in the process's.
  const uint64_t committed =
      before.member->page ? before.member->page->Read(before.slot, 0, gpu.ledger.TotalBytes()).committed_bytes
                          : 0;
  const uint64_t shares = std::max<uint64_t>(on.contexts, on.own_bytes ? 1 : 0) * gpu.cost.driver_share_bytes;
  return std::max(on.own_bytes.value_or(0) + shares,
                  entry ? std::min(committed, entry->granted_bytes) + on.real_overhead_bytes : 0);
}

void Monitor::RefreshIfOlder(size_t gpu_index, Time age) {
  const auto& last = machine_.gpus()[gpu_index]->last_reading;
  if (!last || clock_.Now() - *last > age) Refresh(gpu_index);
}

void Monitor::RefreshAll() {
  for (size_t i = 0; i < machine_.gpus().size(); ++i) Refresh(i);
  for (const auto& [id, tenant] : tenants_.live()) NoteUse(*tenant, machine_, clock_.Now());
}

void Monitor::RefreshAllIfOlder(Time age) {
  for (size_t i = 0; i < machine_.gpus().size(); ++i) RefreshIfOlder(i, age);
}

// What the driver took beyond what was reserved is in use, so it is granted
// afterwards. Who lies about it can claim what NVML shows of it, and its limit.
void Monitor::GrantDebt(GpuState& gpu, const Before& before) {
  ProcessPage& page = *before.member->page;
  const uint64_t granted = gpu.ledger.Find(before.tenant->id, before.member->key)->granted_bytes;
  const uint64_t own = before.member->gpus[before.slot].own_bytes.value_or(0);
  const uint64_t most = own + gpu.ledger.ToldLimitBytes(before.tenant->id);
  const uint64_t debt = std::min(page.Debt(before.slot), Minus(most, granted));
  if (debt == 0) return;
  gpu.ledger.Overdraw(before.tenant->id, before.member->key, debt);
  page.AddCredit(before.slot, debt);
}

void Monitor::Assess(GpuState& gpu, const Before& before) {
  Member& member = *before.member;
  Member::Gpu& on = member.gpus[before.slot];
  const auto* entry = gpu.ledger.Find(before.tenant->id, member.key);
  if (!entry || member.died) return;
  // Its guard is gone, and the driver has nothing of it: it executed another
  // program that does not use CUDA, or not yet.
  if (member.page && member.sessions == 0 && !on.own_bytes) {
    ForgetProgram(*before.tenant, member, before.slot, gpu);
    return;
  }
  // A page outlives its guard when the process executes a program without one.
  const bool guarded =
      member.page && member.page->InForce() && (member.sessions > 0 || MayHaveGuard(member.process.pid));
  before.tenant->guard_seen |= guarded;
  if (on.own_bytes && !guarded) {
    if (!on.unguarded_since) on.unguarded_since = clock_.Now();
  } else {
    on.unguarded_since.reset();
  }
  if (member.page) GrantDebt(gpu, before);
  core::OverheadReading reading;
  reading.own_bytes = on.own_bytes;
  reading.granted_bytes = entry->granted_bytes;
  reading.pending_contexts = on.pending_contexts;
  if (member.page) {
    const ProcessWords after = member.page->Read(before.slot, entry->granted_bytes, gpu.ledger.TotalBytes());
    reading.contexts = on.contexts;
    reading.committed_before_bytes = before.words.committed_bytes;
    reading.committed_after_bytes = after.committed_bytes;
    reading.free_before_bytes = before.words.free_bytes;
    reading.free_after_bytes = after.free_bytes;
    core::LearnContextCost(reading, gpu.cost);
  } else if (on.own_bytes) {
    // Seen by NVML alone: all of it is overhead, one context at least.
    reading.contexts = 1;
  }
  const uint64_t room = gpu.ledger.AvailableBytes(before.tenant->id) + entry->overhead_bytes;
  core::Overhead overhead = core::AssessOverhead(reading, gpu.cost, on.real_overhead_bytes, room);
  if (member.page) DoubtJump(on, reading.contexts * gpu.cost.ChargeBytes(), overhead);
  on.real_overhead_bytes = overhead.real_bytes;
  gpu.ledger.SetOverhead(before.tenant->id, member.key, overhead.charge_bytes);
}

// A call that began after the page was read and whose memory was free again
// before it was read anew is in NVML's answer and nowhere else: it looks like
// overhead, and would cost the program its next allocation. So a large growth
// counts when several readings in a row find it, and as the least of these.
void Monitor::DoubtJump(Member::Gpu& on, uint64_t contexts_bytes, core::Overhead& overhead) {
  const uint64_t believable =
      std::max(on.real_overhead_bytes, contexts_bytes) + core::kLazyCodeAllowanceBytes;
  if (overhead.real_bytes <= believable) {
    on.jumps = 0;
    return;
  }
  on.jump_bytes = on.jumps == 0 ? overhead.real_bytes : std::min(on.jump_bytes, overhead.real_bytes);
  ++on.jumps;
  const bool sure = on.jumps >= kReadingsOfAJump;
  if (sure) on.jumps = 0;
  const uint64_t real = sure ? on.jump_bytes : std::max(on.real_overhead_bytes, contexts_bytes);
  overhead.charge_bytes -= overhead.real_bytes - real;
  overhead.real_bytes = real;
  look_again_ |= !sure;
}

void Monitor::FreezeAboveLimit(size_t gpu_index, GpuState& gpu) {
  for (const auto& [id, entry] : gpu.ledger.Tenants()) {
    Tenant* tenant = tenants_.Find(id);
    const auto slot = tenant ? SlotOf(*tenant, gpu_index) : std::nullopt;
    if (!slot) continue;
    if (gpu.ledger.AboveLimit(id)) RecallCredit(*tenant, *slot, gpu);
    // One reading may have met calls half done; two in a row are a fact.
    unsigned& above = tenant->readings_above[*slot];
    above = gpu.ledger.AboveLimit(id) ? std::min(above + 1, 2u) : 0;
    const bool frozen = std::any_of(tenant->readings_above.begin(), tenant->readings_above.end(),
                                    [](unsigned readings) { return readings >= 2; });
    if (frozen != tenant->frozen) {
      events_.Note(About(frozen ? EventKind::kAboveLimit : EventKind::kBelowLimit, *tenant,
                         frozen ? fmt::format("{} on GPU {} are above its limit: no further allocation",
                                              FormatBytes(entry.used_bytes), gpu.device.index.Label())
                                : "below its limit again"));
    }
    // Not while those that a daemon took over have not come back yet.
    if (tenant->frozen && !frozen) tenant->frees_as_it_goes = false;
    tenant->frozen = frozen;
    NotePeak(*tenant, *slot, gpu);
  }
}

void Monitor::Publish(size_t gpu_index) {
  GpuState& gpu = *machine_.gpus()[gpu_index];
  const uint64_t promisable = gpu.ledger.PromisableBytes();
  for (const auto& [id, entry] : gpu.ledger.Tenants()) {
    Tenant* tenant = tenants_.Find(id);
    const auto slot = tenant ? SlotOf(*tenant, gpu_index) : std::nullopt;
    if (!slot || !tenant->pages) continue;
    tenant->pages->SetLimits(*slot, entry.guaranteed_bytes,
                             entry.limit_bytes.value_or(entry.ChargedBytes() + promisable), entry.used_bytes);
    for (const auto& [key, process] : entry.processes) {
      const auto member = tenant->members.find(key);
      if (member != tenant->members.end() && member->second.page)
        member->second.page->SetOverhead(*slot, process.overhead_bytes);
    }
    tenant->pages->SetHeartbeat(static_cast<uint64_t>(clock_.Now().count()));
    tenant->pages->SetState(tenant->draining ? GPUMUX_STATE_STOPPING
                            : tenant->frozen ? GPUMUX_STATE_FROZEN
                                             : GPUMUX_STATE_RUNNING);
  }
}

}  // namespace gpumux::daemon
