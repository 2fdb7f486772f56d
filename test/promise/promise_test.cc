// SPDX-License-Identifier: Apache-2.0
//
// The main job, end to end on the software GPU: promises kept side by side,
// what does not fit refused or waiting, one owner a GPU.
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

constexpr uint64_t kGiB = 1ull << 30;
// NVML's total of an H200 less what its driver keeps (docs/results).
constexpr uint64_t kPromisableAtMost = 150754820096ull - 644939776ull;
const std::string kProbe = Sandbox::TestProgram("guard_probe");

// A tenant that holds `bytes` and works until `stop` exists.
Process Hold(Sandbox& box, const std::string& name, const std::string& mem, uint64_t bytes,
             const std::string& stop) {
  Process p =
      box.Gpumux({"run", "--mem", mem, "--name", name, "--", kProbe, "survive", std::to_string(bytes), stop});
  WaitUntil(name + " works", [&] { return p.Out().find("working") != std::string::npos || p.Ended(); });
  EXPECT_THAT(p.Out(), HasSubstr("working")) << p.Err();
  return p;
}

nlohmann::json Tenant(Sandbox& box, const std::string& name) {
  const auto data = box.StatusData();
  for (const auto& t : data["tenants"]) {
    if (t["name"] == name) return t;
  }
  return nullptr;
}

TEST(Promise, TwoTenantsKeepTheirsAndAGreedyOneIsStopped) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  Process serve = Hold(box, "serve", "40GiB", 30 * kGiB, stop);
  Process train = Hold(box, "train", "60GiB", 50 * kGiB, stop);
  const auto data = box.StatusData();
  const auto& gpu = data["gpus"][0];
  EXPECT_EQ(gpu["mode"], "timeslice");
  EXPECT_EQ(gpu["mem_total_bytes"], 150754820096ull);
  EXPECT_EQ(gpu["mem_guaranteed_bytes"], 100 * kGiB);
  EXPECT_LE(gpu["mem_promisable_bytes"].get<uint64_t>(), kPromisableAtMost - 100 * kGiB);
  const auto t = Tenant(box, "serve");
  EXPECT_EQ(t["state"], "running");
  EXPECT_EQ(t["mem_guaranteed_bytes"], 40 * kGiB);
  EXPECT_EQ(t["mem_limit_bytes"], 40 * kGiB);
  EXPECT_EQ(t["isolation"], "fault");

  // A third within its small promise, greedy beyond it.
  const Outcome greedy = box.RunGpumux({"run", "--mem", "2GiB", "--name", "greedy", "--", kProbe, "lookup",
                                        "handle", std::to_string(3 * kGiB)});
  EXPECT_EQ(greedy.out, "small 0\nlarge 2\n") << greedy.err;

  std::ofstream(stop).put('\n');
  EXPECT_EQ(serve.Wait().exit_code, 0);
  EXPECT_EQ(train.Wait().exit_code, 0);
}

TEST(Promise, WhatDoesNotFitIsRefusedWithTheSumOrWaitsAndThenRuns) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  Process big = Hold(box, "big", "100GiB", kGiB, stop);

  const Outcome refused = box.RunGpumux({"run", "--mem", "60GiB", "--no-wait", "--", "/bin/echo", "ran"});
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, HasSubstr("60.0 GiB"));
  EXPECT_THAT(refused.err, HasSubstr("100.0 "));
  EXPECT_THAT(refused.err, HasSubstr("--wait"));

  const Outcome timed_out =
      box.RunGpumux({"run", "--mem", "60GiB", "--wait=300ms", "--", "/bin/echo", "ran"});
  EXPECT_EQ(timed_out.exit_code, 5);
  EXPECT_EQ(timed_out.out, "");

  const Outcome never = box.RunGpumux({"run", "--mem", "200GiB", "--", "/bin/echo", "ran"});
  EXPECT_EQ(never.exit_code, 4) << "what can never fit must not wait";

  Process waiting = box.Gpumux({"run", "--mem", "60GiB", "--name", "patient", "--", "/bin/echo", "ran"});
  ASSERT_TRUE(WaitUntil("it waits", [&] {
    const auto t = Tenant(box, "patient");
    return !t.is_null() && t["state"] == "waiting";
  }));
  EXPECT_FALSE(waiting.Ended());
  std::ofstream(stop).put('\n');
  EXPECT_EQ(big.Wait().exit_code, 0);
  const Outcome ran = waiting.Wait();
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.out, "ran\n");
}

