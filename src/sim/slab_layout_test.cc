// SPDX-License-Identifier: Apache-2.0
#include "sim/slab_layout.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace gpumux::sim {
namespace {

// Slabs at rising addresses, as many as are asked for.
class Slabs {
 public:
  uint64_t Alloc(uint64_t bytes) {
    auto address = layout.Place(bytes);
    if (!address) {
      layout.AddSlab(next_ += kPageBytes);
      ++held;
      address = layout.Place(bytes);
    }
    return *address;
  }
  void Free(uint64_t address) {
    const auto freed = layout.Free(address);
    ASSERT_TRUE(freed);
    if (freed->empty_slab) --held;
  }
  SlabLayout layout;
  size_t held = 0;

 private:
  uint64_t next_ = 1ULL << 40;
};

TEST(SlabLayout, SmallPiecesLieAt512ByteSteps) {
  const struct {
    uint64_t bytes, step;
  } cases[] = {{1, 512}, {256, 512}, {511, 512}, {512, 512}, {513, 1024}, {4096, 4096}, {1048575, 1048576}};
  for (const auto& c : cases) {
    Slabs slabs;
    const uint64_t first = slabs.Alloc(c.bytes);
    EXPECT_EQ(slabs.Alloc(c.bytes) - first, c.step) << c.bytes;
  }
}

TEST(SlabLayout, SharesSlabsAsMeasured) {
  const struct {
    int count;
    uint64_t bytes;
    size_t slabs;
  } cases[] = {{5000, 513, 3}, {64, 700000, 32}, {2, 1 << 20, 1}, {3, 1 << 20, 2}};
  for (const auto& c : cases) {
    Slabs slabs;
    std::set<uint64_t> numbers;
    for (int i = 0; i < c.count; ++i) numbers.insert(slabs.Alloc(c.bytes) >> 21);
    EXPECT_EQ(numbers.size(), c.slabs) << c.count << " x " << c.bytes;
    EXPECT_EQ(slabs.held, c.slabs);
  }
}

TEST(SlabLayout, ASlabGoesWithItsLastPiece) {
  Slabs slabs;
  std::vector<uint64_t> pieces;
  for (int i = 0; i < 5000; ++i) pieces.push_back(slabs.Alloc(513));
  for (size_t i = 0; i < pieces.size(); i += 2) slabs.Free(pieces[i]);
  EXPECT_EQ(slabs.held, 3u);
  for (size_t i = 1; i < pieces.size(); i += 2) slabs.Free(pieces[i]);
  EXPECT_EQ(slabs.held, 0u);
  EXPECT_EQ(slabs.layout.slabs(), 0u);
}

TEST(SlabLayout, FreedPlacesJoinAndAreUsedAgain) {
  Slabs slabs;
  const uint64_t a = slabs.Alloc(512), b = slabs.Alloc(512), c = slabs.Alloc(512);
  const uint64_t last = slabs.Alloc(kSmallLimitBytes);
  slabs.Free(a);
  slabs.Free(c);
  slabs.Free(b);
  EXPECT_EQ(slabs.Alloc(1536), a);
  slabs.Free(last);
  EXPECT_EQ(slabs.held, 1u);
}

TEST(SlabLayout, KnowsOnlyWhatItGave) {
  Slabs slabs;
  const uint64_t a = slabs.Alloc(1000);
  EXPECT_FALSE(slabs.layout.Free(a + 512));
  EXPECT_FALSE(slabs.layout.Free(0));
  EXPECT_EQ(slabs.layout.SizeOf(a), 1000u);
  slabs.Free(a);
  EXPECT_FALSE(slabs.layout.Free(a));
}

TEST(Rounding, IsTheDrivers) {
  EXPECT_TRUE(IsSmall(1048576));
  EXPECT_FALSE(IsSmall(1048577));
  EXPECT_EQ(RoundPlain(1048577), 2097152u);
  EXPECT_EQ(RoundPlain(2097153), 4194304u);
  EXPECT_EQ(RoundPlain(33554433), 35651584u);
  EXPECT_EQ(RoundPlain(100000000), 100663296u);
  EXPECT_EQ(RoundPlain(1073741825), 1075838976u);
  EXPECT_EQ(RoundPitch(1000), 1024u);
  EXPECT_EQ(RoundPitch(100000), 100352u);
  EXPECT_EQ(RoundGlobals(50 << 20), 50u << 20);
}

}  // namespace
}  // namespace gpumux::sim
