// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/result.h"
#include "tui/model.h"
#include "tui/view.h"

namespace gpumux::tui {

// What is asked of a daemon. The commands implement it over the daemon's API;
// one thread at a time. No call takes longer than a few seconds.
class Daemon {
 public:
  virtual ~Daemon() = default;
  // The bodies of GET /v1/status and of GET /v1/events. kUnavailable: no daemon answers.
  virtual Result<std::string> AskStatus() = 0;
  virtual Result<std::string> AskEvents(uint64_t after) = 0;
  // As AskStatus, as far as NVML alone can tell.
  virtual Result<std::string> AskNvml() = 0;
  // `value` as it was typed.
  virtual Status Stop(const std::string& tenant) = 0;
  virtual Status SetMemory(const std::string& tenant, const std::string& value) = 0;
  virtual Status SetTime(const std::string& tenant, const std::string& value) = 0;
};

// What was learned at one time.
struct Update {
  Result<Sample> sample = Sample{};
  std::optional<EventsSample> events;
  std::string lost;  // no daemon answers: why, and whose the figures are
  Model::Time at{};
};
Update Gather(Daemon& daemon, uint64_t events_after);
void Apply(Update update, Model& model);

// One line on what came of it.
std::string CarryOut(Daemon& daemon, const Action& action);

}  // namespace gpumux::tui
