// SPDX-License-Identifier: Apache-2.0
//
// Room for a program that runs outside gpumux (docs/design/strangers.md): a
// tenant whose program is not ours, and which nothing enforces.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "base/process.h"
#include "base/units.h"
#include "core/quota.h"
#include "daemon/leases.h"
#include "daemon/user_name.h"

namespace gpumux::daemon {

namespace {

constexpr int kMaxAncestors = 256;

bool IsBelow(pid_t pid, const ProcessName& root) {
  for (int i = 0; i < kMaxAncestors && pid > 1; ++i) {
    const auto stat = ReadProcessStat(pid);
    if (!stat) return false;
    if (ProcessName{pid, stat->start_time} == root) return true;
    pid = stat->parent;
  }
  return false;
}

// What strangers of this process's tree hold, by Machine's index.
std::vector<uint64_t> HeldBy(const ProcessName& root, const Machine& machine) {
  std::vector<uint64_t> held(machine.gpus().size());
  for (size_t i = 0; i < held.size(); ++i) {
    for (const auto& [pid, stranger] : machine.gpus()[i]->strangers) {
      if (IsBelow(pid, root)) held[i] += stranger.bytes;
    }
  }
  return held;
}

uint64_t UnmanagedWithout(const GpuState& gpu, uint64_t held) {
  return gpu.ledger.UnmanagedBytes() - std::min(gpu.ledger.UnmanagedBytes(), held);
}

// As if the process were not there: what it holds becomes part of its reservation.
std::vector<core::GpuSnapshot> SnapshotWithout(const std::vector<uint64_t>& held, const Machine& machine) {
  auto snapshots = machine.Snapshot();
  for (size_t i = 0; i < snapshots.size(); ++i) {
    const GpuState& gpu = *machine.gpus()[i];
    core::Ledger ledger = gpu.ledger;
    ledger.SetOutside(UnmanagedWithout(gpu, held[i]), ledger.UnexplainedBytes());
    snapshots[i].unmanaged_bytes = ledger.UnmanagedBytes();
    snapshots[i].promisable_bytes = ledger.PromisableBytes();
  }
  return snapshots;
}

// Where it is, unless it was said; on one of them all if it is on none yet.
Status ChooseGpus(core::Request& ask, const std::vector<uint64_t>& held, const Machine& machine) {
  if (!ask.gpu_list.empty() || ask.gpu_count > 1) return {};
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i] > 0) ask.gpu_list.push_back(machine.gpus()[i]->device.uuid.ToString());
  }
  if (ask.gpu_list.size() <= 1) return {};
  return Fail(Code::kInvalid, fmt::format("the process uses {} GPUs", ask.gpu_list.size()),
              "name those that are meant with --gpu; each gets as much");
}

}  // namespace

Result<ProcessName> Leases::MayReserve(pid_t pid, uid_t by) {
  const auto stat =
      pid > 1 ? ReadProcessStat(pid) : Result<ProcessStat>(tl::unexpected(Error{Code::kNotFound, "", ""}));
  if (!stat || stat->state == 'Z') return Fail(Code::kNotFound, fmt::format("there is no process {}", pid));
  const auto owner = ProcessOwner(pid);
  if (!owner || (by != 0 && *owner != by)) {
    return Fail(Code::kDenied, fmt::format("pid {} is {}'s", pid, owner ? UserName(*owner) : "somebody else"),
                "ask them, or root");
  }
  if (pid == ::getpid()) return Fail(Code::kDenied, "that is the daemon itself");
  if (const Tenant* tenant = tenants_.FindOwner(pid, static_cast<uid_t>(-1), "")) {
    return Fail(Code::kConflict,
                fmt::format("pid {} is of tenant {} ({}) already", pid, tenant->id, tenant->request.ask.name),
                "see it with: gpumux explain " + tenant->id);
  }
  return ProcessName{pid, stat->start_time};
}

