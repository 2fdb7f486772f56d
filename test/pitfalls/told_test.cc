// SPDX-License-Identifier: Apache-2.0
//
// Section C of docs/pitfalls.md: what a program is told about memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;
const std::string kProbe = Sandbox::TestProgram("told_probe");
const std::string kSoftGpu = Sandbox::Program("../lib/gpumux/softgpu");

// What `told_probe memory` prints of one GPU.
struct Told {
  uint64_t cuda_free = 0, cuda_total = 0, device_total = 0;  // of the current context's
  uint64_t v1_total = 0, v1_free = 0, v1_used = 0;
  uint64_t v2_total = 0, v2_reserved = 0, v2_free = 0, v2_used = 0;
  uint64_t bar1 = 0, own = 0;
};

Told Parse(const std::string& out, int index = 0) {
  Told told;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    int code = -1;
    sscanf(line.c_str(), "cuda %d %lu %lu %lu", &code, &told.cuda_free, &told.cuda_total, &told.device_total);
    if (line.starts_with(std::to_string(index) + " GPU-")) {
      sscanf(line.c_str(), "%*d %*s v1 %lu %lu %lu v2 %lu %lu %lu %lu bar1 %lu own %lu", &told.v1_total,
             &told.v1_free, &told.v1_used, &told.v2_total, &told.v2_reserved, &told.v2_free, &told.v2_used,
             &told.bar1, &told.own);
    }
  }
  return told;
}

void ExpectConsistent(const Told& told, uint64_t total) {
  EXPECT_EQ(told.v1_total, total);
  EXPECT_EQ(told.v2_total, total);
  EXPECT_EQ(told.v1_free + told.v1_used, told.v1_total);
  EXPECT_EQ(told.v2_free + told.v2_used + told.v2_reserved, told.v2_total);
  EXPECT_EQ(told.v1_free, told.v2_free);
  EXPECT_LE(told.v1_free, told.v1_total);  // nothing wrapped
}

class PitfallsC : public ::testing::Test {
 protected:
  Outcome Bare(const std::vector<std::string>& argv) {
    Sandbox bare;
    bare.SetEnv("LD_LIBRARY_PATH", kSoftGpu);
    return bare.Run(argv);
  }
  Sandbox box;
};

TEST_F(PitfallsC, C1_PointersLeftOutAreTheDriversBusiness) {
  const Outcome bare = Bare({kProbe, "nulls"});
  EXPECT_THAT(bare.out, HasSubstr("info 0 0 0\nset 1 1\n"));
  const Outcome guarded = box.RunGpumux({"run", "--mem", "2GiB", "--", kProbe, "nulls"});
  EXPECT_EQ(guarded.exit_code, 0) << guarded.err;
  EXPECT_EQ(guarded.out, bare.out);
}

TEST_F(PitfallsC, C3_ALimitAboveTheGpuIsTheGpu) {
  const Told bare = Parse(Bare({kProbe, "memory"}).out);
  const Told told = Parse(box.RunGpumux({"run", "--mem", "1GiB:500GiB", "--", kProbe, "memory"}).out);
  EXPECT_GT(bare.device_total, 100 * kGiB);
  EXPECT_LE(told.device_total, bare.device_total);
  EXPECT_GT(told.device_total, bare.device_total - kGiB);
  EXPECT_EQ(told.cuda_total, told.device_total);
  EXPECT_EQ(told.v1_total, told.device_total);
  EXPECT_LE(told.cuda_free, told.cuda_total);
}

TEST_F(PitfallsC, C4_FreeIsOfTheWholeTenant) {
  box.SetEnv("PROBE_HOLD_FILE", box.dir() + "/hold");
  const std::string first = box.dir() + "/first";
  Process p =
      box.Gpumux({"run", "--mem", "4GiB", "--", "/bin/sh", "-c",
                  kProbe + " take " + std::to_string(1024 * kMiB) + " > " + first +
                      " & until grep -q ready " + first + "; do :; done; exec " + kProbe + " memory 0"});
  ASSERT_TRUE(WaitUntil("the second has looked", [&] { return p.Out().find("ready") != std::string::npos; }))
      << p.Err();
  const Told told = Parse(p.Out());
  // The other's GiB and two contexts are gone from what this one sees.
  EXPECT_LT(told.cuda_free, 4 * kGiB - kGiB - 2 * 543162368);
  EXPECT_GT(told.cuda_free, 4 * kGiB - kGiB - 2 * (543162368 + 80 * kMiB));
  EXPECT_EQ(told.v1_free, told.cuda_free);
}

