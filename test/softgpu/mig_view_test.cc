// SPDX-License-Identifier: Apache-2.0
//
// MIG as gpumux reads and changes it, through the software GPU's NVML: each call, and each failure in words.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "child.h"
#include "cuda_functions.h"
#include "gpu/nvml.h"
#include "gpu/nvml_mig.h"
#include "without_symbols.h"

namespace gpumux::test {
namespace {

using gpu::MigModes;
using gpu::MigPlacement;

class MigView : public SoftGpuTest {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "skipped: MIG is changed by root";
  }
  // A machine of these GPUs (JSON), as gpumux sees it.
  std::unique_ptr<gpu::Nvml> Machine(const std::string& gpus, const std::string& libraries = {}) {
    const std::string path = dir() + "/gpus.json";
    std::ofstream(path) << "{\"gpus\": [" << gpus << "]}";
    auto nvml = gpu::Nvml::Open(
        {.simulated = true,
         .spec = path,
         .dir = dir(),
         .libraries_dir =
             libraries.empty() ? std::filesystem::path(SOFTGPU_LIBNVML).parent_path().string() : libraries});
    EXPECT_TRUE(nvml) << nvml.error().ToString();
    return nvml ? std::move(*nvml) : nullptr;
  }
};

constexpr const char* kOn = R"({"model": "H200", "mig": true})";
constexpr const char* kOff = R"({"model": "H200"})";
constexpr uint32_t k1g = 19, k3g = 9, k4g = 5, k7g = 0, k1c = 0, k2c = 1, k3c = 2;

template <typename R>
void ExpectError(const R& result, Code code, const std::string& text) {
  ASSERT_FALSE(result) << text;
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_NE(result.error().message.find(text), std::string::npos) << result.error().message;
}

// What the driver tells is what the table says of it, field by field, for every GPU whose placements are
// known.
TEST_F(MigView, ProfilesAsTheTableHasThem) {
  const char* kModels[] = {"H200", "A100-40", "A100-80", "H100-80", "A30", "RTX-PRO-6000"};
  std::string gpus;
  for (const char* model : kModels)
    gpus += std::string(gpus.empty() ? "" : ", ") + R"({"model": ")" + model + R"(", "mig": true})";
  const auto nvml = Machine(gpus);
  ASSERT_EQ(nvml->Devices().size(), std::size(kModels));
  for (size_t i = 0; i < std::size(kModels); ++i) {
    SCOPED_TRACE(kModels[i]);
    const auto profiles = nvml->mig().Profiles(nvml->Devices()[i].uuid);
    ASSERT_TRUE(profiles) << profiles.error().ToString();
    const gpu::MigModel& table = **gpu::FindMigModel(kModels[i]);
    EXPECT_EQ(profiles->size(), table.profiles.size());
    for (const gpu::MigProfile& told : *profiles) {
      const gpu::MigProfile* row = table.FindProfile(*told.id);
      ASSERT_NE(row, nullptr) << *told.id;
      EXPECT_EQ(told.name, row->name);
      EXPECT_EQ(told.nvml_profile, row->nvml_profile) << told.name;
      EXPECT_EQ(told.compute_slices, row->compute_slices) << told.name;
      EXPECT_EQ(told.memory_slices, row->memory_slices) << told.name;
      EXPECT_EQ(told.starts, row->starts) << told.name;
      EXPECT_EQ(told.max_instances, row->max_instances) << told.name;
      EXPECT_EQ(told.sms, row->sms) << told.name;
      EXPECT_EQ(told.bytes, row->bytes) << told.name;
      EXPECT_EQ(told.engines, row->engines) << told.name;
      EXPECT_EQ(told.attribute, row->attribute) << told.name;
    }
  }
}

TEST_F(MigView, MakesFindsAndDestroysInstances) {
  const auto nvml = Machine(kOn);
  gpu::Mig& mig = nvml->mig();
  const gpu::Uuid uuid = nvml->Devices()[0].uuid;
  EXPECT_EQ(*mig.Modes(uuid), (MigModes{true, true}));
  EXPECT_EQ(*mig.Room(uuid, k1g), 7u);
  const auto three = mig.Create(uuid, k3g, MigPlacement{4, 4});
  const auto one = mig.Create(uuid, k1g, std::nullopt);
  ASSERT_TRUE(three) << three.error().ToString();
  ASSERT_TRUE(one);
  EXPECT_EQ(three->profile, k3g);
  EXPECT_EQ(three->placement, (MigPlacement{4, 4}));
  EXPECT_EQ(*mig.Room(uuid, k1g), 3u);
  const auto all = mig.Instances(uuid);
  ASSERT_TRUE(all) << all.error().ToString();
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ((*all)[0].id, one->id);
  EXPECT_EQ((*all)[1].id, three->id);
  EXPECT_TRUE(mig.Devices(uuid)->empty());

  const auto compute = mig.ComputeProfiles(uuid, three->id);
  ASSERT_TRUE(compute);
  ASSERT_EQ(compute->size(), 3u);  // 1c, 2c, 3c
  EXPECT_EQ((*compute)[0].sms, 16u);
  EXPECT_EQ((*compute)[0].max_instances, 3u);
  EXPECT_EQ((*compute)[2].id, k3c);
  EXPECT_EQ((*compute)[2].sms, 60u);
  EXPECT_EQ((*compute)[2].slices, 3u);
  const auto small = mig.CreateCompute(uuid, three->id, k1c), large = mig.CreateCompute(uuid, three->id, k2c);
  ASSERT_TRUE(small);
  ExpectError(large, Code::kConflict,
              "insufficient resources");  // 0 is taken, and a pair begins at 0 or 2 of three
  ASSERT_TRUE(mig.CreateCompute(uuid, three->id, k1c));
  EXPECT_EQ(mig.ComputeInstances(uuid, three->id)->size(), 2u);
  EXPECT_TRUE(mig.ComputeInstances(uuid, one->id)->empty());

  const auto devices = mig.Devices(uuid);
  ASSERT_TRUE(devices);
  ASSERT_EQ(devices->size(), 2u);
  const gpu::MigDevice& device = (*devices)[0];
  EXPECT_EQ(device.gpu_instance, three->id);
  EXPECT_EQ(device.compute_instance, small->id);
  EXPECT_EQ(device.name, "NVIDIA H200 MIG 1c.3g.71gb (software GPU, simulated)");
  EXPECT_EQ(device.uuid.rfind("MIG-", 0), 0u);
  EXPECT_EQ(device.sms, 16u);
  EXPECT_EQ(device.total_bytes, 71168ull << 20);
  const auto memory = mig.Memory(uuid, three->id, small->id);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->total_bytes, 71168ull << 20);
  EXPECT_EQ(memory->used_bytes, 0u);
  EXPECT_TRUE(mig.Processes(uuid, three->id, small->id)->empty());
  ExpectError(mig.Memory(uuid, three->id, 7), Code::kNotFound, "MIG device");

