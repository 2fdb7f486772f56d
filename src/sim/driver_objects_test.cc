// SPDX-License-Identifier: Apache-2.0
#include "sim/driver_objects.h"

#include <gtest/gtest.h>

namespace gpumux::sim {
namespace {

// docs/results/2026-11-29-h200/driver-objects.txt: streams one after the other.
TEST(DriverObjects, StreamsTakeWhatTheyTookOnAnH200) {
  uint64_t before = 0;
  for (uint64_t n = 1; n <= 40; ++n) {
    const uint64_t now = BytesOfStreams(n);
    const bool a_page_more = n == 36 || n % 4 == 2;
    EXPECT_EQ(now - before, a_page_more ? kPageBytes : 0) << n;
    before = now;
  }
  EXPECT_EQ(BytesOfStreams(1040) - BytesOfStreams(40), 572522496u);
  EXPECT_EQ(BytesOfStreams(0), 0u);
}

TEST(DriverObjects, GraphNodesTakeWhatTheyTookOnAnH200) {
  const uint64_t taken[] = {23068672, 23068672, 25165824, 23068672};  // graphs of 10,000 nodes
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(BytesOfGraphNodes((i + 1) * 10000) - BytesOfGraphNodes(i * 10000), taken[i]) << i;
  }
  EXPECT_EQ(BytesOfGraphNodes(347), 0u);
}

// docs/results/2026-11-29-h200/local-memory.txt.
TEST(DriverObjects, GreenContextsTakeWhatTheyTookOnAnH200) {
  EXPECT_EQ(PagesOfGreenContext(32) * kPageBytes, 4194304u);
  EXPECT_EQ(PagesOfGreenContext(100) * kPageBytes, 6291456u);
}

}  // namespace
}  // namespace gpumux::sim
