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
using ::testing::Not;
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

Json TenantOf(Sandbox& box, const std::string& name) {
  const Json status = box.StatusData();
  for (const Json& tenant : status["tenants"]) {
    if (tenant["name"] == name) return tenant;
  }
  return nullptr;
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

// Who waited for all of its work, and launched nothing since for longer than a fault takes to be told.
TEST(MpsFault, WhoHasDoneNothingForSomeTimeIsRuledOut) {
  Sandbox box;
  Process done = box.Gpumux({"run", "--mode", "mps", "--name", "done", "--mem", "8GiB", "--",
                             Sandbox::TestProgram("mps_probe"), "idle", "wait"});
  WaitUntil("its work has ended", [&] { return done.Out().find("busy") != std::string::npos; });
  WaitUntil("it is idle for some time", [&] {
    const Json idle = TenantOf(box, "done")["idle_seconds"];
    return idle.is_number() && idle.get<double>() >= 2;
  });
  ASSERT_GT(TenantOf(box, "done")["launches"], 0);
  EXPECT_NE(box.RunGpumux(Mps("faulty", {}, kFaulty)).exit_code, 0);
  EXPECT_THAT(EventText(box, "mps-fault"), HasSubstr("(faulty) on the GPU: no other tenant had work"));
  (void)box.RunGpumux({"stop", "done"});
  done.Wait();
}

// That its last wait went well is no proof: of a misaligned address the culprit's own may (H200).
TEST(MpsFault, WhoHasJustWaitedForItsWorkIsNotRuledOut) {
  Sandbox box;
  // Whenever the fault comes, it has launched less than two seconds ago, and has most likely no work under
  // way.
  Process done = box.Gpumux({"run", "--mode", "mps", "--name", "done", "--mem", "8GiB", "--",
                             Sandbox::TestProgram("mps_probe"), "often", "200"});
  WaitUntil("its work has ended", [&] { return done.Out().find("busy") != std::string::npos; });
  EXPECT_NE(box.RunGpumux(Mps("faulty", {}, kFaulty)).exit_code, 0);
  EXPECT_THAT(EventText(box, "mps-fault"), HasSubstr("the driver does not tell whose it was"));
  (void)box.RunGpumux({"stop", "done"});
  done.Wait();
}

// Where nobody could be named each is started again outside the server: the next fault
// is its owner's alone.
TEST(MpsFault, SuspectsRunApartAndTheOneThatFaultsAgainIsNamed) {
  Sandbox box;
  Process innocent = box.Gpumux(Mps("innocent", {"--restart", "neighbour-fault=2"},
                                    {"--kernel-us", "5000", "--seconds", "60", "--json"}));
  WaitUntil("it is at work", [&] { return Launched(box, "innocent"); });
  const Outcome faulty = box.RunGpumux(Mps("faulty", {"--restart", "neighbour-fault=2"}, kFaulty));
  EXPECT_NE(faulty.exit_code, 0);
  EXPECT_THAT(faulty.err, HasSubstr("starting again (1 of 2)"));
  EXPECT_THAT(faulty.err, Not(HasSubstr("starting again (2 of 2)")));
  EXPECT_THAT(faulty.err, HasSubstr("a GPU fault of its own: error 700 of pid"));
  EXPECT_THAT(EventText(box, "mps-fault"), HasSubstr("(faulty) on the GPU: error 700"));
  EXPECT_THAT(EventText(box, "mps-fault"), HasSubstr("nobody else lost work"));
  // The other one has not noticed.
  const auto apart = HasSubstr("apart from the MPS server, for it may have been the reason of the fault");
  Json shown;
  WaitUntil("it is at work again, apart", [&] {
    shown = TenantOf(box, "innocent");
    return shown.is_object() && shown["launches"] > 0 &&
           testing::Value(shown["mode_reason"].get<std::string>(), apart);
  });
  EXPECT_EQ(shown["mode"], "mps");
  EXPECT_THAT(shown["enforced"]["memory"].get<std::string>(), Not(HasSubstr("MPS")));
  EXPECT_THAT(shown["neighbours"]["fault"].get<std::string>(), HasSubstr("does not reach"));
  EXPECT_TRUE(shown["members"][0]["descriptors_held"].is_null());
  // Who is new is a client of the server meanwhile, as ever.
  EXPECT_EQ(box.RunGpumux(Mps("newcomer", {"--strict"}, {"--seconds", "0.1"})).exit_code, 0);
  (void)box.RunGpumux({"stop", "innocent"});
  EXPECT_THAT(innocent.Wait().err, Not(HasSubstr("starting again (2 of 2)")));
}

// A name that somebody else's `run` gives is no reason.
TEST(MpsFault, WhoWasNoSuspectIsNotApart) {
  Sandbox box;
  EXPECT_EQ(box.RunGpumux(Mps("one", {}, {"--seconds", "0.1"})).exit_code, 0);
  Process next = box.Gpumux(Mps("next", {}, {"--kernel-us", "2000", "--seconds", "30"}));
  WaitUntil("it is at work", [&] { return Launched(box, "next"); });
  EXPECT_EQ(TenantOf(box, "next")["mode_reason"], "asked for");
  (void)box.RunGpumux({"stop", "next"});
  next.Wait();
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
