// SPDX-License-Identifier: Apache-2.0
#include "sim/pool_layout.h"

#include <gtest/gtest.h>

namespace gpumux::sim {
namespace {

constexpr uint64_t kMiB = 1 << 20;

uint64_t Alloc(PoolLayout& pool, uint64_t bytes) {
  const auto place = pool.Find(bytes);
  EXPECT_TRUE(place);
  pool.Commit(*place, bytes);
  return place->offset;
}

TEST(PoolLayout, GrowsByChunksAsMeasured) {
  const struct {
    uint64_t bytes, reserved;
  } cases[] = {
      {1, 33554432},        {513, 33554432},        {2097153, 33554432},      {32505856, 33554432},
      {34603008, 67108864}, {100000000, 100663296}, {1073741825, 1107296256}, {104857600, 134217728}};
  for (const auto& c : cases) {
    PoolLayout pool(512ULL << 30);
    const uint64_t offset = Alloc(pool, c.bytes);
    EXPECT_EQ(pool.reserved(), c.reserved) << c.bytes;
    ASSERT_TRUE(pool.Free(offset));
    EXPECT_EQ(pool.reserved(), c.reserved) << "a free keeps it";
    pool.Trim(0);
    EXPECT_EQ(pool.reserved(), 0u);
  }
}

// The recorded sequence: 10 and 30 MiB lie across two chunks, so freeing the
// 10 releases nothing; 5 go into the hole; freeing the 30 releases one chunk.
TEST(PoolLayout, AnAllocationMayLieAcrossChunks) {
  PoolLayout pool(512ULL << 30);
  const uint64_t ten = Alloc(pool, 10 * kMiB), thirty = Alloc(pool, 30 * kMiB);
  EXPECT_EQ(pool.reserved(), 64 * kMiB);
  pool.Free(ten);
  EXPECT_TRUE(pool.Trim(0).empty());
  const uint64_t five = Alloc(pool, 5 * kMiB);
  EXPECT_EQ(pool.reserved(), 64 * kMiB);
  pool.Free(thirty);
  EXPECT_EQ(pool.Trim(0).size(), 1u);
  EXPECT_EQ(pool.reserved(), 32 * kMiB);
  pool.Free(five);
  pool.Trim(0);
  EXPECT_EQ(pool.reserved(), 0u);
}

TEST(PoolLayout, TrimsDownToWhatIsToBeKept) {
  PoolLayout pool(512ULL << 30);
  pool.Free(Alloc(pool, 320 * kMiB));
  pool.Trim(100 * kMiB);
  EXPECT_EQ(pool.reserved(), 96 * kMiB);
}

TEST(PoolLayout, PrefersWhatItHas) {
  PoolLayout pool(512ULL << 30);
  const uint64_t first = Alloc(pool, 32 * kMiB);
  Alloc(pool, 32 * kMiB);
  pool.Free(first);
  EXPECT_TRUE(pool.Find(20 * kMiB)->new_chunks.empty());
  EXPECT_EQ(pool.Find(33 * kMiB)->new_chunks.size(), 2u);
}

TEST(PoolLayout, APlaceChangesHandsWithinItsSize) {
  PoolLayout pool(512ULL << 30);
  const uint64_t place = Alloc(pool, 10 * kMiB);
  EXPECT_FALSE(pool.Resize(place, 11 * kMiB));
  ASSERT_TRUE(pool.Resize(place, 4 * kMiB));
  EXPECT_EQ(pool.SizeOf(place), 4 * kMiB);
  EXPECT_EQ(pool.Find(6 * kMiB)->offset, place + 4 * kMiB);
}

TEST(PoolLayout, HasAnEnd) {
  PoolLayout pool(64 * kMiB);
  EXPECT_FALSE(pool.Find(65 * kMiB));
  Alloc(pool, 64 * kMiB);
  EXPECT_FALSE(pool.Find(1));
}

}  // namespace
}  // namespace gpumux::sim
