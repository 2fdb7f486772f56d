// SPDX-License-Identifier: Apache-2.0
#include "daemon/held_descriptors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "base/process.h"
#include "daemon/testing/fake_nvml.h"
#include "gpumux/abi/keeper.h"
#include "ipc/frame.h"

namespace gpumux::daemon {
namespace {

using ::testing::SizeIs;

// Whoever looks at it has taken 50 ms: patience ends without waiting.
class LookedAtClock final : public Clock {
 public:
  Time Now() const override { return now_ += std::chrono::milliseconds(50); }
  std::chrono::system_clock::time_point WallTime() const override { return {}; }
  void Advance(Time by) { now_ += by; }

 private:
  mutable Time now_ = std::chrono::seconds(1);
};

// A keeper that reads when it is told to. Of a group: how many descriptors it has.
class SlowKeeper {
 public:
  explicit SlowKeeper(const std::string& path)
      : listener_(*ipc::UnixListener::Listen(path, SOCK_SEQPACKET, 0600)) {}

  void ReadAll() {
    for (;;) {
      auto peer = listener_.Accept();
      if (!peer || !peer->valid()) break;
      peers_.emplace_back(std::move(*peer));
      EXPECT_TRUE(peers_.back().SetNonBlocking());
    }
    for (ipc::SeqpacketSocket& peer : peers_) {
      for (auto received = peer.Receive(); received && received->what == ipc::Received::What::kPacket;
           received = peer.Receive())
        Read(*received);
    }
  }
  std::map<std::string, size_t> groups;

 private:
  void Read(const ipc::Received& received) {
    gpumux_keeper_frame frame{};
    ASSERT_EQ(received.bytes.size(), sizeof frame);
    std::memcpy(&frame, received.bytes.data(), sizeof frame);
    const std::string group = ipc::FieldText(frame.group);
    if (frame.type == GPUMUX_KEEPER_RELEASE) groups.erase(group);
    if (frame.type != GPUMUX_KEEPER_HOLD) return;
    if (frame.flags & GPUMUX_KEEPER_WATCH) {
      groups[group] = 0;
    } else {
      // Without its process it would count as a dead one's.
      EXPECT_TRUE(groups.contains(group)) << group;
      groups[group] += received.fds.size();
    }
  }

  ipc::UnixListener listener_;
  std::vector<ipc::SeqpacketSocket> peers_;
};

class HeldDescriptorsTest : public ::testing::Test {
 protected:
  HeldDescriptorsTest() {
    std::filesystem::create_directory(dir_ + "/dev");
    mkfifo((dir_ + "/dev/nvidia0").c_str(), 0600);
    auto owned = std::make_unique<Tenant>();
    owned->id = "t-1";
    owned->pages = TenantPages::Create("t-1", {{.uuid = {}, .device_total_bytes = 1, .context_bytes = 1}},
                                       /*strict=*/false, /*simulated=*/true)
                       .value();
    owned->pages->SetMps();
    tenant_ = &tenants_.Add(std::move(owned));
    member_ = &tenants_.AddMember(*tenant_, NameProcess(getpid()).value());
    member_->pidfd = OpenPidfd(getpid()).value();
    member_->page = ProcessPage::Create().value();
    member_->sessions = 1;
    link_.on_connected = [this] {
      ++connected_;
      held_.CallAgain();
    };
    link_.on_gone = [this] { held_.KeeperGone(); };
  }
  ~HeldDescriptorsTest() override { std::filesystem::remove_all(dir_); }

  // What a guard sends of `count` descriptors, and the message of these that begins with `first`.
  void Round(uint32_t count) {
    uint32_t first = 0;
    do {
      first += Message(first, count);
    } while (first < count);
  }
  uint32_t Message(uint32_t first, uint32_t count) {
    std::vector<UniqueFd> fds;
    for (uint32_t i = first; i < count && fds.size() < GPUMUX_MAX_FDS; ++i)
      fds.emplace_back(open((dir_ + "/dev/nvidia0").c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_TRUE(held_.Receive(*tenant_, *member_, {first, count}, fds)) << "a sound guard is not hung up on";
    return static_cast<uint32_t>(fds.size());
  }
  bool HasWhole(uint32_t count) const {
    return std::any_of(keeper_.groups.begin(), keeper_.groups.end(),
                       [&](const auto& group) { return group.second == count; });
  }
  static std::string MakeDir() {
    char dir[] = "/tmp/gpumux-held-XXXXXX";
    return mkdtemp(dir);
  }

  std::string dir_ = MakeDir();
  EventLoop loop_;
  LookedAtClock clock_;
  FakeFigures& figures_ = *FakeFigures::Create();
  FakeNvml nvml_{figures_, 1};
  EventLog events_{dir_ + "/audit.log", clock_};
  Machine machine_{{.simulated = true, .spec = "", .dir = "", .libraries_dir = ""},
                   nvml_,
                   loop_,
                   events_,
                   dir_ + "/api.sock"};
  Tenants tenants_;
  SlowKeeper keeper_{dir_ + "/keeper.sock"};
  KeeperLink link_{loop_, clock_, dir_ + "/keeper.sock", "/bin/false"};
  HoldTimes times_;
  HeldDescriptors held_{machine_, tenants_, link_, events_, clock_, times_};
  Tenant* tenant_ = nullptr;
  Member* member_ = nullptr;
  int connected_ = 0;
};

TEST_F(HeldDescriptorsTest, AWholeRoundTakesThePlaceOfTheOneBefore) {
  Round(40);
  Round(70);
  keeper_.ReadAll();
  EXPECT_THAT(keeper_.groups, SizeIs(1));
  EXPECT_TRUE(HasWhole(70));
  EXPECT_EQ(member_->held.held, 70u);
  Round(0);
  keeper_.ReadAll();
  EXPECT_THAT(keeper_.groups, SizeIs(0));
}

// Whichever message it is that the keeper's queue has no room for.
TEST_F(HeldDescriptorsTest, AreHeldThroughoutAndOnceWhenTheKeeperIsGivenUp) {
  for (int shift = 0; shift < 8; ++shift) {
    Round(40);
    keeper_.ReadAll();
    EXPECT_TRUE(HasWhole(40)) << shift;
    for (int i = 0; i < shift; ++i) EXPECT_TRUE(link_.LingerFor("another", times_.least, /*dead=*/false));
    uint32_t count = 40;
    while (!member_->held.failed) {
      count = 41 + (count + 1) % 24;
      Message(0, count);
      if (!member_->held.failed) Message(32, count);
    }
    EXPECT_NE(member_->held.held, count) << "the last whole one's, not those that did not get there";
    keeper_.ReadAll();
    EXPECT_TRUE(HasWhole(member_->held.held)) << shift;
    // It is found again before the guard is done with its round.
    const int before = connected_;
    clock_.Advance(std::chrono::seconds(1));
    link_.Hold({{{"gpu", "process"}, {.fd = -1, .process = member_->process}}});
    EXPECT_EQ(connected_, before + 1);
    if (member_->held.came == 32) Message(32, count);
    keeper_.ReadAll();
    EXPECT_TRUE(HasWhole(member_->held.held)) << shift;
    // The guard answers the call.
    Round(40);
    held_.Tick();
    keeper_.ReadAll();
    EXPECT_TRUE(HasWhole(40)) << shift;
    link_.Release("gpu");
    keeper_.ReadAll();
    EXPECT_THAT(keeper_.groups, SizeIs(1)) << shift;
    EXPECT_EQ(member_->held.held, 40u);
  }
}

}  // namespace
}  // namespace gpumux::daemon
