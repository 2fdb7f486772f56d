// SPDX-License-Identifier: Apache-2.0
//
// Programs that give back what they only cache are asked before anybody is
// refused, and nobody is harmed by one that does not answer.
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>

#include "daemon/testing/daemon_fixture.h"

namespace gpumux::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A process's second connection, on which it is asked.
struct ListenerPeer {
  explicit ListenerPeer(const std::string& session) : socket(ipc::SeqpacketSocket::Connect(session).value()) {
    const gpumux_reclaim_listen listen{};
    Send(GPUMUX_RECLAIM_LISTEN, 1, listen);
    const auto answer = Receive(20000);
    listening = answer && ipc::DecodeFrame(*answer)->type == GPUMUX_RECLAIM_LISTENING;
  }

  struct Question {
    uint32_t id;
    gpumux_reclaim_request what;
  };
  std::optional<Question> Next(int patience_ms) {
    const auto packet = Receive(patience_ms);
    if (!packet) return std::nullopt;
    const auto frame = ipc::DecodeFrame(*packet);
    return Question{frame->request_id, ipc::PayloadAs<gpumux_reclaim_request>(*frame)};
  }
  void Done(uint32_t id) { Send(GPUMUX_RECLAIM_DONE, id, gpumux_reclaim_done{}); }

  template <typename Payload>
  void Send(gpumux_message type, uint32_t id, const Payload& payload) {
    (void)socket.Send(*ipc::EncodeFrame(type, id, std::as_bytes(std::span(&payload, 1))));
  }
  // nullopt: nothing came, or hung up.
  std::optional<std::vector<std::byte>> Receive(int patience_ms) {
    pollfd poll{socket.fd(), POLLIN, 0};
    if (::poll(&poll, 1, patience_ms) != 1) return std::nullopt;
    auto received = socket.Receive();
    if (!received || received->what != ipc::Received::What::kPacket) {
      hung_up = true;
      return std::nullopt;
    }
    return std::move(received->bytes);
  }

  ipc::SeqpacketSocket socket;
  bool listening = false;
  bool hung_up = false;
};

// A process that takes `bytes` of a tenant, then answers each question by giving
// `gives` back; one that gives kNeverAnswers does not even say that.
constexpr uint64_t kNeverAnswers = UINT64_MAX;
struct Cacher {
  Cacher(const std::string& session, const std::string& id, uint64_t bytes, uint64_t gives)
      : child([=, this] {
          GuardPeer guard = GuardPeer::Hello(session, id);
          if (!guard.welcome || !guard.Credit(bytes).granted) return 1;
          guard.Commit(bytes);
          ListenerPeer listener(session);
          if (!listener.listening) return 2;
          ready.Pass();
          while (const auto question = listener.Next(-1)) {
            if (write(asked.fds[1], &question->what.wanted_bytes, 8) != 8) return 3;
            if (gives == kNeverAnswers) continue;
            guard.Commit(-gives);
            guard.Return(static_cast<int64_t>(gives));
            listener.Done(question->id);
          }
          return 4;
        }) {
    ready.Take();
  }
  // What it was asked for, in this order; 0: not asked.
  uint64_t Asked(int patience_ms = 0) {
    uint64_t bytes = 0;
    pollfd poll{asked.fds[0], POLLIN, 0};
    if (::poll(&poll, 1, patience_ms) != 1) return 0;
    EXPECT_EQ(read(asked.fds[0], &bytes, 8), 8);
    return bytes;
  }

  struct Pipe {
    Pipe() { EXPECT_EQ(pipe(fds), 0); }
    ~Pipe() {
      close(fds[0]);
      close(fds[1]);
    }
    int fds[2];
  };
  Baton ready;
  Pipe asked;
  Child child;
};

milliseconds TimeOf(const std::function<void()>& what) {
  const auto start = steady_clock::now();
  what();
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - start);
}

class ReclaimTest : public DaemonTest {
 protected:
  nlohmann::json AskBetween(uint64_t guaranteed, uint64_t limit) {
    nlohmann::json request = Ask(guaranteed);
    request["mem_limit"] = {{"bytes", limit}};
    return request;
  }
};

