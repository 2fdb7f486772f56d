// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <optional>
#include <random>
#include <set>

#include "daemon/metrics_series.h"

namespace gpumux::daemon {
namespace {

constexpr MetricFamily kOne{"one_bytes", MetricType::kGauge, "one thing"};
constexpr MetricFamily kTwo{"two_total", MetricType::kCounter, "another"};
constexpr MetricFamily kThree{"three_seconds", MetricType::kHistogram, "a third"};
constexpr const MetricFamily* kAll[] = {&kOne, &kTwo, &kThree};

TEST(MetricsText, IsThePublishedFormat) {
  MetricsText text;
  static constexpr std::array kBounds = {0.5, 2.0};
  Histogram waits(kBounds);
  for (const double value : {0.5, 0.75, 2.0, 2.5, 100.0}) waits.Observe(value);
  text.Add(kThree, {{"mode", "x"}}, waits);
  text.Add(kTwo, {}, uint64_t{18446744073709551615u});
  text.Add(kOne, {{"a", "1"}, {"b", "2"}}, 0.25);
  text.Add(kOne, {{"a", "2"}, {"b", "2"}}, uint64_t{0});
  EXPECT_EQ(text.Render(kAll),
            "# HELP one_bytes one thing\n"
            "# TYPE one_bytes gauge\n"
            "one_bytes{a=\"1\",b=\"2\"} 0.25\n"
            "one_bytes{a=\"2\",b=\"2\"} 0\n"
            "# HELP two_total another\n"
            "# TYPE two_total counter\n"
            "two_total 18446744073709551615\n"
            "# HELP three_seconds a third\n"
            "# TYPE three_seconds histogram\n"
            "three_seconds_bucket{mode=\"x\",le=\"0.5\"} 1\n"
            "three_seconds_bucket{mode=\"x\",le=\"2\"} 3\n"
            "three_seconds_bucket{mode=\"x\",le=\"+Inf\"} 5\n"
            "three_seconds_sum{mode=\"x\"} 105.75\n"
            "three_seconds_count{mode=\"x\"} 5\n");
}

TEST(MetricsText, OfAFamilyWithoutSamplesIsItsHead) {
  EXPECT_EQ(MetricsText().Render(std::span(kAll).first(1)),
            "# HELP one_bytes one thing\n# TYPE one_bytes gauge\n");
}

TEST(MetricsText, EscapesWhatWouldEndAValue) {
  EXPECT_EQ(LabelValue("plain"), "plain");
  EXPECT_EQ(LabelValue("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
  EXPECT_EQ(LabelValue("\\n"), "\\\\n");
  EXPECT_EQ(LabelValue("日本語 é 🙂"), "日本語 é 🙂");
}

TEST(MetricsText, TakesNothingThatCostsTheReaderTheWholeAnswer) {
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(LabelValue(std::string_view("a\0b", 3)), "a" + r + "b");
  EXPECT_EQ(LabelValue("\x1b[31m\r\t\x7f"), r + "[31m" + r + r + r);
  EXPECT_EQ(LabelValue("\xff\xfe"), r + r);
  EXPECT_EQ(LabelValue("\xc0\xaf"), r + r);                  // '/' in two bytes
  EXPECT_EQ(LabelValue("\xed\xa0\x80"), r + r + r);          // a surrogate
  EXPECT_EQ(LabelValue("\xf4\x90\x80\x80"), r + r + r + r);  // beyond U+10FFFF
  EXPECT_EQ(LabelValue("x\xe6\x97"), "x" + r + r);           // cut off
  EXPECT_EQ(LabelValue("\xe6\"}"), r + "\\\"}");             // and does not take the quote along
}

// The other way round, written from the format's description: nullopt if it is not one label's value.
std::optional<std::string> Unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"' || text[i] == '\n' || static_cast<unsigned char>(text[i]) < 0x20) return std::nullopt;
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    if (++i == text.size()) return std::nullopt;
    if (text[i] == 'n')
      out += '\n';
    else if (text[i] == '\\' || text[i] == '"')
      out += text[i];
    else
      return std::nullopt;
  }
  return out;
}

TEST(MetricsText, OfHostileNamesIsOneLineASample) {
  std::mt19937 random(20261130);
  static constexpr std::string_view kPieces[] = {"\"",       "\\",
                                                 "\n",       "}",
                                                 " 1\n",     "evil_total 7",
                                                 "\xe2\x82", "\xac",
                                                 "é",        std::string_view("\0", 1),
                                                 "\r",       "\xf0\x9f\x99\x82",
                                                 "#",        "{",
                                                 ","};
  for (int round = 0; round < 20000; ++round) {
    std::string value;
    bool clean = true;
    for (unsigned i = random() % 8; i > 0; --i) {
      if (random() % 4 == 0) {
        value += static_cast<char>(random() % 256);
        clean = false;
      } else {
        const auto piece = kPieces[random() % std::size(kPieces)];
        clean &=
            piece != "\xe2\x82" && piece != "\xac" && piece != "\r" && piece != std::string_view("\0", 1);
        value += piece;
      }
    }
    MetricsText text;
    text.Add(kOne, {{"a", value}}, uint64_t{1});
    const std::string out = text.Render(std::span(kAll).first(1));
    const std::string head = "# HELP one_bytes one thing\n# TYPE one_bytes gauge\none_bytes{a=\"";
    ASSERT_TRUE(out.starts_with(head));
    ASSERT_TRUE(out.ends_with("\"} 1\n"));
    const auto back = Unescape(std::string_view(out).substr(head.size(), out.size() - head.size() - 5));
    ASSERT_TRUE(back) << testing::PrintToString(value);
    if (clean) {
      EXPECT_EQ(*back, value);
    }
  }
}

TEST(MetricsText, WritesWhatIsNoNumber) {
  MetricsText text;
  text.Add(kOne, {}, std::numeric_limits<double>::infinity());
  text.Add(kOne, {}, std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(text.Render(kAll), testing::HasSubstr("one_bytes +Inf\none_bytes NaN\n"));
}

TEST(MetricsSeries, HaveEachAnUnitAndAreListedOnce) {
  std::set<std::string> names;
  for (const MetricFamily* family : series::All()) {
    const std::string name = family->name;
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_TRUE(name.starts_with("gpumux_"));
    EXPECT_EQ(name.ends_with("_total"), family->type == MetricType::kCounter) << name;
    EXPECT_FALSE(std::string(family->help).ends_with('.')) << name;
    EXPECT_EQ(std::string(family->help).find_first_of("\n\\"), std::string::npos) << name;
  }
  EXPECT_GE(names.size(), 45u);
}

}  // namespace
}  // namespace gpumux::daemon
