// SPDX-License-Identifier: Apache-2.0
//
// What a request gets: its share, a place in the queue, or a refusal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/testing/daemon_fixture.h"

namespace gpumux::daemon {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Type = ipc::SessionEvent::Type;

TEST_F(DaemonTest, QueuesWhatDoesNotFitAndStartsItWhenItDoes) {
  RunPeer first(daemon.session, Ask(100 * kGiB));
  const std::string first_id = first.Granted()["tenant_id"];
  RunPeer second(daemon.session, Ask(100 * kGiB));
  const json queued = json::parse(second.Next(Type::kQueued).json);
  EXPECT_EQ(queued["position"], 1);
  EXPECT_THAT(queued["reason"],
              HasSubstr("needs 100.0 GiB, 39.8 GiB can be promised (100.0 of 139.8 GiB guaranteed"));
  EXPECT_EQ(queued["holders"][0]["id"], first_id);
  RunPeer third(daemon.session, Ask(std::nullopt));
  EXPECT_EQ(json::parse(third.Next(Type::kQueued).json)["position"], 2);
  const json status = Status();
  EXPECT_EQ(status["tenants"][1]["state"], "waiting");
  EXPECT_EQ(status["tenants"][1]["waiting"]["position"], 1);
  EXPECT_EQ(status["tenants"][2]["waiting"]["position"], 2);

  first = RunPeer(daemon.session, Ask(200 * kGiB));  // the old connection is closed: its lease ends
  EXPECT_EQ(second.Granted()["gpus"][0]["mem_guaranteed_bytes"], 100 * kGiB);
  EXPECT_EQ(third.Granted()["gpus"][0]["mem_limit_bytes"], nullptr);
  const auto refused = first.Next(Type::kGranted);
  EXPECT_EQ(refused.type, Type::kRefused);
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.refusal, HasSubstr("can never promise more than 139.8 GiB"));
}

TEST_F(DaemonTest, RefusesAtOnceWhoDoesNotWait) {
  RunPeer first(daemon.session, Ask(100 * kGiB));
  first.Granted();
  json request = Ask(100 * kGiB);
  request["wait"] = false;
  RunPeer second(daemon.session, request);
  const auto refused = second.Next(Type::kGranted);
  EXPECT_EQ(refused.type, Type::kRefused);
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.refusal, HasSubstr("wait with --wait or ask for less"));
}

TEST_F(DaemonTest, GivesUpWaitingWhenAsked) {
  RunPeer first(daemon.session, Ask(100 * kGiB));
  first.Granted();
  json request = Ask(100 * kGiB);
  request["wait_seconds"] = 0.05;
  RunPeer second(daemon.session, request);
  const auto refused = second.Next(Type::kGranted);
  EXPECT_EQ(refused.type, Type::kRefused);
  EXPECT_EQ(refused.exit_code, 5);
}

TEST_F(DaemonTest, ForgetsARequestThatHangsUp) {
  RunPeer first(daemon.session, Ask(100 * kGiB));
  first.Granted();
  auto second = std::make_unique<RunPeer>(daemon.session, Ask(120 * kGiB));
  second->Next(Type::kQueued);
  RunPeer third(daemon.session, Ask(20 * kGiB));
  third.Next(Type::kQueued);
  second.reset();
  third.Granted();
}

TEST_F(DaemonTest, GivesExclusiveTenantsAllThatCanBePromised) {
  json request = Ask(std::nullopt);
  request["mode"] = "exclusive";
  RunPeer run(daemon.session, request);
  EXPECT_EQ(run.Granted()["gpus"][0]["mem_guaranteed_bytes"], kUsable);
  RunPeer other(daemon.session, Ask(std::nullopt));
  EXPECT_THAT(std::string(json::parse(other.Next(Type::kQueued).json)["reason"]),
              HasSubstr("is in mode exclusive"));
  EXPECT_EQ(Gpu()["mode"], "exclusive");
}

TEST_F(DaemonTest, RefusesRequestsThatAreWrong) {
  for (const char* text :
       {"[]", "nonsense", "{\"command\":[]}", "{\"command\":[\"x\"],\"mem\":{\"bytes\":-1}}"}) {
    auto client = ipc::SessionClient::Connect(daemon.session).value();
    ASSERT_TRUE(client.SendRequest(text));
    const auto event = client.Next(std::chrono::seconds(20));
    ASSERT_TRUE(event && *event);
    EXPECT_EQ((*event)->type, Type::kRefused);
    EXPECT_EQ((*event)->exit_code, 2) << text;
  }
}

}  // namespace
}  // namespace gpumux::daemon
