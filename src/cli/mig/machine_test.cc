// SPDX-License-Identifier: Apache-2.0
#include "cli/mig/machine.h"

#include <gtest/gtest.h>

#include "base/units.h"
#include "gpu/nvml_mig.h"

namespace gpumux::cli {
namespace {

// A driver of two GPUs, of which the test says what they have.
class FakeMig final : public gpu::Mig {
 public:
  Result<std::optional<gpu::MigModes>> Modes(const gpu::Uuid&) override { return std::optional(modes); }
  Result<std::vector<gpu::MigProfile>> Profiles(const gpu::Uuid&) override { return profiles; }
  Result<std::vector<gpu::MigInstance>> Instances(const gpu::Uuid&) override { return instances; }
  Result<std::vector<gpu::MigDevice>> Devices(const gpu::Uuid&) override { return devices; }
  Result<std::vector<gpu::ProcessUse>> Processes(const gpu::Uuid&, uint32_t instance, uint32_t) override {
    std::vector<gpu::ProcessUse> found;
    if (instance == busy) found.push_back({812, kGiB});
    return found;
  }

  gpu::MigModes modes;
  Result<std::vector<gpu::MigProfile>> profiles = std::vector<gpu::MigProfile>{};
  std::vector<gpu::MigInstance> instances;
  std::vector<gpu::MigDevice> devices;
  uint32_t busy = 0;
};

class FakeNvml final : public gpu::Nvml {
 public:
  const std::vector<gpu::Device>& Devices() const override { return devices; }
  Status Restart() override { return {}; }
  std::string DriverVersion() const override { return ""; }
  Result<gpu::DeviceMemory> Memory(const gpu::Uuid&) override { return gpu::DeviceMemory{}; }
  Result<std::vector<gpu::ProcessUse>> Processes(const gpu::Uuid&) override {
    return std::vector<gpu::ProcessUse>{};
  }
  Result<gpu::ComputeMode> Mode(const gpu::Uuid&) override { return gpu::ComputeMode::kDefault; }
  gpu::Mig& mig() override { return fake; }

  std::vector<gpu::Device> devices;
  FakeMig fake;
};

gpu::Device Device(unsigned index, const char* name) {
  return {{{static_cast<uint8_t>(index)}}, index, name, ""};
}

TEST(MigMachine, TakesTheTableWhereMigIsOffAndSaysSo) {
  FakeNvml nvml;
  nvml.devices = {Device(0, "NVIDIA H200"), Device(1, "NVIDIA L40S")};
  const auto gpus = MigGpusOfMachine(nvml, true);
  ASSERT_TRUE(gpus) << gpus.error().ToString();
  ASSERT_EQ(gpus->gpus.size(), 1u);
  EXPECT_EQ(gpus->gpus[0].model->key, "H200");
  EXPECT_FALSE(gpus->gpus[0].model->from_device);
  EXPECT_EQ(gpus->uuids, (std::vector<std::string>{"GPU-00000000-0000-0000-0000-000000000000"}));
  EXPECT_TRUE(gpus->simulated);
  EXPECT_EQ(gpus->note,
            "MIG is off on GPU 0: its driver tells no profiles then, and these are the table's.\n"
            "GPU 1 is left out: NVIDIA L40S has no MIG: L40S is not in NVIDIA's list of GPUs that can be "
            "partitioned\n");
}

TEST(MigMachine, SaysThatThereIsNone) {
  FakeNvml nvml;
  EXPECT_EQ(MigGpusOfMachine(nvml, false).error().ToString(),
            "no GPU of this machine has MIG; name others with --gpu");
  nvml.devices = {Device(0, "Tesla T4")};
  const auto none = MigGpusOfMachine(nvml, false);
  EXPECT_EQ(none.error().code, Code::kUnsupported);
  EXPECT_TRUE(none.error().message.starts_with(
      "no GPU of this machine has MIG: GPU 0 is left out: Tesla T4 has no MIG"))
      << none.error().message;
}

// A driver with other figures than the table, of a GPU that it lets nobody ask for placements.
TEST(MigMachine, TakesWhatTheDriverTellsWhereMigIsOn) {
  FakeNvml nvml;
  nvml.devices = {Device(0, "NVIDIA H200")};
  nvml.fake.modes = {true, true};
  const gpu::MigModel& table = **gpu::FindMigModel("H200");
  std::vector<gpu::MigProfile> told;
  for (gpu::MigProfile profile : table.profiles) {
    profile.name += "x";
    profile.bytes = *profile.bytes + kMiB;
    profile.starts.clear();
    profile.memory_slices.reset();
    profile.inferred = 0;
    told.push_back(profile);
  }
  nvml.fake.profiles = told;
  nvml.fake.instances = {{7, 9, {0, 4}}, {8, 19, {4, 1}}};
  nvml.fake.devices.resize(2);
  nvml.fake.devices[0].gpu_instance = 7;
  nvml.fake.devices[1].gpu_instance = 8;
  nvml.fake.busy = 8;
  const auto gpus = MigGpusOfMachine(nvml, false);
  ASSERT_TRUE(gpus) << gpus.error().ToString();
  const gpu::MigModel& model = *gpus->gpus[0].model;
  EXPECT_TRUE(model.from_device);
  EXPECT_EQ(model.compute_slices, 7u);
  EXPECT_EQ(model.memory_slices, 8u);
  EXPECT_EQ(model.max_instances, 7u);
  ASSERT_NE(model.FindProfile(9), nullptr);
  EXPECT_EQ(model.FindProfile(9)->name, "3g.71gbx");
  EXPECT_EQ(model.FindProfile(9)->bytes, *table.FindProfile(9)->bytes + kMiB);
  EXPECT_EQ(model.FindProfile(9)->starts, (std::vector<uint32_t>{0, 4}));
  EXPECT_TRUE(model.FindProfile(9)->inferred & gpu::kInferredPlacements);
  ASSERT_EQ(gpus->gpus[0].present.size(), 2u);
  EXPECT_TRUE(gpus->gpus[0].present[0].users.empty());
  EXPECT_EQ(gpus->gpus[0].present[1].users, (std::vector<std::string>{"pid 812"}));
  EXPECT_EQ(gpus->note, "");

  const auto plan = core::mig::MakePlan(gpus->gpus, {{"a", 1, "9"}});
  ASSERT_TRUE(plan) << plan.error().ToString();
  EXPECT_EQ(plan->score.created, 0u);
}

TEST(MigMachine, PassesOnWhatTheDriverRefuses) {
  FakeNvml nvml;
  nvml.devices = {Device(0, "NVIDIA H200")};
  nvml.fake.modes = {true, true};
  nvml.fake.profiles = Fail(Code::kDenied, "no rights");
  EXPECT_EQ(MigGpusOfMachine(nvml, false).error().code, Code::kDenied);
}

}  // namespace
}  // namespace gpumux::cli