TEST_F(ReclaimTest, WhoBurstsIsAskedBeforeAnotherIsRefused) {
  RunPeer run_a(daemon.session, Ask(std::nullopt)), run_b(daemon.session, Ask(std::nullopt));
  const std::string a = run_a.Granted()["tenant_id"], b = run_b.Granted()["tenant_id"];
  Cacher cacher(daemon.session, a, kUsable - 10 * kGiB, 50 * kGiB);
  EXPECT_EQ(TenantOf(a)["reclaim"]["listening"], 1);
  GuardPeer guard = GuardPeer::Hello(daemon.session, b);
  EXPECT_TRUE(guard.Credit(40 * kGiB).granted);
  EXPECT_EQ(cacher.Asked(), 30 * kGiB);
  const auto reclaim = TenantOf(a)["reclaim"];
  EXPECT_EQ(reclaim["asked"], 1);
  EXPECT_EQ(reclaim["given_bytes"], 50 * kGiB);
  EXPECT_EQ(TenantOf(b)["mem_used_bytes"], 40 * kGiB);
}

TEST_F(ReclaimTest, NobodyIsAskedForACallThatCanDoWithout) {
  RunPeer run_a(daemon.session, Ask(std::nullopt)), run_b(daemon.session, Ask(std::nullopt));
  const std::string a = run_a.Granted()["tenant_id"], b = run_b.Granted()["tenant_id"];
  Cacher cacher(daemon.session, a, kUsable - 10 * kGiB, 50 * kGiB);
  GuardPeer guard = GuardPeer::Hello(daemon.session, b);
  const gpumux_credit_request request{0, GPUMUX_CREDIT_WITHOUT_RECLAIM, 40 * kGiB};
  EXPECT_EQ(guard.Call<gpumux_credit_reply>(GPUMUX_CREDIT_REQUEST, request).reason,
            GPUMUX_REASON_DEVICE_FULL);
  EXPECT_EQ(cacher.Asked(), 0);
}

TEST_F(ReclaimTest, AContextIsMadeRoomForToo) {
  RunPeer run_a(daemon.session, Ask(std::nullopt)), run_b(daemon.session, Ask(std::nullopt));
  const std::string a = run_a.Granted()["tenant_id"], b = run_b.Granted()["tenant_id"];
  Cacher cacher(daemon.session, a, kUsable, 50 * kGiB);
  GuardPeer guard = GuardPeer::Hello(daemon.session, b);
  EXPECT_TRUE(guard.Context().granted);
  EXPECT_EQ(cacher.Asked(), kContext + kShare);
}

TEST_F(ReclaimTest, NobodyIsAskedForWhatIsWithinItsGuarantee) {
  RunPeer run_a(daemon.session, Ask(kUsable - 10 * kGiB)), run_b(daemon.session, Ask(std::nullopt));
  const std::string a = run_a.Granted()["tenant_id"], b = run_b.Granted()["tenant_id"];
  Cacher cacher(daemon.session, a, kUsable - 20 * kGiB, 50 * kGiB);
  GuardPeer guard = GuardPeer::Hello(daemon.session, b);
  EXPECT_EQ(guard.Credit(11 * kGiB).reason, GPUMUX_REASON_DEVICE_FULL);
  EXPECT_EQ(cacher.Asked(), 0);
}

TEST_F(ReclaimTest, ATenantsLimitIsMadeRoomInByItsOwnProcessesAlone) {
  RunPeer run_a(daemon.session, Ask(10 * kGiB)), run_b(daemon.session, Ask(std::nullopt));
  const std::string a = run_a.Granted()["tenant_id"], b = run_b.Granted()["tenant_id"];
  Cacher sibling(daemon.session, a, 8 * kGiB, 6 * kGiB), stranger(daemon.session, b, 8 * kGiB, 6 * kGiB);
  GuardPeer guard = GuardPeer::Hello(daemon.session, a);
  EXPECT_TRUE(guard.Credit(5 * kGiB).granted);
  EXPECT_EQ(sibling.Asked(), 3 * kGiB);
  EXPECT_EQ(stranger.Asked(), 0);
  // More than the limit itself: all together could not give that.
  EXPECT_EQ(guard.Credit(11 * kGiB).reason, GPUMUX_REASON_LIMIT);
  EXPECT_EQ(sibling.Asked(), 0);
}

