// SPDX-License-Identifier: Apache-2.0
//
// Descriptors that the keeper holds beyond the death of their process, for a
// time (docs/design/keeper.md).
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "keeper_fixture.h"

namespace gpumux::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr uint32_t kLong = GPUMUX_KEEPER_MAX_LINGER_MS;

class Lingering : public Keeper {
 protected:
  static constexpr uint32_t kWatch = GPUMUX_KEEPER_WATCH | GPUMUX_KEEPER_LINGER;

  // The process, and the write end of `device`, of which the keeper alone has one then.
  static void Hold(Link& link, const std::string& group, const Sleeper& process, Pipe& device,
                   uint32_t linger_ms) {
    link.Watch(group, process.pid(), kWatch);
    HoldOne(link, group, device, linger_ms);
  }
  static void HoldOne(Link& link, const std::string& group, Pipe& device, uint32_t linger_ms) {
    EXPECT_TRUE(link.Send(MakeFrame(GPUMUX_KEEPER_HOLD, group, "devices", GPUMUX_KEEPER_LINGER, linger_ms),
                          device.write.get()));
    device.write.reset();
  }
};

TEST_F(Lingering, OutlivesItsProcessByItsTime) {
  Sleeper process;
  Pipe device = MakePipe();
  Link daemon(path_);
  Hold(daemon, "12 34", process, device, 300);
  EXPECT_EQ(daemon.Count(), 2u);
  const auto died = steady_clock::now();
  process.Kill();
  EXPECT_TRUE(WaitUntil("the death is seen", [&] { return daemon.Count() == 1; }));
  EXPECT_EQ(daemon.last_item.flags, GPUMUX_KEEPER_LINGER | GPUMUX_KEEPER_DEAD);
  EXPECT_LE(daemon.last_item.linger_ms, 300u) << "what is left of it";
  EXPECT_FALSE(Closed(device));
  EXPECT_TRUE(WaitUntil("its time is over", [&] { return Closed(device); }));
  EXPECT_GE(steady_clock::now() - died, milliseconds(295));
}

TEST_F(Lingering, KeepsAnAloneKeeperThatLongAndNoLonger) {
  Sleeper process;
  Pipe device = MakePipe();
  {
    Link daemon(path_);
    Hold(daemon, "12 34", process, device, 200);
    EXPECT_EQ(daemon.Count(), 2u);
  }
  const auto died = steady_clock::now();
  process.Kill();
  ExpectItEnds();
  EXPECT_GE(steady_clock::now() - died, milliseconds(195));
  EXPECT_TRUE(Closed(device));
}

TEST_F(Lingering, IsNotForgottenWithADaemonAndGoesToNoOther) {
  Sleeper process;
  Pipe device = MakePipe(), lock = MakePipe();
  {
    Link first(path_);
    Hold(first, "12 34", process, device, kLong);
    first.Hold("gpu", "lock", lock.write.get());
    first.Watch("gpu", process.pid());
    lock.write.reset();
    EXPECT_EQ(first.Count(), 4u);
  }
  Link second(path_);
  {
    const auto items = second.Take();
    ASSERT_TRUE(items);
    EXPECT_EQ(items->size(), 4u);
    EXPECT_FALSE(items->at("12 34/devices").valid());
  }
  EXPECT_TRUE(second.Send(MakeFrame(GPUMUX_KEEPER_FORGET_OTHERS)));
  EXPECT_EQ(second.Count(), 2u);
  EXPECT_TRUE(Closed(lock));
  EXPECT_FALSE(Closed(device));
  process.Kill();
  EXPECT_TRUE(WaitUntil("the death is seen", [&] { return second.Count() == 1; }));
  EXPECT_FALSE(Closed(device));
  // The daemon knows that there is nothing left to wait for.
  EXPECT_TRUE(second.Send(MakeFrame(GPUMUX_KEEPER_LINGER_FOR, "12 34", "", 0, 0)));
  EXPECT_TRUE(WaitUntil("it is let go", [&] { return Closed(device); }));
  EXPECT_EQ(second.Count(), 0u);
}

TEST_F(Lingering, IsLengthenedAndShortenedByItsGroup) {
  Sleeper process, other;
  Pipe longer = MakePipe(), untouched = MakePipe();
  Link daemon(path_);
  Hold(daemon, "12 34", process, longer, 1);
  Hold(daemon, "56 78", other, untouched, 1);
  EXPECT_TRUE(daemon.Send(MakeFrame(GPUMUX_KEEPER_LINGER_FOR, "12 34", "", 0, kLong)));
  EXPECT_EQ(daemon.Count(), 4u);
  process.Kill();
  other.Kill();
  EXPECT_TRUE(WaitUntil("the other's time is over", [&] { return Closed(untouched); }));
  EXPECT_EQ(daemon.Count(), 1u);
  EXPECT_GT(daemon.last_item.linger_ms, kLong / 2);
  EXPECT_FALSE(Closed(longer));
}

// A process that has executed another program, or was dead before it was watched.
TEST_F(Lingering, CountsAsDeadWhenItsProgramIsGone) {
  Sleeper process;
  Pipe before = MakePipe(), after = MakePipe();
  Link daemon(path_);
  Hold(daemon, "12 34", process, before, kLong);
  EXPECT_TRUE(daemon.Send(MakeFrame(GPUMUX_KEEPER_LINGER_FOR, "12 34", "", GPUMUX_KEEPER_DEAD, 100)));
  EXPECT_EQ(daemon.Count(), 1u) << "the process is not watched any more";
  EXPECT_TRUE(WaitUntil("its time is over", [&] { return Closed(before); }));
  HoldOne(daemon, "never watched", after, 100);
  EXPECT_EQ(daemon.Count(), 1u);
  EXPECT_EQ(daemon.last_item.flags, GPUMUX_KEEPER_LINGER | GPUMUX_KEEPER_DEAD);
  EXPECT_TRUE(WaitUntil("its time is over", [&] { return Closed(after); }));
}

