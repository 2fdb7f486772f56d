// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gpumux::probe {

// Before the first call of the driver: faults of this process come from a file of
// its own.
void OpenFaults();
// Puts `rules` in force, "" for none.
void SetFault(const std::string& rules);

// The rules that make the driver's `hook` fail, one with each code.
std::vector<std::string> OwnFaults(const std::string& hook);
// The rules that make another function fail that the guard may call while it
// serves `hook`.
std::vector<std::string> InnerFaults(const std::string& hook, const std::string& code);
// Whether the guard cannot know beforehand what some calls will take under these
// rules; it charges then what they took.
bool HidesTheNeed(const std::string& rules);

}  // namespace gpumux::probe
