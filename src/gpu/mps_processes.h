// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/process.h"

namespace gpumux::gpu {

// A control daemon of MPS that runs on this machine, whoever started it.
struct MpsDaemon {
  pid_t pid = 0;
  std::optional<uid_t> owner;
  bool every_user = false;  // its server is for the programs of all users
  // What it was started with. Only its owner and root can read that: nullopt else.
  struct Settings {
    std::string pipe_dir, log_dir;       // NVIDIA's own, where it was told none
    std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES
  };
  std::optional<Settings> settings;
};

inline constexpr const char* kDefaultMpsPipeDir = "/tmp/nvidia-mps";
inline constexpr const char* kDefaultMpsLogDir = "/var/log/nvidia-mps";

// Of control daemon and server: a process's name has 15 characters.
bool HasNameOfMps(const ProcessStat& process);

// All of them, by pid. A command that somebody gives to one (`echo quit | nvidia-cuda-mps-control`)
// is none. `proc_root` is for tests.
std::vector<MpsDaemon> FindMpsDaemons(const std::string& proc_root = "/proc");

}  // namespace gpumux::gpu
