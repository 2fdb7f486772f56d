// SPDX-License-Identifier: Apache-2.0
//
// 1,000 deaths by SIGKILL, of programs, of `gpumux run` and of both, in the
// middle of start-up and of every way to memory. The ledger is exact after, and
// neighbours notice nothing.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "host.h"
#include "program.h"

namespace gpumux::test {
namespace {

constexpr uint64_t kGiB = 1ull << 30;
constexpr int kKills = 1000;
constexpr size_t kAtOnce = 6;
const std::string kProbe = Sandbox::TestProgram("guard_probe");

class Deaths {
 public:
  explicit Deaths(uint64_t seed) : random_(seed), host_(box_) {}

  void Run() {
    StartSurvivors();
    const auto before = host_.Status()["gpus"][0];
    for (int i = 0; i < kKills && !testing::Test::HasFailure(); ++i) {
      StartOne(i);
      while (dying_.size() >= kAtOnce) Reap();
      if (i % 50 == 49) CheckNeighbours();
    }
    while (!dying_.empty() && !testing::Test::HasFailure()) Reap();
    WaitUntil("the ledger is as before", [&] {
      const auto now = host_.Status()["gpus"][0];
      return now["mem_guaranteed_bytes"] == before["mem_guaranteed_bytes"] &&
             now["mem_promisable_bytes"] == before["mem_promisable_bytes"] &&
             now["mem_unmanaged_bytes"] == 0 && host_.Nvml().size() == survivors_.size();
    });
    EndSurvivors();
  }

 private:
  void StartSurvivors() {
    for (int i = 0; i < 2; ++i) {
      survivors_.push_back(box_.Gpumux({"run", "--mem", "8GiB", "--name", "survivor" + std::to_string(i),
                                        "--", kProbe, "survive", std::to_string(7 * kGiB), stop_}));
    }
    for (Process& survivor : survivors_) {
      WaitUntil("the survivor works", [&] { return survivor.Out().find("working") != std::string::npos; });
    }
  }

  // A quarter each: a probe that kills itself; one whose `run` is killed, at times
  // while it starts; an actor that is killed from outside between two steps; an
  // actor that is killed while it is in one.
  void StartOne(int number) {
    const uint64_t seed = random_();
    switch (number % 4) {
      case 0:
      case 1: {
        Process process = box_.Gpumux({"run", "--mem", "4GiB", "--", kProbe, "killed", std::to_string(seed),
                                       std::to_string(random_() % 60'000)});
        if (number % 4 == 1) {
          std::this_thread::sleep_for(std::chrono::microseconds(random_() % 40'000));
          process.Signal(SIGKILL);
        }
        dying_.push_back(std::move(process));
        return;
      }
      default:
        KillActor(Generate(seed, 20), number % 4 == 3);
    }
  }

  void KillActor(const Program& program, bool within_a_step) {
    Process run = box_.Gpumux({"run", "--mem", "4GiB", "--", Host::ActorProgram()});
    const auto actor = host_.Accept();
    if (!actor) return;
    constexpr const char* kFamilies[] = {"plain", "pitch", "managed", "async", "pool",
                                         "vmm",   "array", "module",  "graph", "context"};
    host_.Ask(actor->fd, "init");
    int id = 0;
    for (const Step& step : program.steps) {
      const std::string line = "alloc " + std::to_string(++id) + " " +
                               kFamilies[step.a % std::size(kFamilies)] + " " +
                               std::to_string(BytesOf(step.b)) + " 0";
      if (id == static_cast<int>(program.steps.size())) {
        if (within_a_step) host_.Send(actor->fd, line);
      } else {
        host_.Ask(actor->fd, line);
      }
    }
    kill(actor->pid, SIGKILL);
    EXPECT_EQ(run.Wait().exit_code, 137);
    ::close(actor->fd);
  }

  void Reap() {
    WaitUntil(
        "a killed tenant ended",
        [&] {
          for (size_t i = 0; i < dying_.size(); ++i) {
            if (!dying_[i].Ended()) continue;
            EXPECT_EQ(dying_[i].Wait().exit_code, 137) << dying_[i].Out() << dying_[i].Err();
            dying_.erase(dying_.begin() + static_cast<long>(i));
            return true;
          }
          return false;
        },
        std::chrono::seconds(60));
  }

  void CheckNeighbours() {
    for (size_t i = 0; i < survivors_.size(); ++i) {
      EXPECT_FALSE(survivors_[i].Ended()) << survivors_[i].Out() << survivors_[i].Err();
      const auto tenant = host_.Tenant("survivor" + std::to_string(i));
      ASSERT_FALSE(tenant.is_null());
      EXPECT_LE(tenant["mem_used_bytes"].get<uint64_t>(), 8 * kGiB);
      EXPECT_EQ(tenant["refusals"]["own_limit"], 0);
    }
  }

  void EndSurvivors() {
    std::ofstream(stop_).put('\n');
    for (Process& survivor : survivors_) {
      const Outcome outcome = survivor.Wait();
      EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    }
    WaitUntil("everything is free", [&] {
      const auto gpu = host_.Status()["gpus"][0];
      return gpu["mem_guaranteed_bytes"] == 0 && gpu["mem_used_bytes"] == 0 && host_.Nvml().empty();
    });
  }

  std::mt19937_64 random_;
  Sandbox box_;
  Host host_;
  const std::string stop_ = box_.dir() + "/stop";
  std::vector<Process> survivors_, dying_;
};

TEST(Kills, AThousandLeaveAnExactLedgerAndTheNeighboursUndisturbed) { Deaths(20261129).Run(); }

}  // namespace
}  // namespace gpumux::test
