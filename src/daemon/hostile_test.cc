// SPDX-License-Identifier: Apache-2.0
//
// Peers that lie, send garbage, or use up what the daemon has; other users.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <vector>

#include "daemon/testing/daemon_fixture.h"

namespace gpumux::daemon {
namespace {

TEST_F(DaemonTest, BelievesNoPageThatLies) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  RunPeer neighbour(daemon.session, Ask(10 * kGiB));
  neighbour.Granted();
  GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  ASSERT_TRUE(guard.Credit(100 * kMiB).granted);
  for (const int64_t lie : {INT64_MAX, INT64_MIN, int64_t{-1}, int64_t{1} << 50}) {
    guard.gpu().credit_free_bytes = lie;
    guard.gpu().committed_bytes = static_cast<uint64_t>(lie);
    guard.gpu().contexts = guard.gpu().peak_bytes = static_cast<uint64_t>(lie);
    EXPECT_EQ(guard.Credit(kGiB + 1).granted, 0u);
    EXPECT_LE(TenantOf(id)["mem_used_bytes"], kGiB);
    EXPECT_EQ(Gpu()["mem_promisable_bytes"], kUsable - 11 * kGiB);
    EXPECT_EQ(Gpu()["mem_guaranteed_bytes"], 11 * kGiB);
  }
}

TEST_F(DaemonTest, HangsUpOnGarbageAndGoesOn) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  const auto ends_it = [&](std::span<const std::byte> packet, bool after_hello) {
    GuardPeer guard;
    if (after_hello)
      guard = GuardPeer::Hello(daemon.session, id);
    else
      guard.socket = ipc::SeqpacketSocket::Connect(daemon.session).value();
    if (!guard.socket.Send(packet)) return true;
    while (guard.Receive()) {
    }
    return true;
  };
  uint64_t random = 12345;
  const auto next = [&random] {
    return random = random * 6364136223846793005u + 1442695040888963407u, random >> 33;
  };
  for (int i = 0; i < 300; ++i) {
    std::vector<std::byte> packet(next() % 200 + 1);
    for (auto& byte : packet) byte = static_cast<std::byte>(next());
    if (i % 3 == 0 && packet.size() >= sizeof(gpumux_frame)) {
      gpumux_frame frame{GPUMUX_SESSION_MAGIC, GPUMUX_SESSION_VERSION, static_cast<uint16_t>(next() % 12 + 1),
                         static_cast<uint32_t>(packet.size() - sizeof(gpumux_frame)), 1};
      if (frame.type == GPUMUX_GUARD_HELLO) frame.type = GPUMUX_GUARD_WELCOME;
      std::memcpy(packet.data(), &frame, sizeof frame);
    }
    EXPECT_TRUE(ends_it(packet, i % 2));
  }
  const gpumux_credit_request far{99, 0, 1};
  EXPECT_TRUE(ends_it(ipc::EncodeStruct(GPUMUX_CREDIT_REQUEST, 1, far), true));
  EXPECT_TRUE(ends_it(ipc::EncodeStruct(GPUMUX_CREDIT_REQUEST, 1, gpumux_credit_request{0, 0, 1}), false));
  EXPECT_TRUE(ends_it(*ipc::EncodeText(GPUMUX_RUN_REQUEST, 1, "{}"), true));
  EXPECT_TRUE(ends_it(*ipc::EncodeText(GPUMUX_RUN_STARTED, 1, "{\"pid\":1}"), false));
  EXPECT_EQ(TenantOf(id)["state"], "starting");
}

// A daemon for everyone, and another user who does what that allows.
class Strangers : public testing::Test {
 protected:
  static constexpr uid_t kStranger = 23003;
  void SetUp() override {
    if (getuid() != 0) GTEST_SKIP() << "needs root, to become another user";
    daemon = std::make_unique<DaemonProcess>(
        figures, DaemonProcess::Settings{.for_everyone = true, .most_descriptors = 1024});
  }
  Child AsStranger(const std::function<int()>& body) {
    return Child([&] { return setuid(kStranger) == 0 ? body() : 98; });
  }
  FakeFigures& figures = *FakeFigures::Create();
  std::unique_ptr<DaemonProcess> daemon;
};

