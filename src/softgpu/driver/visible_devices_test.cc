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

}  // namespace
}  // namespace gpumux::softgpu