TEST_F(PitfallsC, C5_FreeAndUsedAreTheTotalInEveryView) {
  for (const uint64_t mib : {0, 1, 100, 1000, 3000}) {
    const Outcome o =
        box.RunGpumux({"run", "--mem", "4GiB", "--", kProbe, "memory", std::to_string(mib * kMiB)});
    const Told told = Parse(o.out);
    ExpectConsistent(told, 4 * kGiB);
    EXPECT_EQ(told.cuda_total, 4 * kGiB);
    EXPECT_EQ(told.device_total, 4 * kGiB);
    EXPECT_EQ(told.cuda_free, told.v1_free) << mib;
    EXPECT_EQ(told.own, 543162368 + (mib + mib % 2) * kMiB) << mib;
    EXPECT_LE(told.own, told.v1_used) << mib;
  }
}

TEST_F(PitfallsC, C6_EveryViewOfNvmlShowsThePromise) {
  const Told bare = Parse(Bare({kProbe, "memory", std::to_string(100 * kMiB)}).out);
  const Told told =
      Parse(box.RunGpumux({"run", "--mem", "4GiB", "--", kProbe, "memory", std::to_string(100 * kMiB)}).out);
  ExpectConsistent(told, 4 * kGiB);
  EXPECT_EQ(told.own, 543162368 + 100 * kMiB);
  // The window that the bus has on the GPU is not memory that anybody takes.
  EXPECT_EQ(told.bar1, bare.bar1);
  // A program that only looks (a monitor) is told the same.
  ExpectConsistent(Parse(box.RunGpumux({"run", "--mem", "4GiB", "--", kProbe, "memory-without-context"}).out),
                   4 * kGiB);
}

TEST_F(PitfallsC, C11_UseAboveTheLimitIsNothingFreeNotAWrappedNumber) {
  box.SetEnv("PROBE_HOLD_FILE", box.dir() + "/hold");
  const std::string first = box.dir() + "/first";
  // A process of the tenant that no guard stops takes more than the promise.
  Process p = box.Gpumux({"run", "--mem", "2GiB", "--", "/bin/sh", "-c",
                          kProbe + " unguarded " + kProbe + " take " + std::to_string(3 * kGiB) + " > " +
                              first + " & until grep -q ready " + first + "; do :; done; until " + kProbe +
                              " memory-without-context | grep ' v1 [0-9]* 0 '; do :; done; echo done"});
  ASSERT_TRUE(WaitUntil("nothing is free", [&] { return p.Out().find("done") != std::string::npos; }))
      << p.Out() << p.Err();
  const Told told = Parse(p.Out());
  ExpectConsistent(told, 2 * kGiB);
  EXPECT_EQ(told.v1_free, 0u);
  EXPECT_EQ(told.v1_used, 2 * kGiB);
}

TEST_F(PitfallsC, C10_NvmlsErrorReachesTheProgramAndTheCauseIsShown) {
  // The device is taken away from everybody, as a reload of control groups does.
  const std::string faults = box.dir() + "/faults", hold = box.dir() + "/hold";
  box.SetEnv("GPUMUX_SOFTGPU_FAULTS", "@" + faults);
  box.SetEnv("PROBE_HOLD_FILE", hold);
  Process p = box.Gpumux({"run", "--mem", "2GiB", "--", kProbe, "codes"});
  ASSERT_TRUE(WaitUntil("the program has the device", [&] {
    return p.Out().find("ready") != std::string::npos;
  })) << p.Err();
  std::ofstream(faults + ".new") << "lost\n";
  ASSERT_EQ(rename((faults + ".new").c_str(), faults.c_str()), 0);
  ASSERT_TRUE(WaitUntil("the daemon has noticed", [&] {
    return box.RunGpumux({"run", "--no-wait", "--mem", "1GiB", "--", "/bin/true"}).exit_code == 3;
  }));
  EXPECT_THAT(box.RunGpumux({"run", "--no-wait", "--mem", "1GiB", "--", "/bin/true"}).err,
              HasSubstr("NVML does not answer"));
  std::ofstream(hold).put('\n');
  EXPECT_THAT(p.Wait().out, HasSubstr("memory 15 list 15\n"));  // GPU is lost, by NVML's own word
}

TEST_F(PitfallsC, C12_AGpuWithoutMemoryOfItsOwnIsRefusedAloud) {
  Sandbox thor("Thor");
  const Outcome o = thor.RunGpumux({"run", "--mem", "4GiB", "--", kProbe, "memory"});
  EXPECT_EQ(o.exit_code, 7) << o.out;
  EXPECT_THAT(o.err, HasSubstr("Not Supported"));
  EXPECT_EQ(o.out, "");
}

}  // namespace
}  // namespace gpumux::test
