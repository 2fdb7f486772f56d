// SPDX-License-Identifier: Apache-2.0
//
// `gpumux mig apply` end to end: what goes, what stays, who is asked first, and what is there after a
// failure or a death in the middle (docs/design/mig.md, "Apply").
#include <gmock/gmock.h>
#include <signal.h>

#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class MigApply : public MigScene {
 protected:
  // "0 19, 1 19, 4 9": start and profile of each.
  std::string Layout() {
    const Outcome list = Sandbox::Run({TestProgram("mig_tool"), "list"});
    EXPECT_EQ(list.exit_code, 0) << list.err;
    std::string text = list.out;
    for (size_t at; (at = text.find('\n')) != std::string::npos;)
      text.replace(at, 1, at + 1 < text.size() ? ", " : "");
    return text;
  }
  std::string EventText(const std::string& kind) {
    const Json events = Json::parse(RunGpumux({"events", "--json"}).out);
    std::string text;
    for (const Json& event : events["data"]["events"]) {
      if (event["kind"] == kind) text = event["text"].get<std::string>();
    }
    return text;
  }
};

TEST_F(MigApply, MakesWhatIsWantedAndLeavesWhatRunsAlone) {
  MakeInstances();  // 1g at 0 and 1, 3g at 4
  Process runs = Worker("runs", {"--gpu", "0:2", "--mem", "10GiB"});
  const std::string uuid = TenantOf("runs")["gpus"][0]["uuid"];
  const Outcome dry = RunGpumux({"mig", "apply", "2g.35gb,1g.18gb,3g.71gb", "--dry-run"});
  EXPECT_EQ(dry.exit_code, 0) << dry.err;
  EXPECT_THAT(dry.out, HasSubstr("create 2g.35gb at 2"));
  EXPECT_THAT(dry.out, HasSubstr("nothing was changed"));
  EXPECT_EQ(Layout(), "0 19, 1 19, 4 9");
  const Outcome applied = RunGpumux({"mig", "apply", "2g.35gb,1g.18gb,3g.71gb"});
  EXPECT_EQ(applied.exit_code, 0) << applied.err;
  EXPECT_THAT(applied.out, HasSubstr("GPU-seconds lost"));
  EXPECT_THAT(Layout(), HasSubstr("2 14"));
  EXPECT_THAT(Layout(), HasSubstr("4 9"));
  EXPECT_THAT(EventText("mig-applied"), HasSubstr("create 2g.35gb at 2"));
  // The same again is nothing to do.
  EXPECT_THAT(RunGpumux({"mig", "apply", "2g.35gb,1g.18gb,3g.71gb"}).out, HasSubstr("already"));
  EXPECT_TRUE(AtWork("runs"));
  EXPECT_EQ(TenantOf("runs")["gpus"][0]["uuid"], uuid);
  // What was made is a place at once.
  EXPECT_EQ(RunGpumux({"run", "--mode", "mig", "--mem", "25GiB", "--no-wait", "--", "true"}).exit_code, 0);
  StopAndWait(runs, "runs");
}

TEST_F(MigApply, RefusesToTouchWhatIsInUseAndNamesWho) {
  MakeInstances();
  Process runs = Worker("runs", {"--gpu", "0:0", "--mem", "6GiB"});
  const Outcome refused = RunGpumux({"mig", "destroy", "--all"});
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.err, HasSubstr("1g.18gb at 0 (runs (t-"));
  EXPECT_THAT(refused.err, HasSubstr("--drain"));
  EXPECT_EQ(Layout(), "0 19, 1 19, 4 9");
  StopAndWait(runs, "runs");
}