TEST_F(ReclaimTest, TheLargestIsAskedFirstAndTheNextOnlyIfThatIsNotEnough) {
  RunPeer run_a(daemon.session, Ask(std::nullopt)), run_b(daemon.session, Ask(std::nullopt)),
      run_c(daemon.session, Ask(std::nullopt));
  const std::string a = run_a.Granted()["tenant_id"], b = run_b.Granted()["tenant_id"],
                    c = run_c.Granted()["tenant_id"];
  Cacher small(daemon.session, a, 40 * kGiB, 30 * kGiB), large(daemon.session, b, 90 * kGiB, 20 * kGiB);
  GuardPeer guard = GuardPeer::Hello(daemon.session, c);
  const uint64_t left = kUsable - 130 * kGiB;
  EXPECT_TRUE(guard.Credit(left + 15 * kGiB).granted);
  EXPECT_EQ(large.Asked(), 15 * kGiB);
  EXPECT_EQ(small.Asked(), 0);
  // The large one gave 5 GiB more than it was asked for.
  EXPECT_TRUE(guard.Credit(5 * kGiB + 25 * kGiB).granted);
  EXPECT_GT(small.Asked() + large.Asked(), 0);
}

TEST_F(ReclaimTest, WhoNeverAnswersDelaysOneRefusalAndNoOther) {
  RunPeer run_a(daemon.session, Ask(std::nullopt)), run_b(daemon.session, Ask(std::nullopt));
  const std::string a = run_a.Granted()["tenant_id"], b = run_b.Granted()["tenant_id"];
  Cacher cacher(daemon.session, a, kUsable - kGiB, kNeverAnswers);
  GuardPeer guard = GuardPeer::Hello(daemon.session, b);
  const auto first = TimeOf([&] { EXPECT_EQ(guard.Credit(2 * kGiB).reason, GPUMUX_REASON_DEVICE_FULL); });
  EXPECT_GE(first, milliseconds(2900));
  EXPECT_LT(first, milliseconds(4900));  // a guard gives a daemon up after 5 s
  const auto second = TimeOf([&] { EXPECT_EQ(guard.Credit(2 * kGiB).reason, GPUMUX_REASON_DEVICE_FULL); });
  EXPECT_LT(second, milliseconds(1000));
  EXPECT_EQ(TenantOf(a)["reclaim"]["asked"], 1);
}

TEST_F(ReclaimTest, WhoHasNothingToGiveIsNotAskedAgainAtOnce) {
  RunPeer run_a(daemon.session, Ask(std::nullopt)), run_b(daemon.session, Ask(std::nullopt));
  const std::string a = run_a.Granted()["tenant_id"], b = run_b.Granted()["tenant_id"];
  Cacher cacher(daemon.session, a, kUsable - kGiB, 0);
  GuardPeer guard = GuardPeer::Hello(daemon.session, b);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(guard.Credit(2 * kGiB).reason, GPUMUX_REASON_DEVICE_FULL);
  EXPECT_EQ(TenantOf(a)["reclaim"]["asked"], 1);
}

TEST_F(ReclaimTest, TwoThatWantEachOthersBytesDoNotWaitForEachOther) {
  RunPeer run_a(daemon.session, Ask(std::nullopt)), run_b(daemon.session, Ask(std::nullopt));
  const std::string a = run_a.Granted()["tenant_id"], b = run_b.Granted()["tenant_id"];
  const uint64_t half = kUsable / 2 - kUsable / 2 % (2 * kMiB);
  // Both listen, and neither answers as long as its own allocation waits: as an
  // allocator that holds its lock across the driver's call.
  Baton ready, go;
  const auto allocate = [&](const std::string& id) {
    GuardPeer guard = GuardPeer::Hello(daemon.session, id);
    if (!guard.Credit(half).granted) return 1;
    guard.Commit(half);
    ListenerPeer listener(daemon.session);
    ready.Pass();
    go.Take();
    const auto took = TimeOf([&] { (void)guard.Credit(2 * kGiB); });
    if (const auto question = listener.Next(0)) listener.Done(question->id);
    ready.Pass();
    pause();
    return took > milliseconds(2500) ? 2 : 0;
  };
  Child one([&] { return allocate(a); });
  ready.Take();
  Child other([&] { return allocate(b); });
  ready.Take();
  const auto took = TimeOf([&] {
    go.Pass();
    go.Pass();
    ready.Take();
    ready.Take();
  });
  EXPECT_LT(took, milliseconds(2500));
}

