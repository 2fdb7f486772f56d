// SPDX-License-Identifier: Apache-2.0
//
// The guard in front of the software GPU's driver, under a real daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cinttypes>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kGiB = 1 << 30;
const std::string kProbe = Sandbox::TestProgram("guard_probe");

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Whatever way a program finds cuMemAlloc, the promise holds (pitfalls A10, A11, A12).
class EveryLookUp : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryLookUp, IsGuarded) {
  Sandbox box;
  const Outcome o =
      box.RunGpumux({"run", "--mem", "2GiB", "--", kProbe, "lookup", GetParam(), std::to_string(3 * kGiB)});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(o.out, "small 0\nlarge 2\n");
}

INSTANTIATE_TEST_SUITE_P(Ways, EveryLookUp,
                         ::testing::Values("handle", "default", "next", "self", "dlsym-of-dlsym",
                                           "dlvsym-of-dlsym", "proc-address", "proc-address-v2",
                                           "proc-address-by-itself"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(LookUp, OfALinkedProgramIsGuarded) {
  Sandbox box;
  const Outcome o = box.RunGpumux(
      {"run", "--mem", "2GiB", "--", Sandbox::TestProgram("guard_linked_probe"), std::to_string(3 * kGiB)});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(o.out, "small 0\nlarge 2\n");
}

TEST(LookUp, WithoutAPromiseTheSameCallsSucceed) {
  // The control: what the tests above refuse is granted without gpumux.
  Sandbox box;
  box.SetEnv("LD_LIBRARY_PATH", Sandbox::Program("../lib/gpumux/softgpu"));
  const Outcome o = box.Run({kProbe, "lookup", "next", std::to_string(3 * kGiB)});
  EXPECT_EQ(o.out, "small 0\nlarge 0\n") << o.err;
}

TEST(LookUp, GivesNothingThatIsNotThere) {
  Sandbox box;
  const Outcome o = box.RunGpumux({"run", "--mem", "2GiB", "--", kProbe, "absent"});
  EXPECT_EQ(
      o.out,
      "default before loading 0\nnext before loading 0\nother name 0\nerror text 1\nnext of C library 1\n")
      << o.err;
}

TEST(Guard, LeavesAProgramWithoutAGpuUntouched) {
  // No descriptor, no output, the program's own exit code (pitfalls A14, A15, A20).
  Sandbox box;
  const Outcome o = box.RunGpumux({"run", "--mem", "1GiB", "--", kProbe, "untouched"});
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_THAT(o.out, Not(HasSubstr(" 50")));
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "1GiB", "--", "/bin/true"}).exit_code, 0);
  const Outcome f =
      box.RunGpumux({"run", "--mem", "1GiB", "--quiet", "--", "/bin/sh", "-c", "echo a; echo b >&2; exit 9"});
  EXPECT_EQ(f.exit_code, 9);
  EXPECT_EQ(f.out, "a\n");
  EXPECT_EQ(f.err, "b\n");
}

TEST(Guard, WithoutASessionDoesNothing) {
  Sandbox box;
  box.SetEnv("LD_LIBRARY_PATH", Sandbox::Program("../lib/gpumux/softgpu"));
  box.SetEnv("LD_PRELOAD", Sandbox::Program("../lib/gpumux/libgpumux-guard.so"));
  const Outcome o = box.Run({kProbe, "lookup", "handle", std::to_string(3 * kGiB)});
  EXPECT_EQ(o.out, "small 0\nlarge 0\n") << o.err;
}

TEST(Guard, WithoutADaemonTheProgramRunsAndAStrictOneDoesNot) {
  Sandbox box;
  box.SetEnv("LD_LIBRARY_PATH", Sandbox::Program("../lib/gpumux/softgpu"));
  box.SetEnv("LD_PRELOAD", Sandbox::Program("../lib/gpumux/libgpumux-guard.so"));
  box.SetEnv("GPUMUX_SESSION", box.dir() + "/nobody.sock");
  EXPECT_EQ(box.Run({kProbe, "lookup", "handle", std::to_string(3 * kGiB)}).out, "small 0\nlarge 0\n");
  box.SetEnv("GPUMUX_STRICT", "1");
  EXPECT_EQ(box.Run({kProbe, "lookup", "handle", std::to_string(3 * kGiB)}).out, "cuInit failed: 800\n");
}

TEST(Guard, KeepsTheGuaranteeAndNoMoreWhenItsDaemonDies) {
  // Burst beyond the guarantee is the daemon's to give: 2 GiB guaranteed, 20 allowed.
  Sandbox box;
  const std::string go_on = box.dir() + "/go-on";
  box.SetEnv("PROBE_HOLD_FILE", go_on);
  Process p = box.Gpumux({"run", "--mem", "2GiB:20GiB", "--", kProbe, "orphan"});
  ASSERT_TRUE(WaitUntil("it holds", [&] { return p.Out().find("ready") != std::string::npos; })) << p.Err();
  ASSERT_EQ(kill(box.DaemonPid(), SIGKILL), 0);
  WaitUntil("the daemon is gone", [&] { return box.DaemonPid() == 0; });
  std::ofstream(go_on).put('\n');
  const Outcome o = p.Wait();
  EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
  uint64_t taken = 0;
  int code = -1;
  ASSERT_EQ(sscanf(o.out.c_str(), "ready\ntaken %" SCNu64 " then %d", &taken, &code), 2) << o.out;
  EXPECT_EQ(code, 2);
  EXPECT_LE(taken + 543162368, 2u * kGiB);
  EXPECT_GE(taken + 543162368 + 100 * kMiB, 2u * kGiB) << "the guarantee is there without a daemon too";
}

