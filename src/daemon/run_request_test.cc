// SPDX-License-Identifier: Apache-2.0
#include "daemon/run_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace gpumux::daemon {
namespace {

using nlohmann::json;

json Good() {
  return {{"name", "serve"},          {"command", {"python3", "serve.py"}},
          {"cwd", "/home"},           {"mem", {{"bytes", 42949672960}}},
          {"mem_limit", nullptr},     {"gpus", {{"count", 1}}},
          {"mode", "auto"},           {"isolate", "fault"},
          {"strict", true},           {"wait", true},
          {"wait_seconds", 1.5},      {"time_seconds", nullptr},
          {"labels", {{"team", "a"}}}};
}

Code CodeOf(const json& request) {
  const auto parsed = ParseRunRequest(request.dump());
  return parsed ? Code::kNotExecutable : parsed.error().code;  // a code that parsing never gives
}

TEST(RunRequest, ReadsEveryMember) {
  const auto request = ParseRunRequest(Good().dump());
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->ask.name, "serve");
  EXPECT_EQ(request->command, "python3 serve.py");
  EXPECT_EQ(request->ask.mem->bytes, 42949672960u);
  EXPECT_FALSE(request->ask.mem_limit);
  EXPECT_FALSE(request->ask.mode);
  EXPECT_TRUE(request->strict);
  EXPECT_EQ(request->wait_limit, std::chrono::milliseconds(1500));
  EXPECT_EQ(request->labels.at("team"), "a");
}

TEST(RunRequest, SaysWhereAndForHowLong) {
  json request = Good();
  EXPECT_FALSE(ParseRunRequest(request.dump())->ask.fill);
  request["place"] = "spread";
  request["time_seconds"] = 90;
  EXPECT_EQ(ParseRunRequest(request.dump())->ask.fill, core::Fill::kSpread);
  EXPECT_EQ(ParseRunRequest(request.dump())->ask.time_limit, std::chrono::seconds(90));
  for (const json& wrong : {json("best"), json(1), json::array()}) {
    request["place"] = wrong;
    EXPECT_EQ(CodeOf(request), Code::kInvalid) << wrong;
  }
}

TEST(Change, ReadsEveryMemberAndRefusesOthers) {
  const auto change =
      ParseChange(R"({"mem":{"bytes":10},"mem_limit":{"ratio":0.5},"time_seconds":60,"as_it_frees":true})");
  ASSERT_TRUE(change) << change.error().message;
  EXPECT_EQ(change->mem->bytes, 10u);
  EXPECT_EQ(change->mem_limit->ratio, 0.5);
  EXPECT_EQ(change->time_limit, std::chrono::minutes(1));
  EXPECT_TRUE(change->as_it_frees);
  EXPECT_TRUE(ParseChange(R"({"time_seconds":0.5})"));
  for (const char* wrong : {"", "[]", "{}", R"({"as_it_frees":true})", R"({"mem_limit":{"bytes":1}})",
                            R"({"mem":{"bytes":0}})", R"({"mem":{"bytes":-1}})", R"({"mem":{"ratio":2}})",
                            R"({"time_seconds":-1})", R"({"time_seconds":"1h"})", R"({"time_seconds":1e300})",
                            R"({"mem":{"bytes":1},"name":"x"})", R"({"mem":{"bytes":1},"as_it_frees":1})"}) {
    const auto refused = ParseChange(wrong);
    ASSERT_FALSE(refused) << wrong;
    EXPECT_EQ(refused.error().code, Code::kInvalid) << wrong;
  }
}

TEST(Change, IsInTheTextThatTheStoreKeeps) {
  auto request = *ParseRunRequest(Good().dump());
  request.ask.mem = MemorySize{.bytes = 5, .ratio = 0};
  request.ask.mem_limit = MemorySize{.bytes = 0, .ratio = 0.25};
  request.ask.time_limit = std::chrono::milliseconds(1500);
  request.text = ChangedText(request);
  const auto again = ParseRunRequest(request.text);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->ask.mem->bytes, 5u);
  EXPECT_EQ(again->ask.mem_limit->ratio, 0.25);
  EXPECT_EQ(again->ask.time_limit, std::chrono::milliseconds(1500));
  EXPECT_EQ(again->ask.name, "serve");
  EXPECT_EQ(again->labels.at("team"), "a");
}