TEST_F(Strangers, MayLookButNotTouch) {
  RunPeer run(daemon->session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  auto* reason = new (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
      std::atomic<int>{-1};
  Child stranger = AsStranger([&] {
    if (Http(daemon->api, "GET", "/v1/tenants/" + id).status != 200) return 1;
    const auto stop = Http(daemon->api, "POST", "/v1/tenants/" + id + "/stop");
    if (stop.status != 403 || stop.body["error"]["code"] != "denied") return 2;
    // Its own tenant it may stop.
    RunPeer own(daemon->session, Ask(kGiB));
    const std::string own_id = own.Granted()["tenant_id"];
    if (Http(daemon->api, "POST", "/v1/tenants/" + own_id + "/stop").status != 200) return 3;
    // Who is below nobody, and names a tenant that is not its user's, belongs to none.
    const pid_t middle = fork();
    if (middle == 0) {
      const pid_t parent = getpid();
      if (fork() != 0) _exit(0);
      if (!WaitUntil([&] { return getppid() != parent; })) _exit(1);
      *reason = static_cast<int>(GuardPeer::Hello(daemon->session, id).refused.reason);
      _exit(0);
    }
    waitpid(middle, nullptr, 0);
    return 0;
  });
  EXPECT_EQ(stranger.Wait(), 0);
  ASSERT_TRUE(WaitUntil([&] { return *reason >= 0; }));
  EXPECT_EQ(*reason, GPUMUX_REASON_NOT_A_TENANT);
  EXPECT_EQ(Http(daemon->api, "GET", "/v1/tenants/" + id).body["data"]["members"].size(), 0u);
  EXPECT_EQ(Http(daemon->api, "GET", "/v1/tenants/" + id).body["data"]["state"], "starting");
}

TEST_F(Strangers, CannotKeepOthersOut) {
  auto* ready = new (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
      std::atomic<int>{0};
  std::vector<Child> crowd;
  for (int i = 0; i < 20; ++i) {
    crowd.push_back(AsStranger([&] {
      std::vector<UniqueFd> open;
      // Waiting requests, silent sessions, and half a request each to the API.
      std::vector<std::unique_ptr<RunPeer>> waiting;
      for (int k = 0; k < 20; ++k) {
        if (auto fd = ipc::ConnectUnix(daemon->api, SOCK_STREAM)) {
          (void)send(fd->get(), "GET /v1/st", 10, MSG_NOSIGNAL);
          open.push_back(std::move(*fd));
        }
        if (auto client = ipc::SessionClient::Connect(daemon->session)) {
          if (k % 2 == 0) (void)client->SendRequest(Ask(1000 * kGiB).dump());
          open.emplace_back(dup(client->fd()));
        }
      }
      ++*ready;
      for (;;) pause();
      return 0;
    }));
  }
  ASSERT_TRUE(WaitUntil([&] { return *ready == 20; }));
  RunPeer run(daemon->session, Ask(kGiB));
  run.Granted();
  EXPECT_EQ(Http(daemon->api, "GET", "/v1/status").status, 200);
}

TEST_F(Strangers, WithoutDescriptorsTheDaemonWaitsQuietly) {
  daemon = std::make_unique<DaemonProcess>(figures, DaemonProcess::Settings{.most_descriptors = 64});
  std::vector<Child> crowd;
  for (int i = 0; i < 4; ++i) {
    crowd.emplace_back([&] {
      std::vector<UniqueFd> open;
      for (int k = 0; k < 32; ++k) {
        if (auto fd = ipc::ConnectUnix(daemon->session, SOCK_SEQPACKET)) open.push_back(std::move(*fd));
      }
      for (;;) pause();
      return 0;
    });
  }
  const std::string log = daemon->dir + "/gpumuxd.log";
  const auto lines = [&] {
    std::ifstream file(log);
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  };
  const auto before = lines();
  ASSERT_TRUE(WaitUntil([&] { return lines() > before; }));  // it ran out
  // Two more sessions' worth of lines at five a second, not a line a turn of the loop.
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(WaitUntil([&] { return std::chrono::steady_clock::now() - start > std::chrono::seconds(1); }));
  EXPECT_LT(lines() - before, 20);
  crowd.clear();
  RunPeer run(daemon->session, Ask(kGiB));
  run.Granted();
}

}  // namespace
}  // namespace gpumux::daemon