// --- families ---------------------------------------------------------------------

struct Row {
  int code;
  int64_t charged;  // by how much the told free memory fell
  int64_t taken;    // by how much the device's own figure rose
};

std::map<std::string, Row> Families(Sandbox& box, const std::string& which, const std::string& mem,
                                    int64_t over) {
  const Outcome o = box.RunGpumux({"run", "--mem", mem, "--", kProbe, which, std::to_string(over)});
  EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
  std::map<std::string, Row> rows;
  for (const std::string& line : Lines(o.out)) {
    char name[128];
    Row row;
    if (sscanf(line.c_str(), "%127[^\t]\t%d\t%" SCNd64 "\t%" SCNd64, name, &row.code, &row.charged,
               &row.taken) == 4) {
      rows[name] = row;
    }
  }
  return rows;
}

class EveryFamily : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Sandbox box;
    rows_ = new std::map<std::string, Row>(Families(box, "families", "8GiB", 9 * kGiB));
  }
  static void TearDownTestSuite() { delete rows_; }
  static std::map<std::string, Row>* rows_;
};
std::map<std::string, Row>* EveryFamily::rows_ = nullptr;

TEST_F(EveryFamily, ChargesWhatTheDeviceTakes) {
  ASSERT_GE(rows_->size(), 75u);
  for (const auto& [name, row] : *rows_) {
    if (name.starts_with("managed") || name.starts_with("context")) continue;
    EXPECT_EQ(row.charged, row.taken) << name;
  }
}

TEST_F(EveryFamily, TakesWhatTheH200Took) {
  // From outside: what an H200 with driver 580.159.04 took, in bytes (docs/results).
  const std::map<std::string, int64_t> measured = {
      {"plain 1", 2 * kMiB},
      {"plain again 1", 0},
      {"free second 1", 0},
      {"free first 1", -2 * kMiB},
      {"plain 513", 2 * kMiB},
      {"plain again 1048576", 0},
      {"plain 1048577", 2 * kMiB},
      {"plain again 1048577", 2 * kMiB},
      {"plain 2097153", 4 * kMiB},
      {"plain 100000000", 96 * kMiB},
      {"pitch", 288 * kMiB},
      {"async 1 byte", 32 * kMiB},
      {"async 31 MiB", 0},
      {"async 1 GiB and 1", 1024 * kMiB},
      {"async free", 0},
      {"async synchronise", -1056 * kMiB},
      {"pool 5 MiB", 32 * kMiB},
      {"pool free", 0},
      {"pool synchronise", 0},
      {"pool trim", -32 * kMiB},
      {"vmm create", 6 * kMiB},
      {"vmm map", 0},
      {"vmm release while mapped", 0},
      {"vmm unmap last", 0},
      {"vmm release last", -6 * kMiB},
  };
  for (const auto& [name, bytes] : measured) EXPECT_EQ(rows_->at(name).taken, bytes) << name;
}

TEST_F(EveryFamily, ManagedMemoryIsChargedWholeWhenAllocated) {
  EXPECT_EQ(rows_->at("managed").charged, 100 * kMiB);
  EXPECT_EQ(rows_->at("managed touch").charged, 0);
  EXPECT_EQ(rows_->at("managed free").charged, -100 * kMiB);
}

TEST_F(EveryFamily, RefusesWithOutOfMemoryAndNothingElse) {
  for (const char* name :
       {"plain over", "pitch over", "async over", "pool over", "vmm over", "managed over"}) {
    EXPECT_EQ(rows_->at(name).code, 2) << name;
    EXPECT_EQ(rows_->at(name).charged, 0) << name;
    EXPECT_EQ(rows_->at(name).taken, 0) << name;
  }
}

TEST_F(EveryFamily, LeavesTheDriversOwnAnswersAlone) {
  const std::map<std::string, int> measured = {
      {"plain zero", 1}, {"plain absurd", 2}, {"free nothing", 0},     {"free wrong", 1},
      {"async zero", 0}, {"vmm odd size", 1}, {"vmm release again", 1}};
  for (const auto& [name, code] : measured) EXPECT_EQ(rows_->at(name).code, code) << name;
}

TEST_F(EveryFamily, ReturnsToZero) {
  int64_t sum = 0;
  for (const auto& [name, row] : *rows_) {
    if (!name.starts_with("context")) sum += row.charged;
  }
  EXPECT_EQ(sum, 0);
}

