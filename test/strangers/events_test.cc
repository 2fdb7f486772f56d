// SPDX-License-Identifier: Apache-2.0
//
// `gpumux events` with real daemons: what it shows, and that it goes on when
// they die.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<nlohmann::json> Lines(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::stringstream in(text);
  for (std::string line; std::getline(in, line);)
    lines.push_back(nlohmann::json::parse(line, nullptr, false));
  return lines;
}

size_t Count(const std::string& text, const std::string& kind) {
  size_t count = 0;
  for (const auto& event : Lines(text)) count += event.is_object() && event["kind"] == kind ? 1 : 0;
  return count;
}

TEST(Events, AreSaidForPeopleAndForPrograms) {
  Sandbox box;
  EXPECT_EQ(box.RunGpumux({"events"}).exit_code, 3);
  ASSERT_EQ(box.RunGpumux({"run", "--name", "one", "--mem", "10GiB", "--", "true"}).exit_code, 0);
  ASSERT_EQ(box.RunGpumux({"run", "--name", "two", "--mem", "900GiB", "--no-wait", "--", "true"}).exit_code,
            4);
  const Outcome text = box.RunGpumux({"events"});
  EXPECT_THAT(text.out, HasSubstr("10.0 GiB guaranteed"));
  const auto of_one = nlohmann::json::parse(box.RunGpumux({"events", "--json", "--tenant", "one"}).out);
  EXPECT_EQ(of_one["schema"], "gpumux.events/1");
  EXPECT_EQ(of_one["simulated"], true);
  std::vector<std::string> kinds;
  for (const auto& event : of_one["data"]["events"]) kinds.push_back(event["kind"]);
  EXPECT_THAT(kinds, ElementsAre("granted", "ended"));
  const uint64_t ended = of_one["data"]["events"][1]["id"];
  const auto since =
      nlohmann::json::parse(box.RunGpumux({"events", "--json", "--since", std::to_string(ended)}).out);
  EXPECT_EQ(since["data"]["events"][0]["id"], ended);
  const Outcome refused = box.RunGpumux({"events", "--tenant", "two"});
  EXPECT_THAT(refused.out, HasSubstr("can never promise"));
  EXPECT_EQ(box.RunGpumux({"events", "--gpu", "9"}).exit_code, 6);
  EXPECT_EQ(box.RunGpumux({"events", "--since", "yesterday"}).exit_code, 2);
}

TEST(Events, AreFollowedThroughTheDeathOfTheDaemon) {
  Sandbox box;
  const std::string go = box.dir() + "/go", runs = box.dir() + "/runs";
  Process tenant = box.Gpumux({"run", "--name", "long", "--mem", "10GiB", "--", "sh", "-c",
                               "touch " + runs + "; while [ ! -e " + go + " ]; do sleep 0.05; done"});
  ASSERT_TRUE(WaitUntil("the tenant runs", [&] { return std::filesystem::exists(runs); }));
  Process follow = box.Gpumux({"events", "--follow", "--json", "--since", "1"});
  ASSERT_TRUE(WaitUntil("it was granted", [&] { return Count(follow.Out(), "granted") == 1; }));
  const pid_t before = box.DaemonPid();
  ASSERT_EQ(kill(before, SIGKILL), 0);
  ASSERT_TRUE(
      WaitUntil("the next daemon is followed", [&] { return Count(follow.Out(), "taken-over") == 1; }));
  std::ofstream(go).put('\n');
  EXPECT_EQ(tenant.Wait().exit_code, 0);
  ASSERT_TRUE(WaitUntil("its end is seen", [&] { return Count(follow.Out(), "ended") == 1; }));
  EXPECT_THAT(follow.Err(), HasSubstr("the daemon is gone"));
  EXPECT_THAT(follow.Err(), HasSubstr("a daemon answers again"));
  // Each event once, numbers go on.
  uint64_t last = 0;
  for (const auto& event : Lines(follow.Out())) {
    ASSERT_TRUE(event.is_object());
    EXPECT_GT(event["id"], last);
    last = event["id"];
  }
  EXPECT_FALSE(follow.Ended());
}

}  // namespace
}  // namespace gpumux::test