  ExpectError(mig.Destroy(uuid, three->id), Code::kConflict, "in use by another client");
  EXPECT_TRUE(mig.DestroyCompute(uuid, three->id, small->id));
  ExpectError(mig.DestroyCompute(uuid, three->id, small->id), Code::kNotFound, "compute instance 0");
  EXPECT_TRUE(mig.DestroyCompute(uuid, three->id, 1));
  EXPECT_TRUE(mig.Destroy(uuid, three->id));
  ExpectError(mig.Destroy(uuid, three->id), Code::kNotFound, "GPU instance");
  EXPECT_EQ(mig.Instances(uuid)->size(), 1u);
}

TEST_F(MigView, EveryRefusalSaysWhy) {
  const auto nvml = Machine(std::string(kOn) + ", " + kOff + R"(, {"model": "L4"}, {"model": "A100-40"})");
  gpu::Mig& mig = nvml->mig();
  const auto& devices = nvml->Devices();
  const gpu::Uuid on = devices[0].uuid, off = devices[1].uuid, none = devices[2].uuid,
                  ampere = devices[3].uuid;
  EXPECT_EQ(*mig.Modes(none), std::nullopt);
  EXPECT_EQ(*mig.Modes(off), (MigModes{false, false}));
  EXPECT_EQ(*nvml->MigEnabled(none), false);
  EXPECT_EQ(*nvml->MigEnabled(on), true);
  ExpectError(mig.SetMode(none, true), Code::kUnsupported, "not supported");
  ExpectError(mig.Profiles(off), Code::kUnsupported, "only while MIG is enabled");
  ExpectError(mig.Create(off, k1g, std::nullopt), Code::kUnsupported, "MIG is off");
  ExpectError(mig.Instances(off), Code::kUnsupported, "only while MIG is enabled");
  EXPECT_TRUE(mig.Devices(off)->empty());
  EXPECT_TRUE(mig.Devices(none)->empty());
  ExpectError(mig.Create(on, 77, std::nullopt), Code::kInvalid, "does not know");
  ExpectError(mig.Create(on, k3g, MigPlacement{1, 4}), Code::kInvalid, "at 1");
  ASSERT_TRUE(mig.Create(on, k4g, std::nullopt));
  ExpectError(mig.Create(on, k7g, std::nullopt), Code::kConflict, "insufficient resources");
  // Pending is not an error, and is told.
  EXPECT_EQ(*mig.SetMode(ampere, true), (MigModes{false, true}));
  ExpectError(mig.Create(ampere, k1g, std::nullopt), Code::kUnsupported, "MIG is off");
  EXPECT_EQ(*mig.SetMode(off, true), (MigModes{true, true}));
  gpu::Uuid stranger = on;
  stranger.bytes[0] ^= 1;
  ExpectError(mig.Modes(stranger), Code::kNotFound, "no GPU");
}

