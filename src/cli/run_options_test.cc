// SPDX-License-Identifier: Apache-2.0
#include "cli/run_options.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/run_request.h"
#include "config/keys.h"

namespace gpumux::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Json = nlohmann::json;

constexpr const char* kUuid = "GPU-5d8e3c8e-1111-2222-3333-444455556666";

Result<RunOptions> Parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--", "prog", "arg"});
  return ParseRunOptions(arguments);
}

TEST(RunOptions, HaveTheDefaultsOfTheProduct) {
  const auto options = Parse({});
  ASSERT_TRUE(options);
  EXPECT_FALSE(options->mem);
  EXPECT_EQ(options->gpu_count, 1u);
  EXPECT_TRUE(options->wait);
  EXPECT_EQ(options->mode, "auto");
  EXPECT_EQ(options->isolate, "fault");
  EXPECT_THAT(options->command, ElementsAre("prog", "arg"));
}

TEST(RunOptions, AreTakenAsGiven) {
  const auto options = Parse({"--mem",      "10GiB:50%", "--gpu",      std::string("0,2,") + kUuid,
                              "--name",     "train-a",   "--label",    "team=vision",
                              "--label",    "x/y=",      "--wait=10m", "--time",
                              "2h",         "--mode",    "timeslice",  "--isolate",
                              "none",       "--strict",  "--json",     "--summary",
                              "--priority", "normal"});
  ASSERT_TRUE(options) << options.error().ToString();
  EXPECT_EQ(options->mem->bytes, 10 * kGiB);
  EXPECT_DOUBLE_EQ(options->mem_limit->ratio, 0.5);
  EXPECT_THAT(options->gpu_list, ElementsAre("0", "2", kUuid));
  EXPECT_EQ(options->name, "train-a");
  EXPECT_THAT(options->labels, ElementsAre(Pair("team", "vision"), Pair("x/y", "")));
  EXPECT_EQ(options->wait_limit, std::chrono::minutes(10));
  EXPECT_EQ(options->time, std::chrono::hours(2));
  EXPECT_TRUE(options->strict && options->json && options->summary);
  EXPECT_EQ(Parse({"--gpu", "auto:4"})->gpu_count, 4u);
  EXPECT_FALSE(Parse({"--no-wait"})->wait);
}

struct Bad {
  std::vector<std::string> arguments;
  const char* says;
};
class RunRefuses : public ::testing::TestWithParam<Bad> {};
TEST_P(RunRefuses, WithUsage) {
  const auto options = Parse(GetParam().arguments);
  ASSERT_FALSE(options);
  EXPECT_EQ(ExitStatus(options.error().code), 2) << options.error().ToString();
  EXPECT_THAT(options.error().ToString(), HasSubstr(GetParam().says));
  // The option that is wrong is named, and what would be right.
  EXPECT_THAT(options.error().message,
              HasSubstr(GetParam().arguments[0].substr(0, GetParam().arguments[0].find('='))));
}
INSTANTIATE_TEST_SUITE_P(
    Memory, RunRefuses,
    ::testing::Values(Bad{{"--mem", ""}, "empty; write for example 10GiB"}, Bad{{"--mem="}, "empty"},
                      Bad{{"--mem", "10"}, "no unit; write 10GiB"}, Bad{{"--mem", "-5GiB"}, "negative"},
                      Bad{{"--mem", "NaN"}, "not an amount"},
                      Bad{{"--mem", "99999999999999999999GiB"}, "larger than any"},
                      Bad{{"--mem", "0GiB"}, "nothing"}, Bad{{"--mem", "10GiB:"}, "empty"},
                      Bad{{"--mem", ":10GiB"}, "empty"},
                      Bad{{"--mem", "20GiB:10GiB"}, "limit is below the guarantee"},
                      Bad{{"--mem", "60%:40%"}, "below"}, Bad{{"--mem", "1GiB:2GiB:3GiB"}, "unknown unit"},
                      Bad{{"--mem", "200%"}, "more than the whole GPU"}));
INSTANTIATE_TEST_SUITE_P(
    Gpus, RunRefuses,
    ::testing::Values(Bad{{"--gpu", ""}, "neither an index nor a UUID"}, Bad{{"--gpu", "-1"}, "neither"},
                      Bad{{"--gpu", "0,,1"}, "neither"}, Bad{{"--gpu", "0,0"}, "twice"},
                      Bad{{"--gpu", "99999999999"}, "neither"}, Bad{{"--gpu", "GPU-1"}, "neither"},
                      Bad{{"--gpu", "auto:0"}, "from 1 to 16"}, Bad{{"--gpu", "auto:17"}, "from 1 to 16"},
                      Bad{{"--gpu", "auto:"}, "from 1 to 16"}, Bad{{"--gpu", "auto:-1"}, "from 1 to 16"},
                      Bad{{"--gpu", "automatic"}, "auto:N"},
                      Bad{{"--gpu", "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"}, "at most 16"}));
