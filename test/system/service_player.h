// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "ipc/seqpacket.h"

namespace gpumux::test {

// Plays systemd's part for one gpumuxd of the machine: opens its sockets, starts
// it with them, and hears what it says.
class ServicePlayer {
 public:
  // The runtime directory is made, as RuntimeDirectory= does.
  explicit ServicePlayer(std::string dir);
  ~ServicePlayer();

  const std::string& dir() const { return dir_; }
  std::string session() const { return dir_ + "/session.sock"; }
  std::string api() const { return dir_ + "/api.sock"; }

  // `mode` of both sockets.
  void OpenSockets(mode_t mode, int session_type, int api_type);
  void SetEnv(const std::string& key, const std::string& value) { env_[key] = value; }
  // With the capabilities of packaging/systemd/gpumuxd.service and no way to more.
  void Start(const std::string& gpumuxd, std::vector<std::string> arguments = {});
  // As the unit says: the process alone.
  void Kill(int signal) const;
  pid_t pid() const { return pid_; }
  // Its exit code, or 128 + the signal.
  int Wait();

  // The next that it says which starts with `prefix`; nullopt: nothing in that time.
  std::optional<std::string> Hear(const std::string& prefix,
                                  std::chrono::milliseconds limit = std::chrono::seconds(20));
  // Everything that was said until now is forgotten.
  void Forget();
  std::string Log() const;

 private:
  std::string dir_;
  ipc::UnixListener session_, api_;
  UniqueFd notify_;
  std::map<std::string, std::string> env_;
  pid_t pid_ = 0;
};

// CAP_... numbers that the unit file leaves, read from it.
std::vector<int> UnitCapabilities();

}  // namespace gpumux::test