TEST(Promise, AWaitingRequestIsCancelledByItsDeath) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  Process big = Hold(box, "big", "100GiB", kGiB, stop);
  Process a = box.Gpumux({"run", "--mem", "60GiB", "--name", "first", "--", "/bin/true"});
  WaitUntil("it waits", [&] { return !Tenant(box, "first").is_null(); });
  a.Signal(SIGINT);
  EXPECT_EQ(a.Wait().exit_code, 130);
  Process b = box.Gpumux({"run", "--mem", "60GiB", "--name", "second", "--", "/bin/true"});
  WaitUntil("it waits", [&] { return !Tenant(box, "second").is_null(); });
  b.Signal(SIGKILL);
  b.Wait();
  WaitUntil("nobody waits",
            [&] { return Tenant(box, "first").is_null() && Tenant(box, "second").is_null(); });
  // What fits is not held up by those who left.
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "20GiB", "--no-wait", "--", "/bin/true"}).exit_code, 0);
  std::ofstream(stop).put('\n');
  EXPECT_EQ(big.Wait().exit_code, 0);
}

TEST(Promise, ExclusiveMeansAlone) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  Process alone = box.Gpumux({"run", "--mode", "exclusive", "--name", "alone", "--", kProbe, "survive",
                              std::to_string(120 * kGiB), stop});
  ASSERT_TRUE(WaitUntil("it works", [&] { return alone.Out().find("working") != std::string::npos; }))
      << alone.Err();
  EXPECT_EQ(box.StatusData()["gpus"][0]["mode"], "exclusive");
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "1GiB", "--no-wait", "--", "/bin/true"}).exit_code, 4);
  std::ofstream(stop).put('\n');
  EXPECT_EQ(alone.Wait().exit_code, 0);
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "1GiB", "--", "/bin/true"}).exit_code, 0);
}

TEST(Promise, AStoppedTenantEndsAndSaysWhy) {
  Sandbox box;
  Process p = Hold(box, "victim", "4GiB", kGiB, box.dir() + "/never");
  EXPECT_EQ(box.RunGpumux({"stop", "victim"}).exit_code, 0);
  EXPECT_EQ(p.Wait().exit_code, 143);
  EXPECT_EQ(box.RunGpumux({"stop", "victim"}).exit_code, 6);
}

TEST(Promise, BytesOfATenantThatDiesComeBack) {
  Sandbox box;
  Process p = Hold(box, "dies", "100GiB", 90 * kGiB, box.dir() + "/never");
  const auto t = Tenant(box, "dies");
  ASSERT_FALSE(t["members"].empty());
  kill(t["members"][0].is_object() ? t["members"][0]["pid"].get<pid_t>() : t["members"][0].get<pid_t>(),
       SIGKILL);
  EXPECT_EQ(p.Wait().exit_code, 137);
  EXPECT_EQ(
      box.RunGpumux({"run", "--mem", "100GiB", "--", kProbe, "lookup", "handle", std::to_string(90 * kGiB)})
          .out,
      "small 0\nlarge 0\n");
}

TEST(Promise, SeveralGpusAreIdentifiedByUuidAndPromisedTogether) {
  Sandbox box("2xH200");
  const std::string stop = box.dir() + "/stop";
  Process both = box.Gpumux({"run", "--gpu", "auto:2", "--mem", "100GiB", "--name", "both", "--", kProbe,
                             "survive", std::to_string(90 * kGiB), stop});
  ASSERT_TRUE(WaitUntil("it works", [&] { return both.Out().find("working") != std::string::npos; }))
      << both.Err();
  const auto t = Tenant(box, "both");
  EXPECT_EQ(t["gpus"].size(), 2u);
  const auto status = box.StatusData();
  for (const auto& gpu : status["gpus"]) EXPECT_EQ(gpu["mem_guaranteed_bytes"], 100 * kGiB);
  EXPECT_EQ(box.RunGpumux({"run", "--gpu", "1", "--mem", "60GiB", "--no-wait", "--", "/bin/true"}).exit_code,
            4);
  EXPECT_EQ(box.RunGpumux({"run", "--gpu", "1", "--mem", "20GiB", "--no-wait", "--", "/bin/true"}).exit_code,
            0);
  EXPECT_EQ(box.RunGpumux({"run", "--gpu", "7", "--mem", "1GiB", "--", "/bin/true"}).exit_code, 6);
  std::ofstream(stop).put('\n');
  EXPECT_EQ(both.Wait().exit_code, 0);
}

