// SPDX-License-Identifier: Apache-2.0
#include "softgpu/faults.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace gpumux::softgpu {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// A script that is in force since time 0, and what it says of calls.
struct InForce {
  explicit InForce(const char* text) : run(*ParseFaults(text), {}) {}
  int Code(const char* name, std::chrono::nanoseconds at = {}) {
    return run.OnCall(name, Clock::time_point(at)).code;
  }
  // Codes of the first `n` calls, as one text: "." goes on.
  std::string Calls(const char* name, int n) {
    std::string all;
    for (int i = 0; i < n; ++i) all += Code(name) < 0 ? '.' : 'x';
    return all;
  }
  FaultRun run;
};

TEST(Faults, WhichCalls) {
  EXPECT_EQ(InForce("fail cuMemAlloc_v2 with 2").Calls("cuMemAlloc_v2", 4), "xxxx");
  EXPECT_EQ(InForce("fail cuMemAlloc_v2 with 2 on 3").Calls("cuMemAlloc_v2", 5), "..x..");
  EXPECT_EQ(InForce("fail cuMemAlloc_v2 with 2 from 3").Calls("cuMemAlloc_v2", 5), "..xxx");
  EXPECT_EQ(InForce("fail cuMemAlloc_v2 with 2 from 2 to 3").Calls("cuMemAlloc_v2", 5), ".xx..");
  EXPECT_EQ(InForce("fail cuMemAlloc_v2 with 2 every 3").Calls("cuMemAlloc_v2", 7), "..x..x.");
  EXPECT_EQ(
      InForce("fail cuMemAlloc_v2 with 2 on 1; fail cuMemAlloc_v2 with 2 on 4").Calls("cuMemAlloc_v2", 5),
      "x..x.");
  EXPECT_EQ(InForce("fail cuMemAlloc_v2 with 2").Calls("cuMemAlloc", 2), "..") << "another function";
  InForce pattern("fail cuMemAlloc* with 2 on 3");
  EXPECT_EQ(pattern.Code("cuMemAlloc_v2"), -1);
  EXPECT_EQ(pattern.Code("cuMemAllocAsync_ptsz"), -1);
  EXPECT_EQ(pattern.Code("cuMemFree_v2"), -1) << "not counted";
  EXPECT_EQ(pattern.Code("cuMemAllocPitch_v2"), 2);
}

TEST(Faults, WhichCode) {
  EXPECT_EQ(InForce("fail cuMemAlloc_v2 with CUDA_ERROR_ILLEGAL_ADDRESS").Code("cuMemAlloc_v2"), 700);
  EXPECT_EQ(InForce("fail cuMemAlloc_v2 with 1234").Code("cuMemAlloc_v2"), 1234);
  EXPECT_EQ(InForce("fail nvmlDeviceGetName with NVML_ERROR_NO_PERMISSION").Code("nvmlDeviceGetName"), 4);
  InForce first("fail cuInit with 1 on 2; fail cuInit with 2");
  EXPECT_EQ(first.Code("cuInit"), 2);
  EXPECT_EQ(first.Code("cuInit"), 1) << "the first rule that means the call";
}

TEST(Faults, Lost) {
  EXPECT_EQ(InForce("lost").Code("cuMemAlloc_v2"), 999);
  EXPECT_EQ(InForce("lost").Code("nvmlDeviceGetName"), 15);
  for (const char* name : {"cuDriverGetVersion", "cuGetProcAddress_v2", "cuGetErrorName", "nvmlInit_v2",
                           "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2", "nvmlErrorString"}) {
    EXPECT_EQ(InForce("lost").Code(name), -1) << name;
  }
  EXPECT_EQ(InForce("lost after 2 calls").Calls("cuMemAlloc_v2", 4), "..xx");
  EXPECT_EQ(InForce("lost after 2 calls for 2 calls").Calls("cuMemAlloc_v2", 6), "..xx..");
  InForce timed("lost after 2s for 500ms");
  EXPECT_EQ(timed.Code("cuInit", 1999ms), -1);
  EXPECT_EQ(timed.Code("cuInit", 2s), 999);
  EXPECT_EQ(timed.Code("cuInit", 2499ms), 999);
  EXPECT_EQ(timed.Code("cuInit", 2500ms), -1);
  EXPECT_EQ(InForce("lost after 2s").Code("cuInit", 1h), 999);
}

TEST(Faults, SlowLackAndDriver) {
  InForce slow("slow cuMemAlloc_v2 by 20ms from 2; slow cuMem* by 1us");
  EXPECT_EQ(slow.run.OnCall("cuMemAlloc_v2", {}).delay, 1us);
  EXPECT_EQ(slow.run.OnCall("cuMemAlloc_v2", {}).delay, 20ms + 1us);
  InForce lack("lack cuMemAllocAsync*; lack nvmlDeviceGetMemoryInfo_v2");
  EXPECT_TRUE(lack.run.Lacks("cuMemAllocAsync_ptsz"));
  EXPECT_FALSE(lack.run.Lacks("cuMemAlloc_v2"));
  EXPECT_EQ(lack.Code("cuMemAllocAsync"), 500);
  EXPECT_EQ(lack.Code("nvmlDeviceGetMemoryInfo_v2"), 13);
  EXPECT_EQ(ParseFaults("driver 550.54.15")->cuda_version, 12040);
  EXPECT_EQ(ParseFaults("driver 550.54.15")->driver_version, "550.54.15");
  EXPECT_EQ(ParseFaults("driver 595.1.2 cuda 12.9")->cuda_version, 12090);
}

