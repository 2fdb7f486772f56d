// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumux {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

struct SizeCase {
  const char* text;
  uint64_t bytes;
  double ratio;
};
class MemorySizeAccepts : public ::testing::TestWithParam<SizeCase> {};

TEST_P(MemorySizeAccepts, Value) {
  const auto size = ParseMemorySize(GetParam().text);
  ASSERT_TRUE(size) << GetParam().text << ": " << size.error().message;
  EXPECT_EQ(size->bytes, GetParam().bytes) << GetParam().text;
  EXPECT_DOUBLE_EQ(size->ratio, GetParam().ratio) << GetParam().text;
}

INSTANTIATE_TEST_SUITE_P(
    Values, MemorySizeAccepts,
    ::testing::Values(SizeCase{"1B", 1, 0}, SizeCase{"10G", 10737418240, 0}, SizeCase{"10GB", 10737418240, 0},
                      SizeCase{"10GiB", 10737418240, 0}, SizeCase{"10 GiB", 10737418240, 0},
                      SizeCase{" 10gib ", 10737418240, 0}, SizeCase{"1.5G", 1610612736, 0},
                      SizeCase{".5M", 524288, 0}, SizeCase{"512 MiB", 536870912, 0},
                      SizeCase{"1T", 1099511627776, 0}, SizeCase{"1.9B", 1, 0},
                      SizeCase{"1152921504606846976B", uint64_t{1} << 60, 0},
                      SizeCase{"1048576T", uint64_t{1} << 60, 0},
                      SizeCase{"1152921504606846975B", (uint64_t{1} << 60) - 1, 0}, SizeCase{"40%", 0, 0.4},
                      SizeCase{"100%", 0, 1}, SizeCase{"0.5 %", 0, 0.005}));

struct BadCase {
  const char* text;
  const char* says;
};
class MemorySizeRefuses : public ::testing::TestWithParam<BadCase> {};

