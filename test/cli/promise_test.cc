// SPDX-License-Identifier: Apache-2.0
//
// `gpumux promise` as a process: what it offers is what admission takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

Json Promise(Sandbox& box, std::vector<std::string> options = {}) {
  options.insert(options.begin(), {"promise", "--json"});
  const Outcome shown = box.RunGpumux(std::move(options));
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  return Json::parse(shown.out, nullptr, false);
}

const Json& ModeOf(const Json& promise, const std::string& name) {
  static const Json kNone;
  for (const Json& mode : promise["data"]["gpus"][0]["modes"])
    if (mode["mode"] == name) return mode;
  return kNone;
}

// As the text has it: "34.9GiB".
std::string AsWritten(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1fGiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

// So many tenants of so many bytes as the part says.
std::vector<Process> StartAll(Sandbox& box, const Json& part, const std::string& mode) {
  std::vector<Process> runs;
  for (unsigned i = 0; i < part["tenants"]; ++i)
    runs.push_back(box.Gpumux(
        {"run", "--no-wait", "--mode", mode, "--mem", AsWritten(part["mem_bytes"]), "--", "sleep", "1000"}));
  return runs;
}

size_t Running(Sandbox& box) { return box.StatusData()["tenants"].size(); }

TEST(Promise, OffersSizesThatAdmissionTakesTogether) {
  Sandbox box;
  const Json promise = Promise(box);
  for (const char* mode : {"timeslice", "turns", "mps", "exclusive"}) {
    const Json& parts = ModeOf(promise, mode)["equal_parts"];
    const size_t at = std::string(mode) == "exclusive" ? 0 : 3;
    ASSERT_GT(parts.size(), at) << mode;
    std::vector<Process> runs = StartAll(box, parts[at], mode);
    EXPECT_TRUE(WaitUntil("all run", [&] { return Running(box) == parts[at]["tenants"]; })) << mode;
    for (Process& run : runs) {
      EXPECT_FALSE(run.Ended()) << run.Err();
      run.Signal(SIGTERM);
    }
    for (Process& run : runs) run.Wait();
    ASSERT_TRUE(WaitUntil("all are gone", [&] { return Running(box) == 0; }));
    if (std::string(mode) == "mps") {
      ASSERT_EQ(box.RunGpumux({"mps", "stop"}).exit_code, 0);
    }
  }
}

TEST(Promise, SpeaksTheLanguageOfTheEnvironmentAndSaysThatItIsSimulated) {
  Sandbox box;
  box.SetEnv("LC_ALL", "");
  box.SetEnv("LC_MESSAGES", "");
  box.SetEnv("LANG", "ja_JP.UTF-8");
  const Outcome japanese = box.RunGpumux({"promise"});
  EXPECT_THAT(japanese.out, HasSubstr("シミュレーション"));
  EXPECT_THAT(japanese.out, HasSubstr("## モード mps"));
  const Outcome english = box.RunGpumux({"promise", "--lang", "en", "--mode", "turns", "0"});
  EXPECT_THAT(english.out, HasSubstr("SIMULATED"));
  EXPECT_THAT(english.out, HasSubstr("## Mode turns"));
  EXPECT_THAT(english.out, Not(HasSubstr("## Mode mps")));
  EXPECT_EQ(box.DaemonPid(), 0) << "it starts no daemon";
}

TEST(Promise, OfAGpuWithTenantsDoesNotCountThemAsStrangers) {
  Sandbox box;
  const Json empty = Promise(box)["data"]["gpus"][0];
  EXPECT_TRUE(empty["mode"].is_null());
  const std::string ready = box.dir() + "/ready";
  Process run =
      box.Gpumux({"run", "--mem", "40GiB", "--mode", "turns", "--", Sandbox::Program("gpumux-workload"),
                  "--alloc", "8GiB", "--hold", "1000", "--ready", ready});
  ASSERT_TRUE(WaitUntil("it works", [&] { return ::access(ready.c_str(), F_OK) == 0; }))
      << run.Err() << run.Out();
  const Json promise = Promise(box);
  const Json& gpu = promise["data"]["gpus"][0];
  EXPECT_EQ(gpu["mode"], "turns");
  EXPECT_EQ(ModeOf(promise, "turns")["in_use"], true);
  EXPECT_EQ(ModeOf(promise, "mps")["in_use"], false);
  EXPECT_LT(gpu["mem_unmanaged_bytes"], 64u << 20);
  EXPECT_GT(gpu["mem_promisable_bytes"].get<uint64_t>(),
            empty["mem_promisable_bytes"].get<uint64_t>() - (64u << 20));
}

TEST(Promise, RefusesWhatItDoesNotKnow) {
  Sandbox box;
  EXPECT_EQ(box.RunGpumux({"promise", "--lang", "fr"}).exit_code, 2);
  EXPECT_EQ(box.RunGpumux({"promise", "--mode", "fast"}).exit_code, 2);
  // Known, and of a GPU that is not partitioned not to be had.
  EXPECT_NE(box.RunGpumux({"promise", "--mode", "mig"}).out.find("it is no MIG instance"), std::string::npos);
  EXPECT_EQ(box.RunGpumux({"promise", "7"}).exit_code, 6);
  EXPECT_EQ(box.RunGpumux({"promise", "0", "1"}).exit_code, 2);
}

}  // namespace
}  // namespace gpumux::test
