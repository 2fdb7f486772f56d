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
  // Each waits for a daemon before it gives up, so both at once.
  const std::vector<std::string> lookup{kProbe, "lookup", "handle", std::to_string(3 * kGiB)};
  Process lenient = box.Start(lookup);
  box.SetEnv("GPUMUX_STRICT", "1");
  Process strict = box.Start(lookup);
  EXPECT_EQ(lenient.Wait().out, "small 0\nlarge 0\n");
  EXPECT_EQ(strict.Wait().out, "cuInit failed: 800\n");
}

// A program that takes all it gets from the moment its daemon is dead. Burst beyond the guarantee
// is the daemon's to give: 2 GiB guaranteed, 20 allowed. A `run` that is stopped starts no other
// daemon, which would have the burst to give. What it took, its context included.
uint64_t TakenWithoutItsDaemon(bool until_it_is_refused) {
  Sandbox box;
  const std::string go_on = box.dir() + "/go-on";
  box.SetEnv("PROBE_HOLD_FILE", go_on);
  Process p = box.Gpumux({"run", "--mem", "2GiB:20GiB", "--", kProbe, "orphan"});
  EXPECT_TRUE(WaitUntil("it holds", [&] { return p.Out().find("ready") != std::string::npos; })) << p.Err();
  EXPECT_EQ(kill(p.pid(), SIGSTOP), 0);
  EXPECT_EQ(kill(box.DaemonPid(), SIGKILL), 0);
  WaitUntil("the daemon is gone", [&] { return box.DaemonPid() == 0; });
  std::ofstream(go_on).put('\n');
  if (until_it_is_refused)
    WaitUntil("it is refused", [&] { return p.Out().find(" then ") != std::string::npos; });
  kill(p.pid(), SIGCONT);
  const Outcome o = p.Wait();
  EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
  uint64_t taken = 0;
  int code = -1;
  EXPECT_EQ(sscanf(o.out.c_str(), "ready\ntaken %" SCNu64 " then %d", &taken, &code), 2) << o.out;
  EXPECT_EQ(code, 2);
  return taken + 543162368;
}

TEST(Guard, KeepsTheGuaranteeAndNoMoreWhenItsDaemonDies) {
  const uint64_t taken = TakenWithoutItsDaemon(/*until_it_is_refused=*/true);
  EXPECT_LE(taken, 2u * kGiB);
  EXPECT_GE(taken + 100 * kMiB, 2u * kGiB) << "the guarantee is there without a daemon too";
}

TEST(Guard, WaitsForTheNextDaemonRatherThanToRefuse) {
  // What only a daemon can give is asked of the next one.
  const uint64_t taken = TakenWithoutItsDaemon(/*until_it_is_refused=*/false);
  EXPECT_GE(taken + 100 * kMiB, 20u * kGiB) << "refused while the next daemon came";
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
