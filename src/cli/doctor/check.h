// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/doctor/environment.h"

namespace gpumux::cli::doctor {

// What a check found. kFail: gpumux or its tenants do not work like this.
// kWarn: something surprises sooner or later. kSkip: there is nothing to look at
// here. kError: the check itself could not look.
enum class Status { kOk, kWarn, kFail, kSkip, kError };

struct Verdict {
  Status status = Status::kOk;
  std::string evidence;  // what was seen, one line
  std::string fix;       // a command, or the start of a way; empty when there is nothing to do
};

inline Verdict Ok(std::string evidence) { return {Status::kOk, std::move(evidence), ""}; }
inline Verdict Skip(std::string why) { return {Status::kSkip, std::move(why), ""}; }
inline Verdict Warn(std::string evidence, std::string fix) {
  return {Status::kWarn, std::move(evidence), std::move(fix)};
}
inline Verdict Bad(std::string evidence, std::string fix) {
  return {Status::kFail, std::move(evidence), std::move(fix)};
}
inline Verdict CannotTell(std::string why, std::string fix = "") {
  return {Status::kError, std::move(why), std::move(fix)};
}

// Looks at one thing, changes nothing. Ids are for good: scripts name them, and
// docs/guide/troubleshooting.md has a heading for each.
struct Check {
  const char* id;
  const char* group;
  const char* looks_at;
  Verdict (*run)(const Environment& environment);
};

// The groups, each in a file of its own.
std::span<const Check> DriverChecks();
std::span<const Check> GpuChecks();
std::span<const Check> DaemonChecks();
std::span<const Check> GuardChecks();
std::span<const Check> MpsChecks();
std::span<const Check> LimitChecks();
std::span<const Check> SystemChecks();
// About one process (Environment::pid).
std::span<const Check> ProcessChecks();

// Those about the machine, in the order in which they are shown.
std::vector<Check> MachineChecks();

}  // namespace gpumux::cli::doctor