TEST_F(MigView, WithoutRights) {
  {
    const auto nvml = Machine(kOn);
    const auto made = nvml->mig().Create(nvml->Devices()[0].uuid, k1g, std::nullopt);
    ASSERT_TRUE(nvml->mig().CreateCompute(nvml->Devices()[0].uuid, made->id, k1c));
  }
  std::filesystem::permissions(dir(), std::filesystem::perms::all);
  InChild([&] {
    const auto nvml = Machine(kOn);  // the library is loaded by one who may reach it
    ASSERT_EQ(setgid(65534), 0);
    ASSERT_EQ(setuid(65534), 0);
    ASSERT_TRUE(nvml->Restart());
    gpu::Mig& mig = nvml->mig();
    const gpu::Uuid uuid = nvml->Devices()[0].uuid;
    ExpectError(mig.SetMode(uuid, false), Code::kDenied, "root alone");
    ExpectError(mig.Instances(uuid), Code::kDenied, "no rights");
    ExpectError(mig.Room(uuid, k1g), Code::kDenied, "no rights");
    ExpectError(mig.Create(uuid, k1g, std::nullopt), Code::kDenied, "no rights");
    // Profiles, but not their places; devices, with all that is theirs.
    const auto profiles = mig.Profiles(uuid);
    ASSERT_TRUE(profiles);
    EXPECT_EQ(profiles->size(), 7u);
    EXPECT_TRUE(profiles->front().starts.empty());
    EXPECT_EQ(profiles->front().memory_slices, std::nullopt);
    ASSERT_EQ(mig.Devices(uuid)->size(), 1u);
    const gpu::MigDevice device = mig.Devices(uuid)->front();
    EXPECT_TRUE(mig.Memory(uuid, device.gpu_instance, device.compute_instance));
    EXPECT_TRUE(mig.Processes(uuid, device.gpu_instance, device.compute_instance));
  });
}

TEST_F(MigView, AProgramIsSeenOnItsInstance) {
  const auto nvml = Machine(kOn);
  gpu::Mig& mig = nvml->mig();
  const gpu::Uuid uuid = nvml->Devices()[0].uuid;
  const auto one = mig.Create(uuid, k1g, std::nullopt);
  const auto compute = mig.CreateCompute(uuid, one->id, k1c);
  const std::string name = mig.Devices(uuid)->front().uuid;
  Child holder([&](const Child::Step& step) {
    setenv("CUDA_VISIBLE_DEVICES", name.c_str(), 1);
    ASSERT_EQ(InitWithContext(), cuda::CUDA_SUCCESS);
    step.Report();
    step.Wait();
  });
  ASSERT_TRUE(holder.WaitReport());
  const auto processes = mig.Processes(uuid, one->id, compute->id);
  ASSERT_TRUE(processes);
  ASSERT_EQ(processes->size(), 1u);
  EXPECT_EQ(processes->front().pid, holder.pid());
  EXPECT_EQ(nvml->Processes(uuid)->size(), 1u);
  ExpectError(mig.DestroyCompute(uuid, one->id, compute->id), Code::kConflict, "in use by another client");
  // Refused, the mode waits: it is told as it is.
  EXPECT_EQ(*mig.SetMode(uuid, false), (MigModes{true, false}));
  holder.Continue();
  EXPECT_EQ(holder.Join(), 0);
}

