// SPDX-License-Identifier: Apache-2.0
//
// Peers that send what is nearly right, in any order, over the daemon's real
// sockets, and pages whose words mean nothing. The daemon lives, and a tenant
// beside them notices nothing. The same bytes in every run.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

#include "base/units.h"
#include "daemon/testing/peers.h"
#include "mutation.h"

namespace gpumux::daemon {
namespace {

using nlohmann::json;
using test::Mutation;

constexpr uint64_t kContext = 543162368;  // NVML's figure of a context on an H200

class HostilePeers : public testing::Test {
 protected:
  HostilePeers()
      : figures(*FakeFigures::Create()), daemon(figures), neighbour(daemon.session, Ask(10 * kGiB)) {
    id = neighbour.Granted()["tenant_id"];
    promisable = Gpu()["mem_promisable_bytes"];
  }
  json Gpu() { return Http(daemon.api, "GET", "/v1/status").body["data"]["gpus"][0]; }

  // The daemon answers, and keeps what it promised.
  void ExpectUnharmed() {
    EXPECT_TRUE(WaitUntil([&] {
      const json gpu = Gpu();
      return gpu.is_object() && gpu["mem_promisable_bytes"] == promisable &&
             gpu["mem_guaranteed_bytes"] == 10 * kGiB;
    })) << Gpu().dump();
    EXPECT_EQ(Http(daemon.api, "GET", "/v1/tenants/" + id).body["data"]["state"], "starting");
  }

  // A guard whose pages say anything, and that comes back now as the same
  // program, now as another. 0: nobody else lost anything.
  int Lie(const std::string& own) {
    std::mt19937_64 random(11);
    const uint64_t values[] = {0, 1, kMiB, kGiB, 2 * kGiB, 1ull << 40, 1ull << 62, 1ull << 63, UINT64_MAX};
    const auto any = [&] { return values[random() % std::size(values)]; };
    figures.Set(getpid(), kContext);
    for (int round = 0; round < 120; ++round) {
      GuardPeer guard = GuardPeer::Hello(daemon.session, own, random() % 2);
      // One in the middle of a change is asked to come again; as another program it may come.
      if (!guard.welcome && guard.refused.reason == GPUMUX_REASON_INTERNAL)
        guard = GuardPeer::Hello(daemon.session, own);
      if (!guard.welcome) return 10;
      for (int i = 0; i < 25; ++i) {
        // Any word of the whole page, the head of it too.
        auto* words = reinterpret_cast<uint64_t*>(guard.process.as<gpumux_process_page>());
        for (int n = 0; n < 8; ++n)
          words[random() % (sizeof(gpumux_process_page) / sizeof(uint64_t))] = any();
        guard.tenant.as<gpumux_tenant_page>()->orphan_taken_bytes[random() % GPUMUX_MAX_GPUS] = any();
        switch (random() % 4) {
          case 0:
            if (guard.Credit(2 * kGiB + 1 + any() / 2).granted) return 11;
            break;
          case 1:
            (void)guard.Info();
            break;
          case 2:
            guard.Notice(static_cast<uint32_t>(any()));
            break;
          default:
            (void)guard.Credit(any() % (64 * kMiB));
        }
      }
      // So that the next hello is believed, now and then.
      for (gpumux_process_gpu& gpu : guard.process.as<gpumux_process_page>()->gpus)
        gpu.transfers_ended = gpu.transfers_begun;
      // Its own limit it may break, on paper; not what others were or can be
      // promised, but for what NVML shows of it.
      const json gpu = Gpu();
      if (gpu["mem_guaranteed_bytes"] != 12 * kGiB) return 12;
      if (gpu["mem_promisable_bytes"].get<uint64_t>() + 4 * kGiB < promisable.get<uint64_t>()) return 13;
    }
    return 0;
  }

  static std::string Frame(gpumux_message type, const std::string& payload) {
    const auto packet = *ipc::EncodeFrame(type, 1, std::as_bytes(std::span(payload.data(), payload.size())));
    return {reinterpret_cast<const char*>(packet.data()), packet.size()};
  }
  template <typename T>
  static std::string Frame(gpumux_message type, const T& payload) {
    return Frame(type, std::string(reinterpret_cast<const char*>(&payload), sizeof payload));
  }