TEST_P(MemorySizeRefuses, Value) {
  const auto size = ParseMemorySize(GetParam().text);
  ASSERT_FALSE(size) << GetParam().text << " gave " << size->bytes;
  EXPECT_EQ(size.error().code, Code::kInvalid);
  EXPECT_THAT(size.error().ToString(), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    Values, MemorySizeRefuses,
    ::testing::Values(BadCase{"", "empty"}, BadCase{"   ", "empty"}, BadCase{"10", "no unit; write 10GiB"},
                      BadCase{"0", "no unit"}, BadCase{"-1GiB", "negative"}, BadCase{"-", "negative"},
                      BadCase{"0GiB", "nothing"}, BadCase{"0%", "nothing"}, BadCase{"0.0001K", "nothing"},
                      BadCase{"101%", "more than the whole GPU"}, BadCase{"NaN", "not an amount"},
                      BadCase{"nanGiB", "not an amount"}, BadCase{"infGiB", "not an amount"},
                      BadCase{"GiB", "not an amount"}, BadCase{"+1GiB", "not an amount"},
                      BadCase{"1.GiB", "not an amount"}, BadCase{".GiB", "not an amount"},
                      BadCase{"1e3GiB", "unknown unit"}, BadCase{"0x10GiB", "unknown unit"},
                      BadCase{"1PiB", "unknown unit"}, BadCase{"1Bi", "unknown unit"},
                      BadCase{"1GiBs", "unknown unit"}, BadCase{"1GiB 2", "unknown unit"},
                      BadCase{"1,5GiB", "unknown unit"}, BadCase{"1152921504606846977B", "larger than any"},
                      BadCase{"99999999999999999999999GiB", "larger than any"},
                      BadCase{"18446744073709551616B", "larger than any"},
                      BadCase{"1048576.5T", "larger than any"}));

TEST(MemorySize, QuotesABoundedPartOfAHugeValueWithoutControlCharacters) {
  const auto size = ParseMemorySize(std::string(100'000, '\x1b'));
  ASSERT_FALSE(size);
  EXPECT_LT(size.error().ToString().size(), 200u);
  EXPECT_EQ(size.error().ToString().find('\x1b'), std::string::npos);
}

TEST(Duration, AcceptsSumsOfUnits) {
  EXPECT_EQ(ParseDuration("30s"), milliseconds(30'000));
  EXPECT_EQ(ParseDuration("10m"), milliseconds(600'000));
  EXPECT_EQ(ParseDuration("1h30m"), milliseconds(5'400'000));
  EXPECT_EQ(ParseDuration("250ms"), milliseconds(250));
  EXPECT_EQ(ParseDuration("1.5s"), milliseconds(1500));
  EXPECT_EQ(ParseDuration("1m 5s 3ms"), milliseconds(65'003));
  EXPECT_EQ(ParseDuration("2d"), milliseconds(172'800'000));
  EXPECT_EQ(ParseDuration("0s"), milliseconds(0));
}

class DurationRefuses : public ::testing::TestWithParam<BadCase> {};
TEST_P(DurationRefuses, Value) {
  const auto duration = ParseDuration(GetParam().text);
  ASSERT_FALSE(duration) << GetParam().text;
  EXPECT_EQ(duration.error().code, Code::kInvalid);
  EXPECT_THAT(duration.error().ToString(), HasSubstr(GetParam().says));
}
INSTANTIATE_TEST_SUITE_P(Values, DurationRefuses,
                         ::testing::Values(BadCase{"", "empty"}, BadCase{"10", "no unit; write 10s"},
                                           BadCase{"-5s", "negative"}, BadCase{"s", "not a duration"},
                                           BadCase{"nan", "not a duration"}, BadCase{"1y", "unknown unit"},
                                           BadCase{"30m1h", "wrong order"}, BadCase{"1s1s", "wrong order"},
                                           BadCase{"367d", "longer than a year"},
                                           BadCase{"99999999999999999999999s", "longer than a year"},
                                           BadCase{"1h30", "no unit"}));

TEST(FormatRoundedUp, IsASizeThatCanBeAskedForAndIsEnough) {
  EXPECT_EQ(FormatRoundedUp(1), "256MiB");
  EXPECT_EQ(FormatRoundedUp(kGiB), "1GiB");
  EXPECT_EQ(FormatRoundedUp(kGiB + 1), "1280MiB");
  EXPECT_EQ(FormatRoundedUp(4 * kGiB), "4GiB");
  EXPECT_EQ(FormatRoundedUp(4 * kGiB + 1), "5GiB");
  for (const uint64_t bytes : {kMiB, 700 * kMiB, 3 * kGiB + 1, 141 * kGiB - 1})
    EXPECT_GE(ParseMemorySize(FormatRoundedUp(bytes))->bytes, bytes);
}

TEST(FormatBytes, UsesTheLargestUnitThatLeavesAtLeastOne) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(kKiB), "1 KiB");
  EXPECT_EQ(FormatBytes(512 * kMiB), "512 MiB");
  EXPECT_EQ(FormatBytes(kGiB - 1), "1.0 GiB");
  EXPECT_EQ(FormatBytes(150109880320), "139.8 GiB");
  EXPECT_EQ(FormatBytes(2 * kTiB), "2.0 TiB");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "16777216.0 TiB");
}

TEST(FormatDuration, GrowsWithTheAmount) {
  using namespace std::chrono_literals;
  EXPECT_EQ(FormatDuration(0ns), "0 ns");
  EXPECT_EQ(FormatDuration(1500ns), "1 us");
  EXPECT_EQ(FormatDuration(250ms), "250 ms");
  EXPECT_EQ(FormatDuration(1500ms), "1.5 s");
  EXPECT_EQ(FormatDuration(59'999ms), "1m00s");
  EXPECT_EQ(FormatDuration(761s), "12m41s");
  EXPECT_EQ(FormatDuration(2h + 5min), "2h05m");
  EXPECT_EQ(FormatDuration(50h), "2d02h");
  EXPECT_EQ(FormatDuration(-1500ms), "-1.5 s");
}

}  // namespace
}  // namespace gpumux
