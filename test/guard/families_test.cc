// SPDX-License-Identifier: Apache-2.0
//
// Every way to device memory, step by step: what the tenant is charged is what the
// device took, and what an H200 took.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "../support/sandbox.h"
#include "step_rows.h"

namespace gpumux::test {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kGiB = 1 << 30;

class EveryFamily : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Sandbox box;
    rows_ = new Rows(RunSteps(box, "families", "8GiB", 9 * kGiB));
  }
  static void TearDownTestSuite() { delete rows_; }
  static Rows* rows_;
};
Rows* EveryFamily::rows_ = nullptr;

TEST_F(EveryFamily, ChargesWhatTheDeviceTakes) {
  ASSERT_GE(rows_->size(), 75u);
  for (const auto& [name, row] : *rows_) {
    if (name.starts_with("managed") || name.starts_with("context")) continue;
    EXPECT_EQ(row.charged, row.taken) << name;
  }
}

TEST_F(EveryFamily, TakesWhatTheH200Took) {
  // From outside: what an H200 with driver 580.159.04 took, in bytes (docs/results).
  const std::map<std::string, int64_t> measured = {
      {"plain 1", 2 * kMiB},
      {"plain again 1", 0},
      {"free second 1", 0},
      {"free first 1", -2 * kMiB},
      {"plain 513", 2 * kMiB},
      {"plain again 1048576", 0},
      {"plain 1048577", 2 * kMiB},
      {"plain again 1048577", 2 * kMiB},
      {"plain 2097153", 4 * kMiB},
      {"plain 100000000", 96 * kMiB},
      {"pitch", 288 * kMiB},
      {"async 1 byte", 32 * kMiB},
      {"async 31 MiB", 0},
      {"async 1 GiB and 1", 1024 * kMiB},
      {"async free", 0},
      {"async synchronise", -1056 * kMiB},
      {"pool 5 MiB", 32 * kMiB},
      {"pool free", 0},
      {"pool synchronise", 0},
      {"pool trim", -32 * kMiB},
      {"vmm create", 6 * kMiB},
      {"vmm map", 0},
      {"vmm release while mapped", 0},
      {"vmm unmap last", 0},
      {"vmm release last", -6 * kMiB},
  };
  for (const auto& [name, bytes] : measured) EXPECT_EQ(rows_->at(name).taken, bytes) << name;
}

TEST_F(EveryFamily, ManagedMemoryIsChargedWholeWhenAllocated) {
  EXPECT_EQ(rows_->at("managed").charged, 100 * kMiB);
  EXPECT_EQ(rows_->at("managed touch").charged, 0);
  EXPECT_EQ(rows_->at("managed free").charged, -100 * kMiB);
}

TEST_F(EveryFamily, RefusesWithOutOfMemoryAndNothingElse) {
  for (const char* name :
       {"plain over", "pitch over", "async over", "pool over", "vmm over", "managed over"}) {
    EXPECT_EQ(rows_->at(name).code, 2) << name;
    EXPECT_EQ(rows_->at(name).charged, 0) << name;
    EXPECT_EQ(rows_->at(name).taken, 0) << name;
  }
}

TEST_F(EveryFamily, LeavesTheDriversOwnAnswersAlone) {
  const std::map<std::string, int> measured = {
      {"plain zero", 1}, {"plain absurd", 2}, {"free nothing", 0},     {"free wrong", 1},
      {"async zero", 0}, {"vmm odd size", 1}, {"vmm release again", 1}};
  for (const auto& [name, code] : measured) EXPECT_EQ(rows_->at(name).code, code) << name;
}

TEST_F(EveryFamily, ReturnsToZero) {
  int64_t sum = 0;
  for (const auto& [name, row] : *rows_) {
    if (!name.starts_with("context")) sum += row.charged;
  }
  EXPECT_EQ(sum, 0);
}

TEST_F(EveryFamily, AContextCostsWhatItTakesAndGivesAllOfItBack) {
  const auto& made = rows_->at("context");
  EXPECT_EQ(made.taken, 543162368);
  EXPECT_GE(made.charged, made.taken);
  EXPECT_EQ(rows_->at("context's plain").charged, 10 * kMiB);
  EXPECT_EQ(rows_->at("context destroyed with it").charged, -made.charged - 10 * kMiB);
}

// Arrays, modules, limits and graphs: the ways that other interposers let pass.
class MoreFamilies : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Sandbox box;
    rows_ = new Rows(RunSteps(box, "more-families", "8GiB", 9 * kGiB));
  }
  static void TearDownTestSuite() { delete rows_; }
  static Rows* rows_;
};
Rows* MoreFamilies::rows_ = nullptr;

TEST_F(MoreFamilies, ChargeWhatTheDeviceTakes) {
  ASSERT_GE(rows_->size(), 50u);
  for (const auto& [name, row] : *rows_) EXPECT_EQ(row.charged, row.taken) << name;
}