TEST_F(ReclaimTest, WhoWaitsForRoomStartsWhenItIsGivenBack) {
  RunPeer run_a(daemon.session, Ask(std::nullopt));
  const std::string a = run_a.Granted()["tenant_id"];
  Cacher cacher(daemon.session, a, kUsable - 10 * kGiB, 50 * kGiB);
  RunPeer waits(daemon.session, Ask(40 * kGiB));
  EXPECT_EQ(waits.Granted()["gpus"][0]["mem_guaranteed_bytes"], 40 * kGiB);
  EXPECT_EQ(cacher.Asked(), 30 * kGiB);
}

TEST_F(ReclaimTest, WhoDoesNotWantToWaitIsRefusedOnlyAfterOthersWereAsked) {
  RunPeer run_a(daemon.session, Ask(std::nullopt));
  const std::string a = run_a.Granted()["tenant_id"];
  Cacher cacher(daemon.session, a, kUsable - 10 * kGiB, 50 * kGiB);
  nlohmann::json request = Ask(40 * kGiB);
  request["wait"] = false;
  RunPeer first(daemon.session, request);
  EXPECT_EQ(first.Granted()["gpus"][0]["mem_guaranteed_bytes"], 40 * kGiB);
  // There is nothing more to be had, and who could not give enough is not asked.
  RunPeer second(daemon.session, Ask(std::nullopt));
  nlohmann::json too_much = Ask(kUsable - 30 * kGiB);
  too_much["wait"] = false;
  RunPeer third(daemon.session, too_much);
  EXPECT_EQ(third.Next(ipc::SessionEvent::Type::kGranted).type, ipc::SessionEvent::Type::kRefused);
}

TEST_F(ReclaimTest, AListenerOfNoTenantIsRefused) {
  ListenerPeer nobody(daemon.session);
  EXPECT_FALSE(nobody.listening);
}

TEST_F(ReclaimTest, AnAnswerThatNobodyAskedForEndsTheConnection) {
  RunPeer run(daemon.session, Ask(kGiB));
  const GuardPeer guard = GuardPeer::Hello(daemon.session, run.Granted()["tenant_id"]);
  ListenerPeer listener(daemon.session);
  ASSERT_TRUE(listener.listening);
  listener.Done(7);
  EXPECT_FALSE(listener.Next(20000));
  EXPECT_TRUE(listener.hung_up);
}

TEST_F(ReclaimTest, OfTwoListenersOfAProcessTheNewestCounts) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  const GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  ListenerPeer older(daemon.session), newer(daemon.session);
  EXPECT_FALSE(older.Next(20000));
  EXPECT_TRUE(older.hung_up);
  EXPECT_TRUE(newer.listening);
  EXPECT_EQ(TenantOf(id)["reclaim"]["listening"], 1);
}

TEST_F(ReclaimTest, WhoIsGoneIsNotAsked) {
  RunPeer run_a(daemon.session, Ask(std::nullopt)), run_b(daemon.session, Ask(std::nullopt));
  const std::string a = run_a.Granted()["tenant_id"], b = run_b.Granted()["tenant_id"];
  {
    Cacher cacher(daemon.session, a, kGiB, kGiB);
  }
  EXPECT_TRUE(WaitUntil([&] { return TenantOf(a)["reclaim"]["listening"] == 0; }));
  GuardPeer guard = GuardPeer::Hello(daemon.session, b);
  EXPECT_EQ(guard.Credit(2 * kUsable).reason, GPUMUX_REASON_DEVICE_FULL);
}

}  // namespace
}  // namespace gpumux::daemon
