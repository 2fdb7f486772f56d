// SPDX-License-Identifier: Apache-2.0
#include "cli/run_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace gpumux::cli {
namespace {

using namespace std::chrono_literals;

TEST(ClosingLine, TellsTimePeakAndRefusals) {
  EXPECT_EQ(ClosingLine(R"({"tenant":{"mem_peak_bytes":12025908428,"mem_limit_bytes":12884901888,
                        "refusals":{"own_limit":0,"device_full":0,"last_refused_bytes":0},"enforced":{"memory":null}}})",
                        761s),
            "done in 12m41s, peak 11.2 GiB of 12.0 GiB, 0 refusals");
}

TEST(ClosingLine, TellsThePeakOfTheGpuThatCameClosestToItsLimit) {
  auto tenant = nlohmann::json::parse(R"({"mem_peak_bytes":16106127360,"mem_limit_bytes":25769803776,"gpus":[
    {"index":0,"mem_peak_bytes":3221225472,"mem_limit_bytes":12884901888},
    {"index":5,"mem_peak_bytes":12348030976,"mem_limit_bytes":12884901888},
    {"index":6,"mem_peak_bytes":536870912,"mem_limit_bytes":12884901888}]})");
  const auto line = [&] { return ClosingLine(nlohmann::json{{"tenant", tenant}}.dump(), 1s); };
  EXPECT_EQ(line(), "done in 1.0 s, peak 11.5 GiB of 12.0 GiB on GPU 5, the fullest of 3");
  // A small part of a large limit is far from it.
  tenant["gpus"][1]["mem_limit_bytes"] = 1288490188800u;
  EXPECT_EQ(line(), "done in 1.0 s, peak 3.0 GiB of 12.0 GiB on GPU 0, the fullest of 3");
  for (auto& gpu : tenant["gpus"]) gpu["mem_limit_bytes"] = nullptr;
  EXPECT_EQ(line(), "done in 1.0 s, peak 11.5 GiB on GPU 5, the fullest of 3");
  tenant["gpus"] = nlohmann::json::array({tenant["gpus"][0]});
  EXPECT_EQ(line(), "done in 1.0 s, peak 15.0 GiB of 24.0 GiB");
}

TEST(ClosingLine, NamesARefusedSizeAndWhatLimitedIt) {
  EXPECT_EQ(ClosingLine(R"({"tenant":{"mem_peak_bytes":12884901888,"mem_limit_bytes":12884901888,
                        "refusals":{"own_limit":1,"device_full":0,"last_refused_bytes":1073741824}}})",
                        1500ms),
            "done in 1.5 s, peak 12.0 GiB of 12.0 GiB, 1 refusal (the last of 1.0 GiB): its limit "
            "was the reason; "
            "ask for more with --mem");
  EXPECT_EQ(ClosingLine(R"({"tenant":{"mem_peak_bytes":1048576,"mem_limit_bytes":null,
                        "refusals":{"own_limit":0,"device_full":3,"last_refused_bytes":2097152}}})",
                        2s),
            "done in 2.0 s, peak 1 MiB, 3 refusals (the last of 2 MiB): the GPU had no room left beside "
            "other promises; "
            "guarantee it with --mem");
}

TEST(ClosingLine, SaysWhenNothingWasEnforced) {
  EXPECT_THAT(ClosingLine(R"({"tenant":{"enforced":{"memory":"not enforced"}}})", 1s),
              ::testing::HasSubstr("NOT enforced"));
}

TEST(ClosingLine, SaysWhoEndedItAndWhatItLeft) {
  EXPECT_EQ(ClosingLine(R"({"tenant":{"ended":{"why":"stopped by ann"},"left_behind_pids":[]}})", 2s),
            "ended after 2.0 s (stopped by ann)");
  EXPECT_EQ(ClosingLine(R"({"tenant":{"ended":{"why":"exited"}}})", 2s), "done in 2.0 s");
  EXPECT_EQ(ClosingLine(R"({"tenant":{"id":"t-1","ended":null,"left_behind_pids":[7]}})", 2s),
            "done in 2.0 s; a process left in the background keeps its promise: gpumux stop t-1");
}

TEST(ClosingLine, SurvivesAnySummary) {
  for (const char* text :
       {"", "7", "[]", "{}", "{\"tenant\":", R"({"tenant":[]})", R"({"tenant":{"gpus":[7,{}]}})",
        R"({"tenant":{"refusals":7,"mem_peak_bytes":"x"}})",
        R"({"tenant":{"mem_peak_bytes":-1,"refusals":{"own_limit":-4}}})"}) {
    EXPECT_THAT(ClosingLine(text, 1s), ::testing::StartsWith("done in 1.0 s")) << text;
  }
  EXPECT_THAT(ClosingLineWithoutRecord(1s), ::testing::HasSubstr("record of this run is missing"));
}

TEST(RunJson, HasTheEnvelopeOfAllJsonOutput) {
  const auto json = nlohmann::json::parse(RunJson(R"({"tenant":{"id":"t-1"}})", true));
  EXPECT_EQ(json["schema"], "gpumux.run/1");
  EXPECT_EQ(json["simulated"], true);
  EXPECT_EQ(json["data"]["tenant"]["id"], "t-1");
  EXPECT_THAT(json["generated_at"].get<std::string>(),
              ::testing::MatchesRegex(
                  "20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[+-][0-9]{2}:[0-9]{2}"));
  EXPECT_EQ(nlohmann::json::parse(RunJson("null", false))["data"], nullptr);
}

}  // namespace
}  // namespace gpumux::cli
