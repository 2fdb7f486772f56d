// SPDX-License-Identifier: Apache-2.0
//
// Every hooked way to memory in every situation: found by name and by
// cuGetProcAddress, with a current context and without, within, at and over the
// promise, and with the driver failing. The probe makes the cells (probe/table.cc),
// once as a tenant and once without gpumux; this says what they have to show.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

constexpr int kOutOfMemory = 2;
// What the software GPU says to functions that it has not; the guard refuses
// without asking.
constexpr int kNotBuilt = 801;
const std::string kProbe = Sandbox::TestProgram("guard_probe");

constexpr const char* kHooks[] = {
#define GPUMUX_HOOK(name, params) #name,
#include "guard/hooks.inc"
#undef GPUMUX_HOOK
};

// Hooks that neither take nor map nor give back device memory.
const std::map<std::string, std::string> kNoMemory = {
    {"cuInit", "attaches to the daemon; the process has no context yet"},
    {"cuGetProcAddress", "a look-up"},
    {"cuGetProcAddress_v2", "a look-up"},
    {"cuMemGetInfo", "a question"},
    {"cuMemGetInfo_v2", "a question"},
    {"cuDeviceTotalMem", "a question"},
    {"cuDeviceTotalMem_v2", "a question"},
    {"cuLaunchCooperativeKernelMultiDevice", "counted; gone from CUDA 13"},
};

using Cells = std::map<std::string, nlohmann::json>;

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

// The same cells, with the guard and without.
struct Both {
  Cells guarded, bare;
  // What the driver itself says in this cell's situation, with room.
  const nlohmann::json& Driver(nlohmann::json cell) const {
    cell["room"] = "within";
    return bare.at(Key(cell));
  }
};

Both RunBoth(const std::vector<std::string>& args) {
  Both both;
  std::vector<std::string> argv = {kProbe};
  argv.insert(argv.end(), args.begin(), args.end());
  Sandbox box;
  std::vector<std::string> run = {"run", "--mem", "4GiB", "--"};
  run.insert(run.end(), argv.begin(), argv.end());
  both.guarded = Parse(box.RunGpumux(run));
  box.SetEnv("LD_LIBRARY_PATH", Sandbox::Program("../lib/gpumux/softgpu"));
  both.bare = Parse(box.Run(argv));
  return both;
}

int64_t Number(const nlohmann::json& cell, const char* name) { return cell[name]; }

// Nothing was taken, charged or told.
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

class GuardTable : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { both_ = new Both(RunBoth({"table"})); }
  static void TearDownTestSuite() { delete both_; }
  static Both* both_;
};
Both* GuardTable::both_ = nullptr;

TEST_F(GuardTable, EveryHookHasARowOrAReason) {
  std::set<std::string> rows;
  for (const auto& [key, cell] : both_->guarded) rows.insert(cell["hook"]);
  for (const std::string hook : kHooks) {
    EXPECT_NE(rows.contains(hook), kNoMemory.contains(hook))
        << hook << ": needs a row in test/guard/probe/rows_*.cc or a reason in kNoMemory, and not both";
  }
}

TEST_F(GuardTable, EveryRowIsFoundBothWaysInEverySituation) {
  std::map<std::string, int> cells;
  for (const auto& [key, cell] : both_->guarded)
    cells[cell["hook"].get<std::string>() + " / " + cell["variant"].get<std::string>()]++;
  for (const auto& [row, count] : cells) EXPECT_TRUE(count == 8 || count == 12) << row << ": " << count;
}

TEST_F(GuardTable, AnswersAreTheDriversOwnUnlessThePromiseIsExceeded) {
  for (const auto& [key, cell] : both_->guarded) {
    const int drivers = both_->Driver(cell)["code"];
    const bool refused = drivers == 0 || (drivers == kNotBuilt && cell["context"]);
    if (refused && cell["room"] == "over") {
      EXPECT_EQ(cell["code"], kOutOfMemory) << key;
      EXPECT_FALSE(cell["wrote"]) << key;
    } else {
      EXPECT_EQ(cell["code"], drivers) << key;
      EXPECT_EQ(cell["wrote"], both_->Driver(cell)["wrote"]) << key;
    }
  }
}

TEST_F(GuardTable, ChargesWhatTheDeviceTakes) {
  for (const auto& [key, cell] : both_->guarded) {
    if (cell["code"] != 0) {
      ExpectNothingMoved(key, cell);
      continue;
    }
    EXPECT_EQ(Number(cell, "taken"), Number(cell, "takes")) << key;
    EXPECT_EQ(Number(cell, "charged"), cell["by_daemon"] ? 0 : Number(cell, "charges")) << key;
    EXPECT_EQ(Number(cell, "told"), Number(cell, "charges")) << key;
  }
}

TEST_F(GuardTable, EverythingComesBack) {
  for (const auto& [key, cell] : both_->guarded) ExpectAllCameBack(key, cell);
}

TEST_F(GuardTable, ARefusalIsNotTheLastWord) {
  // The same call with room, right after the refusal.
  for (const auto& [key, cell] : both_->guarded) {
    EXPECT_EQ(cell["then"], both_->Driver(cell)["then"]) << key;
  }
}

// --- the driver fails (pitfalls B13, B18) -------------------------------------------

TEST(GuardFaults, OfTheCallItselfAreTheDriversOwnAndChargeNothing) {
  const Both both = RunBoth({"faults", "own"});
  ASSERT_GE(both.guarded.size(), 300u);
  for (const auto& [key, cell] : both.guarded) {
    const std::string fault = cell["fault"];
    EXPECT_EQ(cell["code"], std::stoi(fault.substr(fault.rfind(' ') + 1))) << key;
    EXPECT_EQ(cell["code"], both.Driver(cell)["code"]) << key;
    EXPECT_EQ(cell["wrote"], both.Driver(cell)["wrote"]) << key;
    ExpectNothingMoved(key, cell);
    EXPECT_EQ(cell["then"], both.Driver(cell)["then"]) << key;
    ExpectAllCameBack(key, cell);
  }
}

TEST(GuardFaults, OfWhatTheGuardAsksMeanwhileLoseNoByte) {
  const Both both = RunBoth({"faults", "inner"});
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

}  // namespace
}  // namespace gpumux::test
