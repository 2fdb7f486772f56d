// SPDX-License-Identifier: Apache-2.0
//
// Every hooked way to memory in every situation: found by name and by
// cuGetProcAddress, with a current context and without, within, at and over the
// promise (pitfalls B4, B5, B10, B11).
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "../support/sandbox.h"
#include "cells.h"

namespace gpumux::test {
namespace {

constexpr const char* kHooks[] = {
#define GPUMUX_HOOK(name, params) #name,
#include "guard/hooks.inc"
#undef GPUMUX_HOOK
};

// Hooks that neither take nor map nor give back device memory.
const std::map<std::string, std::string> kNoMemory = {
    {"cuInit", "attaches to the daemon; the process has no context yet"},
    {"cuMemcpyHtoD_v2", "a copy takes nothing"},
    {"cuMemcpyHtoD_v2_ptds", "a copy takes nothing"},
    {"cuMemcpyHtoDAsync_v2", "a copy takes nothing"},
    {"cuMemcpyHtoDAsync_v2_ptsz", "a copy takes nothing"},
    {"cuMemcpyDtoH_v2", "a copy takes nothing"},
    {"cuMemcpyDtoH_v2_ptds", "a copy takes nothing"},
    {"cuMemcpyDtoHAsync_v2", "a copy takes nothing"},
    {"cuMemcpyDtoHAsync_v2_ptsz", "a copy takes nothing"},
    {"cuMemcpyDtoD_v2", "a copy takes nothing"},
    {"cuMemcpyDtoD_v2_ptds", "a copy takes nothing"},
    {"cuMemcpyDtoDAsync_v2", "a copy takes nothing"},
    {"cuMemcpyDtoDAsync_v2_ptsz", "a copy takes nothing"},
    {"cuMemcpy", "a copy takes nothing"},
    {"cuMemcpy_ptds", "a copy takes nothing"},
    {"cuMemcpyAsync", "a copy takes nothing"},
    {"cuMemcpyAsync_ptsz", "a copy takes nothing"},
    {"cuStreamQuery", "a question"},
    {"cuStreamQuery_ptsz", "a question"},
    {"cuEventQuery", "a question"},
    {"cuStreamBeginCapture", "a capture takes nothing"},
    {"cuStreamBeginCapture_ptsz", "a capture takes nothing"},
    {"cuStreamBeginCapture_v2", "a capture takes nothing"},
    {"cuStreamBeginCapture_v2_ptsz", "a capture takes nothing"},
    {"cuStreamBeginCaptureToGraph", "a capture takes nothing"},
    {"cuStreamBeginCaptureToGraph_ptsz", "a capture takes nothing"},
    {"cuStreamEndCapture", "a capture takes nothing"},
    {"cuStreamEndCapture_ptsz", "a capture takes nothing"},
    {"cuGraphExecMemcpyNodeSetParams", "changes what is there"},
    {"cuGraphExecMemsetNodeSetParams", "changes what is there"},
    {"cuGraphExecHostNodeSetParams", "changes what is there"},
    {"cuGraphExecEventRecordNodeSetEvent", "changes what is there"},
    {"cuGraphExecEventWaitNodeSetEvent", "changes what is there"},
    {"cuGraphExecExternalSemaphoresSignalNodeSetParams", "changes what is there"},
    {"cuGraphExecExternalSemaphoresWaitNodeSetParams", "changes what is there"},
    {"cuGraphExecBatchMemOpNodeSetParams", "changes what is there"},
    {"cuGraphNodeSetEnabled", "changes what is there"},
    {"cuGetProcAddress", "a look-up"},
    {"cuGetProcAddress_v2", "a look-up"},
    {"cuMemGetInfo", "a question"},
    {"cuMemGetInfo_v2", "a question"},
    {"cuDeviceTotalMem", "a question"},
    {"cuDeviceTotalMem_v2", "a question"},
    {"cuGLCtxCreate", "not on the software GPU: test/loading/handle_users_test.cc"},
    {"cuGLCtxCreate_v2", "not on the software GPU: test/loading/handle_users_test.cc"},
    {"cuVDPAUCtxCreate", "not on the software GPU: test/loading/handle_users_test.cc"},
    {"cuVDPAUCtxCreate_v2", "not on the software GPU: test/loading/handle_users_test.cc"},
    {"cuMemMapArrayAsync", "not on the software GPU: test/loading/handle_users_test.cc"},
    {"cuMemMapArrayAsync_ptsz", "not on the software GPU: test/loading/handle_users_test.cc"},
    {"cuMemExportToShareableHandle", "keeps what is charged already: test/loading/handle_users_test.cc"},
    {"cuMulticastCreate", "not on the software GPU: test/loading/handle_users_test.cc"},
    {"cuMulticastBindMem", "not on the software GPU: test/loading/handle_users_test.cc"},
    {"cuMulticastBindAddr", "not on the software GPU: test/loading/handle_users_test.cc"},
    {"cuMulticastUnbind", "not on the software GPU: test/loading/handle_users_test.cc"},
    {"cuCtxFromGreenCtx", "another handle"},
    {"cuLaunchCooperativeKernelMultiDevice", "counted; gone from CUDA 13"},
};

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

TEST_F(GuardTable, AtTheCapIsToTheByte) {
  // What is free when the call is made. Beside a second context, whose cost is no
  // multiple of a page, some part of one is left.
  int exact = 0, with_part = 0;
  for (const auto& [key, cell] : both_->guarded) {
    if (cell["room"] == "within") continue;
    const int64_t wanted = Number(cell, "needs") - (cell["room"] == "over" ? kDevicePage : 0);
    EXPECT_GE(Number(cell, "had"), wanted) << key;
    EXPECT_LT(Number(cell, "had"), wanted + kDevicePage) << key;
    (Number(cell, "had") == wanted ? exact : with_part)++;
  }
  EXPECT_GT(exact, 4 * with_part);
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
    EXPECT_EQ(Number(cell, "charged"), Number(cell, "charges") - Number(cell, "by_daemon")) << key;
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

TEST(GuardLedger, StatusSaysWhatIsChargedAndTold) {
  Sandbox box;
  const std::string until = box.dir() + "/go-on";
  Process run =
      box.Gpumux({"run", "--mem", "4GiB", "--", Sandbox::TestProgram("guard_probe"), "hold", until});
  ASSERT_TRUE(WaitUntil("it holds", [&] { return run.Out().find('\n') != std::string::npos; })) << run.Err();
  const auto figures = nlohmann::json::parse(run.Out());
  EXPECT_EQ(figures["charged"], (4 << 20) + (32 << 20) + (8 << 20));
  const auto tenants = box.StatusData()["tenants"];
  ASSERT_EQ(tenants.size(), 1u);
  // A context of an H200, measured, and what was charged; the program is told
  // besides what is kept in front for code that is loaded later.
  const int64_t used = tenants[0]["mem_used_bytes"];
  EXPECT_EQ(used, 548995072 + Number(figures, "charged"));
  EXPECT_EQ(Number(figures, "told"), used + (64 << 20));
  std::ofstream(until).put('\n');
  EXPECT_EQ(run.Wait().exit_code, 0);
}

}  // namespace
}  // namespace gpumux::test
