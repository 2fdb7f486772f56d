// SPDX-License-Identifier: Apache-2.0
#include "core/ledger.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace gpumux::core {
namespace {

// An H200 as NVML tells it.
constexpr uint64_t kTotal = 150754820096;
constexpr uint64_t kReserve = 644939776;

TEST(Ledger, CountsWhatWasTakenBeyondTheGrant) {
  Ledger ledger(10 * kGiB, 0);
  ASSERT_TRUE(ledger.AddTenant("a", kGiB, kGiB));
  ASSERT_TRUE(ledger.AddProcess("a", 1));
  ledger.Overdraw("a", 1, 2 * kGiB);
  EXPECT_EQ(ledger.Find("a")->used_bytes, 2 * kGiB);
  EXPECT_TRUE(ledger.AboveLimit("a"));
  EXPECT_EQ(ledger.PromisableBytes(), 8 * kGiB);
  EXPECT_EQ(ledger.GrantCredit("a", 1, 1, false).verdict, Verdict::kLimit);
  // No more than there is, however often it is said.
  ledger.Overdraw("a", 1, UINT64_MAX);
  EXPECT_EQ(ledger.Find("a")->used_bytes, 10 * kGiB);
  EXPECT_EQ(ledger.TakeBack("a", 1, UINT64_MAX), 10 * kGiB);
  EXPECT_EQ(ledger.Find("a")->used_bytes, 0u);
}

TEST(Ledger, NeverPromisesMoreThanThereIs) {
  Ledger ledger(kTotal, kReserve);
  EXPECT_EQ(ledger.PromisableBytes(), 150109880320u);
  EXPECT_TRUE(ledger.AddTenant("a", 60 * kGiB, 60 * kGiB));
  EXPECT_TRUE(ledger.AddTenant("b", 40 * kGiB, 40 * kGiB));
  EXPECT_FALSE(ledger.AddTenant("c", 40 * kGiB, 40 * kGiB));
  EXPECT_FALSE(ledger.AddTenant("a", kGiB, kGiB));
  EXPECT_EQ(ledger.PromisableBytes(), 150109880320u - 100 * kGiB);
  EXPECT_TRUE(ledger.AddTenant("c", ledger.PromisableBytes(), std::nullopt));
  EXPECT_EQ(ledger.PromisableBytes(), 0u);
  ledger.RemoveTenant("a");
  EXPECT_EQ(ledger.PromisableBytes(), 60 * kGiB);
}

TEST(Ledger, RefusesAtTheTenantsOwnLimitToTheByte) {
  Ledger ledger(kTotal, kReserve);
  ASSERT_TRUE(ledger.AddTenant("a", kGiB, kGiB));
  ASSERT_TRUE(ledger.AddProcess("a", 1));
  EXPECT_EQ(ledger.GrantCredit("a", 1, kGiB + 1, false).verdict, Verdict::kLimit);
  EXPECT_EQ(ledger.GrantCredit("a", 1, UINT64_MAX, true).verdict, Verdict::kLimit);
  EXPECT_EQ(ledger.GrantCredit("a", 1, kGiB, true).verdict, Verdict::kGranted);
  EXPECT_EQ(ledger.GrantCredit("a", 1, 1, false).verdict, Verdict::kLimit);
  EXPECT_EQ(ledger.TakeBack("a", 1, 5), 5u);
  EXPECT_EQ(ledger.GrantCredit("a", 1, 5, false).verdict, Verdict::kGranted);
  EXPECT_EQ(ledger.GrantCredit("a", 2, 0, false).verdict, Verdict::kUnknown);
}

TEST(Ledger, GivesBurstOnlyFromWhatNobodyWasPromised) {
  Ledger ledger(100 * kGiB, 0);
  ASSERT_TRUE(ledger.AddTenant("a", 10 * kGiB, 90 * kGiB));
  ASSERT_TRUE(ledger.AddTenant("b", 50 * kGiB, 50 * kGiB));
  ASSERT_TRUE(ledger.AddProcess("a", 1));
  ASSERT_TRUE(ledger.AddProcess("b", 2));
  EXPECT_EQ(ledger.AvailableBytes("a"), 50 * kGiB);
  EXPECT_EQ(ledger.GrantCredit("a", 1, 50 * kGiB + 1, false).verdict, Verdict::kDeviceFull);
  const auto grant = ledger.GrantCredit("a", 1, 50 * kGiB, true);
  EXPECT_EQ(grant.verdict, Verdict::kGranted);
  EXPECT_EQ(grant.slack_bytes, 0u);
  EXPECT_EQ(ledger.PromisableBytes(), 0u);
  // What b was promised is there in full, used or not.
  EXPECT_EQ(ledger.GrantCredit("b", 2, 50 * kGiB, true).verdict, Verdict::kGranted);
  EXPECT_TRUE(ledger.Holds());
}

TEST(Ledger, LetsATenantWithoutGuaranteeUseWhatIsLeft) {
  Ledger ledger(100 * kGiB, 0);
  ASSERT_TRUE(ledger.AddTenant("a", 0, std::nullopt));
  ASSERT_TRUE(ledger.AddProcess("a", 1));
  ASSERT_EQ(ledger.GrantCredit("a", 1, 30 * kGiB, true).slack_bytes, 0u);
  EXPECT_EQ(ledger.ToldLimitBytes("a"), 100 * kGiB);
  ASSERT_TRUE(ledger.AddTenant("b", 60 * kGiB, 60 * kGiB));
  EXPECT_EQ(ledger.ToldLimitBytes("a"), 40 * kGiB);
  EXPECT_EQ(ledger.GrantCredit("a", 1, 11 * kGiB, true).verdict, Verdict::kDeviceFull);
  EXPECT_FALSE(ledger.AboveLimit("a"));
}

TEST(Ledger, GrantsSlackThatShrinksNearTheCap) {
  Ledger ledger(kTotal, kReserve);
  ASSERT_TRUE(ledger.AddTenant("a", 4 * kGiB, 4 * kGiB));
  ASSERT_TRUE(ledger.AddProcess("a", 1));
  EXPECT_EQ(ledger.GrantCredit("a", 1, kMiB, true).slack_bytes, 64 * kMiB);
  EXPECT_EQ(ledger.GrantCredit("a", 1, ledger.AvailableBytes("a") - 160 * kMiB, true).slack_bytes, 10 * kMiB);
  EXPECT_EQ(ledger.GrantCredit("a", 1, ledger.AvailableBytes("a") - 16 * kMiB, true).slack_bytes, 0u);
}

TEST(Ledger, PromisesNothingNewWhileStrangersHoldTheGpu) {
  Ledger ledger(kTotal, kReserve);
  ASSERT_TRUE(ledger.AddTenant("a", 100 * kGiB, 100 * kGiB));
  ASSERT_TRUE(ledger.AddProcess("a", 1));
  ledger.SetOutside(60 * kGiB, kGiB);
  EXPECT_FALSE(ledger.Holds());
  EXPECT_EQ(ledger.PromisableBytes(), 0u);
  EXPECT_FALSE(ledger.AddTenant("b", 1, 1));
  const uint64_t missing = kReserve + 161 * kGiB - kTotal;
  EXPECT_EQ(ledger.ShortfallBytes(), missing);
  EXPECT_EQ(ledger.AtRiskBytes("a"), missing);
  EXPECT_EQ(ledger.GrantCredit("a", 1, 100 * kGiB, false).verdict, Verdict::kGranted);  // given is given
  EXPECT_EQ(ledger.AtRiskBytes("a"), 0u);                                               // it has all of it
  ledger.SetOutside(UINT64_MAX, UINT64_MAX);
  EXPECT_EQ(ledger.PromisableBytes(), 0u);
  ledger.SetOutside(0, 0);
  EXPECT_TRUE(ledger.Holds());
  EXPECT_EQ(ledger.ShortfallBytes(), 0u);
}

TEST(Ledger, KnowsWhetherCallsUnderWayCouldMakeRoom) {
  Ledger ledger(100 * kGiB, 0);
  ASSERT_TRUE(ledger.AddTenant("a", 10 * kGiB, 10 * kGiB));
  ASSERT_TRUE(ledger.AddProcess("a", 1));
  ASSERT_EQ(ledger.GrantCredit("a", 1, 9 * kGiB, false).verdict, Verdict::kGranted);
  EXPECT_FALSE(ledger.WouldFit("a", 3 * kGiB, {{"a", kGiB}}));
  EXPECT_TRUE(ledger.WouldFit("a", 3 * kGiB, {{"a", 2 * kGiB}}));
  // The neighbour's calls make room for burst only where they are burst.
  ASSERT_TRUE(ledger.AddTenant("b", 80 * kGiB, std::nullopt));
  ASSERT_TRUE(ledger.AddProcess("b", 2));
  ASSERT_EQ(ledger.GrantCredit("b", 2, 88 * kGiB, false).verdict, Verdict::kGranted);
  ASSERT_TRUE(ledger.AddTenant("c", 0, std::nullopt));
  EXPECT_FALSE(ledger.WouldFit("c", 5 * kGiB, {{"b", 2 * kGiB}}));
  EXPECT_TRUE(ledger.WouldFit("c", 5 * kGiB, {{"b", 3 * kGiB}}));
  EXPECT_FALSE(ledger.WouldFit("c", 11 * kGiB, {{"b", 88 * kGiB}}));
}

TEST(Ledger, RecordsOverheadEvenAboveTheLimit) {
  Ledger ledger(kTotal, kReserve);
  ASSERT_TRUE(ledger.AddTenant("a", kGiB, kGiB));
  ASSERT_TRUE(ledger.AddProcess("a", 1));
  EXPECT_EQ(ledger.ChargeOverhead("a", 1, kGiB + 1).verdict, Verdict::kLimit);
  ASSERT_EQ(ledger.ChargeOverhead("a", 1, 518 * kMiB).verdict, Verdict::kGranted);
  ledger.SetOverhead("a", 1, 2 * kGiB);
  EXPECT_TRUE(ledger.AboveLimit("a"));
  EXPECT_EQ(ledger.AvailableBytes("a"), 0u);
  EXPECT_EQ(ledger.PromisableBytes(), kTotal - kReserve - 2 * kGiB);
  ledger.SetOverhead("a", 1, UINT64_MAX);
  EXPECT_EQ(ledger.PromisableBytes(), 0u);
  ledger.RemoveProcess("a", 1);
  EXPECT_EQ(ledger.Find("a")->used_bytes, 0u);
  EXPECT_EQ(ledger.PromisableBytes(), kTotal - kReserve - kGiB);
}

}  // namespace
}  // namespace gpumux::core
