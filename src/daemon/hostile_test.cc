// SPDX-License-Identifier: Apache-2.0
//
// Peers that lie, send garbage, or use up what the daemon has; other users.
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <optional>
#include <set>
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
      gpumux_frame frame{GPUMUX_SESSION_MAGIC, GPUMUX_SESSION_VERSION, static_cast<uint16_t>(next() % 16 + 1),
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
  EXPECT_FALSE(run.granted.locks.empty());
  auto* reason = new (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
      std::atomic<int>{-1};
  Child stranger = AsStranger([&] {
    const auto seen = Http(daemon->api, "GET", "/v1/tenants/" + id);
    if (seen.status != 200 || seen.body["data"]["mem_guaranteed_bytes"] != kGiB) return 1;
    const auto stop = Http(daemon->api, "POST", "/v1/tenants/" + id + "/stop");
    if (stop.status != 403 || stop.body["error"]["code"] != "denied") return 2;
    const char* change = R"({"mem":{"bytes":2147483648},"time_seconds":3600})";
    if (Http(daemon->api, "POST", "/v1/tenants/" + id + "/set", change).status != 403) return 10;
    // Its own tenant it may stop.
    RunPeer own(daemon->session, Ask(kGiB));
    const std::string own_id = own.Granted()["tenant_id"];
    if (Http(daemon->api, "GET", "/v1/tenants/" + own_id).body["data"]["command"] != "/bin/true x") return 6;
    // The GPU's socket would let it keep the name when all is over.
    if (!own.granted.locks.empty()) return 7;
    // Nor is another's lease its to come back to.
    auto resume = ipc::SessionClient::Connect(daemon->session);
    if (!resume || !resume->SendResume(nlohmann::json{{"tenant", id}, {"pid", getpid()}}.dump(), {}))
      return 8;
    const auto answer = resume->Next(std::chrono::seconds(20));
    if (!answer || !*answer || (*answer)->type != ipc::SessionEvent::Type::kRefused) return 9;
    if (Http(daemon->api, "POST", "/v1/tenants/" + own_id + "/set", change).status != 200) return 11;
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
  EXPECT_EQ(Http(daemon->api, "GET", "/v1/tenants/" + id).body["data"]["mem_guaranteed_bytes"], kGiB);
}

TEST_F(Strangers, SeeNotHowOthersWereCalled) {
  std::optional<RunPeer> over(std::in_place, daemon->session, Ask(kGiB));
  over->Granted();
  over.reset();
  RunPeer run(daemon->session, Ask(kGiB));
  run.Granted();
  RunPeer waits(daemon->session, Ask(kUsable - kGiB / 2));
  const auto all = [&] { return Http(daemon->api, "GET", "/v1/tenants?all=1").body["data"]["tenants"]; };
  std::set<std::string> states;
  ASSERT_TRUE(WaitUntil([&] {
    states.clear();
    for (const auto& tenant : all()) states.insert(tenant["state"]);
    return states == std::set<std::string>{"ended", "starting", "waiting"};
  })) << all();
  for (const auto& tenant : all()) EXPECT_EQ(tenant["command"], "/bin/true x");
  EXPECT_EQ(AsStranger([&] {
              int looked = 0;
              for (const char* path : {"/v1/status", "/v1/tenants", "/v1/tenants?all=1"}) {
                const auto list = Http(daemon->api, "GET", path).body["data"]["tenants"];
                for (const auto& tenant : list) {
                  const std::string id = tenant["id"];
                  const auto alone = Http(daemon->api, "GET", "/v1/tenants/" + id).body["data"];
                  for (const auto& each : {tenant, alone}) {
                    const bool hidden =
                        each["command"] == "true" && each["cwd"].is_null() && each["labels"].is_null();
                    if (!hidden || each["name"] != "test") return 1;
                    ++looked;
                  }
                }
              }
              return looked == 14 ? 0 : 2;
            }).Wait(),
            0);
}

TEST_F(Strangers, ComeInByTheSocketsGroup) {
  constexpr gid_t kGroup = 23010;
  daemon = std::make_unique<DaemonProcess>(
      figures, DaemonProcess::Settings{.for_everyone = true, .socket_group = kGroup});
  const auto as_member_of = [&](gid_t group) {
    return Child([&] {
      if (setgroups(1, &group) != 0 || setgid(kStranger) != 0 || setuid(kStranger) != 0) return 98;
      const auto session = ipc::ConnectUnix(daemon->session, SOCK_SEQPACKET);
      const auto api = ipc::ConnectUnix(daemon->api, SOCK_STREAM);
      if (session.has_value() != api.has_value()) return 97;
      if (session) return 0;
      return session.error().code == Code::kDenied && api.error().code == Code::kDenied ? 1 : 96;
    });
  };
  EXPECT_EQ(as_member_of(kGroup).Wait(), 0);
  EXPECT_EQ(as_member_of(kGroup + 1).Wait(), 1);
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

// A number that processes share.
std::atomic<int>& Shared() {
  return *new (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
      std::atomic<int>{0};
}

TEST_F(Strangers, WaitTheirTurnHoweverMuchTheySend) {
  constexpr int kSessions = 24, kAsks = 32;
  std::atomic<int>&ready = Shared(), &sent = Shared(), &done = Shared(), &phase = Shared();
  Child crowd = AsStranger([&] {
    RunPeer run(daemon->session, Ask(std::nullopt));
    const std::string id = run.Granted()["tenant_id"];
    std::vector<Child> processes;
    for (int i = 0; i < kSessions; ++i) {
      processes.emplace_back([&] {
        GuardPeer guard = GuardPeer::Hello(daemon->session, id);
        ++ready;
        WaitUntil([&] { return phase >= 1; });
        const gpumux_credit_request request{0, 0, kMiB};
        for (int k = 0; k < kAsks; ++k)
          guard.Send(GPUMUX_CREDIT_REQUEST, std::as_bytes(std::span(&request, 1)));
        ++sent;
        for (int k = 0; k < kAsks; ++k) guard.Receive();
        ++done;
        for (;;) pause();
        return 0;
      });
    }
    for (;;) pause();
    return 0;
  });
  RunPeer run(daemon->session, Ask(std::nullopt));
  GuardPeer honest = GuardPeer::Hello(daemon->session, run.Granted()["tenant_id"]);
  ASSERT_TRUE(WaitUntil([&] { return ready == kSessions; }));
  const uint64_t before = honest.Info().free_bytes;

  // All of their questions are there before ours, and the last of all is ours.
  daemon->process->Kill(SIGSTOP);
  phase = 1;
  ASSERT_TRUE(WaitUntil([&] { return sent == kSessions; }));
  const gpumux_memory_info_request request{0, 0};
  honest.Send(GPUMUX_MEMORY_INFO_REQUEST, std::as_bytes(std::span(&request, 1)));
  daemon->process->Kill(SIGCONT);
  const auto packet = honest.Receive();
  ASSERT_TRUE(packet);
  const auto then = ipc::PayloadAs<gpumux_memory_info>(*ipc::DecodeFrame(*packet)).free_bytes;
  ASSERT_TRUE(WaitUntil([&] { return done == kSessions; }));
  const uint64_t after = honest.Info().free_bytes;

  // What was free when we were answered says how much of theirs came first.
  ASSERT_GE(before - after, kSessions * kAsks * kMiB);
  EXPECT_LE(before - then, (before - after) / 8);
}

uint64_t ResidentBytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

TEST_F(Strangers, CannotMakeTheDaemonGrow) {
  RunPeer run(daemon->session, Ask(kGiB));
  GuardPeer honest = GuardPeer::Hello(daemon->session, run.Granted()["tenant_id"]);
  ASSERT_TRUE(honest.Credit(kMiB).granted);
  const uint64_t before = ResidentBytes(daemon->process->pid());
  std::atomic<int>& ready = Shared();
  std::vector<Child> crowd;
  for (int i = 0; i < 4; ++i) {
    crowd.push_back(AsStranger([&] {
      std::vector<UniqueFd> open;
      std::vector<std::byte> garbage(60000, std::byte{'x'});
      for (int k = 0; k < 60; ++k) {
        // Answers that nobody reads, a body that is far too large, half a request, garbage and silence.
        if (auto fd = ipc::ConnectUnix(daemon->api, SOCK_STREAM)) {
          const std::string get = "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n";
          for (int n = 0; n < 200; ++n)
            (void)send(fd->get(), get.data(), get.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
          open.push_back(std::move(*fd));
        }
        if (auto fd = ipc::ConnectUnix(daemon->api, SOCK_STREAM)) {
          const std::string post = "POST /v1/tenants/x/stop HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n";
          (void)send(fd->get(), post.data(), post.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
          for (int n = 0; n < 20; ++n)
            (void)send(fd->get(), garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
          open.push_back(std::move(*fd));
        }
        if (auto fd = ipc::ConnectUnix(daemon->session, SOCK_SEQPACKET)) {
          if (k % 2) (void)send(fd->get(), garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
          open.push_back(std::move(*fd));
        }
      }
      ++ready;
      for (;;) pause();
      return 0;
    }));
  }
  ASSERT_TRUE(WaitUntil([&] { return ready == 4; }));
  // Ours go through meanwhile, each of them.
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(honest.Credit(kMiB).granted) << i;
  EXPECT_EQ(Http(daemon->api, "GET", "/v1/status").status, 200);
  EXPECT_LE(ResidentBytes(daemon->process->pid()), before + 48 * kMiB);
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