TEST_F(MoreFamilies, TakeWhatTheH200Took) {
  // From outside: what an H200 with driver 580.159.04 took, in bytes (docs/results).
  const std::map<std::string, int64_t> measured = {
      {"array 1D", 8388608},
      {"array 2D", 16777216},
      {"array 2D odd", 20971520},
      {"array 2D bytes", 16777216},
      {"array layered", 8388608},
      {"array cube map", 6291456},
      {"array cube maps", 12582912},
      {"array surface", 16777216},
      {"array layered rows", 4194304},
      {"mipmap 1", 4194304},
      {"mipmap 5", 6291456},
      {"mipmap 11", 6291456},
      {"module 50 MiB", 52428800},
      {"module 3 MB", 4194304},
      {"stack 2 KiB", 276824064},
      {"stack 8 KiB", 1660944384},
      {"stack 1 KiB", -1937768448},
      {"graph launched", 67108864},
      {"graph freed", 0},
      {"graph launched again", 0},
      {"graph trimmed", -67108864},
  };
  for (const auto& [name, bytes] : measured) EXPECT_EQ(rows_->at(name).taken, bytes) << name;
}

TEST_F(MoreFamilies, RefuseWithOutOfMemoryAndNothingElse) {
  for (const char* name : {"array over", "array 3D over", "mipmap over", "module over", "stack over",
                           "graph over", "capture over"}) {
    EXPECT_EQ(rows_->at(name).code, 2) << name;
    EXPECT_EQ(rows_->at(name).charged, 0) << name;
    EXPECT_EQ(rows_->at(name).taken, 0) << name;
  }
}

TEST_F(MoreFamilies, ReturnToZero) {
  int64_t sum = 0;
  for (const auto& [name, row] : *rows_) sum += row.charged;
  EXPECT_EQ(sum, 0);
}

// Memory that no call asks for by size.
class Growth : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Sandbox box;
    rows_ = new Rows(RunSteps(box, "growth", "8GiB", 0));
  }
  static void TearDownTestSuite() { delete rows_; }
  static Rows* rows_;
};
Rows* Growth::rows_ = nullptr;

TEST_F(Growth, IsChargedAsTheDeviceTakesIt) {
  ASSERT_GE(rows_->size(), 33u);
  for (const auto& [name, row] : *rows_) {
    // A context is charged by an allowance that includes what it may load.
    if (name.starts_with("context")) continue;
    EXPECT_EQ(row.charged, row.taken) << name;
  }
}

TEST_F(Growth, TakesWhatTheH200Took) {
  // From outside: what an H200 with driver 580.159.04 took, in bytes (docs/results).
  const std::map<std::string, int64_t> measured = {
      {"launch 512", 0},
      {"launch 1024", 0},
      {"launch 1040", 4194304},
      {"launch 1104", 16777216},
      {"launch 3000", 117440512 + 396361728},
      {"launch 4096", 0},
      {"launch cooperative", 276824064},
      {"captured", 0},
      {"graph launched", 0},
      {"39 streams", 23068672},
      {"1000 streams", 572522496},
      {"streams destroyed", 0},
      {"as many again", 0},
      {"graph of 10000", 23068672},
      {"graph of 10000 destroyed", 0},
      {"graph of 10000 again", 0},
  };
  for (const auto& [name, bytes] : measured) EXPECT_EQ(rows_->at(name).taken, bytes) << name;
}

TEST_F(Growth, IsRefusedWithOutOfMemoryWhereTheDriverWouldGrow) {
  for (const char* name : {"launch over", "it gets one over", "graph over"}) {
    EXPECT_EQ(rows_->at(name).code, 2) << name;
    EXPECT_EQ(rows_->at(name).charged, 0) << name;
    EXPECT_EQ(rows_->at(name).taken, 0) << name;
  }
  for (const auto& [name, row] : *rows_) {
    if (name.find("over") != std::string::npos) continue;
    EXPECT_EQ(row.code, 0) << name;
  }
}

TEST_F(Growth, GoesBackWithTheLimitAndTheContext) {
  EXPECT_EQ(rows_->at("stack lowered").charged,
            -(rows_->at("launch 1040").charged + rows_->at("launch 1104").charged +
              rows_->at("launch 3000").charged + rows_->at("launch 16384").charged +
              rows_->at("launch of a library's kernel").charged));
  EXPECT_EQ(rows_->at("stack lowered after the graph").charged, -rows_->at("instantiated").charged);
  EXPECT_EQ(rows_->at("stack lowered after that").charged, -rows_->at("it gets a large one").charged);
  EXPECT_EQ(rows_->at("context destroyed").charged, -rows_->at("context with all of it").charged);
  EXPECT_EQ(rows_->at("context destroyed").taken, -rows_->at("context with all of it").taken);
}

}  // namespace
}  // namespace gpumux::test
