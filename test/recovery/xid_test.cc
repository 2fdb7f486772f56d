// SPDX-License-Identifier: Apache-2.0
//
// A program with a fault on the GPU, as the driver reports it: an event.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <vector>

#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> XidsOf(Sandbox& box, const std::string& gpu) {
  std::vector<std::string> texts;
  const auto answer = nlohmann::json::parse(box.RunGpumux({"events", "--gpu", gpu, "--json"}).out);
  for (const auto& event : answer["data"]["events"]) {
    if (event["kind"] == "gpu-xid" && event["severity"] == "error") texts.push_back(event["text"]);
  }
  return texts;
}

Outcome Faulty(Sandbox& box, const std::string& gpu) {
  return box.RunGpumux({"run", "--mem", "8GiB", "--gpu", gpu, "--", Sandbox::Program("gpumux-workload"),
                        "--kernel-us", "100", "--seconds", "0.01", "--end", "fault"});
}

TEST(Xid, OfAProgramsFaultIsAnEventOfItsGpu) {
  Sandbox box("2xH200");
  // No daemon before it: one that starts watches from its start on.
  EXPECT_NE(Faulty(box, "1").exit_code, 0);
  ASSERT_TRUE(WaitUntil("the event", [&] { return !XidsOf(box, "1").empty(); }));
  EXPECT_THAT(XidsOf(box, "1"), ElementsAre("GPU 1: Xid 31 (MMU fault: an illegal access of a program)"));
  EXPECT_THAT(XidsOf(box, "0"), ElementsAre());
  EXPECT_NE(Faulty(box, "0").exit_code, 0);
  ASSERT_TRUE(WaitUntil("the other GPU's event", [&] { return !XidsOf(box, "0").empty(); }));
  EXPECT_THAT(box.RunGpumux({"events"}).out, HasSubstr("gpu-xid"));
}

TEST(Xid, IsToldAfterNvmlWasStartedAnew) {
  Sandbox box("2xH200");
  const std::string script = box.dir() + "/faults";
  box.SetEnv("GPUMUX_SOFTGPU_FAULTS", "@" + script);
  EXPECT_EQ(box.RunGpumux({"run", "--", "/bin/true"}).exit_code, 0);
  const std::string second = Status(box)["gpus"][1]["uuid"];
  std::ofstream(script) << "off 0";
  ASSERT_TRUE(WaitUntil("NVML was started anew", [&] {
    const auto gpus = StatusList(box, "gpus");
    return gpus.size() == 2 && gpus[1]["index"] == 0;
  }));
  EXPECT_NE(Faulty(box, second).exit_code, 0);
  ASSERT_TRUE(WaitUntil("the event", [&] { return !XidsOf(box, second).empty(); }));
}

}  // namespace
}  // namespace gpumux::test
