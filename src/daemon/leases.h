// SPDX-License-Identifier: Apache-2.0
//
// The life of a tenant: asked for, waiting, granted, running, stopped, ended.
//
//   RunRequest ──▶ waiting ──▶ starting ──▶ running ──▶ ended
//                    │ refused,    │ run died   │ stop: signal, grace, kill
//                    ▼ hung up     ▼            ▼
//                   (gone)        ended       stopping ──▶ ended
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "core/change.h"
#include "core/policy.h"
#include "core/queue.h"
#include "daemon/monitor.h"
#include "daemon/run_request.h"
#include "daemon/store.h"
#include "ipc/seqpacket.h"

namespace gpumux::daemon {

struct Waiter {
  uint64_t session = 0;
  std::string id;  // the tenant's to be, so that `status` and `stop` can name it
  RunRequest request;
  uid_t uid = 0;
  ProcessName run;
  Time since{};
  EventLoop::Watch timeout;
  std::string last_sent;  // RunQueued is sent when it changes
};

// Why the memory limit of a reservation is not in force.
inline constexpr char kOutsideGpumux[] = "outside gpumux: nothing limits what the program takes";

struct LeaseSettings {
  std::string session_socket;
  std::string guard_library;
  std::string store;
};

class Leases {
 public:
  Leases(Machine& machine, Tenants& tenants, Monitor& monitor, EventLog& events, EventLoop& loop,
         const Clock& clock, LeaseSettings settings, const core::Policy& policy);

  // The row of one that was refused memory, once: how it ends may be told by the next daemon.
  void NoteRefused(Tenant& tenant);
  // Its row as it is now; a log line if that cannot be.
  void SaveOrSay(const Tenant& tenant);
  void SaveAll();

  // What an earlier daemon promised is promised again (docs/design/takeover.md).
  // Before NVML is read and before anybody is accepted.
  void TakeOver();

  // One of them cannot be promised again now, though its row says that it has to be: without it
  // its bytes would be anybody's. Is not expected to return.
  std::function<void(const Error&)> cannot_take_over;

  // Those among them whose GPU was not there: once more, before it is read.
  void TakeOverLate();
  bool WaitForGpus() const { return !waiting_rows_.empty(); }

  // A store that is gone or cannot be used is opened anew, and knows every lease again.
  // One that could not be read when this daemon started is taken over then.
  void KeepStore();

  // To the `run` of a session. False: it is gone.
  std::function<bool(uint64_t session, const std::string& json)> send_queued, send_summary;
  std::function<bool(uint64_t session)> send_resumed, send_noted;
  std::function<bool(uint64_t session, const std::string& json, const std::vector<int>& fds)> send_granted;
  // A lease is in the books and its `run` is told when this returns, or its
  // program has started, or it is to end.
  std::function<void()> on_changed;
  // A tenant has ended: what the history keeps of it. Again for those of the daemon before.
  std::function<void(const std::string& id, std::string past)> on_past;
  // All that the history does not have yet.
  void TellPast();
  // The history has it.
  void Kept(const std::string& id);
  // A request was granted; a tenant or a reservation is about to be forgotten.
  std::function<void(const Tenant& tenant)> on_granted, on_ended;
  // The session is over with it.
  std::function<void(uint64_t session, const Error& error)> send_refused;

  // Mode mps: calls back when the tenant's program may be started, or why it cannot be.
  std::function<void(const Tenant& tenant, std::function<void(Status)> ready)> prepare;
  // Mode mps: the server ends the work of the tenant's clients, and calls back. False: there are none.
  std::function<bool(const Tenant& tenant, const std::function<void()>& done)> terminate_clients;
  // What its program gets in its environment beyond the session's.
  std::function<std::map<std::string, std::string>(const Tenant& tenant)> environment_of;
  // What of its promise beyond memory is not in force; empty: nothing.
  std::function<std::string(const Tenant& tenant)> why_not_served;
  // A tenant's program has failed: true while it is asked whether others did that.
  // `go_on` is called when it is known.
  std::function<bool(Tenant& tenant, std::function<void()> go_on)> enquire;
  // Why a program of mode mps that was tenant `before` is started apart from the server; empty: it need not
  // be.
  std::function<std::string(const std::string& before, uid_t owner)> why_apart;
  // What admission is to know of the GPU's MPS.
  std::function<core::MpsSnapshot(size_t gpu_index)> mps_of;

  // Asks programs for memory that they only cache; those for whom an answer is awaited.
  std::function<std::set<uint64_t>(const std::deque<core::Queue::Waiting>&)> make_room;

  void Request(uint64_t session, const ipc::PeerIdentity& peer, RunRequest request);
  // A `run` whose session is gone, mostly with the daemon that it had, with the
  // lock sockets of its tenant's GPUs.
  void Resume(uint64_t session, const ipc::PeerIdentity& peer, const RunResume& resume,
              std::vector<UniqueFd> locks);
  void Started(uint64_t session, pid_t pid);
  void Ended(uint64_t session, const RunEnded& ended);
  void HungUp(uint64_t session);

