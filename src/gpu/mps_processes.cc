// SPDX-License-Identifier: Apache-2.0
#include "gpu/mps_processes.h"

#include <algorithm>
#include <string_view>

namespace gpumux::gpu {

namespace {

constexpr std::string_view kName = "nvidia-cuda-mps";
constexpr std::string_view kControl = "nvidia-cuda-mps-control";

MpsDaemon::Settings SettingsOf(const std::vector<std::string>& environment) {
  MpsDaemon::Settings settings{kDefaultMpsPipeDir, kDefaultMpsLogDir, std::nullopt};
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    const std::string_view name = std::string_view(entry).substr(0, equals);
    const std::string value = entry.substr(equals + 1);
    if (name == "CUDA_MPS_PIPE_DIRECTORY" && !value.empty()) settings.pipe_dir = value;
    if (name == "CUDA_MPS_LOG_DIRECTORY" && !value.empty()) settings.log_dir = value;
    if (name == "CUDA_VISIBLE_DEVICES") settings.visible = value;
  }
  return settings;
}

}  // namespace

bool HasNameOfMps(const ProcessStat& process) { return process.name == kName; }

std::vector<MpsDaemon> FindMpsDaemons(const std::string& proc_root) {
  std::vector<MpsDaemon> found;
  for (const pid_t pid : ListProcesses(proc_root)) {
    const auto stat = ReadProcessStat(pid, proc_root);
    if (!stat || !HasNameOfMps(*stat) || stat->state == 'Z') continue;
    const auto command = ReadCommandLine(pid, proc_root);
    const bool control = !command.empty() && command[0].ends_with(kControl);
    const auto has = [&](std::string_view option) {
      return std::find(command.begin(), command.end(), option) != command.end();
    };
    if (!control || (!has("-d") && !has("-f"))) continue;
    MpsDaemon daemon;
    daemon.pid = pid;
    daemon.every_user = has("-multiuser-server");
    if (const auto owner = ProcessOwner(pid, proc_root)) daemon.owner = *owner;
    // Nobody starts a program with nothing at all in its environment: then it may not be read.
    const auto environment = ReadEnvironment(pid, proc_root);
    if (!environment.empty()) daemon.settings = SettingsOf(environment);
    found.push_back(std::move(daemon));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.pid < b.pid; });
  return found;
}

}  // namespace gpumux::gpu
