// SPDX-License-Identifier: Apache-2.0
#include "config/configuration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/units.h"
#include "config/meaning.h"

namespace gpumux::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Read {
  Settings settings;
  std::vector<std::string> problems;
};

Read FromText(std::string_view text) {
  Read read;
  std::vector<Problem> problems;
  ReadText("a.toml", text, read.settings, problems);
  for (const Problem& problem : problems) read.problems.push_back(problem.ToString());
  return read;
}

TEST(Configuration, IsTakenWithItsPlace) {
  const Read read = FromText("# x\n[placement]\n  fill = \"spread\"\n");
  EXPECT_THAT(read.problems, IsEmpty());
  const Setting* fill = Find(read.settings, {"placement", "fill"});
  ASSERT_TRUE(fill);
  EXPECT_EQ(FormatValue(fill->value), "\"spread\"");
  EXPECT_EQ(fill->origin, "a.toml");
  EXPECT_EQ(fill->at, (Position{3, 10}));
}

TEST(Configuration, BecomesAPolicy) {
  const Read read = FromText(R"(
placement.fill = "spread"
idle.policy = "reclaim"
idle.after = "1h"
[quota.user.ann]
memory = "60GiB"
tenants = 4
priority = -3
[quota.user."b.c d"]
gpus = 0
[quota.group]
students = { gpus = 2, memory = "1.5TiB" }
[quota.every-user]
tenants = 8
)");
  ASSERT_THAT(read.problems, IsEmpty());
  const core::Policy policy = PolicyOf(read.settings);
  EXPECT_EQ(policy.fill, core::Fill::kSpread);
  EXPECT_EQ(policy.idle.action, core::IdleAction::kReclaim);
  EXPECT_EQ(policy.idle.after, std::chrono::hours(1));
  ASSERT_THAT(policy.users, SizeIs(2));
  const core::Rule& ann = policy.users.at("ann");
  EXPECT_EQ(ann.quota.guaranteed_bytes, 60 * kGiB);
  EXPECT_EQ(ann.quota.tenants, 4u);
  EXPECT_EQ(ann.quota.gpus, std::nullopt);
  EXPECT_EQ(ann.priority, -3);
  EXPECT_EQ(policy.users.at("b.c d").quota.gpus, 0u);
  ASSERT_THAT(policy.groups, SizeIs(1));
  EXPECT_EQ(policy.groups.at("students").quota.gpus, 2u);
  EXPECT_EQ(policy.groups.at("students").quota.guaranteed_bytes, 1536 * kGiB);
  ASSERT_TRUE(policy.every_user);
  EXPECT_EQ(policy.every_user->quota.tenants, 8u);
  EXPECT_EQ(policy.every_user->priority, std::nullopt);
}

TEST(Configuration, ServesMetricsToThisMachineAlone) {
  const Read read = FromText("[metrics]\nlisten = \"[::1]:9835\"\nlabels = true\n");
  ASSERT_THAT(read.problems, IsEmpty());
  const DaemonKeys keys = DaemonKeysOf(read.settings);
  EXPECT_EQ(keys.metrics_listen->ToString(), "[::1]:9835");
  EXPECT_EQ(keys.metrics_labels, true);
  EXPECT_FALSE(DaemonKeysOf({}).metrics_listen || DaemonKeysOf({}).metrics_labels);
  const Read wrong = FromText("metrics.listen = \"0.0.0.0:9835\"\n");
  EXPECT_THAT(wrong.problems, ElementsAre(HasSubstr("'0.0.0.0:9835': it is no loopback address")));
  EXPECT_THAT(wrong.settings, IsEmpty());
  EXPECT_THAT(FromText("metrics.listen = 9835\n").problems,
              ElementsAre(HasSubstr("is not an address in quotes")));
}

