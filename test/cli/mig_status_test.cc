// SPDX-License-Identifier: Apache-2.0
//
// `gpumux mig status` as a process: what it shows of each state of a GPU, word for word.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../support/sandbox.h"
#include "gpu/nvml.h"
#include "gpu/nvml_mig.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr uint32_t k1g = 19, k2g = 14, k3g = 9, k1c = 0, k3c = 2;

// A machine of these GPUs (JSON), and its NVML in this process.
class MigStatusTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "skipped: MIG is changed by root";
  }
  void Start(const std::string& gpus) {
    char path[] = "/tmp/gpumux-mig.XXXXXX";
    folder_ = mkdtemp(path);
    chmod(path, 0755);
    const std::string spec = folder_ + "/gpus.json";
    std::ofstream(spec) << "{\"gpus\": [" << gpus << "]}";
    box = std::make_unique<Sandbox>(spec);
    const std::string libraries =
        std::filesystem::path(Sandbox::Program("gpumux")).parent_path().parent_path() / "lib/gpumux/softgpu";
    auto opened = gpu::Nvml::Open(
        {.simulated = true, .spec = spec, .dir = box->softgpu_dir(), .libraries_dir = libraries});
    ASSERT_TRUE(opened) << opened.error().ToString();
    nvml = std::move(*opened);
  }
  ~MigStatusTest() override {
    nvml.reset();
    box.reset();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  gpu::Uuid Uuid(size_t index) const { return nvml->Devices()[index].uuid; }
  std::string Shown() {
    const Outcome shown = box->RunGpumux({"mig", "status"});
    EXPECT_EQ(shown.exit_code, 0) << shown.err;
    return shown.out;
  }

  std::unique_ptr<Sandbox> box;
  std::unique_ptr<gpu::Nvml> nvml;

 private:
  std::string folder_;
};

// Devices' names are made of the GPU's, which is given.
constexpr const char* kH200 = R"({"model": "H200", "uuid": "GPU-00112233-4455-6677-8899-aabbccddeeff")";

TEST_F(MigStatusTest, WhatIsOffPendingAndNotThere) {
  Start(std::string(kH200) + R"(}, {"model": "A100-40"}, {"model": "A30"}, {"model": "L4"})");
  ASSERT_TRUE(nvml->mig().SetMode(Uuid(2), true));
  EXPECT_EQ(
      Shown(),
      "GPU 0  NVIDIA H200 (software GPU, simulated)  MIG is off\n"
      "  its driver lists profiles only while MIG is on; gpumux mig profiles shows those of the table\n"
      "  to enable it: gpumux mig enable 0. No program may use the GPU; mode and "
      "instances end when the driver unloads\n"
      "\n"
      "GPU 1  NVIDIA A100-SXM4-40GB (software GPU, simulated)  MIG is off\n"
      "  its driver lists profiles only while MIG is on; gpumux mig profiles shows those of the table\n"
      "  to enable it: gpumux mig enable 1. No program may use the GPU, which "
      "has "
      "to be reset; the mode stays, instances end with a reset\n"
      "\n"
      "GPU 2  NVIDIA A30 (software GPU, simulated)  MIG is off, and comes on with a reset\n"
      "  gpumux-softgpu-reset 2, once no program uses the GPU\n"
      "\n"
      "GPU 3  NVIDIA L4 (software GPU, simulated)  NVIDIA L4 (software GPU, simulated) has no MIG: L4 is not "
      "in "
      "NVIDIA's list of GPUs that can be partitioned\n");
}