TEST_F(MigApply, WaitsForWhoUsesItAndGivesItToNobodyMeanwhile) {
  MakeInstances();
  Process runs = Worker("runs", {"--gpu", "0:0", "--mem", "6GiB"});
  Process change = Gpumux({"mig", "destroy", "0", "--drain", "wait"});
  WaitUntil("it is closed", [&] {
    return GpuOf("0:0")["mem_promisable_bytes_reason"].is_string() &&
           GpuOf("0:0")["mem_promisable_bytes_reason"].get<std::string>().find("is to be removed") !=
               std::string::npos;
  });
  EXPECT_EQ(RunGpumux({"run", "--gpu", "0:0", "--mem", "6GiB", "--no-wait", "--", "true"}).exit_code, 4);
  EXPECT_EQ(RunGpumux({"run", "--gpu", "0:1", "--mem", "6GiB", "--no-wait", "--", "true"}).exit_code, 0);
  // One change at a time.
  EXPECT_THAT(RunGpumux({"mig", "apply", "7g.141gb"}).err, HasSubstr("another change"));
  StopAndWait(runs, "runs");
  const Outcome applied = change.Wait();
  EXPECT_EQ(applied.exit_code, 0) << applied.err;
  EXPECT_EQ(Layout(), "1 19, 4 9");
}

TEST_F(MigApply, ThatWaitsInVainChangesNothing) {
  MakeInstances();
  Process runs = Worker("runs", {"--gpu", "0:0", "--mem", "6GiB"});
  const Outcome late = RunGpumux({"mig", "destroy", "0", "--drain", "wait", "--wait", "300ms"});
  EXPECT_EQ(late.exit_code, 5) << late.err;
  EXPECT_THAT(late.err, HasSubstr("still in use, and nothing was changed: runs"));
  EXPECT_EQ(Layout(), "0 19, 1 19, 4 9");
  EXPECT_EQ(RunGpumux({"run", "--gpu", "0:0", "--mem", "6GiB", "--no-wait", "--", "true"}).exit_code, 0);
  StopAndWait(runs, "runs");
}

TEST_F(MigApply, ThatWaitsIsCancelledAndWhatOthersMadeMeanwhileIsNoticed) {
  MakeInstances();
  Process runs = Worker("runs", {"--gpu", "0:0", "--mem", "6GiB"});
  EXPECT_EQ(RunGpumux({"mig", "cancel"}).exit_code, 6);
  Process first = Gpumux({"mig", "destroy", "0", "--drain", "wait"});
  WaitUntil("it waits", [&] { return RunGpumux({"mig", "cancel"}).exit_code == 0; });
  EXPECT_THAT(first.Wait().err, HasSubstr("cancelled by root; nothing was changed"));
  EXPECT_EQ(RunGpumux({"run", "--gpu", "0:0", "--mem", "6GiB", "--no-wait", "--", "true"}).exit_code, 0);
  Process second = Gpumux({"mig", "destroy", "0", "--drain", "wait"});
  WaitUntil("it waits", [&] {
    return RunGpumux({"mig", "apply", "7g.141gb"}).err.find("another change") != std::string::npos;
  });
  Tool({"create", "19:2"});
  StopAndWait(runs, "runs");
  EXPECT_THAT(second.Wait().err, HasSubstr("somebody else has changed instances meanwhile"));
  EXPECT_EQ(Layout(), "0 19, 1 19, 2 19, 4 9");
}

TEST_F(MigApply, StopsTheTenantsWhenTold) {
  MakeInstances();
  Process runs = Worker("runs", {"--gpu", "0:0", "--mem", "6GiB"});
  Process stays = Worker("stays", {"--gpu", "0:1", "--mem", "6GiB"});
  const Outcome applied = RunGpumux({"mig", "destroy", "0", "4", "--drain", "stop"});
  EXPECT_EQ(applied.exit_code, 0) << applied.err;
  EXPECT_THAT(applied.out, HasSubstr("runs (t-"));
  EXPECT_THAT(runs.Wait().err, HasSubstr("its MIG instance is removed, as root told"));
  EXPECT_EQ(Layout(), "1 19");
  EXPECT_TRUE(AtWork("stays"));
  StopAndWait(stays, "stays");
}

