// SPDX-License-Identifier: Apache-2.0
//
// What reads bytes of any origin, each with inputs that are right to start from.
#pragma once

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace gpumux::test {

struct FuzzTarget {
  const char* name;  // also of its folder in corpus/
  std::vector<std::string> (*seeds)();
  // Returns; what it must not do is crash, throw, hang, or break a rule of its
  // own, which it says by abort().
  void (*run)(std::string_view input);
};

const std::vector<FuzzTarget>& FuzzTargets();

// For GoogleTest's list of tests.
inline void PrintTo(const FuzzTarget& target, std::ostream* out) { *out << target.name; }

}  // namespace gpumux::test
