// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

namespace gpumux::softgpu::mps {

// control.log and server.log: lines as "[2026-05-31 23:46:49.893 Control 11107] text",
// in local time, appended whole.
class Log {
 public:
  explicit Log(int fd) : fd_(fd) {}
  // `who`: "Control", "Server", or "Other" for a server that does not serve yet.
  void Write(const char* who, pid_t pid, const std::string& text) const;

 private:
  int fd_;
};

}  // namespace gpumux::softgpu::mps