TEST_F(MigApply, AFailureOfAnyStepIsPutBackAndSaid) {
  MakeInstances();
  const std::string faults = dir() + "/faults";
  SetEnv("GPUMUX_SOFTGPU_FAULTS", "@" + faults);
  // The daemon's environment is that of its start.
  ASSERT_EQ(RunGpumux({"run", "--gpu", "0:0", "--mem", "6GiB", "--", "true"}).exit_code, 0);
  const auto fail = [&](const std::string& rule) {
    std::ofstream(faults + ".new") << rule << "\n";
    ASSERT_EQ(rename((faults + ".new").c_str(), faults.c_str()), 0);
  };
  for (const char* function :
       {"nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy", "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstance"}) {
    for (int call = 1; call <= 2; ++call) {
      fail(std::string("fail ") + function + " with NVML_ERROR_UNKNOWN on " + std::to_string(call));
      const Outcome failed = RunGpumux({"mig", "apply", "1g.35gb@0,2g.35gb@2,3g.71gb@4"});
      EXPECT_EQ(failed.exit_code, 1) << function << failed.out << failed.err;
      EXPECT_THAT(failed.err, HasSubstr("what was there is back")) << function << " " << call;
      fail("# " + std::string(function) + std::to_string(call));
      EXPECT_EQ(Layout(), "0 19, 1 19, 4 9") << function << " " << call << failed.err;
    }
  }
  EXPECT_THAT(EventText("mig-failed"), HasSubstr("what was there is back"));
  EXPECT_EQ(RunGpumux({"mig", "apply", "1g.35gb@0,2g.35gb@2,3g.71gb@4"}).exit_code, 0);
  EXPECT_EQ(RunGpumux({"run", "--mode", "mig", "--mem", "6GiB", "--", "true"}).exit_code, 0);
}

class MigKilled : public MigApply, public ::testing::WithParamInterface<std::pair<const char*, int>> {};

// kill -9 at the first and at later passes of the points between two steps.
TEST_P(MigKilled, WhatWasThereIsBackWithTheNextDaemon) {
  const auto& [point, passes] = GetParam();
  MakeInstances();
  const std::string token = dir() + "/token";
  std::ofstream(token) << "x";
  SetEnv("GPUMUX_KILL_AT", std::string(point) + "@" + token);
  const Outcome change = RunGpumux({"mig", "apply", "1g.35gb@0,2g.35gb@2,3g.71gb@4"});
  EXPECT_NE(change.exit_code, 0) << change.out;
  EXPECT_THAT(change.err, HasSubstr("hung up"));
  EXPECT_NE(access(token.c_str(), F_OK), 0) << "the point was not passed";
  // The next daemon.
  EXPECT_EQ(RunGpumux({"run", "--gpu", "0:2", "--mem", "6GiB", "--", "true"}).exit_code, 0);
  EXPECT_EQ(Layout(), "0 19, 1 19, 4 9");
  EXPECT_THAT(EventText("mig-applied"),
              HasSubstr("interrupted by the daemon's end; what was there before is back"));
  EXPECT_EQ(RunGpumux({"mig", "apply", "1g.35gb@0,2g.35gb@2,3g.71gb@4"}).exit_code, 0);
}
INSTANTIATE_TEST_SUITE_P(Mig, MigKilled,
                         ::testing::Values(std::pair("mig-change-written", 1),
                                           std::pair("mig-step-done", 1)));

TEST_F(MigApply, KeptLayoutsAreMadeAgainAfterAReset) {
  MakeInstances();
  EXPECT_EQ(RunGpumux({"mig", "apply", "1g.18gb@2,3g.71gb@4", "--keep"}).exit_code, 0);
  EXPECT_EQ(Sandbox::Run({Program("../lib/gpumux/softgpu/bin/gpumux-softgpu-reset"), "0"}).exit_code, 0);
  WaitUntil("they are there again", [&] { return Layout() == "2 19, 4 9"; });
  EXPECT_THAT(EventText("mig-applied"), HasSubstr("kept MIG instance(s) were made again"));
  EXPECT_EQ(RunGpumux({"mig", "forget"}).exit_code, 0);
}

