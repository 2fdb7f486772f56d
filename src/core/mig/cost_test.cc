// SPDX-License-Identifier: Apache-2.0
#include "core/mig/cost.h"

#include <gtest/gtest.h>

#include <set>

#include "base/units.h"

namespace gpumux::core::mig {
namespace {

const gpu::MigModel& Gpu(std::string_view key) { return **gpu::FindMigModel(key); }

// Seven of the smallest: 112 of 132 SMs, 112 of 140 GiB (139.75, as nvidia-smi prints the whole one).
TEST(MigCost, SaysWhatSevenInstancesOfAnH200Lose) {
  Layout seven;
  for (uint32_t start = 0; start < 7; ++start) seven.push_back({start, 19});
  const Parts parts = PartsOf(Gpu("H200"), seven);
  EXPECT_EQ(parts.sms, 112u);
  EXPECT_EQ(parts.whole_sms, 132u);
  EXPECT_EQ(parts.bytes, 112 * kGiB);
  EXPECT_EQ(parts.whole_bytes, 139 * kGiB + 768 * kMiB);
}

TEST(MigCost, AnA100LosesSmsEvenWhole) {
  const Parts parts = PartsOf(Gpu("A100-80"), {{0, 0}});
  EXPECT_EQ(parts.sms, 98u);
  EXPECT_EQ(parts.whole_sms, 108u);
}

TEST(MigCost, AnUnknownPartMakesTheSumUnknown) {
  const Parts b200 = PartsOf(Gpu("B200"), {{0, 9}, {4, 19}});
  EXPECT_EQ(b200.sms, std::nullopt);
  EXPECT_EQ(b200.bytes, std::nullopt);
  EXPECT_EQ(PartsOf(Gpu("B200"), {{4, 19}}).sms, 18u);
  Parts sum = PartsOf(Gpu("H200"), {{0, 19}});
  sum += PartsOf(Gpu("H200"), {{0, 9}});
  EXPECT_EQ(sum.sms, 76u);
  EXPECT_EQ(sum.whole_sms, 264u);
  sum += b200;
  EXPECT_EQ(sum.sms, std::nullopt);
  EXPECT_EQ(sum.whole_sms, 412u);
}

TEST(MigCost, NamesWhatStopsWorking) {
  std::set<std::string_view> ids;
  for (const Limit& limit : LimitsOfMig()) EXPECT_TRUE(ids.insert(limit.id).second);
  for (const char* id : {"peer-to-peer", "nccl", "one-instance"}) EXPECT_TRUE(ids.contains(id)) << id;
}

}  // namespace
}  // namespace gpumux::core::mig
