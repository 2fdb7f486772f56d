// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/cpu_binding.h"
#include "cli/run_options.h"

namespace gpumux::cli {

// The JSON payloads of `run`'s side of the session (gpumux/abi/session.h).

// `after`: the tenant that it was, of a program that is started again.
std::string RunRequestJson(const RunOptions& options, const std::string& cwd, const std::string& after = "");
std::string RunResumeJson(const std::string& tenant_id, std::optional<int> pid);
std::string RunStartedJson(int pid);
// Exactly one of the two is set.
std::string RunEndedJson(std::optional<int> exit_code, std::optional<int> signal);

struct Queued {
  unsigned position = 0;  // 1: the next one
  std::string reason;
  std::optional<std::chrono::system_clock::time_point> starts_by;  // at the latest
  std::vector<std::string> holders;                                // "train (t-1a2b): 40.0 GiB"
};
Result<Queued> ParseQueued(const std::string& json);
// One line for people: "waiting: needs ...; 1 ahead; starts in 12m0s at the latest; held by ...".
std::string QueuedLine(const Queued& queued, std::chrono::system_clock::time_point now);

struct Granted {
  std::string tenant_id;
  std::string name;
  std::string mode;
  bool simulated = false;
  double waited_seconds = 0;
  struct Gpu {
    std::string uuid, name;
    std::string label;  // "0", or "0:2" an instance
    uint64_t guaranteed_bytes = 0;
    std::optional<uint64_t> limit_bytes;
  };
  std::vector<Gpu> gpus;
  NearGpu near;
  std::map<std::string, std::string> env;
  std::map<std::string, std::string> env_prepend;
};
// kInternal when the daemon's answer is not what the protocol says.
Result<Granted> ParseGranted(const std::string& json);
std::string GrantedLine(const Granted& granted);

}  // namespace gpumux::cli