TEST_F(Lingering, TakesManyAtOnceAndAnswersInTheMeantime) {
  // As many as 48 processes with a hundred each have, and in little memory.
  constexpr unsigned kProcesses = 48, kEach = 96;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 8192) GTEST_SKIP() << "needs a hard limit of 8192 descriptors";
  Sleeper process;
  Pipe device = MakePipe();
  Link daemon(path_);
  const std::vector<int> fds(GPUMUX_KEEPER_MAX_FDS, device.write.get());
  for (unsigned p = 0; p < kProcesses; ++p) {
    const std::string group = "process " + std::to_string(p);
    daemon.Watch(group, process.pid(), kWatch);
    for (unsigned i = 0; i < kEach / fds.size(); ++i)
      EXPECT_TRUE(
          daemon.Send(MakeFrame(GPUMUX_KEEPER_HOLD, group, std::to_string(i), GPUMUX_KEEPER_LINGER, 1), fds));
    // It reads as fast as it is told.
    EXPECT_EQ(daemon.Count(), (p + 1) * (1 + kEach / fds.size()));
  }
  device.write.reset();
  std::string line;
  std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
  while (std::getline(status, line) && !line.starts_with("VmRSS:")) {
  }
  RecordProperty("resident", line);
  EXPECT_FALSE(Closed(device));
  process.Kill();
  EXPECT_TRUE(WaitUntil("all are closed", [&] { return Closed(device); }));
  EXPECT_EQ(daemon.Count(), 0u);
}

TEST_F(Lingering, IsHeldOnlyAsDescribed) {
  Pipe pipe = MakePipe();
  Link daemon(path_);
  const auto hold = [](uint32_t flags, uint32_t linger_ms) {
    return MakeFrame(GPUMUX_KEEPER_HOLD, "12 34", "devices", flags, linger_ms);
  };
  const auto linger = [](uint32_t flags, uint32_t linger_ms) {
    return MakeFrame(GPUMUX_KEEPER_LINGER_FOR, "12 34", "", flags, linger_ms);
  };
  const std::vector<std::pair<gpumux_keeper_frame, size_t>> bad = {
      {hold(GPUMUX_KEEPER_LINGER, kLong + 1), 1},
      {hold(GPUMUX_KEEPER_LINGER, 1), GPUMUX_KEEPER_MAX_FDS + 1},
      {hold(GPUMUX_KEEPER_LINGER, 1), 0},
      {hold(0, 0), 2},
      {hold(kWatch, 0), 2},
      {hold(GPUMUX_KEEPER_DEAD, 0), 1},
      {linger(0, kLong + 1), 0},
      {linger(GPUMUX_KEEPER_LINGER, 1), 0},
      {linger(0, 1), 1},
  };
  for (const auto& [frame, fds] : bad) {
    Link hostile(path_);
    EXPECT_TRUE(hostile.Send(frame, std::vector<int>(fds, pipe.write.get())));
    EXPECT_TRUE(hostile.HungUp()) << frame.type << " " << frame.flags << " " << frame.linger_ms << " " << fds;
  }
  pipe.write.reset();
  EXPECT_EQ(daemon.Count(), 0u);
  EXPECT_TRUE(WaitUntil("nothing of it is open", [&] { return Closed(pipe); }));
}

// A connection whose close waits until its peer has read what was sent, or hangs up.
class SlowToClose {
 public:
  SlowToClose() {
    const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    socket_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    peer_ = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const linger wait{1, 600};
    EXPECT_EQ(setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &wait, sizeof wait), 0);
    const std::vector<char> much(1 << 16);
    while (send(socket_.get(), much.data(), much.size(), MSG_DONTWAIT) > 0) {
    }
  }
  ~SlowToClose() { peer_.reset(); }
  UniqueFd& socket_fd() { return socket_; }

 private:
  UniqueFd socket_, peer_;
};

TEST_F(Lingering, NobodyWaitsForACloseThatTakesLong) {
  SlowToClose slow;
  Sleeper process;
  Pipe device = MakePipe();
  Link daemon(path_);
  daemon.Watch("12 34", process.pid(), kWatch);
  EXPECT_TRUE(daemon.Send(MakeFrame(GPUMUX_KEEPER_HOLD, "12 34", "slow", GPUMUX_KEEPER_LINGER),
                          slow.socket_fd().get()));
  EXPECT_EQ(daemon.Count(), 2u);
  const auto closing = [&] {  // threads of it that are in close(), number 3
    size_t threads = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/task")) {
      std::string call;
      std::ifstream(entry.path() / "syscall") >> call;
      threads += call == "3";
    }
    return threads;
  };
  slow.socket_fd().reset();  // the keeper's is the last
  process.Kill();
  EXPECT_TRUE(WaitUntil("a thread of it closes", [&] { return closing() == 1; }));
  // It answers, and the next one's is closed meanwhile.
  EXPECT_EQ(daemon.Count(), 0u);
  HoldOne(daemon, "never watched", device, 0);
  EXPECT_TRUE(WaitUntil("the other is closed", [&] { return Closed(device); }));
  EXPECT_EQ(closing(), 1u) << "still";
}

}  // namespace
}  // namespace gpumux::test
