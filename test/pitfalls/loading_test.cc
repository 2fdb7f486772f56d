// SPDX-License-Identifier: Apache-2.0
//
// Section A of docs/pitfalls.md: finding the driver's functions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kBoth = Sandbox::TestProgram("both_apis_probe");
const std::string kLinked = Sandbox::TestProgram("guard_linked_probe");
constexpr char kThreeGiB[] = "3221225472";

// The programs of the build, copied to `folder`.
std::string CopyOfTheBuild(const std::string& folder) {
  const fs::path build = fs::path(Sandbox::Program("gpumux")).parent_path().parent_path();
  fs::create_directories(folder);
  for (const char* part : {"bin", "lib"})
    fs::copy(build / part, fs::path(folder) / part, fs::copy_options::recursive);
  return folder + "/bin/gpumux";
}

TEST(PitfallsA, A2_EachVersionOfCuCtxCreateIsCalledWithItsOwnParameters) {
  Sandbox box;
  const Outcome o = box.RunGpumux({"run", "--mem", "2GiB", "--quiet", "--", kBoth, "contexts"});
  EXPECT_EQ(
      o.out,
      "3020: 0 0 0\n11040: 0 0 0\n11080: 0 0 0\n12000: 0 0 0\n12050: 0 0 0\n12090: 0 0 0\n13000: 0 0 0\n")
      << o.err;
}

TEST(PitfallsA, A3_EveryWayToLaunchIsSeen) {
  // Counted by the guard, shown by the daemon while the tenant lives on in the shell.
  Sandbox box;
  const std::string go_on = box.dir() + "/go-on";
  Process p = box.Gpumux(
      {"run", "--mem", "2GiB", "--quiet", "--", "/bin/sh", "-c",
       Sandbox::TestProgram("launch_probe") + "; until [ -e " + go_on + " ]; do sleep 0.01; done"});
  ASSERT_TRUE(WaitUntil("it has launched", [&] { return p.Out().find('\n') != std::string::npos; }))
      << p.Err();
  const int calls = std::stoi(p.Out());
  EXPECT_EQ(calls, 14);
  WaitUntil("the daemon shows the launches",
            [&] { return box.StatusData()["tenants"][0]["launches"].get<int>() == calls; });
  std::ofstream(go_on).put('\n');
  EXPECT_EQ(p.Wait().exit_code, 0);
}

TEST(PitfallsA, A8_TheGuardWorksFromAnyFolder) {
  Sandbox box;
  const std::string gpumux = CopyOfTheBuild(box.dir() + "/some-where/odd,really+so");
  const Outcome o = box.Run({gpumux, "run", "--mem", "2GiB", "--quiet", "--", kLinked, kThreeGiB});
  EXPECT_EQ(o.out, "small 0\nlarge 2\n") << o.err;
}

TEST(PitfallsA, A9_NvmlAndCudaAreSetUpInAnyOrder) {
  for (const char* order : {"cuda-first", "nvml-first", "threads"}) {
    Sandbox box;
    const Outcome o =
        box.RunGpumux({"run", "--mem", "2GiB", "--quiet", "--", kBoth, order}, std::chrono::seconds(20));
    EXPECT_EQ(o.out, "cuda 0 nvml 0\n") << order << o.err;
  }
}

TEST(PitfallsA, A14_AProgramStartsWhereThereIsNoDriver) {
  // No library of the driver is to be found; the guard is preloaded and needs none.
  Sandbox box;
  const Outcome o = box.RunGpumux({"run", "--mem", "1GiB", "--quiet", "--", "/usr/bin/env", "-u",
                                   "LD_LIBRARY_PATH", "/bin/sh", "-c", "/bin/true && echo started"});
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_EQ(o.out, "started\n");
  EXPECT_EQ(o.err, "");
}

TEST(PitfallsA, A15_AMissingGuardIsSaidOnceAndStartsNothing) {
  Sandbox box;
  const std::string folder = box.dir() + "/copy";
  const std::string gpumux = CopyOfTheBuild(folder);
  fs::remove(folder + "/lib/gpumux/libgpumux-guard.so");
  const Outcome o = box.Run({gpumux, "run", "--mem", "1GiB", "--", "/bin/echo", "started"});
  EXPECT_EQ(o.exit_code, 125);
  EXPECT_EQ(o.out, "");
  EXPECT_THAT(o.err, HasSubstr("the guard is missing: "));
}

TEST(PitfallsA, A15_AFolderThatThePreloadCannotNameIsRefused) {
  // The loader takes a space or a colon for the end of a name.
  for (const char* name : {"/with space", "/with:colon"}) {
    Sandbox box;
    const std::string gpumux = CopyOfTheBuild(box.dir() + name);
    const Outcome o = box.Run({gpumux, "run", "--mem", "1GiB", "--", "/bin/echo", "started"});
    EXPECT_EQ(o.exit_code, 125) << name;
    EXPECT_EQ(o.out, "") << name;
    EXPECT_THAT(o.err, HasSubstr("install gpumux in a folder without")) << name;
  }
}

TEST(PitfallsA, A16_UnderMuslAProgramDoesNotStartUnlimited) {
  Sandbox box;
  std::ofstream(box.dir() + "/program.c")
      << "#include <stdio.h>\nint main(void) { return puts(\"started\") < 0; }\n";
  const Outcome built = box.Run({"/usr/bin/env", "PATH=/usr/bin:/bin", "sh", "-c",
                                 "command -v musl-gcc >/dev/null || exit 77; musl-gcc " + box.dir() +
                                     "/program.c -o " + box.dir() + "/program"});
  if (built.exit_code == 77) GTEST_SKIP() << "skipped: no musl-gcc (package musl-tools)";
  ASSERT_EQ(built.exit_code, 0) << built.err;
  ASSERT_EQ(box.Run({box.dir() + "/program"}).out, "started\n");
  const Outcome o = box.RunGpumux({"run", "--mem", "1GiB", "--quiet", "--", box.dir() + "/program"});
  EXPECT_EQ(o.out, "");
  EXPECT_EQ(o.exit_code, 127);
  EXPECT_THAT(o.err, HasSubstr("libgpumux-guard.so"));
}

TEST(PitfallsA, A20_NothingIsWrittenByTheGuard) {
  // A program that uses the GPU, is refused memory, and whose output others read.
  Sandbox box;
  const Outcome o = box.RunGpumux({"run", "--mem", "2GiB", "--quiet", "--", kLinked, kThreeGiB});
  EXPECT_EQ(o.out, "small 0\nlarge 2\n");
  EXPECT_EQ(o.err, "");
}

}  // namespace
}  // namespace gpumux::test