  FakeFigures& figures;
  DaemonProcess daemon;
  RunPeer neighbour;
  std::string id;
  json promisable;
};

TEST_F(HostilePeers, OnTheSessionSocketHarmNobody) {
  gpumux_guard_hello hello{};
  hello.pages_version = GPUMUX_PAGES_VERSION;
  // Never more than there is room for: what is granted ends with its session.
  json ask = Ask(kGiB);
  ask["wait"] = false;
  Mutation mutation(20261129, {
                                  Frame(GPUMUX_GUARD_HELLO, hello),
                                  Frame(GPUMUX_CREDIT_REQUEST, gpumux_credit_request{0, 0, kMiB}),
                                  Frame(GPUMUX_MEMORY_INFO_REQUEST, gpumux_memory_info_request{0, 0}),
                                  Frame(GPUMUX_CONTEXT_REQUEST, gpumux_context_request{0, 0}),
                                  Frame(GPUMUX_CONTEXT_NOTICE, gpumux_context_notice{0, 1}),
                                  Frame(GPUMUX_RUN_REQUEST, ask.dump()),
                                  Frame(GPUMUX_RUN_STARTED, std::string("{\"pid\":1}")),
                                  Frame(GPUMUX_RUN_ENDED, std::string("{\"exit_code\":0,\"signal\":null}")),
                              });
  std::mt19937_64 random(7);
  for (int i = 0; i < 6000; ++i) {
    auto socket = ipc::SeqpacketSocket::Connect(daemon.session);
    ASSERT_TRUE(socket) << socket.error().ToString();
    for (uint64_t frames = 1 + random() % 4; frames > 0; --frames) {
      const std::string packet = mutation.Next();
      if (!socket->Send(std::as_bytes(std::span(packet.data(), packet.size())))) break;
    }
  }
  ExpectUnharmed();
}

TEST_F(HostilePeers, AsAGuardOfATenantHarmNobodyElse) {
  RunPeer run(daemon.session, Ask(2 * kGiB));
  const std::string own = run.Granted()["tenant_id"];
  promisable = Gpu()["mem_promisable_bytes"];
  // In a process of its own: the daemon knows a guard by its process.
  Child hostile([&] { return Lie(own); });
  EXPECT_EQ(hostile.Wait(), 0);
  // The neighbour gets what it was promised.
  Child program([&] {
    GuardPeer guard = GuardPeer::Hello(daemon.session, id);
    return guard.welcome && guard.Credit(10 * kGiB).granted ? 0 : 1;
  });
  EXPECT_EQ(program.Wait(), 0);
}

TEST_F(HostilePeers, OnTheApiHarmNobody) {
  const std::string head = "HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
  Mutation mutation(
      20261129,
      {"GET /v1/status " + head + "\r\n", "GET /v1/tenants?all=1 " + head + "\r\n",
       "GET /v1/tenants/t-0123456789ab " + head + "\r\n", "GET /v1/version " + head + "\r\n",
       "POST /v1/tenants/t-0123456789ab/stop " + head +
           "Content-Type: application/json\r\nContent-Length: 32\r\n\r\n{\"signal\":15,\"grace_seconds\":10}",
       "POST /v1/tenants/t-0123456789ab/stop " + head +
           "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n2\r\n1}\r\n0\r\n\r\n"});
  std::vector<UniqueFd> open;  // some never close
  for (int i = 0; i < 6000; ++i) {
    auto fd = ipc::ConnectUnix(daemon.api, SOCK_STREAM);
    ASSERT_TRUE(fd) << fd.error().ToString();
    const std::string bytes = mutation.Next();
    (void)::send(fd->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (i % 4 == 0) ::shutdown(fd->get(), SHUT_WR);
    open.push_back(std::move(*fd));
    if (open.size() > 50) open.erase(open.begin());
  }
  ExpectUnharmed();
}

}  // namespace
}  // namespace gpumux::daemon
