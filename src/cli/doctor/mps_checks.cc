// SPDX-License-Identifier: Apache-2.0
//
// What NVIDIA's MPS leaves behind: a program that finds an MPS daemon becomes
// its client, and one that is told of a daemon that is not there goes on without
// a word and without the limits that it was given.
#include <fmt/format.h>
#include <sys/stat.h>

#include "base/process.h"
#include "cli/doctor/check.h"
#include "cli/doctor/files.h"
#include "cli/terminal.h"

namespace gpumux::cli::doctor {
namespace {

constexpr const char* kDefaultPipeDir = "/tmp/nvidia-mps";
// Of nvidia-cuda-mps-control and nvidia-cuda-mps-server: a process's name has 15 characters.
constexpr const char* kProcessName = "nvidia-cuda-mps";

// One that gpumux started: its pipe directory has a file beside it that names its GPUs.
bool IsOfGpumux(const Environment& environment, pid_t pid) {
  constexpr std::string_view kKey = "CUDA_MPS_PIPE_DIRECTORY=";
  for (const std::string& entry : ReadEnvironment(pid, environment.Proc())) {
    if (!entry.starts_with(kKey)) continue;
    const std::string dir = entry.substr(kKey.size());
    return dir.ends_with("/pipe") && Exists(environment.At(dir.substr(0, dir.rfind('/')) + "/gpus"));
  }
  return false;
}

// Those of other users first: they are in the way of everybody.
std::optional<pid_t> RunningMps(const Environment& environment) {
  std::optional<pid_t> own;
  for (const pid_t pid : ListProcesses(environment.Proc())) {
    const auto stat = ReadProcessStat(pid, environment.Proc());
    if (!stat || stat->name != kProcessName || stat->state == 'Z' || IsOfGpumux(environment, pid)) continue;
    const auto owner = ProcessOwner(pid, environment.Proc());
    if (owner && *owner != environment.uid) return pid;
    if (!own) own = pid;
  }
  return own;
}

std::string PipeDir(const Environment& environment) {
  const std::string named = environment.Variable("CUDA_MPS_PIPE_DIRECTORY").value_or("");
  return named.empty() ? environment.At(kDefaultPipeDir) : named;
}

Verdict Daemon(const Environment& environment) {
  const auto pid = RunningMps(environment);
  if (!pid) return Ok("no MPS daemon runs but those of gpumux");
  const auto owner = ProcessOwner(*pid, environment.Proc());
  if (owner && *owner != environment.uid)
    return Warn(fmt::format("an MPS daemon of uid {} runs (pid {}): programs of another user wait until its "
                            "clients are gone, "
                            "and gpumux does not manage it",
                            *owner, *pid),
                fmt::format("sudo -u '#{}' sh -c 'echo quit | nvidia-cuda-mps-control'", *owner));
  return Warn(
      fmt::format(
          "an MPS daemon runs (pid {}): programs become its clients, share each other's faults, and gpumux "
          "does not manage it",
          *pid),
      "echo quit | nvidia-cuda-mps-control");
}

Verdict PipeDirectory(const Environment& environment) {
  const std::string dir = PipeDir(environment);
  if (!Exists(dir)) return Ok("no pipe directory is left");
  if (RunningMps(environment)) return Ok(dir + " is in use");
  if (Entries(dir).empty()) return Ok(dir + " is empty");
  return Warn(fmt::format("{} is left, and no MPS daemon runs", Plain(dir, 160)), "rm -r " + dir);
}

Verdict Variables(const Environment& environment) {
  const std::string dir = environment.Variable("CUDA_MPS_PIPE_DIRECTORY").value_or("");
  const bool runs = RunningMps(environment).has_value();
  if (!dir.empty() && (!Exists(dir) || !runs))
    return Warn(
        fmt::format("CUDA_MPS_PIPE_DIRECTORY is {}, where {}: programs run without MPS and without a word",
                    Plain(dir, 160), Exists(dir) ? "no daemon listens" : "there is nothing"),
        "unset CUDA_MPS_PIPE_DIRECTORY");
  for (const char* name : {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"}) {
    if (environment.Variable(name) && !runs)
      return Warn(fmt::format("{} is set, and no MPS daemon runs: it limits nothing", name),
                  fmt::format("unset {}", name));
  }
  return Ok(dir.empty() ? "none is set" : "CUDA_MPS_PIPE_DIRECTORY names a daemon that runs");
}

}  // namespace

std::span<const Check> MpsChecks() {
  static constexpr Check kChecks[] = {
      {"mps-daemon", "mps", "an MPS daemon that gpumux did not start", Daemon},
      {"mps-pipe-dir", "mps", "a pipe directory of a daemon that has gone", PipeDirectory},
      {"mps-variables", "mps", "CUDA_MPS_* variables that lead nowhere", Variables},
  };
  return kChecks;
}

}  // namespace gpumux::cli::doctor