TEST_F(MigApply, SwitchesMigOffAndOnWhereNobodyUsesTheGpu) {
  MakeInstances();
  Process runs = Worker("runs", {"--gpu", "0:0", "--mem", "6GiB"});
  const Outcome refused = RunGpumux({"mig", "disable"});
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.err, HasSubstr("in use: runs"));
  StopAndWait(runs, "runs");
  const Outcome off = RunGpumux({"mig", "disable"});
  EXPECT_EQ(off.exit_code, 0) << off.err;
  EXPECT_THAT(off.out, HasSubstr("GPU 0: MIG is off"));
  // A whole GPU again.
  EXPECT_EQ(RunGpumux({"run", "--gpu", "0", "--mem", "100GiB", "--", "true"}).exit_code, 0);
  EXPECT_EQ(RunGpumux({"mig", "apply", "1g.18gb@0"}).exit_code, 4);
  EXPECT_EQ(RunGpumux({"mig", "enable", "0"}).exit_code, 0);
  EXPECT_EQ(RunGpumux({"run", "--no-wait", "--mem", "100GiB", "--", "true"}).exit_code, 7);
  EXPECT_EQ(RunGpumux({"mig", "disable", "0"}).exit_code, 0);
  EXPECT_EQ(RunGpumux({"run", "--no-wait", "--mem", "100GiB", "--", "true"}).exit_code, 0);
  EXPECT_EQ(RunGpumux({"mig", "enable", "0"}).exit_code, 0);
  EXPECT_EQ(RunGpumux({"mig", "apply", "7x1g.18gb"}).exit_code, 0);
  EXPECT_EQ(Layout(), "0 19, 1 19, 2 19, 3 19, 4 19, 5 19, 6 19");
}

TEST_F(MigApply, RunMakesAnInstanceWhereItMay) {
  MakeInstances();
  Process small = Worker("small", {"--gpu", "0:0", "--mem", "6GiB"});
  Process large = Worker("large", {"--mode", "mig", "--mem", "40GiB"});
  // Told what would help.
  const Outcome refused = RunGpumux({"run", "--mode", "mig", "--mem", "25GiB", "--no-wait", "--", "true"});
  EXPECT_EQ(refused.exit_code, 4) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("an instance can be made: gpumux mig apply"));
  EXPECT_EQ(Layout(), "0 19, 1 19, 4 9");
  const Outcome made = RunGpumux({"run", "--mode", "mig", "--mem", "25GiB", "--no-wait",
                                  "--allow-reconfigure", "--", "sh", "-c", "exit 3"});
  EXPECT_EQ(made.exit_code, 3) << made.err;
  EXPECT_THAT(made.err, HasSubstr("made "));
  EXPECT_THAT(Layout(), HasSubstr("0 19"));
  EXPECT_THAT(Layout(), HasSubstr("4 9"));
  EXPECT_TRUE(AtWork("small") && AtWork("large"));
  // Nothing that is in use is given up for it.
  EXPECT_EQ(
      RunGpumux({"run", "--mode", "mig", "--mem", "100GiB", "--no-wait", "--allow-reconfigure", "--", "true"})
          .exit_code,
      4);
  EXPECT_THAT(Layout(), HasSubstr("4 9"));
  StopAndWait(small, "small");
  StopAndWait(large, "large");
}

TEST_F(MigApply, SaysWhyALayoutCannotBe) {
  EXPECT_THAT(RunGpumux({"mig", "apply", "3g.71gb,3g.71gb,2g.35gb"}).err, HasSubstr("2g.35gb"));
  EXPECT_THAT(RunGpumux({"mig", "apply", "1g.18gb@0,3g.71gb@0"}).err,
              HasSubstr("needs memory slice 0; 3g.71gb at 0 is there"));
  EXPECT_EQ(RunGpumux({"mig", "apply"}).exit_code, 2);
  EXPECT_EQ(RunGpumux({"mig", "destroy"}).exit_code, 2);
  EXPECT_THAT(RunGpumux({"mig", "destroy", "3"}).err, HasSubstr("no instance begins at 3"));
  EXPECT_THAT(RunGpumux({"mig", "apply", "1g.18gb@0", "--wait", "1s"}).err,
              HasSubstr("--wait is for --drain"));
}

}  // namespace
}  // namespace gpumux::test
