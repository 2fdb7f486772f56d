// SPDX-License-Identifier: Apache-2.0
#include "daemon/gpu_descriptor.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace gpumux::daemon {

namespace {

constexpr unsigned kNvidiaMajor = 195;

std::string LinkOf(int fd) {
  char link[512];
  const ssize_t length = ::readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), link, sizeof link);
  return length > 0 ? std::string(link, static_cast<size_t>(length)) : std::string();
}

}  // namespace

std::set<unsigned> NvidiaMajors(const std::string& proc_devices) {
  std::set<unsigned> majors = {kNvidiaMajor};
  std::istringstream lines(proc_devices);
  bool character = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with("devices:")) character = line.starts_with("Character");
    std::istringstream words(line);
    unsigned major = 0;
    std::string name;
    if (character && words >> major >> name && name.starts_with("nvidia")) majors.insert(major);
  }
  return majors;
}

bool IsOfGpu(int fd, bool simulated) {
  struct stat stat{};
  if (::fstat(fd, &stat) != 0) return false;
  if (simulated) return S_ISFIFO(stat.st_mode) && LinkOf(fd).find("/dev/nvidia") != std::string::npos;
  if (!S_ISCHR(stat.st_mode)) return false;
  // Read again each time: a module may have been loaded since.
  std::ifstream devices("/proc/devices");
  std::ostringstream text;
  text << devices.rdbuf();
  return NvidiaMajors(text.str()).contains(major(stat.st_rdev));
}

}  // namespace gpumux::daemon
