// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace gpumux::daemon {

// What systemd, or whoever speaks its two small protocols, gave this process:
// sockets that it listens on already (sd_listen_fds(3)), and a place to say how
// we are (sd_notify(3)). Without it everything here does nothing.
//
// Both protocols are documented and stable; a library for them would be one
// more that a program must find on every distribution.
class ServiceManager {
 public:
  // Reads the environment, and takes its variables out of it: our children are
  // not the service. `listen_fds_start` is for tests.
  static ServiceManager FromEnvironment(int listen_fds_start = 3);

  // The socket that was passed under `name`, if it listens and has this type;
  // an invalid one if none was. kInvalid: it is another kind of socket.
  Result<UniqueFd> TakeSocket(const std::string& name, int type);

  // "READY=1", "STATUS=...", "STOPPING=1", "WATCHDOG=1".
  void Notify(const std::string& state) const;
  // How often WATCHDOG=1 is to be said at least; nullopt: nobody waits for it.
  std::optional<std::chrono::nanoseconds> watchdog() const { return watchdog_; }
  // It opened them, with the rights that it was told.
  bool has_sockets() const { return !sockets_.empty(); }

 private:
  std::multimap<std::string, UniqueFd> sockets_;
  std::string notify_path_;
  std::optional<std::chrono::nanoseconds> watchdog_;
};

}  // namespace gpumux::daemon
