// SPDX-License-Identifier: Apache-2.0
#include "cells.h"

#include <gtest/gtest.h>

#include <sstream>

#include "../support/sandbox.h"

namespace gpumux::test {

namespace {

// A context's cost is no multiple of the device's pages: with these bytes over 4 GiB
// what is left beside one context is.
constexpr int64_t kPromise = (int64_t{4} << 30) + 548995072 % kDevicePage;
// Many cells, and a busy machine.
constexpr std::chrono::seconds kLimit(200);
const std::string kProbe = Sandbox::TestProgram("guard_probe");

std::string Key(const nlohmann::json& cell) {
  std::string key = cell["hook"];
  for (const char* part : {"variant", "by", "room", "fault"}) {
    const std::string value = cell[part];
    if (!value.empty()) key += " / " + value;
  }
  return key + (cell["context"] ? "" : " / no context");
}

Cells Parse(const Outcome& o) {
  EXPECT_EQ(o.exit_code, 0) << o.err;
  Cells cells;
  std::istringstream lines(o.out);
  for (std::string line; std::getline(lines, line);) {
    auto cell = nlohmann::json::parse(line, nullptr, false);
    if (cell.is_discarded() || !cell.contains("hook")) {
      ADD_FAILURE() << "not a cell: " << line;
      continue;
    }
    const std::string key = Key(cell);
    EXPECT_TRUE(cells.emplace(key, std::move(cell)).second) << "twice: " << key;
  }
  return cells;
}

}  // namespace

const nlohmann::json& Both::Driver(nlohmann::json cell) const {
  cell["room"] = "within";
  return bare.at(Key(cell));
}

Both RunBoth(const std::vector<std::string>& args) {
  Both both;
  std::vector<std::string> argv = {kProbe};
  argv.insert(argv.end(), args.begin(), args.end());
  Sandbox box;
  std::vector<std::string> run = {"run", "--mem", std::to_string(kPromise / 1024) + "KiB", "--"};
  run.insert(run.end(), argv.begin(), argv.end());
  both.guarded = Parse(box.RunGpumux(run, kLimit));
  box.SetEnv("LD_LIBRARY_PATH", Sandbox::Program("../lib/gpumux/softgpu"));
  both.bare = Parse(box.Run(argv, kLimit));
  return both;
}

int64_t Number(const nlohmann::json& cell, const char* name) { return cell[name]; }

void ExpectNothingMoved(const std::string& key, const nlohmann::json& cell) {
  EXPECT_EQ(Number(cell, "taken"), 0) << key;
  EXPECT_EQ(Number(cell, "charged"), 0) << key;
  EXPECT_EQ(Number(cell, "told"), 0) << key;
}

void ExpectAllCameBack(const std::string& key, const nlohmann::json& cell) {
  EXPECT_EQ(Number(cell, "left_taken"), 0) << key;
  EXPECT_EQ(Number(cell, "left_charged"), 0) << key;
  EXPECT_EQ(Number(cell, "left_told"), 0) << key;
}

void ExpectInnerFaultsLoseNoByte(const std::string& code) {
  const Both both = RunBoth({"faults", "inner", code});
  ASSERT_GE(both.guarded.size(), 2000u);
  for (const auto& [key, cell] : both.guarded) {
    // The driver's own result, or a refusal; and never more taken than charged.
    const int drivers = both.Driver(cell)["code"];
    if (cell["code"] == kOutOfMemory) {
      ExpectNothingMoved(key, cell);
    } else {
      EXPECT_EQ(cell["code"], drivers) << key;
      EXPECT_EQ(Number(cell, "taken"), drivers == 0 ? Number(cell, "takes") : 0) << key;
      EXPECT_GE(Number(cell, "told"), drivers == 0 ? Number(cell, "charges") : 0) << key;
    }
    if (cell["room"] == "over" && drivers != kNotBuilt) {
      EXPECT_EQ(cell["code"], drivers == 0 ? kOutOfMemory : drivers) << key;
    }
    ExpectAllCameBack(key, cell);
  }
}

void ExpectFaultsFromTheStartGiveNothingAway(const std::string& code) {
  Sandbox box;
  const Outcome o = box.RunGpumux({"run", "--mem", "4GiB", "--", kProbe, "faults", "first", code});
  ASSERT_EQ(o.exit_code, 0) << o.out << o.err;
  std::istringstream lines(o.out);
  int processes = 0;
  for (std::string line; std::getline(lines, line); processes++) {
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["init"], 0) << line;
    EXPECT_NE(json["large"], 0) << line;
    EXPECT_LE(Number(json, "taken"), int64_t{4} << 30) << line;
    // All is well as soon as the driver answers.
    EXPECT_EQ(json["context"], 0) << line;
    EXPECT_EQ(json["small"], 0) << line;
    EXPECT_EQ(json["then"], kOutOfMemory) << line;
    EXPECT_GE(Number(json, "used"), Number(json, "own")) << line;
  }
  EXPECT_GT(processes, 30);
}

}  // namespace gpumux::test
