// SPDX-License-Identifier: Apache-2.0
//
// A fault of one MPS client takes the work of all along: who is named, who is
// started again, and who may start meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

std::vector<std::string> Mps(const std::string& name, const std::vector<std::string>& options,
                             const std::vector<std::string>& program) {
  std::vector<std::string> args{"run", "--mode", "mps", "--name", name, "--mem", "8GiB", "--summary"};
  args.insert(args.end(), options.begin(), options.end());
  args.push_back("--");
  args.push_back(Sandbox::Program("gpumux-workload"));
  args.insert(args.end(), program.begin(), program.end());
  return args;
}

// The text of the last event of this kind; empty: none.
std::string EventText(Sandbox& box, const std::string& kind) {
  const Json answer = Json::parse(box.RunGpumux({"events", "--json"}).out);
  std::string text;
  for (const Json& event : answer["data"]["events"]) {
    if (event["kind"] == kind) text = event["text"].get<std::string>();
  }
  return text;
}

bool Launched(Sandbox& box, const std::string& name) {
  const Json status = box.StatusData();
  for (const Json& tenant : status["tenants"]) {
    if (tenant["name"] != name) continue;
    for (const Json& member : tenant["members"]) {
      if (!member["gpus"].empty() && member["gpus"][0]["launches"] > 0) return true;
    }
  }
  return false;
}

bool HasContext(Sandbox& box, const std::string& name) {
  const Json status = box.StatusData();
  for (const Json& tenant : status["tenants"]) {
    if (tenant["name"] == name && !tenant["members"].empty() &&
        tenant["members"][0]["gpus"][0]["contexts"] > 0)
      return true;
  }
  return false;
}

const std::vector<std::string> kFaulty{"--kernel-us", "2000", "--seconds", "0.1", "--end", "fault"};

TEST(MpsFault, NamesWhoseItWasWhereNobodyElseWasAtWork) {
  Sandbox box;
  Process idle = box.Gpumux(Mps("idle", {}, {"--alloc", "1GiB", "--hold", "60"}));
  WaitUntil("it has a context", [&] { return HasContext(box, "idle"); });
  const Outcome faulty = box.RunGpumux(Mps("faulty", {}, kFaulty));
  EXPECT_NE(faulty.exit_code, 0);
  EXPECT_THAT(faulty.err, HasSubstr("a GPU fault of its own: no other tenant had work on the GPU"));
  EXPECT_THAT(EventText(box, "mps-fault"), HasSubstr("(faulty) on the GPU"));
  // Nobody can start until those of before have gone.
  const Outcome meanwhile = box.RunGpumux(Mps("meanwhile", {"--no-wait"}, {}));
  EXPECT_EQ(meanwhile.exit_code, 4);
  EXPECT_THAT(meanwhile.err, HasSubstr("MPS server recovers"));
  Process waiting = box.Gpumux(Mps("waiting", {}, {"--kernel-us", "2000", "--seconds", "0.1"}));
  (void)box.RunGpumux({"stop", "idle"});
  EXPECT_EQ(waiting.Wait().exit_code, 0);
  idle.Wait();
}

TEST(MpsFault, AnInnocentNeighbourIsStartedAgain) {
  Sandbox box;
  Process innocent = box.Gpumux(Mps("innocent", {"--restart", "neighbour-fault=2"},
                                    {"--kernel-us", "5000", "--seconds", "1.5", "--json"}));
  WaitUntil("it is at work", [&] { return Launched(box, "innocent"); });
  const Outcome faulty = box.RunGpumux(Mps("faulty", {}, kFaulty));
  EXPECT_NE(faulty.exit_code, 0);
  const Outcome ended = innocent.Wait();
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("starting again (1 of 2)"));
  // Both were at work and the driver does not tell: nobody is accused.
  EXPECT_THAT(EventText(box, "mps-fault"), HasSubstr("the driver does not tell whose it was"));
}

// Its end is as close to the fault as that of one who tore the others' work down.
TEST(MpsFault, WhoEndedWellShortlyBeforeIsNotAccused) {
  Sandbox box;
  Process beside = box.Gpumux(Mps("beside", {}, {"--kernel-us", "5000", "--seconds", "30"}));
  WaitUntil("it is at work", [&] { return Launched(box, "beside"); });
  EXPECT_EQ(box.RunGpumux(Mps("well", {}, {"--kernel-us", "2000", "--seconds", "0.05"})).exit_code, 0);
  (void)box.RunGpumux(Mps("faulty", {}, kFaulty));
  EXPECT_EQ(beside.Wait().exit_code, 1);
  EXPECT_THAT(EventText(box, "mps-fault"),
              HasSubstr("the driver does not tell whose it was; the work of 2 tenant(s) is lost"));
}

TEST(MpsFault, WithoutRestartItEndsAndSaysWhy) {
  Sandbox box;
  Process innocent = box.Gpumux(Mps("innocent", {}, {"--kernel-us", "5000", "--seconds", "30"}));
  WaitUntil("it is at work", [&] { return Launched(box, "innocent"); });
  (void)box.RunGpumux(Mps("faulty", {}, kFaulty));
  const Outcome ended = innocent.Wait();
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("killed by a GPU fault under MPS"));
  // The next one works, on the same server.
  EXPECT_EQ(box.RunGpumux(Mps("next", {}, {"--kernel-us", "2000", "--seconds", "0.1"})).exit_code, 0);
}

TEST(MpsFault, AProgramThatFailsByItselfIsNotStartedAgain) {
  Sandbox box;
  const Outcome failed = box.RunGpumux(
      {"run", "--mode", "mps", "--mem", "4GiB", "--restart", "neighbour-fault", "--", "sh", "-c", "exit 3"});
  EXPECT_EQ(failed.exit_code, 3);
  EXPECT_EQ(failed.err.find("starting again"), std::string::npos) << failed.err;
}

}  // namespace
}  // namespace gpumux::test
