// SPDX-License-Identifier: Apache-2.0
//
// A live promise is changed through the API.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "daemon/testing/daemon_fixture.h"

namespace gpumux::daemon {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Type = ipc::SessionEvent::Type;

json Memory(uint64_t bytes) { return {{"mem", {{"bytes", bytes}}}}; }

class SetTest : public DaemonTest {
 protected:
  HttpAnswer Set(const std::string& id, const json& change) {
    return Http(daemon.api, "POST", "/v1/tenants/" + id + "/set", change.dump());
  }
};

TEST_F(SetTest, ARaiseIsPromisedAndTold) {
  RunPeer run(daemon.session, Ask(10 * kGiB));
  const std::string id = run.Granted()["tenant_id"];
  auto guard = GuardPeer::Hello(daemon.session, id);
  ASSERT_TRUE(guard.welcome);
  EXPECT_FALSE(guard.Credit(15 * kGiB).granted);
  const auto answer = Set(id, Memory(20 * kGiB));
  ASSERT_EQ(answer.status, 200) << answer.raw;
  EXPECT_EQ(answer.body["schema"], "gpumux.tenant/1");
  EXPECT_EQ(answer.body["data"]["mem_guaranteed_bytes"], 20 * kGiB);
  EXPECT_EQ(guard.limits.as<gpumux_limits_page>()->gpus[0].limit_bytes, 20 * kGiB);
  EXPECT_EQ(guard.limits.as<gpumux_limits_page>()->gpus[0].guaranteed_bytes, 20 * kGiB);
  EXPECT_EQ(Gpu()["mem_guaranteed_bytes"], 20 * kGiB);
  EXPECT_TRUE(guard.Credit(15 * kGiB).granted);
}

TEST_F(SetTest, ARaiseBeyondWhatIsThereIsRefusedWithTheSum) {
  RunPeer first(daemon.session, Ask(100 * kGiB));
  first.Granted();
  RunPeer second(daemon.session, Ask(10 * kGiB));
  const std::string id = second.Granted()["tenant_id"];
  const auto refused = Set(id, Memory(60 * kGiB));
  EXPECT_EQ(refused.status, 409);
  EXPECT_THAT(refused.raw, HasSubstr("needs 50.0 GiB more on GPU 0, 29.8 GiB can be promised"));
  EXPECT_EQ(TenantOf(id)["mem_guaranteed_bytes"], 10 * kGiB);
  EXPECT_EQ(Gpu()["mem_guaranteed_bytes"], 110 * kGiB);
}

TEST_F(SetTest, ALowerPromiseLetsTheNextOneStart) {
  RunPeer first(daemon.session, Ask(100 * kGiB));
  const std::string id = first.Granted()["tenant_id"];
  RunPeer second(daemon.session, Ask(60 * kGiB));
  second.Next(Type::kQueued);
  ASSERT_EQ(Set(id, Memory(50 * kGiB)).status, 200);
  EXPECT_EQ(second.Granted()["gpus"][0]["mem_guaranteed_bytes"], 60 * kGiB);
}

TEST_F(SetTest, ALimitBelowTheUseIsRefusedOrGetsNoMoreUntilBelow) {
  RunPeer run(daemon.session, Ask(20 * kGiB));
  const std::string id = run.Granted()["tenant_id"];
  auto guard = GuardPeer::Hello(daemon.session, id);
  ASSERT_TRUE(guard.Credit(15 * kGiB).granted);
  guard.Commit(15 * kGiB);
  guard.InForce();
  figures.Set(getpid(), 15 * kGiB);
  const auto refused = Set(id, Memory(8 * kGiB));
  EXPECT_EQ(refused.status, 409);
  EXPECT_THAT(refused.raw, HasSubstr("more than the limit of 8.0 GiB that is asked for"));
  EXPECT_EQ(TenantOf(id)["above_limit"], false);

  json change = Memory(8 * kGiB);
  change["as_it_frees"] = true;
  const auto answer = Set(id, change);
  ASSERT_EQ(answer.status, 200) << answer.raw;
  EXPECT_EQ(answer.body["data"]["above_limit"], true);
  EXPECT_THAT(answer.body["data"]["above_limit_reason"].dump(), HasSubstr("frees as it goes"));
  auto* page = guard.limits.as<gpumux_limits_page>();
  EXPECT_EQ(page->state, GPUMUX_STATE_FROZEN);
  EXPECT_EQ(page->gpus[0].limit_bytes, 8 * kGiB);
  EXPECT_EQ(guard.Credit(kMiB).reason, GPUMUX_REASON_LIMIT);

  // It frees 10 GiB: below, and as before.
  guard.Commit(-10 * kGiB);
  guard.Return(10 * kGiB);
  figures.Set(getpid(), 5 * kGiB);
  EXPECT_TRUE(WaitUntil([&] { return TenantOf(id)["above_limit"] == false; }));
  EXPECT_EQ(page->state, GPUMUX_STATE_RUNNING);
  EXPECT_TRUE(guard.Credit(kMiB).granted);
}

TEST_F(SetTest, NothingIsGivenAwayThatOthersWaitFor) {
  RunPeer first(daemon.session, Ask(60 * kGiB));
  first.Granted();
  RunPeer second(daemon.session, Ask(10 * kGiB));
  const std::string id = second.Granted()["tenant_id"];
  RunPeer third(daemon.session, Ask(100 * kGiB));
  third.Next(Type::kQueued);
  const auto refused = Set(id, Memory(20 * kGiB));
  EXPECT_EQ(refused.status, 409);
  EXPECT_THAT(refused.raw, HasSubstr("is kept for"));
}

TEST_F(SetTest, AnswersWhatItCannotDo) {
  RunPeer run(daemon.session, Ask(100 * kGiB));
  const std::string id = run.Granted()["tenant_id"];
  EXPECT_EQ(Set("t-nosuch", Memory(kGiB)).status, 404);
  EXPECT_EQ(Set(id, json::object()).status, 400);
  EXPECT_EQ(Set(id, {{"name", "other"}}).status, 400);
  EXPECT_EQ(Set(id, {{"mem", "10GiB"}}).status, 400);
  EXPECT_EQ(Set(id, {{"time_seconds", 0}}).status, 409);
  RunPeer waiting(daemon.session, Ask(100 * kGiB));
  waiting.Next(Type::kQueued);
  const std::string other = Status()["tenants"][1]["id"];
  EXPECT_EQ(Set(other, Memory(kGiB)).status, 409);
}

TEST_F(SetTest, ATimeLimitHoldsFromTheStart) {
  Child runner([&] {
    RunPeer run(daemon.session, Ask(kGiB));
    run.Granted();
    for (;;) pause();
    return 0;
  });
  ASSERT_TRUE(WaitUntil([&] { return Status()["tenants"].size() == 1; }));
  const std::string id = Status()["tenants"][0]["id"];
  ASSERT_EQ(Set(id, {{"time_seconds", 1000}}).status, 200);
  EXPECT_EQ(TenantOf(id)["time_limit_seconds"], 1000);
  // Shorter than planned, and longer than it has run.
  double seconds = 0.25;
  while (Set(id, {{"time_seconds", seconds}}).status == 409 && seconds < 60) seconds *= 2;
  EXPECT_EQ(TenantOf(id)["time_limit_seconds"], seconds);
  EXPECT_TRUE(WaitUntil([&] { return TenantOf(id)["state"] == "stopping"; }));
}

}  // namespace
}  // namespace gpumux::daemon
