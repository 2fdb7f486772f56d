// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/visible_devices.h"

#include <gtest/gtest.h>

namespace gpumux::softgpu {
namespace {

using Gpus = std::vector<uint32_t>;

TEST(VisibleDevices, FollowTheList) {
  const std::vector<std::string> uuids = {"GPU-aa11", "GPU-aa22", "GPU-bb33"};
  EXPECT_EQ(VisibleDevices(std::nullopt, uuids), (Gpus{0, 1, 2}));
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
               {"NoDevFiles", {}}};
  for (const auto& c : cases) EXPECT_EQ(VisibleDevices(c.list, uuids), c.gpus) << c.list;
}

}  // namespace
}  // namespace gpumux::softgpu