TEST(Faults, LinesCommentsAndNothing) {
  for (const char* text : {"", "\n\n", ";;;", "# all of it", " \t\r\n", "lost # and why"}) {
    EXPECT_TRUE(ParseFaults(text)) << text;
  }
  EXPECT_EQ(
      ParseFaults("fail cuInit with 1\r\n# lost\nlack cuCtxCreate_v4 ; slow cuInit by 1s\n")->rules.size(),
      3u);
}

TEST(Faults, ADaemonHangsByARuleOfItsOwn) {
  EXPECT_TRUE(ParseFaults("mps hangs")->mps_hangs);
  EXPECT_TRUE(ParseFaults("mps hangs")->rules.empty()) << "no call is concerned";
  EXPECT_FALSE(ParseFaults("lost")->mps_hangs);
}

TEST(Faults, Refuses) {
  const std::string cases[] = {"fail",
                               "fail cuInit",
                               "fail cuInit with",
                               "fail cuInit with 0",
                               "fail cuInit with -1",
                               "fail cuInit with 10000",
                               "fail cuInit with CUDA_SUCCESS",
                               "fail cuInit with CUDA_ERROR_NONE",
                               "fail cuInit with NVML_ERROR_TIMEOUT",
                               "fail nvmlInit with CUDA_ERROR_UNKNOWN",
                               "fail cuInti with 1",
                               "fail * with 1",
                               "fail cu*Alloc with 1",
                               "fail cuZ* with 1",
                               "fail nvmlErrorString with 1",
                               "fail cuInit with 1 on",
                               "fail cuInit with 1 on 0",
                               "fail cuInit with 1 on 1 2",
                               "fail cuInit with 1 from 3 to 2",
                               "fail cuInit with 1 from 3 to",
                               "fail cuInit with 1 every 0",
                               "fail cuInit with 1 on 99999999999999999999",
                               "fail cuInit with 1 sometimes 2",
                               "lack",
                               "lack cuNothing",
                               "lack cuInit cuInit",
                               "slow cuInit",
                               "slow cuInit by",
                               "slow cuInit by 5",
                               "slow cuInit by 5m",
                               "slow cuInit by 0ms",
                               "slow cuInit by 2h",
                               "slow cuInit by 99999999999999999999s",
                               "slow cuInit by -1s",
                               "slow cuInit by 1.5s",
                               "lost now",
                               "lost after",
                               "lost after 2",
                               "lost after 0 calls",
                               "lost after 2 calls for",
                               "lost after 2s for 2 calls",
                               "lost after 2s for",
                               "driver",
                               "driver 5",
                               "driver x.y",
                               "driver 550.54.15 cuda",
                               "driver 550.54.15 cuda 13.5",
                               "driver 550.54.15 cuda 12",
                               "driver 595.1",
                               "driver 550.1; driver 550.2",
                               "mps",
                               "mps hangs twice",
                               "mps dies",
                               "break cuInit",
                               "cuInit",
                               "fail cuInit with 1 lost",
                               std::string("lost\0", 5),
                               "l\xf6st",
                               std::string(kMaxFaultScript + 1, ' '),
                               std::string(60'000, 'a')};
  for (const std::string& text : cases) {
    const auto script = ParseFaults(text);
    EXPECT_FALSE(script) << text.substr(0, 80);
    if (script) continue;
    for (char c : script.error().message) EXPECT_TRUE(c >= ' ' && c < 127) << text.substr(0, 80);
    EXPECT_LT(script.error().message.size(), 200u);
  }
  EXPECT_EQ(ParseFaults("lost\n\nlack cuX").error().message.substr(0, 7), "line 3:");
  std::string many;
  for (int i = 0; i < 1001; ++i) many += "lost\n";
  EXPECT_FALSE(ParseFaults(many));
}

// Words of the grammar and noise, in any order: an answer, and no more.
TEST(Faults, AnyTextHasAnAnswer) {
  const char* words[] = {"fail",      "with",   "on",     "from",     "to",  "every", "slow",
                         "by",        "lack",   "lost",   "after",    "for", "calls", "driver",
                         "cuda",      "cuInit", "cuMem*", "nvmlInit", "1",   "2s",    "CUDA_ERROR_UNKNOWN",
                         "550.54.15", "12.4",   "*",      ";",        "\n",  "#",     "\xff",
                         "-1",        ""};
  std::mt19937 random(20260722);
  int good = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (int n = static_cast<int>(random() % 12); n > 0; --n)
      text += std::string(words[random() % std::size(words)]) + " ";
    const auto script = ParseFaults(text);
    if (!script) continue;
    ++good;
    FaultRun run(*script, {});
    run.OnCall("cuInit", Clock::time_point(1s));
  }
  EXPECT_GT(good, 100);
}

// The third change fails, whichever call that is; what only looks is not counted.
TEST(Faults, ChangesOfPartitionsCountTogether) {
  FaultRun run(*ParseFaults("fail nvml-mig-changes with NVML_ERROR_INSUFFICIENT_RESOURCES on 3"), {});
  EXPECT_EQ(run.OnCall("nvmlDeviceSetMigMode", {}).code, -1);
  EXPECT_EQ(run.OnCall("nvmlDeviceGetGpuInstances", {}).code, -1);
  EXPECT_EQ(run.OnCall("nvmlDeviceCreateGpuInstanceWithPlacement", {}).code, -1);
  EXPECT_EQ(run.OnCall("nvmlDeviceCreateGpuInstance", {}).code, 23);
  EXPECT_EQ(run.OnCall("nvmlComputeInstanceDestroy", {}).code, -1);
  EXPECT_FALSE(ParseFaults("fail nvml-mig with NVML_ERROR_IN_USE"));
  EXPECT_FALSE(ParseFaults("fail nvml-mig-changes with CUDA_ERROR_UNKNOWN"));
}

}  // namespace
}  // namespace gpumux::softgpu