TEST(Configuration, WithoutAFileIsTheDefaultPolicy) {
  const core::Policy policy = PolicyOf({});
  EXPECT_EQ(policy.fill, core::Fill::kPack);
  EXPECT_EQ(policy.idle.action, core::IdleAction::kOff);
  EXPECT_EQ(policy.idle.after, std::chrono::minutes(10));
  EXPECT_TRUE(policy.users.empty() && policy.groups.empty() && !policy.every_user);
  EXPECT_TRUE(RunDefaultsOf({}).empty());
  EXPECT_FALSE(DaemonKeysOf({}).idle_exit);
}

TEST(Configuration, ALaterFileGoesBeforeAnEarlierOneKeyByKey) {
  Settings settings;
  std::vector<Problem> problems;
  ReadText("system", "[quota.user.ann]\nmemory = \"60GiB\"\ntenants = 4\n", settings, problems);
  ReadText("user", "quota.user.ann.memory = \"70GiB\"\n", settings, problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(PolicyOf(settings).users.at("ann").quota.guaranteed_bytes, 70 * kGiB);
  EXPECT_EQ(PolicyOf(settings).users.at("ann").quota.tenants, 4u);
  EXPECT_EQ(Find(settings, {"quota", "user", "ann", "memory"})->origin, "user");
  EXPECT_EQ(Find(settings, {"quota", "user", "ann", "tenants"})->origin, "system");
}

TEST(Configuration, GivesDaemonAndRunWhatIsTheirs) {
  const Read read = FromText(
      "[daemon]\nidle_exit = \"10m\"\nlog_level = \"debug\"\n"
      "[run]\nmem = \"10GiB:50%\"\nwait = false\nstrict = true\nsummary = false\n");
  ASSERT_THAT(read.problems, IsEmpty());
  EXPECT_EQ(DaemonKeysOf(read.settings).idle_exit, std::chrono::minutes(10));
  EXPECT_EQ(DaemonKeysOf(read.settings).log_level, LogLevel::kDebug);
  std::vector<std::string> defaults;
  for (const RunDefault& d : RunDefaultsOf(read.settings)) defaults.push_back(d.option + "=" + d.value);
  EXPECT_THAT(defaults, ElementsAre("--mem=10GiB:50%", "--strict=", "--no-wait="));
}

struct Wrong {
  const char* text;
  std::vector<std::string> says;  // parts of each problem, in order
};

class WrongText : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongText, IsToldWithItsPlaceAndWhatToDo) {
  const Read read = FromText(GetParam().text);
  ASSERT_EQ(read.problems.size(), GetParam().says.size()) << ::testing::PrintToString(read.problems);
  for (size_t i = 0; i < read.problems.size(); ++i)
    EXPECT_THAT(read.problems[i], HasSubstr(GetParam().says[i]));
  EXPECT_THAT(read.settings, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Each, WrongText,
    ::testing::Values(
        Wrong{"[placement]\nfil = \"pack\"",
              {"a.toml:2:1: there is no key placement.fil; did you mean placement.fill?"}},
        Wrong{"[placment]\nfill = \"pack\"\nx = 1",
              {"a.toml:1:2: there is no table placment; did you mean placement?"}},
        Wrong{"[quota.usr.ann]\nmemory = \"1GiB\"",
              {"1:8: there is no table quota.usr; did you mean quota.user?"}},
        Wrong{"[quota.user.ann]\nmemroy = \"1GiB\"",
              {"2:1: there is no key quota.user.ann.memroy; did you mean quota.user.ann.memory?"}},
        Wrong{"zzzzzz = 1", {"1:1: there is no key zzzzzz; gpumux config example"}},
        Wrong{"placement = 3", {"1:1: placement is a table; write [placement]"}},
        Wrong{"[[daemon]]\nidle_exit = \"1s\"", {"daemon is a table"}},
        Wrong{"[placement]\nfill = \"dense\"",
              {"2:8: placement.fill: 'dense' is unknown; one of: pack, spread"}},
        Wrong{"[placement]\nfill = 1", {"2:8: placement.fill: 1 is not a word in quotes"}},
        Wrong{"quota.every-user.memory = 60",
              {"1:27: quota.every-user.memory: 60 is not an amount of memory"}},
        Wrong{"quota.every-user.memory = \"60\"", {"'60' has no unit; write 60GiB"}},
        Wrong{"quota.every-user.memory = \"60Gb/s\"", {"unknown unit"}},
        Wrong{"quota.every-user.memory = \"40%\"", {"'40%' is a part of a GPU"}},
        Wrong{"quota.every-user.tenants = -1", {"-1 is not from 0 to 1000000"}},
        Wrong{"quota.every-user.tenants = 1.5", {"a number with a fraction is not a whole number"}},
        Wrong{"quota.every-user.tenants = \"4\"", {"'4' is not a whole number"}},
        Wrong{"quota.every-user.priority = 1001", {"not from -1000 to 1000"}},
        Wrong{"quota.every-user.tenants = [1]", {"an array is not a whole number"}},
        Wrong{"daemon.idle_exit = 1979-05-27", {"a date or time is not a time in quotes"}},
        Wrong{"daemon.idle_exit = \"30\"", {"1:20: daemon.idle_exit: "}},
        Wrong{"daemon.idle_exit.x = 1", {"daemon.idle_exit: a table is not a time"}},
        Wrong{"run.strict = \"yes\"", {"'yes' is neither true nor false"}},
        Wrong{"run.mem = \"20GiB:10GiB\"", {"the limit is below the guarantee"}},
        // What stands behind something wrong is looked at too.
        Wrong{"a = 1\n[daemon]\nlog_level = \"all\"\nb = 2",
              {"1:1: there is no key a", "3:13: daemon.log_level", "4:1: there is no key daemon.b"}},
        Wrong{"[placement\nfill = \"pack\"", {"a.toml:1:11: "}}, Wrong{"fill = ", {"a.toml:1:"}},
        Wrong{"[placement]\nfill = \"pack\"\nfill = \"pack\"", {"a.toml:3:"}},
        Wrong{"x = \"\\ud800\"", {"a.toml:1:"}}, Wrong{"x = \"\xff\"", {"a.toml:1:"}}));

TEST(Configuration, NeitherDepthNorSizeHarms) {
  std::string dots = "a";
  for (int i = 0; i < 100'000; ++i) dots += ".a";
  EXPECT_THAT(FromText(dots + " = 1").problems, ElementsAre(HasSubstr("more than 16 dots")));
  EXPECT_THAT(FromText("[" + dots + "]").problems, ElementsAre(HasSubstr("more than 16 dots")));
  EXPECT_THAT(FromText("a = " + std::string(100'000, '[')).problems, SizeIs(1));
  EXPECT_THAT(FromText(std::string(kMaxTomlBytes + 1, ' ')).problems,
              ElementsAre(HasSubstr("larger than 1024 KiB")));
  std::string many;
  for (int i = 0; i < 10'000; ++i) many += "k" + std::to_string(i) + " = 1\n";
  EXPECT_THAT(FromText(many).problems, SizeIs(100));
}

TEST(Configuration, AVariableIsCheckedAsAFileIs) {
  Settings settings;
  std::vector<Problem> problems;
  const Key& mem = *FindKey({"run", "mem"});
  const Key& wait = *FindKey({"run", "wait"});
  ReadVariable(mem, "10GiB", settings, problems);
  ReadVariable(wait, "false", settings, problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(Find(settings, {"run", "mem"})->origin, "GPUMUX_MEM");
  EXPECT_EQ(std::get<bool>(Find(settings, {"run", "wait"})->value), false);
  ReadVariable(mem, "10", settings, problems);
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_THAT(problems[0].ToString(), HasSubstr("GPUMUX_MEM: '10' has no unit"));
}

TEST(Configuration, PathsAreWrittenAsTomlReadsThem) {
  EXPECT_EQ(FormatPath({"quota", "user", "ann", "memory"}), "quota.user.ann.memory");
  const Path odd = {"quota", "user", "a.b \"c\\\n", "tenants"};
  EXPECT_THAT(FromText(FormatPath(odd) + " = 1").problems, IsEmpty());
  EXPECT_TRUE(Find(FromText(FormatPath(odd) + " = 1").settings, odd));
}

}  // namespace
}  // namespace gpumux::config
