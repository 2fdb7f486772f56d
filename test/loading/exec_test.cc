// SPDX-License-Identifier: Apache-2.0
//
// A tenant's programs start programs: whatever environment they give them, these
// are the tenant's as well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr char kThreeGiB[] = "3221225472";
const std::string kProbe = Sandbox::TestProgram("exec_probe");
const std::string kAllocates = Sandbox::TestProgram("guard_linked_probe");
const std::string kGuard =
    std::filesystem::weakly_canonical(Sandbox::Program("../lib/gpumux/libgpumux-guard.so"));

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Under a promise of 2 GiB: `way` starts a program that is linked with the
// driver and asks for 3 GiB.
Outcome StartIn(Sandbox& box, const std::string& way, const std::string& environment,
                const std::string& program = kAllocates, const std::string& argument = kThreeGiB) {
  // For those that search.
  box.SetEnv("PATH", std::filesystem::path(kAllocates).parent_path().string() + ":/usr/bin:/bin");
  return box.RunGpumux(
      {"run", "--mem", "2GiB", "--quiet", "--", kProbe, way, environment, program, argument});
}

const char* const kWays[] = {"execve",      "execv",        "execvp",   "execvpe", "execl", "execle",
                             "execlp",      "fexecve",      "execveat", "null",    "fork",  "vfork",
                             "posix_spawn", "posix_spawnp", "system",   "popen"};

void ExpectGuardedInEveryWay(Sandbox& box, const std::string& environment) {
  for (const char* way : kWays) {
    const Outcome o = StartIn(box, way, environment);
    EXPECT_EQ(o.out, "small 0\nlarge 2\n") << way << o.err;
    EXPECT_EQ(o.exit_code, 0) << way;
  }
}

TEST(Exec, WithoutAnEnvironmentIsGuarded) {
  Sandbox box;
  ExpectGuardedInEveryWay(box, "bare");
}

TEST(Exec, WithAnEnvironmentOfItsOwnIsGuarded) {
  Sandbox box;
  ExpectGuardedInEveryWay(box, "own");
}

TEST(Exec, AfterTheProcessClearedItsOwnIsGuarded) {
  Sandbox box;
  box.SetEnv("CLEAR_AT_ONCE", "1");
  ExpectGuardedInEveryWay(box, "bare");
}

TEST(Exec, WithoutAPromiseTheSameProgramIsNot) {
  // The control: with the driver found by other means, 3 GiB are there.
  Sandbox box;
  box.SetEnv("LD_LIBRARY_PATH", Sandbox::Program("../lib/gpumux/softgpu"));
  EXPECT_EQ(box.Run({kAllocates, kThreeGiB}).out, "small 0\nlarge 0\n");
}

TEST(Exec, ThroughEnvDashIIsGuarded) {
  Sandbox box;
  const Outcome o =
      box.RunGpumux({"run", "--mem", "2GiB", "--quiet", "--", "/usr/bin/env", "-i", kAllocates, kThreeGiB});
  EXPECT_EQ(o.out, "small 0\nlarge 2\n") << o.err;
}

TEST(Exec, ThroughAChainOfThemIsGuarded) {
  Sandbox box;
  const Outcome o =
      box.RunGpumux({"run", "--mem", "2GiB", "--quiet", "--", "/usr/bin/env", "-i", "/bin/sh", "-c",
                     "exec /usr/bin/env -i /bin/sh -c \"unset LD_PRELOAD GPUMUX_SESSION; " + kAllocates +
                         " " + kThreeGiB + "\""});
  EXPECT_EQ(o.out, "small 0\nlarge 2\n") << o.err;
}

TEST(Exec, PutsBackTheSessionAndNothingElse) {
  Sandbox box;
  const Outcome before = box.RunGpumux({"run", "--mem", "2GiB", "--quiet", "--", kProbe, "environment"});
  const Outcome after = StartIn(box, "execve", "bare", kProbe, "environment");
  std::vector<std::string> names, expected;
  for (const std::string& line : Lines(after.out)) names.push_back(line.substr(0, line.find('=')));
  EXPECT_THAT(names, UnorderedElementsAre("CUDA_VISIBLE_DEVICES", "GPUMUX_SESSION", "GPUMUX_SOFTGPU",
                                          "GPUMUX_SOFTGPU_DIR", "GPUMUX_STRICT", "GPUMUX_TENANT",
                                          "LD_LIBRARY_PATH", "LD_PRELOAD"));
  for (const std::string& line : Lines(after.out)) {
    if (line.starts_with("GPUMUX_TENANT")) continue;  // the two runs are two tenants
    EXPECT_THAT(Lines(before.out), ::testing::Contains(line));
  }
}

TEST(Exec, LeavesAWholeEnvironmentAlone) {
  // Nothing doubled, nothing added: through two programs it stays as it was.
  Sandbox box;
  const std::string print = kProbe + " environment";
  const Outcome o = box.RunGpumux({"run", "--mem", "2GiB", "--quiet", "--", "/bin/sh", "-c",
                                   print + "; echo --; exec /usr/bin/env /usr/bin/env " + print});
  const size_t middle = o.out.find("--\n");
  ASSERT_NE(middle, std::string::npos) << o.out << o.err;
  EXPECT_EQ(o.out.substr(0, middle), o.out.substr(middle + 3));
  EXPECT_THAT(Lines(o.out), ::testing::Contains("LD_PRELOAD=" + kGuard));
}

