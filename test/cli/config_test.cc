// SPDX-License-Identifier: Apache-2.0
//
// The configuration as processes meet it: `gpumux config`, the defaults of
// `run`, and a daemon that reads its file again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

void Configure(const Sandbox& box, const std::string& text) { std::ofstream(box.ConfigFile()) << text; }

std::string Log(const Sandbox& box) {
  std::stringstream text;
  text << std::ifstream(box.runtime_dir() + "/sim/gpumuxd.log").rdbuf();
  return text.str();
}

TEST(Config, ShowsEveryKeyWithItsValueAndOrigin) {
  Sandbox box;
  Configure(box, "[run]\nmem = \"10GiB\"\n[quota.user.\"a b\"]\ntenants = 3\n");
  box.SetEnv("GPUMUX_WAIT", "10m");
  const Outcome show = box.RunGpumux({"config", "show", "--origin"});
  EXPECT_EQ(show.exit_code, 0) << show.err;
  EXPECT_THAT(show.out, AllOf(HasSubstr("\nrun.mem = \"10GiB\"  # " + box.ConfigFile() + ":2\n"),
                              HasSubstr("\nquota.user.\"a b\".tenants = 3  # " + box.ConfigFile() + ":4\n"),
                              HasSubstr("\nrun.wait = \"10m\"  # GPUMUX_WAIT\n"),
                              HasSubstr("\n# placement.fill is not set: pack\n")));
  const Outcome json = box.RunGpumux({"config", "show", "--json"});
  EXPECT_EQ(json.exit_code, 0) << json.err;
  const Json data = Json::parse(json.out)["data"];
  EXPECT_EQ(data["files"], Json::array({box.ConfigFile()}));
  std::map<std::string, Json> settings;
  for (const Json& setting : data["settings"]) settings[setting["key"]] = setting;
  EXPECT_EQ(settings["quota.user.\"a b\".tenants"]["value"], 3);
  EXPECT_EQ(settings["quota.user.\"a b\".tenants"]["origin"],
            (Json{{"kind", "file"}, {"file", box.ConfigFile()}, {"line", 4}, {"column", 11}}));
  EXPECT_EQ(settings["run.wait"]["origin"], (Json{{"kind", "environment"}, {"variable", "GPUMUX_WAIT"}}));
  EXPECT_EQ(settings["placement.fill"]["value"], nullptr);
  EXPECT_EQ(settings["placement.fill"]["value_reason"], "pack");
}

TEST(Config, WhatIsShownAndTheExampleAreAccepted) {
  Sandbox box;
  Configure(box, "quota.every-user.memory = \"60GiB\"\nrun.wait = false\n");
  const std::string copy = box.dir() + "/copy.toml";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"config", "show", "--origin"}, {"config", "example"}}) {
    const Outcome text = box.RunGpumux(command);
    ASSERT_EQ(text.exit_code, 0);
    std::ofstream(copy) << text.out;
    const Outcome check = box.RunGpumux({"config", "check", copy});
    EXPECT_EQ(check.exit_code, 0) << check.err;
    EXPECT_EQ(check.out, copy + ": ok\n");
  }
}

