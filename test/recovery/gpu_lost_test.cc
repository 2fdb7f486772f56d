// SPDX-License-Identifier: Apache-2.0
//
// GPUs that do not answer, fall off the bus, and come back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <fstream>

#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A script of faults for every process of a sandbox, that changes while they run.
class Faults {
 public:
  explicit Faults(Sandbox& box) : path_(box.dir() + "/faults") {
    box.SetEnv("GPUMUX_SOFTGPU_FAULTS", "@" + path_);
  }
  void Set(const std::string& script) {
    // Another size each time, so that a change is seen whatever the clock's step is.
    std::ofstream(path_ + ".new") << script << std::string(++changes_, '\n');
    std::rename((path_ + ".new").c_str(), path_.c_str());
  }

 private:
  std::string path_;
  int changes_ = 0;
};

struct NvmlError {
  const char* name;
  const char* script;  // touches NVML alone, so that programs go on
  const char* says;
};

class Nvml : public ::testing::TestWithParam<NvmlError> {};

TEST_P(Nvml, ThatDoesNotAnswerClosesTheGpuAndNothingElse) {
  Sandbox box;
  Faults faults(box);
  faults.Set("");
  const std::string stop = box.dir() + "/stop";
  Process a = Survivor(box, "a", 7 * kGiB, stop);
  ASSERT_TRUE(Works(a));
  Process waits = box.Gpumux({"run", "--mem", "135GiB", "--name", "waits", "--", "/bin/echo", "served"});
  ASSERT_TRUE(WaitUntil("it waits", [&] { return Tenants(box).contains("waits"); }));
  const auto tenants = Tenants(box);
  faults.Set(GetParam().script);
  ASSERT_TRUE(WaitUntil("the GPU is closed", [&] { return Gpu(box, "mem_promisable_bytes") == 0; }));
  EXPECT_THAT(Gpu(box, "mem_promisable_bytes_reason").dump(), HasSubstr(GetParam().says));
  EXPECT_THAT(Gpu(box, "remedy").dump(), HasSubstr("nvidia-smi"));
  EXPECT_EQ(Gpu(box, "mem_unmanaged_bytes"), nullptr);
  // Said where a person looks, with what to do.
  EXPECT_THAT(box.RunGpumux({"status"}).out, HasSubstr("GPU 0 takes no new tenants: "));
  const std::string explained = box.RunGpumux({"explain", "a"}).out;
  EXPECT_THAT(explained, HasSubstr("memory guarantee: unproven"));
  EXPECT_THAT(explained, HasSubstr(GetParam().says));
  EXPECT_THAT(explained, HasSubstr("nvidia-smi"));
  const Outcome refused = box.RunGpumux({"run", "--no-wait", "--mem", "1GiB", "--", "/bin/true"});
  EXPECT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr(GetParam().says));
  // Who is there stays, and who waits goes on waiting.
  EXPECT_EQ(Tenants(box), tenants);
  EXPECT_FALSE(waits.Ended());
  faults.Set("");
  ASSERT_TRUE(WaitUntil("it answers again", [&] { return Gpu(box, "mem_promisable_bytes") > 0; }));
  const std::string events = box.RunGpumux({"events"}).out;
  EXPECT_THAT(events, HasSubstr("gpu-lost"));
  EXPECT_THAT(events, HasSubstr("gpu-back"));
  EXPECT_EQ(Tenants(box), tenants);
  Touch(stop);
  EXPECT_EQ(a.Wait().exit_code, 0) << a.Out();
  EXPECT_EQ(waits.Wait().out, "served\n");
  ExpectEverythingFree(box);
}

INSTANTIATE_TEST_SUITE_P(
    Errors, Nvml,
    ::testing::Values(
        NvmlError{"lost", "fail nvmlDeviceGetMemoryInfo* with NVML_ERROR_GPU_IS_LOST", "GPU is lost"},
        NvmlError{"unknown", "fail nvmlDeviceGetMemoryInfo* with NVML_ERROR_UNKNOWN", "Unknown Error"},
        NvmlError{"timeout", "fail nvmlDeviceGetComputeRunningProcesses* with NVML_ERROR_TIMEOUT", "Timeout"},
        // The driver is unloaded and loaded again: NVML has to be started anew.
        NvmlError{"driver_not_loaded",
                  "fail nvmlDeviceGet* with NVML_ERROR_UNINITIALIZED; "
                  "fail nvmlInit* with NVML_ERROR_DRIVER_NOT_LOADED",
                  "does not answer"}),
    [](const auto& info) { return std::string(info.param.name); });

nlohmann::json GpuOf(Sandbox& box, const std::string& uuid) {
  for (const auto& gpu : StatusList(box, "gpus")) {
    if (gpu["uuid"] == uuid) return gpu;
  }
  return nullptr;
}