TEST(Promise, StatusWorksWithoutADaemon) {
  Sandbox box;
  const Outcome o = box.RunGpumux({"status"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("H200"));
  EXPECT_EQ(box.DaemonPid(), 0);
}

// Two users, each with a daemon of their own, on one GPU.
class TwoUsers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (getuid() != 0) GTEST_SKIP() << "needs root, to become two users";
    ann_.SetUser(23001);
    bob_.SetUser(23002);
    bob_.ShareGpuOf(ann_);
  }
  Sandbox ann_, bob_;
};

TEST_F(TwoUsers, NeverGuaranteeTheSameByte) {
  const std::string stop = ann_.dir() + "/stop";
  Process ann = Hold(ann_, "anns", "10GiB", kGiB, stop);
  ASSERT_NE(ann_.DaemonPid(), 0);

  // The GPU's ledger is Ann's: Bob is told whose, and gets nothing, however little he asks for.
  const Outcome bob = bob_.RunGpumux({"run", "--mem", "1GiB", "--no-wait", "--", "/bin/true"});
  EXPECT_EQ(bob.exit_code, 4) << bob.err;
  EXPECT_THAT(bob.err, HasSubstr("23001"));

  // Ann's daemon dies, her tenant lives: its bytes are still hers.
  ASSERT_EQ(kill(ann_.DaemonPid(), SIGKILL), 0);
  WaitUntil("the daemon is gone", [&] { return ann_.DaemonPid() == 0; });
  const Outcome still = bob_.RunGpumux({"run", "--mem", "1GiB", "--no-wait", "--", "/bin/true"});
  EXPECT_EQ(still.exit_code, 4) << still.err;
  EXPECT_FALSE(ann.Ended());

  // Her tenant ends: the GPU is free for Bob.
  std::ofstream(stop).put('\n');
  EXPECT_EQ(ann.Wait().exit_code, 0);
  // The daemon that took over would leave by itself when it was idle for a while.
  if (const pid_t next = ann_.DaemonPid()) kill(next, SIGTERM);
  WaitUntil("Bob gets the GPU", [&] {
    return bob_.RunGpumux({"run", "--mem", "100GiB", "--no-wait", "--", "/bin/true"}).exit_code == 0;
  });
}

TEST_F(TwoUsers, RacingForTheGpuGiveItToOneOfThem) {
  const std::string stop = ann_.dir() + "/stop";
  std::vector<Process> runs;
  for (int i = 0; i < 4; i++) {
    Sandbox& box = i % 2 == 0 ? ann_ : bob_;
    runs.push_back(box.Gpumux(
        {"run", "--mem", "20GiB", "--no-wait", "--", kProbe, "survive", std::to_string(kGiB), stop}));
  }
  // Each is refused or works; those that work are of one user.
  ASSERT_TRUE(WaitUntil("each is refused or works", [&] {
    for (auto& r : runs) {
      if (!r.Ended() && r.Out().find("working") == std::string::npos) return false;
    }
    return true;
  }));
  const bool ann_works = !runs[0].Ended() || !runs[2].Ended(),
             bob_works = !runs[1].Ended() || !runs[3].Ended();
  EXPECT_NE(ann_works, bob_works);
  std::ofstream(stop).put('\n');
  for (auto& r : runs) {
    const int code = r.Wait().exit_code;
    EXPECT_TRUE(code == 0 || code == 4) << r.Err();
  }
}

}  // namespace
}  // namespace gpumux::test
