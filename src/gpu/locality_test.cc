// SPDX-License-Identifier: Apache-2.0
#include "gpu/locality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gpu/nvml.h"

namespace gpumux::gpu {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SysfsFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/gpumux-sysfs-XXXXXX";
    ASSERT_TRUE(mkdtemp(name));
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }
  void Write(const std::string& device, const std::string& cpus, const std::string& node) {
    const std::string dir = root_ + "/bus/pci/devices/" + device;
    fs::create_directories(dir);
    std::ofstream(dir + "/local_cpulist") << cpus;
    std::ofstream(dir + "/numa_node") << node;
  }
  std::string root_;
};

class SilentNvml : public Nvml {
 public:
  const std::vector<Device>& Devices() const override { return devices; }
  Status Restart() override { return {}; }
  std::string DriverVersion() const override { return ""; }
  Result<DeviceMemory> Memory(const Uuid&) override { return DeviceMemory{}; }
  Result<std::vector<ProcessUse>> Processes(const Uuid&) override { return std::vector<ProcessUse>{}; }
  Result<ComputeMode> Mode(const Uuid&) override { return ComputeMode::kDefault; }
  std::vector<Device> devices;
};

TEST_F(SysfsFolder, TellsWhatIsNearAPciDevice) {
  Write("0000:18:00.0", "0-3,64-67\n", "1\n");
  const auto near = SysfsLocality("00000000:18:00.0", root_);
  ASSERT_TRUE(near) << near.error().ToString();
  EXPECT_THAT(near->cpus, ElementsAre(0, 1, 2, 3, 64, 65, 66, 67));
  EXPECT_THAT(near->memory_nodes, ElementsAre(1));
  EXPECT_EQ(near->source, "sysfs");
  Write("0000:af:00.0", "0-3\n", "-1\n");
  EXPECT_THAT(SysfsLocality("00000000:AF:00.0", root_)->memory_nodes, IsEmpty());
}

TEST_F(SysfsFolder, SaysWhenItIsNotKnown) {
  Write("0000:18:00.0", "\n", "0\n");
  Write("0000:19:00.0", "nonsense", "0\n");
  for (const char* bus : {"00000000:18:00.0", "00000000:19:00.0", "00000000:20:00.0", "", "../../etc/xx"})
    EXPECT_EQ(SysfsLocality(bus, root_).error().code, Code::kUnavailable) << bus;
}

TEST_F(SysfsFolder, IsAskedWhereNvmlIsSilent) {
  Write("0000:18:00.0", "4\n", "0\n");
  SilentNvml nvml;
  EXPECT_EQ(FindLocality(nvml, {.uuid = {}, .index = 0, .name = "", .pci_bus_id = "00000000:18:00.0"}, root_)
                ->source,
            "sysfs");
}

}  // namespace
}  // namespace gpumux::gpu
