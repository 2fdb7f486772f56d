// SPDX-License-Identifier: Apache-2.0
//
// `gpumux mig plan`, `export` and `import` for a machine whose GPU is partitioned, and whether its driver
// takes the steps of a plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class MigPlans : public ::testing::Test, public Sandbox {
 protected:
  void SetUp() override {
    if (getuid() != 0) GTEST_SKIP() << "needs root, as whoever makes an instance";
    UseGpu("H200");
  }
  void UseGpu(const std::string& model) {
    const std::string spec = dir() + "/" + model + ".json";
    std::ofstream(spec) << R"({"gpus": [{"model": ")" << model << R"(", "mig": true}]})";
    SetEnv("GPUMUX_SOFTGPU", spec);
    SetEnv("GPUMUX_SOFTGPU_DIR", dir() + "/gpu-" + model);
  }
  void Tool(std::vector<std::string> args) {
    args.insert(args.begin(), TestProgram("mig_tool"));
    const Outcome outcome = Sandbox::Run(args);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  Json Plan(std::vector<std::string> options, int exit = 0) {
    options.insert(options.begin(), {"mig", "plan", "--json"});
    const Outcome outcome = RunGpumux(options);
    EXPECT_EQ(outcome.exit_code, exit) << outcome.out << outcome.err;
    const Json json = Json::parse(outcome.out, nullptr, false);
    return json.is_object() ? json["data"] : Json();
  }
  void Carry(const Json& steps) {
    for (const Json& step : steps) {
      const std::string start = std::to_string(step["start"].get<int>());
      if (step["do"] == "destroy") {
        Tool({"destroy", start});
      } else {
        Tool({"create", std::to_string(step["profile_id"].get<int>()) + ":" + start});
      }
    }
  }
  // Whether something runs on the instance that begins there.
  bool InUse(int start) {
    const Json plan = Plan({"--want", "1g.18gb", "--no-disturb"});
    for (const Json& instance : plan["gpus"][0]["instances"]) {
      if (instance["start"] == start && !instance["users"].empty()) return true;
    }
    return false;
  }
};

TEST_F(MigPlans, KeepWhatIsInUseAndNameWhoWouldHaveToGo) {
  Tool({"create", "19:0", "9:4"});
  const Json status = Json::parse(RunGpumux({"mig", "status", "--json"}).out);
  std::string uuid;
  for (const Json& instance : status["data"]["gpus"][0]["instances"]) {
    if (instance["start"] == 0) uuid = instance["devices"][0]["uuid"];
  }
  Process program = Start({"/usr/bin/env", "CUDA_VISIBLE_DEVICES=" + uuid,
                           "LD_LIBRARY_PATH=" + Program("../lib/gpumux/softgpu"), Program("gpumux-workload"),
                           "--alloc", "1GiB", "--kernel-us", "1000", "--seconds", "60"});
  ASSERT_TRUE(WaitUntil("it runs", [&] { return InUse(0); })) << program.Err();

  const Json calm = Plan({"--want", "2g.35gb"});
  EXPECT_TRUE(calm["gpus"][0]["from_device"]);
  EXPECT_EQ(calm["disturbed"], 0);
  ASSERT_EQ(calm["gpus"][0]["steps"].size(), 1u) << calm;
  EXPECT_EQ(calm["gpus"][0]["steps"][0]["start"], 2);

  const std::string who = "pid " + std::to_string(program.pid());
  const Json moved = Plan({"--want", "4g.71gb,1g.18gb"});
  ASSERT_EQ(moved["disturbed"], 1) << moved;
  EXPECT_EQ(moved["gpus"][0]["moved"][0]["users"], Json::array({who}));
  EXPECT_EQ(moved["gpus"][0]["moved"][0]["from"], 0);

  const Json still = Plan({"--want", "4g.71gb", "--no-disturb"}, 1);
  ASSERT_EQ(still["unplaced"].size(), 1u) << still;
  EXPECT_EQ(still["unplaced"][0]["reason"], "4g.71gb needs placement 0; 0 is taken by 1g.18gb at 0");

  // A configuration without it is refused as long as it runs.
  std::ofstream(dir() + "/c.yaml")
      << "{version: v1, mig-configs: {a: [{devices: all, mig-enabled: true, mig-devices: {3g.71gb: 1}}]}}";
  const Outcome refused = RunGpumux({"mig", "import", dir() + "/c.yaml"});
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.err, HasSubstr("in use, and not in the configuration: 1g.18gb at 0 (" + who + ")"));
  program.Signal(SIGTERM);
  program.Wait();
  WaitUntil("it is gone", [&] { return !InUse(0); });
  const Outcome imported = RunGpumux({"mig", "import", dir() + "/c.yaml"});
  EXPECT_EQ(imported.exit_code, 0) << imported.err;
  EXPECT_THAT(imported.out, HasSubstr("Steps: 1. destroy 1g.18gb at 0\n"));
}

// The driver has rules of its own (src/softgpu), written from the same documents by other hands.
TEST_F(MigPlans, HaveStepsThatADriverTakesOnEveryKindOfGpu) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"H200",
       {"3x1g.18gb,1x3g.71gb", "4g.71gb,1g.35gb,2g.35gb", "1g.18gb+me,1g.18gb,2x2g.35gb,1g.35gb",
        "7g.141gb"}},
      {"A30", {"1g.6gb+me,1g.6gb,2g.12gb", "2x2g.12gb", "4g.24gb"}},
      {"RTX-PRO-6000", {"2g.48gb+me.all,2x1g.24gb-me", "2x1g.24gb+gfx,1g.24gb+me,1g.24gb", "4g.96gb+gfx"}},
  };
  for (const auto& [model, wants] : cases) {
    UseGpu(model);
    for (const char* want : wants) {
      SCOPED_TRACE(std::string(model) + " " + want);
      // What the one before left is idle, and in the way.
      Carry(Plan({"--want", want})["gpus"][0]["steps"]);
      const Json again = Plan({"--want", want});
      EXPECT_TRUE(again["gpus"][0]["steps"].empty()) << again;
      const Outcome exported = RunGpumux({"mig", "export", "--label", "now"});
      EXPECT_EQ(exported.exit_code, 0) << exported.err;
      std::ofstream(dir() + "/now.yaml") << exported.out;
      const Outcome imported = RunGpumux({"mig", "import", dir() + "/now.yaml", "--json"});
      ASSERT_EQ(imported.exit_code, 0) << imported.err << exported.out;
      EXPECT_TRUE(Json::parse(imported.out)["data"]["gpus"][0]["steps"].empty()) << imported.out;
    }
  }
}

TEST_F(MigPlans, OfAPlanIsTheSameFileAsOfTheMachineThatFollowsIt) {
  const Outcome plan = RunGpumux({"mig", "plan", "--want", "2x2g.35gb,3x1g.18gb", "--json"});
  std::ofstream(dir() + "/plan.json") << plan.out;
  const Outcome planned = RunGpumux({"mig", "export", dir() + "/plan.json"});
  Carry(Json::parse(plan.out)["data"]["gpus"][0]["steps"]);
  const Outcome now = RunGpumux({"mig", "export"});
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_EQ(planned.out, now.out);
  EXPECT_THAT(now.out, HasSubstr("\"2g.35gb\": 2"));
}

}  // namespace
}  // namespace gpumux::test