TEST(Exec, KeepsAnotherPreloadBesideTheGuard) {
  Sandbox box;
  const std::string other = std::filesystem::weakly_canonical(Sandbox::TestProgram("libother_preload.so"));
  box.SetEnv("OTHER", other);
  const Outcome o = StartIn(box, "execve", "own", kProbe, "environment");
  EXPECT_THAT(Lines(o.out), ::testing::Contains("LD_PRELOAD=" + kGuard + ":" + other)) << o.err;
  // The next program has both already.
  box.SetEnv("OTHER", other + ":" + kGuard);
  const Outcome both = StartIn(box, "execve", "own", kProbe, "environment");
  EXPECT_THAT(Lines(both.out), ::testing::Contains("LD_PRELOAD=" + other + ":" + kGuard)) << both.err;
}

TEST(Exec, LeavesOutTheGpusThatAProgramChose) {
  // With the session there, a missing or other CUDA_VISIBLE_DEVICES is meant so.
  Sandbox box;
  const Outcome o = box.RunGpumux({"run", "--mem", "2GiB", "--quiet", "--", "/usr/bin/env", "-u",
                                   "CUDA_VISIBLE_DEVICES", kProbe, "environment"});
  EXPECT_THAT(o.out, Not(HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST(Exec, TakesALargeEnvironment) {
  Sandbox box;
  const Outcome o = StartIn(box, "vfork", "large");
  EXPECT_EQ(o.out, "small 0\nlarge 2\n") << o.err;
  const Outcome spawned = StartIn(box, "posix_spawn", "large");
  EXPECT_EQ(spawned.out, "small 0\nlarge 2\n") << spawned.err;
}

TEST(Exec, LeavesNothingBehindInTheParentOfAVfork) {
  // The child writes into its parent's memory; one environment of 160 KiB may stay, not fifty.
  Sandbox box;
  const Outcome o = StartIn(box, "vfork-often", "large", "/bin/true");
  unsigned long pages = 0;
  ASSERT_EQ(sscanf(o.out.c_str(), "grown by %lu", &pages), 1) << o.out << o.err;
  EXPECT_LT(pages, 100u);
}

TEST(Exec, NeverBreaksTheKernelsLimitByItself) {
  // What the kernel takes without us it takes with us, if need be without our variables.
  Sandbox box;
  for (const char* way : {"execve", "posix_spawn"}) {
    const Outcome o = StartIn(box, way, "full", kProbe, "environment");
    EXPECT_EQ(o.exit_code, 0) << way << o.out.substr(0, 200);
    EXPECT_THAT(o.out, HasSubstr("OWN=1\n")) << way;
  }
}

TEST(Exec, LeavesTheKernelsErrorsAlone) {
  Sandbox box;
  EXPECT_THAT(StartIn(box, "execve", "bare", "/no/such").out, HasSubstr("No such file"));
  EXPECT_THAT(StartIn(box, "execve", "bare", "/tmp").out, HasSubstr("Permission denied"));
  EXPECT_THAT(StartIn(box, "execvpe", "bare", "/no/such-program").out, HasSubstr("No such file"));
  EXPECT_EQ(StartIn(box, "posix_spawn", "bare", "/no/such").exit_code, 95);
}

TEST(Untouched, AProgramWithoutAGpuIsAsItIsBare) {
  // Descriptors, threads, signals, umask, limits, errno, output, exit code; as a
  // tenant, and with the guard but no session.
  Sandbox box;
  const Outcome bare = box.Run({kProbe, "state"});
  ASSERT_EQ(bare.exit_code, 5) << bare.err;
  ASSERT_THAT(bare.out, HasSubstr("system 3 popen 4\n"));
  const Outcome tenant = box.RunGpumux({"run", "--mem", "1GiB", "--quiet", "--", kProbe, "state"});
  EXPECT_EQ(tenant.out, bare.out);
  EXPECT_EQ(tenant.err, bare.err);
  EXPECT_EQ(tenant.exit_code, bare.exit_code);
  box.SetEnv("LD_PRELOAD", kGuard);
  const Outcome preloaded = box.Run({kProbe, "state"});
  EXPECT_EQ(preloaded.out, bare.out);
  EXPECT_EQ(preloaded.err, bare.err);
}

TEST(Exec, WithoutASessionNothingIsPutBack) {
  Sandbox box;
  box.SetEnv("LD_PRELOAD", kGuard);
  for (const char* way : {"execve", "execv", "posix_spawn", "popen", "vfork"}) {
    const Outcome o = box.Run({kProbe, way, "bare", kProbe, "environment"});
    EXPECT_THAT(o.out, Not(HasSubstr("GPUMUX"))) << way << o.err;
    EXPECT_THAT(o.out, Not(HasSubstr("LD_PRELOAD"))) << way;
  }
}

}  // namespace
}  // namespace gpumux::test
