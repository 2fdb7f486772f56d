// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace gpumux {

// One line of /proc/PID/stat. (pid, start_time) names a process for good: a pid
// alone is reused.
struct ProcessStat {
  pid_t pid = 0;
  pid_t parent = 0;
  char state = '?';         // 'Z': dead, not yet reaped
  uint64_t start_time = 0;  // clock ticks since boot
  std::string name;         // at most 15 characters; the process chooses it
};

// kNotFound when there is no such process (any more). `proc_root` is for tests.
Result<ProcessStat> ReadProcessStat(pid_t pid, const std::string& proc_root = "/proc");

// The parser behind it; `line` may be anything.
Result<ProcessStat> ParseProcessStat(std::string_view line);

// The text of /proc/PID/status; kNotFound as above.
Result<std::string> ReadProcessStatus(pid_t pid, const std::string& proc_root = "/proc");

// argv of a process; empty for a kernel thread, a zombie, or one we may not see.
std::vector<std::string> ReadCommandLine(pid_t pid, const std::string& proc_root = "/proc");

// "NAME=value" of a process, as it was when it was executed; empty as above.
// Of a large environment the first 256 KiB.
std::vector<std::string> ReadEnvironment(pid_t pid, const std::string& proc_root = "/proc");

// Every pid of /proc, in no order. For walking a process tree.
std::vector<pid_t> ListProcesses(const std::string& proc_root = "/proc");

// Whose process it is: its real user, who started it and may signal it. (The
// effective one, and the owner of its folder in /proc, are those of a set-user-id
// program's file.) kNotFound as above.
Result<uid_t> ProcessOwner(pid_t pid, const std::string& proc_root = "/proc");

// A descriptor that becomes readable when the process ends. kNotFound as above,
// kUnsupported on kernels before 5.3.
Result<UniqueFd> OpenPidfd(pid_t pid);

// The folder of the running program, from /proc/self/exe.
Result<std::string> ExecutableDir();

}  // namespace gpumux
