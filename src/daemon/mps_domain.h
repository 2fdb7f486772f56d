// SPDX-License-Identifier: Apache-2.0
//
// One control daemon of MPS, its server, and the GPUs that they share
// (docs/design/mps.md).
//
//   starting ──▶ active ◀──▶ recovering      (a client's fault, or the server's death)
//      │           │  └──────▶ silent        (the control daemon does not answer)
//      │ failed    ▼
//      └───────▶ ending ──▶ gone
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "daemon/mps_control.h"
#include "daemon/mps_record.h"
#include "daemon/tenant.h"
#include "gpu/uuid.h"

namespace gpumux::daemon {

class MpsDomain {
 public:
  enum class State { kStarting, kActive, kRecovering, kSilent, kEnding, kGone };

  struct Place {
    std::string dir;  // its own; with its record and, unless it is adopted, `pipe` and `log`
    bool for_everyone = false;
  };

  MpsDomain(EventLoop& loop, const Clock& clock, const MpsPrograms& programs, Place place, MpsRecord record);
  ~MpsDomain();

  // Told each change, from the loop: what `state` says then.
  std::function<void()> on_change;
  // The server's clients have an error for good: by a fault on the GPU, or by the server's death.
  std::function<void(bool fault)> on_lost_work;

  // Starts it, or takes over one that answers in this place: of an adopted one that is the
  // only way. The directory and its record are made here.
  void Start();
  // A domain that failed to start ends, and this says why.
  const std::optional<Error>& failure() const { return failure_; }

  // Asks for the server's state now; `answered` once that, and what follows from it, is known.
  void AskNow(std::function<void()> answered);
  // Looks after it; once a second.
  void Tick();
  // Ends daemon and server, with the clients that are left. An adopted one is let go: it is
  // somebody else's, and goes on.
  void End();
  // Whether it stays without tenants, and its GPUs' compute mode. In its record too.
  Status Keep(bool kept, bool exclusive);
  // The clients that the server has now: asks, and calls back.
  void AskClients(std::function<void(Result<std::set<pid_t>>)> answer);
  // The server ends the client's work; it may be killed then. Calls back when
  // that is done or cannot be.
  void TerminateClient(pid_t pid, std::function<void(Status)> done);

  State state() const { return state_; }
  // Why nobody new can start just now; empty: they can.
  std::string NotNow() const;
  const MpsRecord& record() const { return record_; }
  const std::vector<gpu::Uuid>& gpus() const { return record_.gpus; }
  bool Serves(const gpu::Uuid& gpu) const { return record_.Serves(gpu); }
  pid_t server_pid() const { return server_ ? server_->pid : 0; }
  pid_t daemon_pid() const { return daemon_ ? daemon_->pid : 0; }
  // The control daemon's, also while it was not heard of yet.
  pid_t control_pid() const { return daemon_ ? daemon_->pid : control_.DaemonPid(); }
  const std::string& dir() const { return place_.dir; }
  std::string PipeDirectory() const { return control_.pipe_dir(); }
  std::string LogDirectory() const { return control_.log_dir(); }
  unsigned faults() const { return faults_; }
  unsigned server_deaths() const { return server_deaths_; }

 private:
  // A process that is not our child, until its end.
  struct Watched {
    pid_t pid = 0;
    UniqueFd pidfd;
    EventLoop::Watch death;
  };

  bool IsOver() const { return state_ == State::kEnding || state_ == State::kGone; }
  void Set(State state);
  void Fail(const Error& error);
  Status MakeDirectories() const;
  void StartDaemon();
  void StartServer();
  void FindServer();
  void AskState();
  void TookState(const Result<std::string>& answer);
  void Await(void (MpsDomain::*step)());
  std::optional<Watched> Watch(pid_t pid, void (MpsDomain::*died)());
  void ServerDied();
  void DaemonDied();
  void Silent();
  void Kill();
  // Whether the server's log tells of a fault since it was looked at last.
  bool LogTellsOfFault();
  void Faulted();

  EventLoop& loop_;
  const Clock& clock_;
  const MpsPrograms& programs_;
  Place place_;
  MpsRecord record_;
  MpsControl control_;
  State state_ = State::kStarting;
  std::optional<Error> failure_;
  std::optional<Watched> daemon_, server_;
  std::optional<Time> deadline_;  // of what is awaited
  EventLoop::Watch step_;
  bool asking_ = false;
  uint64_t log_read_ = 0;
  Time asked_at_{};
  std::optional<Time> fault_at_;
  unsigned faults_ = 0, server_deaths_ = 0;
};

std::string_view Name(MpsDomain::State state);

}  // namespace gpumux::daemon
