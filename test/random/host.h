// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "../support/sandbox.h"

namespace gpumux::test {

// The test's end of the wires to actors (actor.cc), the processes that do with
// the driver what they are told, and to a process without a guard that reads
// NVML. For one sandbox.
class Host {
 public:
  explicit Host(Sandbox& box);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  static std::string ActorProgram();

  struct Connection {
    int fd = -1;
    pid_t pid = 0;
  };
  // The next actor that comes, which must be `pid` if that is not 0; nullopt:
  // none, or another (a failure of the test).
  std::optional<Connection> Accept(pid_t pid = 0);
  void Send(int fd, const std::string& line);
  // Empty: the process ended.
  std::string Receive(int fd);
  std::string Ask(int fd, const std::string& line);
  // The driver's code, or -1.
  int Do(int fd, const std::string& line);

  // NVML's figure of each process on the first GPU.
  std::map<pid_t, uint64_t> Nvml();
  // `data` of the daemon's status; null when it does not answer.
  nlohmann::json Status();
  // The tenant of this name in it; null if there is none.
  nlohmann::json Tenant(const std::string& name);

 private:
  Sandbox& box_;
  std::string path_;
  int listener_ = -1;
  std::optional<Process> watcher_;
  int watch_fd_ = -1;
};

}  // namespace gpumux::test
