// SPDX-License-Identifier: Apache-2.0
#include "history/answer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "history/outcome.h"
#include "history/query_text.h"

namespace gpumux::history {
namespace {

TEST(HistoryQuery, TakesEachPart) {
  const auto query = ParseQuery(
      "owner=anna&name=a%20b&outcome=failed&label=team=x%3Dy&since_ms=1&until_ms=2&limit=3&before_ms=4&"
      "before_id=t-1");
  ASSERT_TRUE(query);
  EXPECT_EQ(query->owner, "anna");
  EXPECT_EQ(query->name, "a b");
  EXPECT_EQ(query->outcome, "failed");
  EXPECT_EQ(query->label_key, "team");
  EXPECT_EQ(query->label_value, "x=y");
  EXPECT_EQ(query->since_ms, 1);
  EXPECT_EQ(query->until_ms, 2);
  EXPECT_EQ(query->limit, 3u);
  EXPECT_EQ(query->before, (std::pair<int64_t, std::string>(4, "t-1")));
  EXPECT_EQ(ParseQuery("")->limit, 50u);
  EXPECT_EQ(ParseQuery("limit=999999")->limit, kMostInAnAnswer);
}

TEST(HistoryQuery, RefusesWhatItDoesNotKnow) {
  for (const char* text :
       {"owner", "colour=red", "limit=-1", "limit=many", "since_ms=1x", "outcome=fine", "label=team",
        "label==x", "owner=%", "owner=%4", "owner=%zz", "limit=99999999999999999999"}) {
    const auto query = ParseQuery(text);
    ASSERT_FALSE(query) << text;
    EXPECT_EQ(query.error().code, Code::kInvalid) << text;
  }
}

TEST(HistoryQuery, AnyBytesAreAQueryOrRefused) {
  uint64_t seed = 1;
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (unsigned length = round % 40; length > 0; --length) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      constexpr std::string_view kOften = "=&%0aownerlimit_ms";
      text += seed >> 63 ? kOften[(seed >> 40) % kOften.size()] : static_cast<char>(seed >> 32);
    }
    const auto query = ParseQuery(text);
    EXPECT_TRUE(!query || query->limit <= kMostInAnAnswer);
  }
}

TEST(HistoryAnswer, ShowsRecordsAsTheViewerMaySeeThem) {
  const Answer answer{
      .tenants = {{.id = "a", .record = R"({"id":"a","command":"secret"})"}, {.id = "b", .record = "torn"}},
      .more = true,
      .totals = {.tenants = 2, .outcomes = {{"completed", 2}}, .ran_median_seconds = 1.5}};
  const auto json = AnswerJson(answer, [](auto record, const PastTenant& past) {
    record["command"] = nullptr;
    record["seen"] = past.id;
    return record;
  });
  // What cannot be read is left out; the others are shown.
  EXPECT_EQ(json["tenants"].dump(), R"([{"id":"a","command":null,"seen":"a"}])");
  EXPECT_EQ(json["more"], true);
  EXPECT_EQ(json["totals"]["outcomes"]["completed"], 2);
  EXPECT_EQ(json["totals"]["ran_median_seconds"], 1.5);
  EXPECT_TRUE(json["totals"]["ran_p95_seconds"].is_null());
}

TEST(HistoryGpuQuery, IsOfTheLastDayInRowsThatFit) {
  constexpr int64_t kNow = 1'800'000'000'000, kDay = 86'400'000;
  const auto usual = ParseGpuQuery("", kNow);
  ASSERT_TRUE(usual);
  EXPECT_EQ(usual->since_ms, kNow - kDay);
  EXPECT_EQ(usual->step_ms, 60'000);
  EXPECT_EQ(ParseGpuQuery("since_ms=" + std::to_string(kNow - 30 * kDay), kNow)->step_ms, 30 * 60'000);
  EXPECT_EQ(ParseGpuQuery("gpu=GPU-1&step_ms=3600000", kNow)->gpu, "GPU-1");
  EXPECT_EQ(ParseGpuQuery("step_ms=1", kNow)->step_ms, 60'000);
  EXPECT_EQ(ParseGpuQuery("since_ms=9223372036854775807&until_ms=0", kNow)->step_ms, 60'000);
  for (const char* text : {"gpu", "since_ms=-1", "colour=red"})
    EXPECT_FALSE(ParseGpuQuery(text, kNow)) << text;
}

TEST(Outcome, EveryNameIsRead) {
  for (int i = 0; i <= static_cast<int>(Outcome::kUnknown); ++i) {
    const auto outcome = static_cast<Outcome>(i);
    EXPECT_EQ(ParseOutcome(Name(outcome)), outcome) << i;
  }
  EXPECT_FALSE(ParseOutcome("fine"));
}

}  // namespace
}  // namespace gpumux::history
