// SPDX-License-Identifier: Apache-2.0
//
// A program that got no memory: its closing line says what was asked, what
// refused it, who has the rest, and what to change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using Json = nlohmann::json;

constexpr uint64_t kGiB = 1ull << 30;
const std::string kWorkload = Sandbox::Program("gpumux-workload");

// `run OPTIONS -- gpumux-workload ARGUMENTS`
Outcome Asks(Sandbox& box, std::vector<std::string> options, const std::vector<std::string>& arguments) {
  options.insert(options.begin(), {"run", "--summary", "--name", "asks"});
  options.insert(options.end(), {"--", kWorkload});
  options.insert(options.end(), arguments.begin(), arguments.end());
  return box.RunGpumux(options);
}

// One that has its memory and keeps it.
Process Holder(Sandbox& box, std::vector<std::string> command, const std::string& size) {
  const std::string ready = box.dir() + "/ready" + size;
  command.insert(command.end(), {kWorkload, "--alloc", size, "--hold", "1000", "--ready", ready});
  Process process = box.Start(command);
  WaitUntil("the holder has " + size, [&] { return std::filesystem::exists(ready) || process.Ended(); });
  return process;
}
Process TenantWith(Sandbox& box, const std::string& mem, const std::string& size) {
  return Holder(box, {Sandbox::Program("gpumux"), "run", "--name", "big", "--mem", mem, "--"}, size);
}
Process Stranger(Sandbox& box, const std::string& size) {
  return Holder(box, {"/usr/bin/env", "LD_LIBRARY_PATH=" + Sandbox::Program("../lib/gpumux/softgpu")}, size);
}

// `refusals` of the last tenant called "asks".
Json Refusals(Sandbox& box) {
  Json found;
  const Json answer = Json::parse(box.RunGpumux({"ps", "--all", "--json"}).out);
  for (const Json& tenant : answer["data"]["tenants"]) {
    if (tenant["name"] == "asks") found = tenant["refusals"];
  }
  return found;
}

TEST(OutOfMemory, ByItsOwnLimit) {
  Sandbox box;
  const Outcome run = Asks(box, {"--mem", "10GiB"}, {"--alloc", "12GiB"});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.err,
              HasSubstr("1 refusal (the last of 12.0 GiB on GPU 0): its limit of 10.0 GiB was the reason, of "
                        "which 588 MiB were in use; ask for more: --mem 13GiB"));
  const Json last = Refusals(box)["last"];
  EXPECT_EQ(last["cause"], "own_limit");
  EXPECT_EQ(last["mem_asked_bytes"], 12 * kGiB);
  EXPECT_EQ(last["mem_limit_bytes"], 10 * kGiB);
  EXPECT_EQ(last["gpu_index"], 0);
  EXPECT_EQ(last["holders"], Json::array());
  // What it says to do helps.
  EXPECT_EQ(Asks(box, {"--mem", "13GiB"}, {"--alloc", "12GiB"}).exit_code, 0);
  const Outcome range = Asks(box, {"--mem", "2GiB:10GiB"}, {"--alloc", "12GiB"});
  EXPECT_THAT(range.err, HasSubstr("ask for more: --mem 2GiB:13GiB"));
  EXPECT_THAT(Asks(box, {"--mem", "10GiB"}, {"--alloc", "150GiB"}).err,
              HasSubstr("150.6 GiB in all are more than the GPU's 140.4 GiB"));
}