TEST(RunRequest, NamesAProgramWithoutAName) {
  json request = Good();
  request["name"] = nullptr;
  request["command"] = {"/usr/bin/python3", "x"};
  EXPECT_EQ(ParseRunRequest(request.dump())->ask.name, "python3");
}

TEST(RunRequest, KnowsEveryMode) {
  json request = Good();
  for (const core::Mode mode : core::kModes) {
    request["mode"] = core::Name(mode);
    EXPECT_EQ(ParseRunRequest(request.dump())->ask.mode, mode);
  }
  request["mode"] = "best";
  EXPECT_EQ(CodeOf(request), Code::kInvalid);
}

TEST(RunRequest, HasPartsOfAGpuOnlyInModesThatKeepThem) {
  json request = Good();
  request["mode"] = "turns";
  request["share_min"] = 0.3;
  EXPECT_EQ(ParseRunRequest(request.dump())->ask.share_min, 0.3);
  EXPECT_FALSE(ParseRunRequest(request.dump())->ask.share_ceiling);
  request["share_ceiling"] = 0.6;
  EXPECT_EQ(ParseRunRequest(request.dump())->ask.share_ceiling, 0.6);
  request["share_ceiling"] = 0.2;
  EXPECT_EQ(CodeOf(request), Code::kInvalid);
  request["share_min"] = nullptr;
  EXPECT_EQ(ParseRunRequest(request.dump())->ask.share_ceiling, 0.2);
  request["processes"] = 2;
  EXPECT_EQ(CodeOf(request), Code::kUnsupported);
  request.erase("processes");
  request["priority"] = "latency";
  EXPECT_EQ(CodeOf(request), Code::kUnsupported);
  request.erase("priority");
  for (const char* mode : {"timeslice", "exclusive", "auto"}) {
    request["mode"] = mode;
    EXPECT_EQ(CodeOf(request), Code::kUnsupported) << mode;
  }
  request["mode"] = "mps";
  EXPECT_TRUE(ParseRunRequest(request.dump()));
  request["share_min"] = 0.1;
  EXPECT_EQ(CodeOf(request), Code::kUnsupported);
}

TEST(RunRequest, RefusesEveryWrongMember) {
  const std::vector<std::pair<const char*, json>> wrong = {
      {"name", 5},
      {"name", std::string(200, 'n')},
      {"name", "a\nb"},
      {"name", json::array()},
      {"command", "ls"},
      {"command", json::array()},
      {"command", {1}},
      {"command", nullptr},
      {"command", {{"a", 1}}},
      {"cwd", 7},
      {"cwd", std::string(60 * 1024, 'c')},
      {"mem", 5},
      {"mem", "10G"},
      {"mem", json::object()},
      {"mem", {{"bytes", 0}}},
      {"mem", {{"bytes", -1}}},
      {"mem", {{"bytes", 1.5}}},
      {"mem", {{"bytes", "1"}}},
      {"mem", {{"bytes", UINT64_MAX}}},
      {"mem", {{"bytes", 1e300}}},
      {"mem", {{"ratio", 0}}},
      {"mem", {{"ratio", 1.01}}},
      {"mem", {{"ratio", -0.5}}},
      {"mem", {{"ratio", "x"}}},
      {"mem", {{"bytes", 1}, {"ratio", 0.5}}},
      {"mem", {{"byte", 1}}},
      {"mem_limit", {{"bytes", -5}}},
      {"mem_limit", true},
      {"gpus", 1},
      {"gpus", json::object()},
      {"gpus", {{"count", 0}}},
      {"gpus", {{"count", -1}}},
      {"gpus", {{"count", 17}}},
      {"gpus", {{"count", 1e10}}},
      {"gpus", {{"list", json::array()}}},
      {"gpus", {{"list", {0}}}},
      {"gpus", {{"list", "0"}}},
      {"gpus", {{"list", {std::string(100, '0')}}}},
      {"gpus", {{"list", std::vector<std::string>(17, "0")}}},
      {"gpus", {{"count", 1}, {"list", {"0"}}}},
      {"mode", "fast"},
      {"mode", 1},
      {"isolate", "some"},
      {"share_min", 0},
      {"share_min", -0.1},
      {"share_min", 1.01},
      {"share_min", "30%"},
      {"share_ceiling", 0},
      {"share_ceiling", json::array()},
      {"isolate", 0},
      {"strict", 1},
      {"wait", "yes"},
      {"wait_seconds", -1},
      {"wait_seconds", "1"},
      {"wait_seconds", 1e12},
      {"time_seconds", -0.1},
      {"labels", 1},
      {"labels", {{"a", 1}}},
      {"labels", {{"", "x"}}},
      {"labels", {{"a", std::string(300, 'x')}}},
      {"labels", {{"a\u0007", "x"}}},
  };
  for (const auto& [member, value] : wrong) {
    json request = Good();
    request[member] = value;
    EXPECT_EQ(CodeOf(request), Code::kInvalid) << member << " " << value.dump().substr(0, 80);
  }
  json request = Good();
  request["mem"] = nullptr;
  request["mem_limit"] = {{"bytes", 100}};
  EXPECT_EQ(CodeOf(request), Code::kInvalid);
}

