// SPDX-License-Identifier: Apache-2.0
#include "softgpu/mps/log.h"

#include <unistd.h>

#include <cstdio>
#include <ctime>

namespace gpumux::softgpu::mps {

void Log::Write(const char* who, pid_t pid, const std::string& text) const {
  if (fd_ < 0) return;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  tm local;
  localtime_r(&now.tv_sec, &local);
  char head[80], date[32];
  strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", &local);
  snprintf(head, sizeof(head), "[%s.%03ld %s %5d] ", date, now.tv_nsec / 1'000'000, who,
           static_cast<int>(pid));
  const std::string line = head + text + "\n";
  [[maybe_unused]] const ssize_t n = write(fd_, line.data(), line.size());
}

}  // namespace gpumux::softgpu::mps