// Drivers of other times: a call that is not there is not known of, and nothing is made up.
TEST_F(MigView, WhatAnOldDriverDoesNotHaveIsUnknown) {
  const std::string old = dir() + "/old";
  ASSERT_TRUE(
      CopySoftGpuWithout(SOFTGPU_LIBNVML, old,
                         {"nvmlDeviceGetMigMode", "nvmlDeviceSetMigMode",
                          "nvmlDeviceGetGpuInstanceRemainingCapacity", "nvmlDeviceGetMaxMigDeviceCount"}));
  InChild([&] {
    const auto nvml = Machine(kOn, old);
    gpu::Mig& mig = nvml->mig();
    const gpu::Uuid uuid = nvml->Devices()[0].uuid;
    ExpectError(mig.Modes(uuid), Code::kUnsupported, "does not have nvmlDeviceGetMigMode");
    ExpectError(mig.SetMode(uuid, true), Code::kUnsupported, "does not have nvmlDeviceSetMigMode");
    ExpectError(nvml->MigEnabled(uuid), Code::kUnsupported, "does not have");
    ExpectError(mig.Room(uuid, k1g), Code::kUnsupported,
                "does not have nvmlDeviceGetGpuInstanceRemainingCapacity");
    ExpectError(mig.Devices(uuid), Code::kUnsupported, "does not have nvmlDeviceGetMaxMigDeviceCount");
  });
}

TEST_F(MigView, OlderLayoutsOfProfiles) {
  const auto names = [&](const std::string& faults) {
    InChild([&] {
      setenv("GPUMUX_SOFTGPU_FAULTS", faults.c_str(), 1);
      const auto nvml = Machine(kOn);
      const auto profiles = nvml->mig().Profiles(nvml->Devices()[0].uuid);
      ASSERT_TRUE(profiles) << profiles.error().ToString();
      ASSERT_EQ(profiles->size(), 7u);
      // Only the first layout has no names; the rest is all there.
      EXPECT_EQ(profiles->front().name, faults.starts_with("lack") ? "" : "1g.18gb");
      EXPECT_EQ(profiles->front().id, k1g);
      EXPECT_EQ(profiles->front().sms, 16u);
      EXPECT_EQ(profiles->front().bytes, 16ull << 30);
    });
  };
  names("fail nvmlDeviceGetGpuInstanceProfileInfoV with NVML_ERROR_INVALID_ARGUMENT on 1");
  names("lack nvmlDeviceGetGpuInstanceProfileInfoV");
}

TEST_F(MigView, WhatElseADriverMaySay) {
  const auto fails = [&](const std::string& call, const std::string& with, Code code, const std::string& text,
                         auto act) {
    InChild([&] {
      setenv("GPUMUX_SOFTGPU_FAULTS", ("fail " + call + " with " + with).c_str(), 1);
      const auto nvml = Machine(kOn);
      ExpectError(act(nvml->mig(), nvml->Devices()[0].uuid), code, text);
    });
  };
  const auto create = [](gpu::Mig& mig, const gpu::Uuid& uuid) {
    return mig.Create(uuid, k1g, std::nullopt);
  };
  fails("nvmlDeviceCreateGpuInstance", "NVML_ERROR_INVALID_STATE", Code::kConflict, "wrong state", create);
  fails("nvmlDeviceCreateGpuInstance", "NVML_ERROR_RESET_REQUIRED", Code::kConflict, "needs a reset", create);
  fails("nvmlDeviceCreateGpuInstance", "NVML_ERROR_GPU_IS_LOST", Code::kUnavailable, "GPU is lost", create);
  fails("nvmlDeviceCreateGpuInstance", "NVML_ERROR_UNKNOWN", Code::kUnavailable, "Unknown Error", create);
  fails("nvmlGpuInstanceGetInfo", "NVML_ERROR_INVALID_ARGUMENT", Code::kNotFound, "there is none", create);
  fails("nvmlDeviceGetMigMode", "NVML_ERROR_TIMEOUT", Code::kUnavailable, "Timeout",
        [](gpu::Mig& mig, const gpu::Uuid& uuid) { return mig.Modes(uuid); });
}

}  // namespace
}  // namespace gpumux::test