TEST(Config, CheckTellsAllThatIsWrong) {
  Sandbox box;
  Configure(box, "[run]\nmen = \"10GiB\"\nmode = \"mig\"\n");
  const Outcome check = box.RunGpumux({"config", "check"});
  EXPECT_EQ(check.exit_code, 1);
  EXPECT_EQ(check.err, "gpumux: " + box.ConfigFile() +
                           ":2:1: there is no key run.men; did you mean run.mem?\n" +
                           "gpumux: " + box.ConfigFile() +
                           ":3:8: run.mode: 'mig' is unknown; one of: auto, exclusive, timeslice, turns\n");
  EXPECT_EQ(box.RunGpumux({"config", "show"}).exit_code, 1);
  EXPECT_EQ(box.RunGpumux({"config", "check", box.dir() + "/none.toml"}).exit_code, 6);
  EXPECT_EQ(box.RunGpumux({"config"}).exit_code, 2);
  EXPECT_EQ(box.RunGpumux({"config", "chek"}).exit_code, 2);
  EXPECT_EQ(box.RunGpumux({"config", "check", "--json"}).exit_code, 2);
  EXPECT_EQ(box.RunGpumux({"config", "show", "x"}).exit_code, 2);
  // Nothing is started by halves.
  const Outcome run = box.RunGpumux({"run", "--", "true"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr(":2:1: there is no key run.men"));
  EXPECT_EQ(box.DaemonPid(), 0);
}

// What the only tenant of `run OPTIONS` was promised; nothing if it was not started.
Json PromisedTo(Sandbox& box, std::vector<std::string> options) {
  options.insert(options.begin(), "run");
  options.insert(options.end(), {"--json", "--", "true"});
  const Outcome run = box.RunGpumux(options);
  const Json record = Json::parse(run.err, nullptr, false);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return record.is_object() ? record["data"]["tenant"] : Json();
}

TEST(Config, GivesRunItsDefaults) {
  Sandbox box;
  Configure(box, "[run]\nmem = \"10GiB:20GiB\"\nisolate = \"none\"\nstrict = true\n");
  Json tenant = PromisedTo(box, {});
  EXPECT_EQ(tenant["mem_guaranteed_bytes"], 10ull << 30);
  EXPECT_EQ(tenant["mem_limit_bytes"], 20ull << 30);
  EXPECT_EQ(tenant["isolation"], "none");
  EXPECT_EQ(tenant["strict"], true);
  box.SetEnv("GPUMUX_MEM", "12GiB");
  tenant = PromisedTo(box, {});
  EXPECT_EQ(tenant["mem_guaranteed_bytes"], 12ull << 30);
  tenant = PromisedTo(box, {"--mem", "14GiB", "--isolate", "fault"});
  EXPECT_EQ(tenant["mem_guaranteed_bytes"], 14ull << 30);
  EXPECT_EQ(tenant["isolation"], "fault");
  tenant = PromisedTo(box, {"--no-mem", "--no-strict"});
  EXPECT_EQ(tenant["mem_guaranteed_bytes"], 0);
  EXPECT_EQ(tenant["strict"], false);
}

TEST(Config, WaitingIsByDefaultAsConfigured) {
  Sandbox box;
  Configure(box, "[run]\nwait = false\n");
  Process holder = box.Gpumux({"run", "--mem", "100GiB", "--", "sleep", "1000"});
  WaitUntil("the holder runs", [&] { return box.StatusData()["tenants"].size() == 1; });
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "100GiB", "--", "true"}).exit_code, 4);
  // The command line's other way to say it goes before the file.
  EXPECT_EQ(box.RunGpumux({"run", "--wait=10ms", "--mem", "100GiB", "--", "true"}).exit_code, 5);
  Configure(box, "[run]\nwait = \"10ms\"\n");
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "100GiB", "--", "true"}).exit_code, 5);
  EXPECT_EQ(box.RunGpumux({"run", "--no-wait", "--mem", "100GiB", "--", "true"}).exit_code, 4);
  holder.Signal(SIGTERM);
  holder.Wait();
}

TEST(Config, IsReadAgainAtAHangUp) {
  Sandbox box;
  Configure(box, "[daemon]\nlog_level = \"info\"\n");
  ASSERT_EQ(box.RunGpumux({"run", "--mem", "2GiB", "--", "true"}).exit_code, 0);
  const pid_t daemon = box.DaemonPid();
  ASSERT_GT(daemon, 0);
  EXPECT_THAT(Log(box), HasSubstr("configuration: " + box.ConfigFile()));
  Configure(box, "[placement]\nfil = \"spread\"\n");
  kill(daemon, SIGHUP);
  WaitUntil("it says what is wrong", [&] {
    return Log(box).find("the configuration stays as it was: " + box.ConfigFile() + ":2:1:") !=
           std::string::npos;
  });
  Configure(box, "[quota.every-user]\nmemory = \"1GiB\"\n");
  kill(daemon, SIGHUP);
  WaitUntil("it has read it",
            [&] { return Log(box).find("the configuration was read again") != std::string::npos; });
  EXPECT_EQ(box.DaemonPid(), daemon);
  const Outcome over = box.RunGpumux({"run", "--mem", "2GiB", "--no-wait", "--", "true"});
  EXPECT_EQ(over.exit_code, 4) << over.err;
}

TEST(Config, AnIdleDaemonLeavesAsConfigured) {
  Sandbox box;
  Configure(box, "[daemon]\nidle_exit = \"10ms\"\n");
  ASSERT_EQ(box.RunGpumux({"run", "--", "true"}).exit_code, 0);
  WaitUntil("the daemon leaves",
            [&] { return Log(box).find("no tenant for 10 ms: leaving") != std::string::npos; });
}

TEST(Config, ADaemonDoesNotStartWithWhatIsWrong) {
  Sandbox box;
  Configure(box, "[quota.every-user]\nmemory = \"60\"\n");
  const Outcome daemon = box.Run({Sandbox::Program("gpumuxd"), "--foreground"});
  EXPECT_EQ(daemon.exit_code, 2);
  EXPECT_THAT(daemon.err, HasSubstr(box.ConfigFile() + ":2:10: quota.every-user.memory: '60' has no unit"));
}

}  // namespace
}  // namespace gpumux::test
