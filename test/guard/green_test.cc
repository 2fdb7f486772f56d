// SPDX-License-Identifier: Apache-2.0
//
// Green contexts and contexts with several users, step by step as in families_test.cc.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "../support/sandbox.h"
#include "step_rows.h"

namespace gpumux::test {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kContext = 543162368;  // of an H200, own figure (docs/results)

class GreenContexts : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Sandbox box;
    rows_ = new Rows(RunSteps(box, "green", "8GiB", 0));
  }
  static void TearDownTestSuite() { delete rows_; }
  static const Row& At(const std::string& name) { return rows_->at(name); }
  static Rows* rows_;
};
Rows* GreenContexts::rows_ = nullptr;

TEST_F(GreenContexts, AreChargedAsTheDeviceTakesThem) {
  ASSERT_GE(rows_->size(), 29u);
  for (const auto& [name, row] : *rows_) {
    // A context is charged by an allowance that includes what it may load, the heap when it is set.
    if (name.starts_with("context") || name == "heap in green") continue;
    EXPECT_EQ(row.charged, row.taken) << name;
  }
  EXPECT_EQ(At("heap in green").charged, 56 * kMiB);
}

TEST_F(GreenContexts, TakeWhatTheyTookOnAnH200) {
  // From outside: docs/results/2026-11-29-h200/local-memory.txt.
  EXPECT_EQ(At("green 32").taken, 4 * kMiB);
  EXPECT_EQ(At("green rest").taken, 6 * kMiB);
  EXPECT_EQ(At("plain in green").taken, 4 * kMiB);
  EXPECT_EQ(At("green destroyed").taken, 0);
}

TEST_F(GreenContexts, MakeAndEndThePrimaryContext) {
  const Row& made = At("context for a green one");
  EXPECT_EQ(made.taken, kContext + 4 * kMiB);
  EXPECT_GE(made.charged, made.taken);
  EXPECT_EQ(At("context ends with the green one").taken, -made.taken);
  EXPECT_EQ(At("context ends with the green one").charged, -made.charged);
  // A call that fails leaves nothing behind.
  EXPECT_EQ(At("context never made").code, 1);
  EXPECT_EQ(At("context never made").taken, 0);
  EXPECT_EQ(At("context never made").charged, 0);
}

TEST_F(GreenContexts, AreRefusedWithOutOfMemoryAndNothingElse) {
  for (const char* name : {"green over", "plain over in green"}) {
    EXPECT_EQ(At(name).code, 2) << name;
    EXPECT_EQ(At(name).charged, 0) << name;
    EXPECT_EQ(At(name).taken, 0) << name;
  }
  for (const auto& [name, row] : *rows_) {
    if (name.find("over") != std::string::npos || name == "context never made" ||
        name == "reset while green ones live")
      continue;
    EXPECT_EQ(row.code, 0) << name;
  }
}

TEST_F(GreenContexts, AreRefusedWhereThePrimaryContextDoesNotFit) {
  Sandbox box;
  const Rows rows = RunSteps(box, "green-over", "900MiB", 0);
  const Row& over = rows.at("context over");
  EXPECT_EQ(over.code, 2);
  EXPECT_EQ(over.charged, 0);
  EXPECT_EQ(over.taken, 0);
}

TEST_F(GreenContexts, GiveNothingBackBeforeThePrimaryContextEnds) {
  for (const char* name :
       {"green destroyed", "streams destroyed", "streams again", "streams destroyed again"}) {
    EXPECT_EQ(At(name).charged, 0) << name;
  }
  EXPECT_EQ(At("green 32 again").charged, 4 * kMiB) << "and none is for the next";
  EXPECT_EQ(At("reset while green ones live").code, 800);
  EXPECT_GT(At("streams in green").charged, 0);
}

TEST_F(GreenContexts, AllThatWasMadeInThemEndsWithThePrimaryContext) {
  EXPECT_EQ(At("released, but kept by green ones").charged, 0);
  int64_t charged = 0, taken = 0;
  for (const auto& [name, row] : *rows_) {
    charged += row.charged;
    taken += row.taken;
  }
  EXPECT_LT(At("context ends with the last green one").taken, -kContext);
  EXPECT_EQ(taken, 0);
  EXPECT_EQ(charged, 0);
}

TEST_F(GreenContexts, AContextEndsWithItsLastUser) {
  const Row& made = At("context with two users");
  EXPECT_GE(made.taken, kContext + 10 * kMiB);
  EXPECT_EQ(At("detached").charged, 0);
  EXPECT_EQ(At("lives").charged, 10 * kMiB);
  EXPECT_EQ(At("context detached by the last").charged, -made.charged - 10 * kMiB);
  EXPECT_EQ(At("context detached by the last").taken, -made.taken - 10 * kMiB);
}

}  // namespace
}  // namespace gpumux::test