TEST(RunRequest, RefusesWhatIsNoRequestAtAll) {
  const std::string deep(20000, '[');
  std::string nested = "{\"labels\":";
  for (int i = 0; i < 5000; ++i) nested += "{\"a\":";
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("[]"), std::string("5"), std::string("\"x\""),
        std::string("{"), std::string("{\"mem\":{\"ratio\":NaN}}"),
        std::string("{\"mem\":{\"ratio\":Infinity}}"),
        std::string("{\"mem\":{\"ratio\":1e999},\"command\":[\"x\"]}"), std::string("{} {}"),
        std::string("\0\0\0", 3), std::string("\xff\xfe{}"), std::string("{\"command\":[\"\xc3\x28\"]}"),
        deep, deep + std::string(20000, ']'), nested,
        std::string("{\"command\":[\"x\"],\"mem\":{\"bytes\":99999999999999999999999999}}")}) {
    const auto request = ParseRunRequest(text);
    ASSERT_FALSE(request) << text.substr(0, 60);
    EXPECT_EQ(request.error().code, Code::kInvalid);
  }
}

TEST(RunRequest, CutsAVeryLongCommandForDisplay) {
  json request = Good();
  request["command"] = {"x", std::string(60 * 1024 - 500, 'y'), "tail"};
  const auto parsed = ParseRunRequest(request.dump());
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->command.size(), RunRequest::kMaxCommandBytes);
  EXPECT_TRUE(parsed->command.ends_with("..."));
  request["command"] = {"sh", "-c", "a\nb\x1b[2J"};
  EXPECT_EQ(ParseRunRequest(request.dump())->command, "sh -c a?b?[2J");
}

TEST(StopRequest, HasDefaultsAndBounds) {
  EXPECT_EQ(ParseStopRequest("")->signal, 15);
  EXPECT_EQ(ParseStopRequest("{}")->grace, std::chrono::seconds(10));
  EXPECT_EQ(ParseStopRequest(R"({"signal":2,"grace_seconds":0})")->signal, 2);
  for (const char* text : {R"({"signal":0})", R"({"signal":65})", R"({"signal":-9})", R"({"signal":"TERM"})",
                           R"({"signal":18446744073709551615})", R"({"grace_seconds":-1})", "[]", "x"}) {
    EXPECT_FALSE(ParseStopRequest(text)) << text;
  }
}

TEST(RunMessages, HaveBounds) {
  EXPECT_EQ(*ParseRunStarted(R"({"pid":7})"), 7);
  for (const char* text :
       {"{}", R"({"pid":0})", R"({"pid":-1})", R"({"pid":1.5})", R"({"pid":9999999999})"}) {
    EXPECT_FALSE(ParseRunStarted(text)) << text;
  }
  EXPECT_EQ(ParseRunEnded(R"({"exit_code":3,"signal":null})")->exit_code, 3);
  EXPECT_FALSE(ParseRunEnded(R"({"exit_code":256})"));
  EXPECT_FALSE(ParseRunEnded(R"({"signal":0})"));
}

}  // namespace
}  // namespace gpumux::daemon