TEST_F(MigStatusTest, InstancesTheirPlacesAndWhatStillFits) {
  Start(std::string(kH200) + R"(, "mig": true})");
  EXPECT_THAT(Shown(),
              HasSubstr("  |       |       |       |       |       |       |       |       |\n"
                        "  0       1       2       3       4       5       6       7\n"
                        "  no instances: no program can use this GPU\n"
                        "  still fits, of each alone: 7x 1g.18gb, 3x 2g.35gb, 2x 3g.71gb, 1x 4g.71gb, "
                        "1x 7g.141gb, 1x 1g.18gb+me, 4x 1g.35gb\n"));
  gpu::Mig& mig = nvml->mig();
  const auto one = mig.Create(Uuid(0), k1g, gpu::MigPlacement{0, 1});
  const auto two = mig.Create(Uuid(0), k2g, gpu::MigPlacement{2, 2});
  const auto three = mig.Create(Uuid(0), k3g, gpu::MigPlacement{4, 4});
  ASSERT_TRUE(one && two && three);
  ASSERT_TRUE(mig.CreateCompute(Uuid(0), one->id, k1c));
  ASSERT_TRUE(mig.CreateCompute(Uuid(0), three->id, k1c));
  EXPECT_EQ(Shown(),
            "GPU 0  NVIDIA H200 (software GPU, simulated)  MIG is on\n"
            "  |1g.18gb|       |2g.35gb........|3g.71gb........................|\n"
            "  0       1       2       3       4       5       6       7\n"
            "  GI/CI  PROFILE      AT  SMS   MEM used/total  DEVICE                                      "
            "USED BY\n"
            "  7/0    1g.18gb     0:1   16  0.0 / 16.00 GiB  " +
                mig.Devices(Uuid(0))->at(0).uuid +
                "    -\n"
                "  4/-    2g.35gb     2:2    -                -  no compute instance: no program can use it\n"
                "  2/0    1c.3g.71gb  4:4   16  0.0 / 69.50 GiB  " +
                mig.Devices(Uuid(0))->at(1).uuid +
                "    -\n"
                "  still fits, of each alone: 1x 1g.18gb, 1x 1g.18gb+me\n");
}

TEST_F(MigStatusTest, ProcessesOnThem) {
  Start(std::string(kH200) + R"(, "mig": true})");
  gpu::Mig& mig = nvml->mig();
  const auto three = mig.Create(Uuid(0), k3g, std::nullopt);
  ASSERT_TRUE(mig.CreateCompute(Uuid(0), three->id, k3c));
  box->SetEnv(
      "LD_LIBRARY_PATH",
      std::filesystem::path(Sandbox::Program("gpumux")).parent_path().parent_path() / "lib/gpumux/softgpu");
  Process worker = box->Start({Sandbox::Program("gpumux-workload"), "--alloc", "4GiB", "--seconds", "60"});
  ASSERT_TRUE(WaitUntil("the workload has its memory", [&] {
    const Json shown = Json::parse(box->RunGpumux({"mig", "status", "--json"}).out, nullptr, false);
    const Json& processes = shown["data"]["gpus"][0]["instances"][0]["devices"][0]["processes"];
    return processes.size() == 1 && processes[0]["mem_bytes"] > 4ull << 30;
  }));
  EXPECT_THAT(Shown(), HasSubstr("pid " + std::to_string(worker.pid()) + " (4."));
  const Json shown = Json::parse(box->RunGpumux({"mig", "status", "--json"}).out, nullptr, false);
  const Json& gpu = shown["data"]["gpus"][0];
  EXPECT_EQ(shown["simulated"], true);
  EXPECT_EQ(gpu["mode"], "on");
  EXPECT_EQ(gpu["memory_slices"], 8);
  EXPECT_EQ(gpu["instances"][0]["profile"], "3g.71gb");
  EXPECT_EQ(gpu["instances"][0]["devices"][0]["sms"], 60);
  EXPECT_EQ(gpu["instances"][0]["devices"][0]["mem_total_bytes"], 71168ull << 20);
  worker.Signal(SIGKILL);
  worker.Wait();
}

TEST_F(MigStatusTest, WithoutRightsItSaysSo) {
  Start(std::string(kH200) + R"(, "mig": true})");
  gpu::Mig& mig = nvml->mig();
  const auto one = mig.Create(Uuid(0), k1g, std::nullopt);
  ASSERT_TRUE(mig.CreateCompute(Uuid(0), one->id, k1c));
  box->SetUser(65534);
  const std::string text = Shown();
  EXPECT_THAT(text, HasSubstr("  7/0    1g.18gb   -   16  0.0 / 16.00 GiB  MIG-"));
  EXPECT_THAT(text, HasSubstr("  placements and what still fits are shown to root, and to who may read "
                              "/dev/nvidia-caps/nvidia-cap2 (mig/monitor) or nvidia-cap1 (mig/config)\n"));
  EXPECT_THAT(text, testing::Not(HasSubstr("still fits, of")));
  const Json shown = Json::parse(box->RunGpumux({"mig", "status", "--json"}).out, nullptr, false);
  const Json& gpu = shown["data"]["gpus"][0];
  EXPECT_TRUE(gpu["fits"].is_null());
  EXPECT_THAT(gpu["fits_reason"].get<std::string>(), HasSubstr("no rights"));
  EXPECT_TRUE(gpu["instances"][0]["start"].is_null());
  EXPECT_THAT(gpu["instances"][0]["start_reason"].get<std::string>(), HasSubstr("no rights"));
}

}  // namespace
}  // namespace gpumux::test
