// SPDX-License-Identifier: Apache-2.0
//
// The system around: what keeps gpumux from seeing processes, and a kernel or a
// clock that it cannot work with.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <filesystem>

#include "cli/doctor/check.h"
#include "cli/doctor/files.h"
#include "cli/terminal.h"
#include "config/sources.h"

namespace gpumux::cli::doctor {
namespace {

// pidfd_open, by which every process is watched, came with 5.3.
constexpr const char* kOldestKernel = "5.3";
// The name of the first pid namespace: the kernel gives it this number for good.
constexpr const char* kFirstPidNamespace = "pid:[4026531836]";
// Before any gpumux was built.
constexpr std::chrono::sys_days kEarliest = std::chrono::year(2026) / std::chrono::January / 1;

Verdict Kernel(const Environment& environment) {
  const std::string release = Plain(ReadText(environment.At("/proc/sys/kernel/osrelease")).value_or(""), 80);
  const std::string version = VersionIn(release);
  if (version.empty()) return CannotTell("the kernel does not say its release");
  if (OlderThan(version, kOldestKernel))
    return Bad(fmt::format("Linux {}, and gpumux needs {} or later", version, kOldestKernel),
               "boot a newer kernel");
  return Ok("Linux " + version);
}

Verdict HidePid(const Environment& environment) {
  for (const std::string& line : Split(ReadText(environment.At("/proc/self/mounts")).value_or(""), '\n')) {
    const auto words = Split(line, ' ');
    if (words.size() < 4 || words[1] != "/proc" || words[2] != "proc") continue;
    for (const std::string& option : Split(words[3], ',')) {
      if (!option.starts_with("hidepid=") || option == "hidepid=0" || option == "hidepid=off") continue;
      if (environment.uid == 0) return Ok(option + ", which root is not held to");
      return Warn(fmt::format("/proc is mounted with {}: processes of other users on the GPU cannot be named",
                              option),
                  "sudo mount -o remount,hidepid=0 /proc, or use the daemon of the machine");
    }
  }
  return Ok("processes of all users can be seen");
}

Verdict PidNamespace(const Environment& environment) {
  std::error_code error;
  const auto link = std::filesystem::read_symlink(environment.At("/proc/self/ns/pid"), error);
  if (error) return CannotTell("/proc/self/ns/pid: " + error.message());
  if (link == kFirstPidNamespace) return Ok("that of the machine");
  if (environment.gpus().simulated()) return Ok("one of its own; the software GPU does not mind");
  return Warn(
      "this is a pid namespace of its own (a container): NVML does not name the processes outside of it",
      "start the container with --pid=host, or run gpumuxd outside");
}

// Files and variables; those of the machine also as its daemon reads them.
Verdict Configuration(const Environment& environment) {
  const config::Surroundings surroundings{
      .variable = [&environment](const char* name) -> const char* {
        const auto found = environment.variables.find(name);
        return found == environment.variables.end() ? nullptr : found->second.c_str();
      },
      .system_dir = environment.At("/etc/gpumux")};
  for (const config::Reader reader : {config::Reader::kUser, config::Reader::kMachineDaemon}) {
    const bool machine = reader == config::Reader::kMachineDaemon;
    if (machine && !Exists(surroundings.system_dir)) continue;
    const auto loaded = config::Load(reader, surroundings);
    if (loaded.problems.empty()) continue;
    return Bad(Plain(loaded.problems.front().ToString(), 400),
               machine ? "gpumux config check --machine" : "gpumux config check");
  }
  const auto files = config::Load(config::Reader::kUser, surroundings).files;
  return Ok(files.empty()
                ? "there is no file; everything has its default"
                : fmt::format("{} file{} read, nothing wrong", files.size(), files.size() == 1 ? "" : "s"));
}

Verdict Clock(const Environment& environment) {
  const auto day = std::chrono::floor<std::chrono::days>(environment.now);
  if (day < kEarliest)
    return Warn(
        fmt::format("the clock says {:%Y-%m-%d}: dates in reports and logs are wrong (promises are not, they "
                    "go by the time since boot)",
                    environment.now),
        "sudo timedatectl set-ntp true");
  return Ok(fmt::format("{:%Y-%m-%d}", environment.now));
}

}  // namespace

std::span<const Check> SystemChecks() {
  static constexpr Check kChecks[] = {
      {"system-kernel", "system", "the kernel is new enough", Kernel},
      {"system-hidepid", "system", "processes of other users can be seen", HidePid},
      {"system-pid-namespace", "system", "NVML's pids are those of this place", PidNamespace},
      {"system-config", "system", "configuration files and variables are right", Configuration},
      {"system-clock", "system", "the clock is set", Clock},
  };
  return kChecks;
}

std::vector<Check> MachineChecks() {
  std::vector<Check> all;
  for (const auto& group : {DriverChecks(), GpuChecks(), DaemonChecks(), GuardChecks(), MpsChecks(),
                            LimitChecks(), SystemChecks()})
    all.insert(all.end(), group.begin(), group.end());
  return all;
}

}  // namespace gpumux::cli::doctor