INSTANTIATE_TEST_SUITE_P(
    Others, RunRefuses,
    ::testing::Values(
        Bad{{"--name", ""}, "1 to 64"}, Bad{{"--name", "a b"}, "1 to 64"},
        Bad{{"--name", std::string(65, 'x')}, "1 to 64"}, Bad{{"--name", "-x"}, "1 to 64"},
        Bad{{"--label", "novalue"}, "key=value"}, Bad{{"--label", "=v"}, "key=value"},
        Bad{{"--label", "a=1", "--label", "a=2"}, "twice"}, Bad{{"--label", "a=\n"}, "control"},
        Bad{{"--wait=10"}, "no unit"}, Bad{{"--wait=-1s"}, "negative"}, Bad{{"--time", "0s"}, "no time"},
        Bad{{"--time", ""}, "empty"}, Bad{{"--time", "nan"}, "not a duration"},
        Bad{{"--mode", "fast"}, "one of: auto, exclusive"}, Bad{{"--mode", ""}, "one of"},
        Bad{{"--isolate", "some"}, "none, fault, full"}, Bad{{"--wait", "--no-wait"}, "exclude"},
        Bad{{"--quiet", "--summary"}, "exclude"}, Bad{{"--share", "40"}, "not a percentage"},
        Bad{{"--share", "-1%"}, "not a percentage"}, Bad{{"--share", "60%:40%"}, "below the minimum"},
        Bad{{"--share", ""}, "not a percentage"}, Bad{{"--priority", "high"}, "latency, normal, best-effort"},
        Bad{{"--processes", "0"}, "from 1 to 4096"}, Bad{{"--processes", "many"}, "from 1 to 4096"}));

class RunCannotKeep : public ::testing::TestWithParam<Bad> {};
TEST_P(RunCannotKeep, IsSaidWithSevenAndNeverIgnored) {
  const auto options = Parse(GetParam().arguments);
  ASSERT_FALSE(options);
  EXPECT_EQ(ExitStatus(options.error().code), 7);
  EXPECT_THAT(options.error().message, HasSubstr(GetParam().says));
  EXPECT_FALSE(options.error().hint.empty());
}
INSTANTIATE_TEST_SUITE_P(Options, RunCannotKeep,
                         ::testing::Values(Bad{{"--share", "40%"}, "--share 40% cannot be kept"},
                                           Bad{{"--share", "40%:60%"}, "cannot be kept"},
                                           Bad{{"--mode", "mps", "--share", "40%:60%"}, "no minimum"},
                                           Bad{{"--mode", "mps", "--isolate", "fault"}, "cannot isolate"},
                                           Bad{{"--mode", "turns", "--share", "40%", "--priority", "latency"},
                                               "takes no turns"},
                                           Bad{{"--mode", "mig", "--share", "40%"}, "cannot be kept"},
                                           Bad{{"--allow-reconfigure"}, "for --mode mig alone"},
                                           Bad{{"--processes", "4"}, "--processes"}));

TEST(RunOptions, AWaitingTimeWithoutItsEqualSignIsNotTakenForTheProgram) {
  const auto options = ParseRunOptions({"--wait", "10m", "--", "prog"});
  ASSERT_FALSE(options);
  EXPECT_THAT(options.error().ToString(), HasSubstr("write --wait=10m"));
  EXPECT_TRUE(ParseRunOptions({"--wait", "--", "prog"}));
}

TEST(RunRequest, IsTheJsonOfTheProtocol) {
  const auto options = Parse({"--mem", "10GiB:50%", "--gpu", "auto:2", "--wait=90s", "--label", "a=b",
                              "--strict", "--place", "spread"});
  EXPECT_EQ(Json::parse(RunRequestJson(*options, "/work")), Json::parse(R"({
      "name":null,"command":["prog","arg"],"cwd":"/work","mem":{"bytes":10737418240},"mem_limit":{"ratio":0.5},
      "gpus":{"count":2},"mode":"auto","isolate":"fault","share_min":null,"share_ceiling":null,"processes":null,"priority":"normal","place":"spread","cpu_affinity":"none","strict":true,"wait":true,
      "wait_seconds":90.0,
      "time_seconds":null,"labels":{"a":"b"}})"));
  const auto turns = Parse({"--mode", "turns", "--share", "25%:60%"});
  EXPECT_EQ(Json::parse(RunRequestJson(*turns, "/"))["share_min"], 0.25);
  EXPECT_EQ(Json::parse(RunRequestJson(*turns, "/"))["share_ceiling"], 0.6);
  const auto mps = Parse({"--mode", "mps", "--share", "25%"});
  EXPECT_EQ(Json::parse(RunRequestJson(*mps, "/"))["share_min"], nullptr);
  EXPECT_EQ(Json::parse(RunRequestJson(*mps, "/"))["share_ceiling"], 0.25);
  const auto plain = Parse({"--no-wait", "--gpu", "1", "--name", "n"});
  const Json json = Json::parse(RunRequestJson(*plain, "/"));
  EXPECT_EQ(json["mem"], nullptr);
  EXPECT_EQ(json["gpus"], Json::parse(R"({"list":["1"]})"));
  EXPECT_EQ(json["wait"], false);
  EXPECT_EQ(json["name"], "n");
}

