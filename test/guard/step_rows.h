// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <map>
#include <sstream>
#include <string>

#include "../support/sandbox.h"

namespace gpumux::test {

// A step of guard_probe (probe/steps.h).
struct Row {
  int code;
  int64_t charged;  // by how much the told free memory fell
  int64_t taken;    // by how much the device's own figure rose
};
using Rows = std::map<std::string, Row>;

// The steps of one of the probe's sub-commands; `over` is more than the promise.
inline Rows RunSteps(Sandbox& box, const std::string& which, const std::string& mem, int64_t over) {
  const Outcome o = box.RunGpumux(
      {"run", "--mem", mem, "--", Sandbox::TestProgram("guard_probe"), which, std::to_string(over)});
  EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
  Rows rows;
  std::istringstream in(o.out);
  for (std::string line; std::getline(in, line);) {
    char name[128];
    Row row;
    if (sscanf(line.c_str(), "%127[^\t]\t%d\t%" SCNd64 "\t%" SCNd64, name, &row.code, &row.charged,
               &row.taken) == 4) {
      rows[name] = row;
    }
  }
  return rows;
}

}  // namespace gpumux::test
