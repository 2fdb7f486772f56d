// SPDX-License-Identifier: Apache-2.0
//
// What the tests of failures have in common: tenants that notice whatever
// happens to them, and what has to be true when all is over.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "../support/sandbox.h"

namespace gpumux::test {

inline constexpr uint64_t kGiB = 1ull << 30;

// A tenant of 8 GiB that takes and frees `bytes` over and over, and checks what
// it reads back, until the file `stop` is there. Any refusal makes it fail.
Process Survivor(Sandbox& box, const std::string& name, uint64_t bytes, const std::string& stop);
// It has its memory for the first time, and a guard in force, which says how much it was
// `promised`; false, with a failure, if it never does.
bool Works(Process& survivor, uint64_t promised = 8 * kGiB);

// `gpumux status`, while daemons die: {} when none answered.
nlohmann::json Status(Sandbox& box);
// One of its lists, "gpus" or "tenants"; empty without an answer.
nlohmann::json StatusList(Sandbox& box, const std::string& key);
// Of the first GPU, of what `Status` says; null without an answer.
nlohmann::json Gpu(Sandbox& box, const std::string& key);
// Every tenant's id, by name, of those that are not over.
std::map<std::string, std::string> Tenants(Sandbox& box);

// A daemon that is not `not_this_daemon` has exactly these tenants, and can
// promise what is left of the GPU.
bool IsWhole(Sandbox& box, pid_t not_this_daemon, const std::map<std::string, std::string>& tenants);
// The ledger and NVML agree that nothing is left of anybody.
void ExpectEverythingFree(Sandbox& box);

// The daemon's log so far.
std::string DaemonLog(Sandbox& box);
void Touch(const std::string& path);

}  // namespace gpumux::test
