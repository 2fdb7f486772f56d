// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/endpoints.h"
#include "cli/supervise.h"
#include "ipc/session_client.h"

namespace gpumux::cli {

// The session of a `run` whose program runs, through the deaths of daemons: it
// finds the next one and resumes the lease there (docs/design/takeover.md). The
// user's own daemon is started again when nobody else does. One thread.
class DaemonLink : public Companion {
 public:
  // `locks` are those that came with the grant; they stay the caller's.
  DaemonLink(ipc::SessionClient session, Endpoints endpoints, std::string tenant_id, std::vector<int> locks);

  void SetProgram(pid_t pid) { pid_ = pid; }
  // False: nobody is there to be told.
  bool SendStarted(const std::string& json);
  // Until a daemon has noted it: looks for one for a moment, if there is none. False: none has.
  bool SendEnded(const std::string& json);
  // Of the daemon's record what has come already.
  std::optional<std::string> TakeEarlySummary() { return std::exchange(summary_, std::nullopt); }
  // Null while there is no daemon.
  ipc::SessionClient* session() { return session_ ? &*session_ : nullptr; }

  int fd() const override { return session_ ? session_->fd() : -1; }
  void OnReadable() override;
  void OnTick() override;

 private:
  void Lost();
  void ComeBack();
  bool IsNoted();

  std::optional<ipc::SessionClient> session_;
  Endpoints endpoints_;
  std::string home_;  // session socket of the daemon that granted the lease
  std::string tenant_id_;
  std::vector<int> locks_;
  std::optional<pid_t> pid_;
  std::optional<std::string> summary_;
  bool own_daemon_ = false;  // it was the user's, which ends with its last tenant and has no other starter
  bool unknown_ = false;     // the daemon that is there knows nothing of this lease
  std::chrono::steady_clock::time_point start_after_{}, ask_again_{};
};

}  // namespace gpumux::cli
