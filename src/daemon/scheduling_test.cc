// SPDX-License-Identifier: Apache-2.0
//
// Who goes first: quotas, time limits, placement, as the daemon applies them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/testing/daemon_fixture.h"
#include "daemon/user_name.h"

namespace gpumux::daemon {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Type = ipc::SessionEvent::Type;

json Limited(uint64_t bytes, double seconds) {
  json request = Ask(bytes);
  request["time_seconds"] = seconds;
  return request;
}

core::Policy QuotaOf(core::Quota quota) {
  core::Policy policy;
  policy.users[UserName(getuid())].quota = quota;
  return policy;
}

class SchedulingTest : public testing::Test {
 protected:
  void Start(core::Policy policy, unsigned gpus = 1) {
    daemon = std::make_unique<DaemonProcess>(
        figures, DaemonProcess::Settings{.gpus = gpus, .policy = std::move(policy)});
  }
  FakeFigures& figures = *FakeFigures::Create();
  std::unique_ptr<DaemonProcess> daemon;
};

TEST_F(SchedulingTest, RefusesForGoodWhatNoQuotaAllows) {
  Start(QuotaOf({.guaranteed_bytes = 80 * kGiB, .tenants = {}, .gpus = {}}));
  RunPeer run(daemon->session, Ask(100 * kGiB));
  const auto refused = run.Next(Type::kGranted);
  EXPECT_EQ(refused.type, Type::kRefused);
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.refusal, HasSubstr("needs 100.0 GiB guaranteed, the quota of user " +
                                         UserName(getuid()) + " is 80.0 GiB"));
  EXPECT_THAT(refused.refusal, HasSubstr("ask for less"));
}

TEST_F(SchedulingTest, WhoWaitsForItsOwnQuotaBlocksNobody) {
  Start(QuotaOf({.guaranteed_bytes = 80 * kGiB, .tenants = {}, .gpus = {}}));
  RunPeer first(daemon->session, Ask(60 * kGiB));
  first.Granted();
  RunPeer second(daemon->session, Ask(40 * kGiB));
  const json queued = json::parse(second.Next(Type::kQueued).json);
  EXPECT_THAT(queued["reason"], HasSubstr("its quota is in use: needs 40.0 GiB, user"));
  EXPECT_THAT(queued["reason"], HasSubstr("has 60.0 GiB of 80.0 GiB guaranteed"));
  EXPECT_EQ(queued["estimated_start_at"], nullptr);
  RunPeer third(daemon->session, Ask(20 * kGiB));
  EXPECT_EQ(third.Granted()["gpus"][0]["mem_guaranteed_bytes"], 20 * kGiB);
  ASSERT_TRUE(first.client.SendEnded(json{{"exit_code", 0}, {"signal", nullptr}}.dump()));
  EXPECT_EQ(second.Granted()["gpus"][0]["mem_guaranteed_bytes"], 40 * kGiB);
}

TEST_F(SchedulingTest, AGroupsQuotaIsOfAllItsMembers) {
  const Account account = AccountOf(getuid());
  ASSERT_FALSE(account.groups.empty());
  core::Policy policy;
  policy.groups[account.groups[0]].quota.tenants = 1;
  Start(policy);
  RunPeer first(daemon->session, Ask(kGiB));
  first.Granted();
  RunPeer second(daemon->session, Ask(kGiB));
  EXPECT_THAT(json::parse(second.Next(Type::kQueued).json)["reason"],
              HasSubstr("group " + account.groups[0] + " has 1 of 1 tenants"));
}

TEST_F(SchedulingTest, StartsInFrontOfOthersOnlyWhatEndsInTime) {
  Start({});
  RunPeer first(daemon->session, Limited(100 * kGiB, 600));
  first.Granted();
  RunPeer head(daemon->session, Ask(120 * kGiB));
  const json queued = json::parse(head.Next(Type::kQueued).json);
  EXPECT_THAT(queued["estimated_start_at"].dump(), testing::MatchesRegex(R"("20..-..-..T..:..:..Z")"));
  RunPeer unlimited(daemon->session, Ask(10 * kGiB));
  EXPECT_THAT(json::parse(unlimited.Next(Type::kQueued).json)["reason"],
              HasSubstr("kept for a request ahead"));
  RunPeer long_one(daemon->session, Limited(10 * kGiB, 601));
  EXPECT_EQ(json::parse(long_one.Next(Type::kQueued).json)["position"], 3);
  RunPeer short_one(daemon->session, Limited(10 * kGiB, 300));
  EXPECT_EQ(short_one.Granted()["gpus"][0]["mem_guaranteed_bytes"], 10 * kGiB);
  const json tenants = Http(daemon->api, "GET", "/v1/status").body["data"]["tenants"];
  EXPECT_EQ(tenants[1]["time_limit_seconds"], 300);
  EXPECT_EQ(tenants[2]["waiting"]["position"], 1);
  EXPECT_EQ(tenants[2]["time_limit_seconds"], nullptr);
}

TEST_F(SchedulingTest, CountsOnTheEndOfWhoIsBeingStopped) {
  Start({});
  RunPeer first(daemon->session, Ask(100 * kGiB));
  const std::string stop = "/v1/tenants/" + first.Granted()["tenant_id"].get<std::string>() + "/stop";
  RunPeer head(daemon->session, Ask(120 * kGiB));
  EXPECT_EQ(json::parse(head.Next(Type::kQueued).json)["estimated_start_at"], nullptr);
  ASSERT_EQ(Http(daemon->api, "POST", stop, R"({"grace_seconds":1000})").status, 200);
  const json told = json::parse(head.Next(Type::kQueued).json)["estimated_start_at"];
  EXPECT_THAT(told.dump(), testing::MatchesRegex(R"("20..-..-..T..:..:..Z")"));
  // It is there to be counted on: no other stop puts it off, one may bring it forward.
  ASSERT_EQ(Http(daemon->api, "POST", stop, R"({"grace_seconds":3000})").status, 200);
  ASSERT_EQ(Http(daemon->api, "POST", stop, R"({"grace_seconds":500})").status, 200);
  const json sooner = json::parse(head.Next(Type::kQueued).json)["estimated_start_at"];
  EXPECT_LT(sooner.get<std::string>(), told.get<std::string>());
  // What would end later may not start in front.
  RunPeer behind(daemon->session, Limited(10 * kGiB, 600));
  EXPECT_EQ(json::parse(behind.Next(Type::kQueued).json)["position"], 2);
}

TEST_F(SchedulingTest, PlacesAsThePolicySaysAndARequestOtherwise) {
  core::Policy policy;
  policy.fill = core::Fill::kSpread;
  Start(policy, 2);
  RunPeer first(daemon->session, Ask(10 * kGiB));
  const std::string gpu = first.Granted()["gpus"][0]["uuid"];
  RunPeer second(daemon->session, Ask(10 * kGiB));
  EXPECT_NE(second.Granted()["gpus"][0]["uuid"], gpu);
  json packed = Ask(20 * kGiB);
  packed["place"] = "pack";
  RunPeer third(daemon->session, packed);
  const std::string full = third.Granted()["gpus"][0]["uuid"];
  RunPeer fourth(daemon->session, packed);
  EXPECT_EQ(fourth.Granted()["gpus"][0]["uuid"], full);
}

}  // namespace
}  // namespace gpumux::daemon
