// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpumux::daemon {

// Other processes' pids as one process, the viewer, knows them: in a pid
// namespace of its own a process has another pid than outside, and does not see
// those outside at all.
//
//   /proc/PID/status:  NSpid: 4711 12 1     outermost (the daemon's) first
//                             │    │  └ in its own namespace
//                             │    └ in the one around it
//                             └ what NVML answers
class PidView {
 public:
  // `proc_root` is for tests.
  explicit PidView(pid_t viewer, std::string proc_root = "/proc");

  // nullopt: gone, not visible to the viewer, or whether it is cannot be told
  // (the namespaces of another user's process are not ours to read).
  std::optional<pid_t> Of(pid_t pid) const;

 private:
  struct Namespace {
    dev_t device = 0;
    ino_t inode = 0;
    bool operator==(const Namespace&) const = default;
  };
  // The namespace `levels` above that of the process.
  std::optional<Namespace> NamespaceOf(pid_t pid, size_t levels) const;
  std::vector<pid_t> PidsOf(pid_t pid) const;

  std::string proc_root_;
  pid_t viewer_;
  size_t depth_ = 0;  // namespaces that the viewer is in, the daemon's first; 0: it is gone
  std::optional<Namespace> namespace_;
};

// The numbers of the NSpid line; empty for a text without one (kernels before 4.1).
std::vector<pid_t> ParseNsPids(std::string_view status);

}  // namespace gpumux::daemon