TEST(RunRequest, AHugeCommandLineFitsIntoAMessage) {
  RunOptions options;
  options.command = {"prog"};
  for (int i = 0; i < 100'000; ++i) options.command.push_back("file-" + std::to_string(i));
  options.command[1] = std::string(200'000, '\xff');
  const std::string json = RunRequestJson(options, "/");
  EXPECT_LT(json.size(), 61'440u);
  EXPECT_EQ(Json::parse(json)["command"].back(), "...");
}

TEST(RunOptions, TakeBackWhatIsConfigured) {
  const auto words = [](const RunOptions& o) {
    return fmt::format("{} {} {} {}", o.mem.has_value(), o.strict, o.summary, o.quiet);
  };
  const std::string plain = words(*ParseRunOptions({"prog"}));
  size_t undone = 0;
  for (const config::Key& key : config::AllKeys()) {
    // Those that take a word take the usual one.
    if (key.path[0] != "run" ||
        (key.type != config::Type::kBoolean && key.type != config::Type::kMemoryRange))
      continue;
    const std::string option = "--" + key.path[1], no = "--no-" + key.path[1];
    const std::string value = key.type == config::Type::kBoolean ? "" : "10GiB";
    ASSERT_TRUE(ParseRunOptions({no, "prog"}, {{option, value}})) << no;
    EXPECT_EQ(words(*ParseRunOptions({no, "prog"}, {{option, value}})), plain) << no;
    EXPECT_NE(words(*ParseRunOptions({"prog"}, {{option, value}})), plain) << option;
    const std::string given = value.empty() ? option : option + "=" + value;
    EXPECT_EQ(ParseRunOptions({given, no, "prog"}).error().message,
              option + " and " + no + " exclude each other");
    ++undone;
  }
  EXPECT_GE(undone, 4u);
}

TEST(Granted, IsReadAndAnythingElseIsAnError) {
  const auto granted =
      ParseGranted(R"({"tenant_id":"t-1","name":"train","mode":"timeslice","mode_reason":"x","simulated":true,
      "waited_seconds":1.5,"gpus":[{"uuid":"GPU-aa","index":1,"name":"H200","mem_guaranteed_bytes":10737418240,"mem_limit_bytes":null}],
      "env":{"A":"1"},"env_prepend":{"LD_PRELOAD":"/g.so"}})");
  ASSERT_TRUE(granted);
  EXPECT_EQ(granted->env.at("A"), "1");
  EXPECT_EQ(granted->env_prepend.at("LD_PRELOAD"), "/g.so");
  EXPECT_TRUE(granted->simulated);
  EXPECT_EQ(GrantedLine(*granted), "granted train (t-1) on GPU 1 (H200, GPU-aa): 10.0 GiB, mode timeslice");
  for (const char* bad :
       {"", "[]", "null", "{}", R"({"tenant_id":"t"})", R"({"tenant_id":"t","gpus":[]})",
        R"({"tenant_id":"t","gpus":[1]})", R"({"tenant_id":7,"gpus":[{}]})", "{\"tenant_id\":"}) {
    EXPECT_EQ(ParseGranted(bad).error().code, Code::kInternal) << bad;
  }
}

TEST(Queued, BecomesOneLine) {
  const auto queued = ParseQueued(R"({"position":3,"reason":"needs 12.0 GiB, 7.4 GiB can be promised",
      "holders":[{"id":"t-1","name":"a","mem_guaranteed_bytes":42949672960},{"id":"t-2","name":"b\u001b[31m","mem_guaranteed_bytes":0}]})");
  ASSERT_TRUE(queued);
  EXPECT_EQ(QueuedLine(*queued, {}),
            "waiting: needs 12.0 GiB, 7.4 GiB can be promised; 2 ahead; held by a (t-1) 40.0 GiB, b?[31m "
            "(t-2) no guarantee");
  EXPECT_FALSE(ParseQueued("7"));
  const auto sure =
      ParseQueued(R"({"position":1,"reason":"full","estimated_start_at":"1970-01-01T01:02:03Z"})");
  EXPECT_EQ(QueuedLine(*sure, std::chrono::system_clock::time_point(std::chrono::minutes(60))),
            "waiting: full; starts in 2m03s at the latest");
  for (const char* odd : {"", "tomorrow", "1970-01-01T01:02:03Z?", "9999-99-99T99:99:99Z"}) {
    EXPECT_FALSE(ParseQueued(fmt::format(R"({{"position":1,"estimated_start_at":"{}"}})", odd))->starts_by)
        << odd;
  }
}

}  // namespace
}  // namespace gpumux::cli