Result<std::string> Leases::Reserve(ReserveRequest request, uid_t by) {
  const auto process = MayReserve(request.pid, by);
  if (!process) return tl::unexpected(process.error());
  auto pidfd = OpenPidfd(process->pid);
  if (!pidfd) return tl::unexpected(pidfd.error());
  if (NameProcess(process->pid) != *process)
    return Fail(Code::kNotFound, fmt::format("process {} is gone", process->pid));
  monitor_.RefreshAll();
  const auto held = HeldBy(*process, machine_);
  if (Status chosen = ChooseGpus(request.run.ask, held, machine_); !chosen)
    return tl::unexpected(chosen.error());

  core::Request& ask = request.run.ask;
  if (Status named = NameOwner(ProcessOwner(process->pid).value_or(by), ask); !named)
    return tl::unexpected(named.error());
  const core::Situation situation = SituationNow();
  const core::QuotaBook quotas(policy_, situation.running);
  // Who waits goes first, as before any newcomer.
  std::set<gpu::Uuid> taken;
  for (const auto& [gpu, name] : KeptFor(ask.priority)) taken.insert(gpu);
  const auto decision = core::Admit(ask, SnapshotWithout(held, machine_), taken,
                                    {policy_.fill, quotas.BoundsOf(ask.user, ask.groups)});
  if (const auto* error = std::get_if<Error>(&decision)) return tl::unexpected(*error);
  if (const auto* wait = std::get_if<core::Wait>(&decision))
    return Fail(Code::kConflict, wait->reason, "reserve less, or end something first");
  return AddReservation(std::move(request), *process, std::move(*pidfd), std::get<core::Placement>(decision),
                        held, by);
}

Result<std::string> Leases::AddReservation(ReserveRequest request, const ProcessName& process, UniqueFd pidfd,
                                           const core::Placement& placement,
                                           const std::vector<uint64_t>& held, uid_t by) {
  auto tenant = std::make_unique<Tenant>();
  tenant->id = Tenants::NewId();
  tenant->reservation = true;
  tenant->uid = ProcessOwner(process.pid).value_or(by);
  tenant->child = process;
  tenant->state = TenantState::kRunning;
  tenant->mode = placement.mode;
  tenant->mode_reason = "a reservation takes turns with its neighbours as any program";
  tenant->not_enforced = tenant->was_not_enforced = kOutsideGpumux;
  tenant->shares = placement.shares;
  // It cannot be kept from using more: what it uses beyond is nobody's promise.
  for (core::Share& share : tenant->shares) share.limit_bytes.reset();
  for (const core::Share& share : tenant->shares) tenant->gpus.push_back(*machine_.Find(share.gpu));
  tenant->peak_bytes.resize(tenant->gpus.size());
  tenant->readings_above.resize(tenant->gpus.size());
  tenant->request = std::move(request.run);
  tenant->admitted = clock_.Now();
  tenant->admitted_wall = clock_.WallTime();
  if (Status saved = Save(*tenant); !saved) return tl::unexpected(saved.error());
  for (const size_t gpu : tenant->gpus) {
    core::Ledger& ledger = machine_.gpus()[gpu]->ledger;
    ledger.SetOutside(UnmanagedWithout(*machine_.gpus()[gpu], held[gpu]), ledger.UnexplainedBytes());
  }
  const auto refused = Promise(*tenant);
  if (refused) {
    (void)store_.Remove(tenant->id);
    monitor_.RefreshAll();
    return Fail(Code::kInternal,
                fmt::format("the ledger of GPU {} refused what admission granted", *refused));
  }
  Tenant& added = tenants_.Add(std::move(tenant));
  WatchChild(added, std::move(pidfd));
  // What it has on the GPUs becomes its use.
  for (const size_t gpu : added.gpus) monitor_.Refresh(gpu);
  events_.Note(
      About(EventKind::kReserved, added,
            fmt::format("{} on {} GPU(s) for pid {}, outside gpumux",
                        FormatBytes(added.shares[0].guaranteed_bytes), added.gpus.size(), process.pid),
            by));
  return added.id;
}

Status Leases::Release(const std::string& id, uid_t by) {
  Tenant* tenant = tenants_.Find(id);
  if (!tenant) return Fail(Code::kNotFound, "there is no tenant " + id, "see them with: gpumux ps");
  if (!tenant->reservation)
    return Fail(Code::kInvalid, fmt::format("{} is a tenant, not a reservation", id), "gpumux stop " + id);
  if (tenant->state == TenantState::kEnded) return {};
  tenant->stop_reason = "released by " + UserName(by);
  tenant->state = TenantState::kEnded;
  const std::vector<size_t> gpus = tenant->gpus;
  End(*tenant, by);
  for (const size_t gpu : gpus) monitor_.Refresh(gpu);
  return {};
}

}  // namespace gpumux::daemon