TEST(GpuOffTheBus, IsTheSameGpuWhenItIsBack) {
  Sandbox box("2xH200");
  Faults faults(box);
  faults.Set("");
  const std::string stop = box.dir() + "/stop";
  EXPECT_EQ(box.RunGpumux({"run", "--", "/bin/true"}).exit_code, 0);
  const std::string first = Status(box)["gpus"][0]["uuid"], second = Status(box)["gpus"][1]["uuid"];
  Process a = box.Gpumux({"run", "--mem", "8GiB", "--gpu", "1", "--name", "a", "--",
                          Sandbox::TestProgram("guard_probe"), "survive", std::to_string(kGiB), stop});
  ASSERT_TRUE(Works(a));
  faults.Set("off 0");
  ASSERT_TRUE(WaitUntil("NVML was started anew", [&] { return GpuOf(box, second)["index"] == 0; }));
  EXPECT_EQ(GpuOf(box, first)["mem_promisable_bytes"], 0);
  EXPECT_THAT(GpuOf(box, first)["mem_promisable_bytes_reason"].dump(), HasSubstr("NVML shows"));
  // The tenant's promise is on the GPU of its UUID, whatever its number.
  EXPECT_EQ(GpuOf(box, second)["mem_guaranteed_bytes"], 8 * kGiB);
  EXPECT_EQ(Status(box)["tenants"][0]["gpus"][0]["uuid"], second);
  EXPECT_EQ(
      box.RunGpumux({"run", "--mem", "1GiB", "--gpu", second, "--no-wait", "--", "/bin/true"}).exit_code, 0);
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "1GiB", "--gpu", first, "--no-wait", "--", "/bin/true"}).exit_code,
            3);
  faults.Set("");
  ASSERT_TRUE(WaitUntil("it is back", [&] { return GpuOf(box, first)["mem_promisable_bytes"] > 0; }));
  EXPECT_EQ(GpuOf(box, first)["index"], 0);
  EXPECT_EQ(GpuOf(box, second)["index"], 1);
  EXPECT_EQ(GpuOf(box, second)["mem_guaranteed_bytes"], 8 * kGiB);
  EXPECT_EQ(
      box.RunGpumux({"run", "--mem", "100GiB", "--gpu", first, "--no-wait", "--", "/bin/true"}).exit_code, 0);
  Touch(stop);
  EXPECT_EQ(a.Wait().exit_code, 0) << a.Out();
}

// A daemon starts while a GPU is away on which an earlier one gave leases.
void StartWithoutTheGpu(const std::string& script) {
  Sandbox box("2xH200");
  Faults faults(box);
  faults.Set("");
  const std::string stop = box.dir() + "/stop";
  Process a = box.Gpumux({"run", "--mem", "8GiB", "--gpu", "0", "--name", "a", "--",
                          Sandbox::TestProgram("guard_probe"), "survive", std::to_string(kGiB), stop});
  Process gone = box.Gpumux({"run", "--mem", "8GiB", "--gpu", "0", "--name", "gone", "--",
                             Sandbox::TestProgram("guard_probe"), "survive", std::to_string(kGiB), stop});
  ASSERT_TRUE(Works(a));
  ASSERT_TRUE(Works(gone));
  const auto id = Tenants(box)["a"];
  const pid_t daemon = box.DaemonPid(), program = [&] {
    for (const auto& tenant : StatusList(box, "tenants")) {
      if (tenant["name"] == "gone") return tenant["pid"].get<pid_t>();
    }
    return 0;
  }();
  faults.Set(script);
  ASSERT_NE(daemon, 0);
  kill(daemon, SIGKILL);
  ASSERT_TRUE(WaitUntil("the next daemon", [&] {
    return box.DaemonPid() != 0 && box.DaemonPid() != daemon && Status(box).contains("daemon") &&
           Status(box)["daemon"].is_object();
  }));
  EXPECT_FALSE(Tenants(box).contains("a"));
  ASSERT_NE(program, 0);
  kill(gone.pid(), SIGKILL);
  kill(program, SIGKILL);
  EXPECT_EQ(gone.Wait().exit_code, 128 + SIGKILL);
  faults.Set("");
  ASSERT_TRUE(WaitUntil("the lease is there again", [&] { return Tenants(box)["a"] == id; }));
  EXPECT_FALSE(Tenants(box).contains("gone"));
  ASSERT_TRUE(WaitUntil("its run is back",
                        [&] { return DaemonLog(box).find("its run is back") != std::string::npos; }));
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(Status(box)["gpus"][i]["index"], i);
  const auto gpu = GpuOf(box, StatusList(box, "tenants")[0]["gpus"][0]["uuid"]);
  EXPECT_EQ(gpu["mem_guaranteed_bytes"], 8 * kGiB);
  EXPECT_EQ(gpu["mem_unmanaged_bytes"], 0);
  Touch(stop);
  EXPECT_EQ(a.Wait().exit_code, 0) << a.Out();
}

TEST(GpuOffTheBus, KeepsItsLeasesForTheDaemonThatStartsMeanwhile) { StartWithoutTheGpu("off 0"); }

TEST(GpuOffTheBus, ThatOnlyDoesNotAnswerKeepsThemToo) {
  StartWithoutTheGpu("fail nvmlDeviceGetMemoryInfo* with NVML_ERROR_GPU_IS_LOST");
}

}  // namespace
}  // namespace gpumux::test