  // Signal, grace time, SIGKILL; of a waiting request: refused. kNotFound.
  // `by`: who asked; nullopt: the daemon itself.
  Status Stop(const std::string& id, const StopRequest& request, const std::string& reason,
              std::optional<uid_t> by = {});

  // Changes what was promised to a tenant that runs, on all of its GPUs or on
  // none. The errors of core::JudgeChange, and kNotFound.
  Status Set(const std::string& id, const core::Change& change, uid_t by);
  // Room for a process outside gpumux and what it starts: the reservation's id.
  // Refused, not queued, when it does not fit. `by`: who asks.
  Result<std::string> Reserve(ReserveRequest request, uid_t by);
  Status Release(const std::string& id, uid_t by);

  // How the GPU is shared, for all its tenants, while they run: between timeslice and turns.
  // kConflict: a tenant was started for another mode, or there is none. `by`: who asks.
  Status ChangeMode(size_t gpu_index, core::Mode mode, uid_t by);

  // Starts what can start. Whenever bytes came back or a GPU changed.
  void Schedule();
  void ScheduleSoon();
  // Who waits, waits at the place that it has by the new policy.
  void PolicyChanged();
  // Ends the tenant if nothing of it is left.
  void CheckEnd(Tenant& tenant);
  // Tenants whose processes run without a guard.
  void WatchGuards();

  const core::Queue& queue() const { return queue_; }
  const std::map<uint64_t, Waiter>& waiters() const { return waiters_; }
  bool Idle() const { return waiters_.empty() && tenants_.live().empty() && waiting_rows_.empty(); }

 private:
  // Whose request it is, and what follows for its place. kUnavailable: the user
  // database does not answer.
  Status NameOwner(uid_t uid, core::Request& ask) const;
  core::Running AsRunning(const Tenant& tenant) const;
  core::Situation SituationNow() const;
  std::map<gpu::Uuid, std::string> KeptFor(int priority) const;
  Status Apply(Tenant& tenant, const core::Change& change, std::vector<core::Share> after, uid_t by);
  Status EnterChange(const Tenant& tenant, const std::vector<core::Share>& before);
  // Ids of those who must have one mode with the tenants of this GPU.
  std::set<std::string> TogetherOn(size_t gpu_index) const;
  Status MayHaveMode(const Tenant& tenant, core::Mode mode, uid_t by) const;
  // Stops the tenant when its time is over.
  void WatchTimeLimit(Tenant& tenant);
  Result<ProcessName> MayReserve(pid_t pid, uid_t by);
  // `held`: what the process has on each GPU.
  Result<std::string> AddReservation(ReserveRequest request, const ProcessName& process, UniqueFd pidfd,
                                     const core::Placement& placement, const std::vector<uint64_t>& held,
                                     uid_t by);
  void Grant(uint64_t request_id, const core::Placement& placement);
  // Its `run` may start the program; or cannot, and the lease is over.
  void TellGranted(Tenant& tenant);
  void GiveUp(Tenant& tenant, const Error& error);
  void Refuse(uint64_t request_id, const Error& error);
  // The tenant's row in the store, as it is now.
  Status Save(const Tenant& tenant);
  void TakeOver(const std::string& id, const std::string& record);
  // Enters the tenant into the ledgers of all its GPUs, or of none: then the
  // index of the GPU that has no room.
  std::optional<std::string> Promise(Tenant& tenant);
  // Pages for a tenant whose shares and GPUs are known.
  Status MakePages(Tenant& tenant);
  void WatchChild(Tenant& tenant, UniqueFd pidfd);
  // The tenant's `run` has no session now. If its process lives it will come back
  // with Resume; if not, no program starts any more.
  void ExpectRun(Tenant& tenant);
  // It did not come back, and no program of it is known.
  void GiveUpRun(const std::string& id);
  // A lease that was granted to this `run` by a daemon that could not say so.
  void EndStaleLease(const ProcessName& run);
  void TellWaiters();
  // Watches what the ended program left behind; false if there is nothing.
  bool WatchLeftBehind(Tenant& tenant);
  void Signal(Tenant& tenant, int signal);
  void Kill(const std::string& id);
  // Mode mps: until the work under way has ended, and then the server ends what is left.
  void Drain(const std::string& id, Time until);
  void Terminate(const std::string& id);
  void KillNow(const std::string& id);
  void End(Tenant& tenant, std::optional<uid_t> by = {});
  static std::string WhyEnded(const Tenant& tenant);  // of one with `ended`
  void SendSummary(Tenant& tenant);
  Tenant* OfSession(uint64_t session);

  Machine& machine_;
  Tenants& tenants_;
  Monitor& monitor_;
  EventLog& events_;
  EventLoop& loop_;
  const Clock& clock_;
  LeaseSettings settings_;
  const core::Policy& policy_;
  Store store_;
  core::Queue queue_;
  std::map<uint64_t, Waiter> waiters_;  // by the request's id
  uint64_t next_request_ = 1;
  std::vector<std::pair<std::string, std::string>> waiting_rows_;  // of the store: their GPU is not there
  bool schedule_posted_ = false;
  bool taken_over_ = false;  // the store's rows of before this daemon were read
};

}  // namespace gpumux::daemon
