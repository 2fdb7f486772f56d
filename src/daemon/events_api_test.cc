// SPDX-License-Identifier: Apache-2.0
//
// What happens, as the API tells it, now and to those who wait for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "daemon/testing/daemon_fixture.h"

namespace gpumux::daemon {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using Type = ipc::SessionEvent::Type;

class EventsApiTest : public DaemonTest {
 protected:
  json Events(const std::string& query = "") {
    const auto answer = Http(daemon.api, "GET", "/v1/events?" + query);
    EXPECT_EQ(answer.status, 200) << answer.raw;
    return answer.body["data"];
  }
  static std::vector<std::string> Kinds(const json& data) {
    std::vector<std::string> kinds;
    for (const json& event : data["events"]) kinds.push_back(event["kind"]);
    return kinds;
  }
};

TEST_F(EventsApiTest, TellsTheLifeOfATenant) {
  RunPeer run(daemon.session, Ask(40 * kGiB));
  const std::string id = run.Granted()["tenant_id"];
  RunPeer waits(daemon.session, Ask(130 * kGiB));
  waits.Next(Type::kQueued);
  waits.client = ipc::SessionClient::Connect(daemon.session).value();
  ASSERT_TRUE(run.client.SendEnded(R"({"exit_code":3})"));
  run.Next(Type::kSummary);
  ASSERT_TRUE(WaitUntil([&] { return Kinds(Events("tenant=" + id)).size() == 2; }));
  const json data = Events("tenant=" + id);
  EXPECT_THAT(Kinds(data), ElementsAre("granted", "ended"));
  EXPECT_EQ(data["events"][0]["user_uid"], getuid());
  EXPECT_EQ(data["events"][0]["tenant_name"], "test");
  EXPECT_THAT(std::string(data["events"][0]["text"]), HasSubstr("40.0 GiB guaranteed"));
  EXPECT_EQ(data["events"][0]["gpus"][0], Gpu()["uuid"]);
  // Everything, in order, by number and by GPU.
  const json all = Events();
  EXPECT_THAT(Kinds(all), ElementsAre("gpu-owned", "daemon-started", "granted", "cancelled", "ended"));
  uint64_t last = 0;
  for (const json& event : all["events"]) {
    EXPECT_GT(event["id"], last);
    last = event["id"];
  }
  EXPECT_EQ(all["last_id"], last);
  EXPECT_EQ(all["next_after"], last);
  EXPECT_EQ(Events("after=" + std::to_string(last))["events"].size(), 0u);
  EXPECT_EQ(Kinds(Events("after=" + std::to_string(last - 1))).size(), 1u);
  EXPECT_THAT(Kinds(Events("gpu=0")), ElementsAre("gpu-owned", "granted", "ended"));
  EXPECT_EQ(Events("since_seconds=0")["events"].size(), 0u);
  EXPECT_EQ(Events("since_seconds=3600")["events"].size(), 5u);
  // The same, a line each, for whoever looks after the machine.
  std::vector<std::string> lines;
  ASSERT_TRUE(WaitUntil([&] {
    lines.clear();
    std::ifstream audit(daemon.dir + "/audit.log");
    for (std::string line; std::getline(audit, line);) lines.push_back(line);
    return lines.size() >= 5;
  }));
  ASSERT_EQ(lines.size(), 5u);
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(json::parse(lines[i]), all["events"][i]);
}

TEST_F(EventsApiTest, WhoeverStopsATenantIsNamed) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  ASSERT_EQ(Http(daemon.api, "POST", "/v1/tenants/" + id + "/stop").status, 200);
  const json events = Events("tenant=" + id)["events"];
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1]["kind"], "stopping");
  EXPECT_EQ(events[1]["user_uid"], getuid());
}

TEST_F(EventsApiTest, AnswersWhoWaitsWhenItHappens) {
  const std::string after = std::to_string(Events()["last_id"].get<uint64_t>());
  std::atomic<bool> answered{false};
  HttpAnswer answer;
  std::thread follower([&] {
    answer = Http(daemon.api, "GET", "/v1/events?wait_seconds=60&tenant=other&after=" + after);
    answered = true;
  });
  // What is not asked for does not end the waiting.
  RunPeer run(daemon.session, Ask(kGiB));
  run.Granted();
  EXPECT_FALSE(answered);
  json ask = Ask(kGiB);
  ask["name"] = "other";
  RunPeer other(daemon.session, ask);
  other.Granted();
  follower.join();
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(Kinds(answer.body["data"]), ElementsAre("granted"));
  EXPECT_EQ(answer.body["data"]["events"][0]["tenant_name"], "other");
  // Nothing happens: an empty answer when the time is over.
  const std::string now = std::to_string(Events()["last_id"].get<uint64_t>());
  EXPECT_EQ(Events("wait_seconds=1&after=" + now)["events"].size(), 0u);
}

TEST_F(EventsApiTest, RefusesAQueryThatIsWrong) {
  const auto status = [&](const std::string& query) {
    return Http(daemon.api, "GET", "/v1/events?" + query).status;
  };
  EXPECT_EQ(status("after=x"), 400);
  EXPECT_EQ(status("after=18446744073709551616"), 400);
  EXPECT_EQ(status("after=-1"), 400);
  EXPECT_EQ(status("since_seconds="), 400);
  EXPECT_EQ(status("tenant=%22"), 400);
  EXPECT_EQ(status("what=1"), 400);
  EXPECT_EQ(status("&&&"), 400);
  EXPECT_EQ(status("gpu=7"), 404);
  EXPECT_EQ(status("gpu=GPU-"), 404);
  // Numbers of another daemon's, whose log is lost: all that is known.
  EXPECT_EQ(Events("after=18446744073709551615")["events"].size(), 2u);
}

TEST_F(EventsApiTest, AStrangerMayWaitForSoManyEventsOnly) {
  if (getuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  FakeFigures& own_figures = *FakeFigures::Create();
  DaemonProcess everyones(own_figures, DaemonProcess::Settings{.for_everyone = true});
  Child stranger([&] {
    if (setuid(23003) != 0) return 98;
    std::vector<UniqueFd> open;
    for (size_t i = 0; i < 8; ++i) {
      auto fd = ipc::ConnectUnix(everyones.api, SOCK_STREAM);
      if (!fd) return 1;
      const std::string get = "GET /v1/events?wait_seconds=60&tenant=nobody HTTP/1.1\r\nHost: x\r\n\r\n";
      (void)send(fd->get(), get.data(), get.size(), MSG_NOSIGNAL);
      open.push_back(std::move(*fd));
    }
    // The last to wait is refused, and still may ask without waiting.
    const auto refused = [&] {
      return Http(everyones.api, "GET", "/v1/events?wait_seconds=1&tenant=nobody").status == 403;
    };
    if (!WaitUntil(refused)) return 2;
    return Http(everyones.api, "GET", "/v1/events").status == 200 ? 0 : 3;
  });
  EXPECT_EQ(stranger.Wait(), 0);
}

}  // namespace
}  // namespace gpumux::daemon
