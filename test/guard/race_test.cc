// SPDX-License-Identifier: Apache-2.0
//
// Many processes of one tenant at the cap, and deaths at any moment.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cinttypes>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;
constexpr uint64_t kContextBytes = 543162368;  // an H200's, measured (docs/results)
const std::string kProbe = Sandbox::TestProgram("guard_probe");

struct Call {
  uint64_t begin, end;
  int code;
};

// The only tenant that runs in the sandbox.
nlohmann::json OnlyTenant(Sandbox& box) {
  const auto data = box.StatusData();
  for (const auto& tenant : data.value("tenants", nlohmann::json::array())) {
    if (tenant.value("state", "") == "running") return tenant;
  }
  return nullptr;
}

class Race : public ::testing::TestWithParam<int> {};

TEST_P(Race, OfSixteenProcessesNeverExceedsTheCapAndWastesNothing) {
  constexpr int kMembers = 16;
  constexpr uint64_t kPiece = 64 * kMiB;
  constexpr uint64_t kCap = 20 * kGiB;
  Sandbox box;
  const std::string hold = box.dir() + "/go-on";
  box.SetEnv("PROBE_HOLD_FILE", hold);
  Process run = box.Gpumux(
      {"run", "--mem", "20GiB", "--", kProbe, "race", std::to_string(kMembers), std::to_string(kPiece)});
  ASSERT_TRUE(WaitUntil(
      "all sixteen were refused", [&] { return run.Out().find("all done") != std::string::npos; },
      std::chrono::seconds(90)))
      << run.Out() << run.Err();

  std::vector<Call> granted, refused;
  uint64_t own_sum = 0, told_free = 0, told_count = 0;
  std::istringstream lines(run.Out());
  for (std::string line; std::getline(lines, line);) {
    int member;
    Call call;
    uint64_t own, told;
    if (sscanf(line.c_str(), "%d call %" SCNu64 " %" SCNu64 " %d", &member, &call.begin, &call.end,
               &call.code) == 4) {
      ASSERT_TRUE(call.code == 0 || call.code == 2) << line;
      (call.code == 0 ? granted : refused).push_back(call);
    } else if (sscanf(line.c_str(), "%d own %" SCNu64, &member, &own) == 2) {
      own_sum += own;
    } else if (sscanf(line.c_str(), "%d told %" SCNu64, &member, &told) == 2) {
      told_free = std::max(told_free, told);
      told_count++;
    }
  }
  ASSERT_EQ(told_count, static_cast<uint64_t>(kMembers));
  ASSERT_EQ(refused.size(), static_cast<size_t>(kMembers));

  // The cap. NVML's figures leave managed memory out, the ledger has all.
  EXPECT_LE(own_sum, kCap);
  const nlohmann::json tenant = OnlyTenant(box);
  ASSERT_FALSE(tenant.is_null());
  const uint64_t committed = granted.size() * kPiece;
  EXPECT_LE(committed + kMembers * kContextBytes, kCap);
  EXPECT_LE(tenant["mem_used_bytes"].get<uint64_t>(), kCap);
  EXPECT_LE(tenant["mem_peak_bytes"].get<uint64_t>(), kCap);
  EXPECT_EQ(tenant["refusals"]["own_limit"].get<int>(), kMembers);

  // No refusal while bytes were left that nobody had committed: each is told at
  // the end that less than a piece is free; and what was granted by calls that
  // began before the refusal ended, and one piece more, is more than there was.
  // What is neither granted nor told as free are the contexts and the allowance
  // for code that is loaded lazily.
  EXPECT_LT(told_free, kPiece);
  const uint64_t overheads = kCap - told_free - committed;
  EXPECT_LE(overheads, kMembers * (kContextBytes + 80 * kMiB));
  for (const Call& r : refused) {
    uint64_t by_then = 0;
    for (const Call& g : granted) by_then += g.begin < r.end ? kPiece : 0;
    EXPECT_GT(by_then + overheads + kPiece, kCap);
  }
  std::ofstream(hold).put('\n');
  EXPECT_EQ(run.Wait().exit_code, 0);
  WaitUntil("the ledger is empty", [&] {
    const auto data = box.StatusData();
    return data["gpus"][0]["mem_used_bytes"] == 0 && data["gpus"][0]["mem_guaranteed_bytes"] == 0;
  });
}

INSTANTIATE_TEST_SUITE_P(Times, Race, ::testing::Range(0, 5));

TEST(Kill, AHundredTenantsAtSeededMomentsLeaveAnExactLedger) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  std::vector<Process> survivors;
  for (int i = 0; i < 2; i++) {
    survivors.push_back(box.Gpumux({"run", "--mem", "8GiB", "--name", "survivor" + std::to_string(i), "--",
                                    kProbe, "survive", std::to_string(7 * kGiB), stop}));
  }
  for (auto& s : survivors) {
    ASSERT_TRUE(WaitUntil("the survivor works", [&] { return s.Out().find("working") != std::string::npos; }))
        << s.Err();
  }
  const auto before = box.StatusData();

  std::mt19937_64 random(20261129);
  constexpr int kTenants = 100, kAtOnce = 5;
  std::vector<Process> running;
  auto reap_one = [&] {
    ASSERT_TRUE(WaitUntil(
        "a killed tenant ended",
        [&] {
          for (size_t i = 0; i < running.size(); i++) {
            if (running[i].Ended()) {
              const int code = running[i].Wait().exit_code;
              EXPECT_EQ(code, 137) << running[i].Out() << running[i].Err();
              running.erase(running.begin() + static_cast<long>(i));
              return true;
            }
          }
          return false;
        },
        std::chrono::seconds(60)));
  };
  for (int i = 0; i < kTenants; i++) {
    const uint64_t seed = random(), us = random() % 60'000;
    Process p = box.Gpumux(
        {"run", "--mem", "4GiB", "--", kProbe, "killed", std::to_string(seed), std::to_string(us)});
    if (i % 4 == 3) {
      // `run` itself is killed too, at a moment that is as good as random.
      const uint64_t run_us = random() % 40'000;
      std::this_thread::sleep_for(std::chrono::microseconds(run_us));
      p.Signal(SIGKILL);
    }
    running.push_back(std::move(p));
    if (running.size() >= kAtOnce) reap_one();
  }
  while (!running.empty()) reap_one();

  WaitUntil("the ledger is as before", [&] {
    const auto now = box.StatusData();
    return now["gpus"][0]["mem_guaranteed_bytes"] == before["gpus"][0]["mem_guaranteed_bytes"] &&
           now["gpus"][0]["mem_promisable_bytes"] == before["gpus"][0]["mem_promisable_bytes"] &&
           now["gpus"][0]["mem_unmanaged_bytes"] == 0;
  });
  std::ofstream(stop).put('\n');
  for (auto& s : survivors) {
    const Outcome o = s.Wait();
    EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
  }
  WaitUntil("everything is free again", [&] {
    const auto gpu = box.StatusData()["gpus"][0];
    return gpu["mem_guaranteed_bytes"] == 0 && gpu["mem_used_bytes"] == 0;
  });
}

}  // namespace
}  // namespace gpumux::test
