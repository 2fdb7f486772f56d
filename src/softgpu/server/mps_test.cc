// SPDX-License-Identifier: Apache-2.0
#include "softgpu/server/mps.h"

#include <gtest/gtest.h>

#include <map>

namespace gpumux::softgpu {
namespace {

using Numbers = std::vector<uint64_t>;

struct World {
  MpsServers servers;
  std::map<uint64_t, uint64_t> gpus;  // of each process
  Numbers Fault(uint64_t client, uint32_t gpu) {
    return servers.Fault(client, gpu, [this](uint64_t of) { return gpus[of]; });
  }
};

TEST(MpsServers, AFaultTakesEveryoneOnTheGpuAlong) {
  World world;
  world.servers.Add(1, 0);
  world.servers.Add(2, 0);
  for (uint64_t client : {10, 11, 12}) world.servers.Join(client, 1);
  world.servers.Join(20, 2);
  world.gpus = {{10, 1}, {11, 1}, {12, 0}, {20, 1}};
  EXPECT_EQ(world.Fault(10, 0), (Numbers{10, 11})) << "not one without a context, nor one of another server";
  EXPECT_EQ(world.servers.Find(1)->state, MpsState::kFault);
  EXPECT_FALSE(world.servers.Leave(12)) << "nobody waits for it";
  EXPECT_FALSE(world.servers.Leave(10));
  EXPECT_EQ(world.servers.Find(1)->state, MpsState::kFault);
  EXPECT_TRUE(world.servers.Leave(11));
  EXPECT_EQ(world.servers.Find(1)->state, MpsState::kActive);
}

TEST(MpsServers, AFaultGoesOnOverSharedGpus) {
  World world;
  world.servers.Add(1, 0);
  for (uint64_t client : {10, 11, 12, 13}) world.servers.Join(client, 1);
  world.gpus = {{10, 0b0001}, {11, 0b0110}, {12, 0b0011}, {13, 0b1000}};
  EXPECT_EQ(world.Fault(10, 0), (Numbers{10, 11, 12})) << "12 is on the GPU of 10 and on one of 11";
}

TEST(MpsServers, WhoIsNoClientFaultsAlone) {
  World world;
  world.servers.Add(1, 0);
  world.servers.Join(10, 1);
  world.gpus = {{10, 1}, {30, 1}};
  EXPECT_TRUE(world.Fault(30, 0).empty());
  EXPECT_EQ(world.servers.Remove(1), Numbers{10});
  EXPECT_EQ(world.servers.ServerOf(10), 0u);
  EXPECT_FALSE(world.servers.Leave(10));
}

}  // namespace
}  // namespace gpumux::softgpu
