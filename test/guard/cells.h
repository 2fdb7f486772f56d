// SPDX-License-Identifier: Apache-2.0
//
// The cells that the probe makes (probe/table.cc), once as a tenant and once
// without gpumux, and what every cell has to show.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gpumux::test {

inline constexpr int kOutOfMemory = 2;
// What the software GPU says to functions that it has not; the guard refuses
// without asking.
inline constexpr int kNotBuilt = 801;
inline constexpr int64_t kDevicePage = 2 << 20;

using Cells = std::map<std::string, nlohmann::json>;

// The same cells, with the guard and without.
struct Both {
  Cells guarded, bare;
  // What the driver itself says in this cell's situation, with room.
  const nlohmann::json& Driver(nlohmann::json cell) const;
};

// Runs the probe with `args` under a promise that leaves whole pages beside one
// context, and bare.
Both RunBoth(const std::vector<std::string>& args);

int64_t Number(const nlohmann::json& cell, const char* name);

// Nothing was taken, charged or told.
void ExpectNothingMoved(const std::string& key, const nlohmann::json& cell);
// After everything was undone the figures are what they were.
void ExpectAllCameBack(const std::string& key, const nlohmann::json& cell);

// All that the guard asks the driver on its own account fails with `code`, one
// question at a time.
void ExpectInnerFaultsLoseNoByte(const std::string& code);
void ExpectFaultsFromTheStartGiveNothingAway(const std::string& code);

}  // namespace gpumux::test