TEST(OutOfMemory, ByTheGpuThatIsFullOfAnother) {
  Sandbox box;
  const Process holder = TenantWith(box, "100GiB", "90GiB");
  const Outcome run = Asks(box, {}, {"--alloc", "60GiB"});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(
      run.err,
      AllOf(HasSubstr(
                "1 refusal (the last of 60.0 GiB on GPU 0): the GPU had no room left beside other promises. "
                "Nothing was guaranteed to it, and "),
            HasSubstr(" were free for all; the rest is held by big (of root) 100.0 GiB; have it guaranteed, "
                      "which waits until there is room: --mem 61GiB")));
  const Json last = Refusals(box)["last"];
  EXPECT_EQ(last["cause"], "gpu_full");
  ASSERT_EQ(last["holders"].size(), 1u);
  EXPECT_EQ(last["holders"][0]["name"], "big");
  EXPECT_EQ(last["holders"][0]["mem_held_bytes"], 100 * kGiB);
  EXPECT_EQ(last["unmanaged"], Json::array());
  EXPECT_LT(last["gpu_mem_promisable_bytes"].get<uint64_t>(), 60 * kGiB);
  const std::string again = box.RunGpumux({"ps", "--all"}).out;
  EXPECT_THAT(again, HasSubstr("the rest is held by big (of root) 100.0 GiB"));
}

TEST(OutOfMemory, ByTheGpuThatIsFullOfAStranger) {
  Sandbox box;
  ASSERT_EQ(box.RunGpumux({"run", "--", "true"}).exit_code, 0);
  const Process stranger = Stranger(box, "100GiB");
  const Outcome run = Asks(box, {}, {"--alloc", "60GiB"});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.err,
              HasSubstr("the rest is held by pid " + std::to_string(stranger.pid()) +
                        " (gpumux-workload, of root, outside gpumux) 100.5 GiB; have it guaranteed"));
  const Json last = Refusals(box)["last"];
  EXPECT_EQ(last["cause"], "gpu_full");
  EXPECT_EQ(last["unmanaged"][0]["pid"], stranger.pid());
}

TEST(OutOfMemory, ByTheDriverItself) {
  Sandbox box;
  const std::string go = box.dir() + "/go";
  Process asks =
      box.Gpumux({"run", "--summary", "--name", "asks", "--mem", "100GiB", "--", "/bin/sh", "-c",
                  "until [ -e " + go + " ]; do sleep 0.01; done; exec " + kWorkload + " --alloc 90GiB"});
  WaitUntil("it runs", [&] {
    const auto tenants = box.StatusData()["tenants"];
    return tenants.size() == 1 && tenants[0]["state"] == "running";
  });
  // Promised is promised; who is outside takes it all the same.
  const Process stranger = Stranger(box, "80GiB");
  std::ofstream(go).put('\n');
  const Outcome run = asks.Wait();
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(
      run.err,
      HasSubstr("1 refusal (the last of 90.0 GiB on GPU 0): the driver itself had no room, though gpumux "
                "had granted it: the GPU is held by pid " +
                std::to_string(stranger.pid()) +
                " (gpumux-workload, of root, outside gpumux) 80.5 GiB; end what runs outside gpumux"));
  EXPECT_EQ(Refusals(box)["last"]["cause"], "driver");
}

TEST(OutOfMemory, FiguresAreOfTheGpuThatRefused) {
  Sandbox box("2xH200");
  const Outcome run = Asks(box, {"--mem", "10GiB", "--gpu", "0,1"}, {"--alloc", "12GiB", "--device", "1"});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.err, HasSubstr("(the last of 12.0 GiB on GPU 1): its limit of 10.0 GiB was the reason"));
}

TEST(OutOfMemory, ExplainKnowsItAfterwards) {
  Sandbox box;
  EXPECT_EQ(Asks(box, {"--mem", "10GiB"}, {"--alloc", "1GiB"}).exit_code, 0);
  EXPECT_THAT(box.RunGpumux({"explain", "asks"}).out, Not(HasSubstr("Out of memory")));
  EXPECT_EQ(box.RunGpumux({"run", "--name", "refused", "--mem", "10GiB", "--", kWorkload, "--alloc", "12GiB"})
                .exit_code,
            3);
  EXPECT_THAT(box.RunGpumux({"explain", "refused"}).out,
              HasSubstr("\nOut of memory\n  1 refusal (the last of 12.0 GiB on GPU 0): its limit of 10.0 GiB "
                        "was the reason"));
}

}  // namespace
}  // namespace gpumux::test
