// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/visible_devices.h"

#include <gtest/gtest.h>

namespace gpumux::softgpu {
namespace {

using Gpus = std::vector<uint32_t>;

TEST(VisibleDevices, FollowTheList) {
  const std::vector<VisibleGpu> gpus = {{"GPU-aa11", 100}, {"GPU-aa22", 100}, {"GPU-bb33", 100}};
  EXPECT_EQ(VisibleDevices(std::nullopt, std::nullopt, gpus), (Gpus{0, 1, 2}));
  const struct {
    const char* list;
    Gpus gpus;
  } cases[] = {{"", {}},
               {"0", {0}},
               {"2,0", {2, 0}},
               {" 1 , 2 ", {1, 2}},
               {"0,9,1", {0}},
               {"-1", {}},
               {"0,-1,1", {0}},
               {"GPU-bb33,0", {2, 0}},
               {"GPU-b", {2}},
               {"GPU-aa", {}},
               {"GPU-aa1,GPU-aa2", {0, 1}},
               {"gpu-bb33", {}},
               {"1,1", {}},
               {"0,GPU-aa11", {}},
               {"0x1", {}},
               {",0", {}},
               {"0,", {0}},
               {"99999999999", {}},
               {"MIG-bb33", {}},
               {"0,MIG-GPU-bb33/1/0,1", {0}},
               {"GPU-", {}},
               {"GPU-bb333", {}},
               {"2,1,0", {2, 1, 0}},
               {"2,2,1", {}},
               {"1;2", {}},
               {"+1", {}},
               {"1.0", {}},
               {"1,,2", {1}},
               {" ", {}},
               {"all", {}},
               {"none", {}},
               {"NoDevFiles", {}}};
  for (const auto& c : cases) {
    EXPECT_EQ(VisibleDevices(c.list, std::nullopt, gpus), c.gpus) << c.list;
    // All are equally fast: the order says nothing.
    EXPECT_EQ(VisibleDevices(c.list, "PCI_BUS_ID", gpus), c.gpus) << c.list;
  }
}

TEST(VisibleDevices, OrdinalsCountInTheOrder) {
  const std::vector<VisibleGpu> gpus = {
      {"GPU-aa11", 56}, {"GPU-aa22", 56}, {"GPU-bb33", 132}, {"GPU-cc44", 58}};
  const struct {
    std::optional<std::string_view> order, list;
    Gpus gpus;
  } cases[] = {{std::nullopt, std::nullopt, {2, 3, 0, 1}},
               {"FASTEST_FIRST", std::nullopt, {2, 3, 0, 1}},
               {"PCI_BUS_ID", std::nullopt, {0, 1, 2, 3}},
               {"", std::nullopt, {2, 3, 0, 1}},
               {"pci_bus_id", std::nullopt, {2, 3, 0, 1}},
               {"nonsense", std::nullopt, {2, 3, 0, 1}},
               {std::nullopt, "0", {2}},
               {"PCI_BUS_ID", "0", {0}},
               {std::nullopt, "3,0", {1, 2}},
               {"PCI_BUS_ID", "3,0", {3, 0}},
               {std::nullopt, "GPU-cc44,GPU-aa1", {3, 0}},
               {"PCI_BUS_ID", "GPU-cc44,GPU-aa1", {3, 0}},
               {std::nullopt, "0,GPU-bb33", {}},  // the same one twice
               {"PCI_BUS_ID", "0,GPU-bb33", {0, 2}},
               {std::nullopt, "1,4,0", {3}},
               {"PCI_BUS_ID", "", {}}};
  for (const auto& c : cases) {
    EXPECT_EQ(VisibleDevices(c.list, c.order, gpus), c.gpus)
        << c.order.value_or("unset") << " " << c.list.value_or("unset");
  }
  EXPECT_EQ(VisibleDevices(std::nullopt, std::nullopt, {}), Gpus{});
  EXPECT_EQ(VisibleDevices("0", std::nullopt, {}), Gpus{});
}

// "G0", "I1": GPUs and instances. GPU 1 has MIG: two GPU instances, the first with two compute instances.
std::string Seen(const char* list, bool several) {
  const std::vector<VisibleGpu> gpus = {{"GPU-aa", 100}, {"GPU-bb", 100}, {"GPU-cc", 100}};
  const std::vector<VisibleInstance> instances = {{1, 1, "MIG-11aa", "MIG-GPU-bb/1/0"},
                                                  {1, 1, "MIG-11bb", "MIG-GPU-bb/1/1"},
                                                  {1, 9, "MIG-22cc", "MIG-GPU-bb/9/0"}};
  std::string seen;
  for (const VisibleDevice& device :
       VisibleDevicesWithMig(list != nullptr ? std::optional<std::string_view>(list) : std::nullopt,
                             std::nullopt, gpus, {false, true, false}, instances, several))
    seen += (device.is_instance ? "I" : "G") + std::to_string(device.index);
  return seen;
}

TEST(VisibleDevices, WithInstances) {
  const struct {
    const char* list;
    const char* one;      // before R570
    const char* several;  // from then on
  } cases[] = {
      {nullptr, "I0", "I0I2"},
      {"", "", ""},
      {"0", "G0", "G0"},
      {"0,2", "G0G2", "G0G2"},
      {"1", "I0", "I0I2"},
      {"GPU-bb", "I0", "I0I2"},
      {"0,1", "I0", "I0I2"},
      {"MIG-22", "I2", "I2"},
      {"MIG-22cc,MIG-11aa", "I2", "I2I0"},
      {"MIG-11bb,MIG-11aa", "I1", "I1"},
      {"MIG-11", "", ""},
      {"MIG-", "", ""},
      {"MIG-GPU-bb/9/0", "I2", "I2"},
      {"MIG-GPU-bb/1/1,0", "I1", "I1"},
      {"MIG-GPU-bb/9/1", "", ""},
      {"0,MIG-77,1", "G0", "G0"},
      {"MIG-22cc,MIG-22", "", ""},
      {"1,MIG-22cc", "", ""},
  };
  for (const auto& each : cases) {
    EXPECT_EQ(Seen(each.list, false), each.one) << (each.list != nullptr ? each.list : "no list");
    EXPECT_EQ(Seen(each.list, true), each.several) << (each.list != nullptr ? each.list : "no list");
  }
}

TEST(VisibleDevices, AGpuWithMigAndNoInstanceIsNotSeen) {
  const std::vector<VisibleGpu> gpus = {{"GPU-aa", 100}, {"GPU-bb", 100}};
  const auto seen = VisibleDevicesWithMig(std::nullopt, std::nullopt, gpus, {true, false}, {}, true);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].index, 1u);
  EXPECT_TRUE(VisibleDevicesWithMig("0", std::nullopt, gpus, {true, false}, {}, true).empty());
}

}  // namespace
}  // namespace gpumux::softgpu