TEST_F(EveryFamily, AContextCostsWhatItTakesAndGivesAllOfItBack) {
  const auto& made = rows_->at("context");
  EXPECT_EQ(made.taken, 543162368);
  EXPECT_GE(made.charged, made.taken);
  EXPECT_EQ(rows_->at("context's plain").charged, 10 * kMiB);
  EXPECT_EQ(rows_->at("context destroyed with it").charged, -made.charged - 10 * kMiB);
}

// Arrays, modules, limits and graphs: the ways that other interposers let pass.
class MoreFamilies : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Sandbox box;
    rows_ = new std::map<std::string, Row>(Families(box, "more-families", "8GiB", 9 * kGiB));
  }
  static void TearDownTestSuite() { delete rows_; }
  static std::map<std::string, Row>* rows_;
};
std::map<std::string, Row>* MoreFamilies::rows_ = nullptr;

TEST_F(MoreFamilies, ChargeWhatTheDeviceTakes) {
  ASSERT_GE(rows_->size(), 50u);
  for (const auto& [name, row] : *rows_) EXPECT_EQ(row.charged, row.taken) << name;
}

TEST_F(MoreFamilies, TakeWhatTheH200Took) {
  // From outside: what an H200 with driver 580.159.04 took, in bytes (docs/results).
  const std::map<std::string, int64_t> measured = {
      {"array 1D", 8388608},
      {"array 2D", 16777216},
      {"array 2D odd", 20971520},
      {"array 2D bytes", 16777216},
      {"array layered", 8388608},
      {"array cube map", 6291456},
      {"array cube maps", 12582912},
      {"array surface", 16777216},
      {"array layered rows", 4194304},
      {"mipmap 1", 4194304},
      {"mipmap 5", 6291456},
      {"mipmap 11", 6291456},
      {"module 50 MiB", 52428800},
      {"module 3 MB", 4194304},
      {"stack 2 KiB", 276824064},
      {"stack 8 KiB", 1660944384},
      {"stack 1 KiB", -1937768448},
      {"graph launched", 67108864},
      {"graph freed", 0},
      {"graph launched again", 0},
      {"graph trimmed", -67108864},
  };
  for (const auto& [name, bytes] : measured) EXPECT_EQ(rows_->at(name).taken, bytes) << name;
}

TEST_F(MoreFamilies, RefuseWithOutOfMemoryAndNothingElse) {
  for (const char* name : {"array over", "array 3D over", "mipmap over", "module over", "stack over",
                           "graph over", "capture over"}) {
    EXPECT_EQ(rows_->at(name).code, 2) << name;
    EXPECT_EQ(rows_->at(name).charged, 0) << name;
    EXPECT_EQ(rows_->at(name).taken, 0) << name;
  }
}

TEST_F(MoreFamilies, ReturnToZero) {
  int64_t sum = 0;
  for (const auto& [name, row] : *rows_) sum += row.charged;
  EXPECT_EQ(sum, 0);
}

// --- what the program is told --------------------------------------------------------

TEST(Told, ThePromiseIsTheWholeGpuInEveryQuery) {
  Sandbox box;
  const Outcome o = box.RunGpumux({"run", "--mem", "10GiB", "--", kProbe, "told"});
  ASSERT_EQ(o.exit_code, 0) << o.err;
  std::map<std::string, std::string> said;
  for (const std::string& line : Lines(o.out))
    said[line.substr(0, line.find(' '))] = line.substr(line.find(' ') + 1);
  const std::string total = std::to_string(10 * kGiB);
  EXPECT_EQ(said["total"], total);
  EXPECT_EQ(said["device_total"], total);
  EXPECT_EQ(said["null_free"], "0 " + total);
  const int64_t free = std::stoll(said["free"]);
  EXPECT_LT(free, 10 * kGiB - 543162368);  // the context is inside
  EXPECT_GT(free, 9 * kGiB);
  const std::string used = std::to_string(10 * kGiB - free);
  EXPECT_EQ(said["nvml1"], total + " " + said["free"] + " " + used);
  EXPECT_EQ(said["nvml2"], total + " 0 " + said["free"] + " " + used);
}

// --- forks --------------------------------------------------------------------------

TEST(Fork, BeforeCudaBothSidesAreTheTenants) {
  Sandbox box;
  // Two contexts and 2 x 3 GiB do not fit into 6 GiB; one of the two is refused.
  Outcome o = box.RunGpumux({"run", "--mem", "6GiB", "--", kProbe, "fork-before", std::to_string(3 * kGiB)});
  EXPECT_EQ(o.out, "both 1\n") << o.err;
  o = box.RunGpumux({"run", "--mem", "9GiB", "--", kProbe, "fork-before", std::to_string(3 * kGiB)});
  EXPECT_EQ(o.out, "both 2\n") << o.err;
}

TEST(Fork, AfterCudaTheParentsLedgerStaysRight) {
  Sandbox box;
  const Outcome o = box.RunGpumux({"run", "--mem", "4GiB", "--", kProbe, "fork-after"});
  EXPECT_EQ(o.out, "child allocated 0\nsame 1\nback 1\n") << o.err;
}

}  // namespace
}  // namespace gpumux::test
