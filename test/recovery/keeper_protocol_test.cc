// SPDX-License-Identifier: Apache-2.0
//
// The keeper by itself (docs/design/keeper.md): what it holds, for how long, and
// for whom.
#include <sys/stat.h>

#include "keeper_fixture.h"

namespace gpumux::test {
namespace {

TEST_F(Keeper, HandsToTheNextWhatTheLastOneLeft) {
  Sleeper process;
  Pipe lock = MakePipe();
  {
    Link first(path_);
    first.Hold("gpu", "lock", lock.write.get());
    first.Watch("gpu", process.pid());
  }
  lock.write.reset();
  Link second(path_);
  auto items = second.Take();
  ASSERT_TRUE(items);
  EXPECT_EQ(items->size(), 2u);
  // The very pipe.
  const UniqueFd& got = items->at("gpu/lock");
  ASSERT_EQ(write(got.get(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(lock.read.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  EXPECT_FALSE(items->at("gpu/process " + std::to_string(process.pid())));
}

TEST_F(Keeper, LetsGoAtOnceOfWhatNoProcessNeeds) {
  Pipe lock = MakePipe();
  Link daemon(path_);
  daemon.Hold("gpu", "lock", lock.write.get());
  lock.write.reset();
  EXPECT_EQ(daemon.Count(), 1u);
  EXPECT_FALSE(Closed(lock));
  daemon.Close();
  ExpectItEnds();
  EXPECT_TRUE(Closed(lock));
}

TEST_F(Keeper, KeepsAGroupAsLongAsOneOfItsProcessesLives) {
  Sleeper of_both, of_one;
  Pipe first = MakePipe(), second = MakePipe();
  Link daemon(path_);
  daemon.Hold("gpu 0", "lock", first.write.get());
  daemon.Hold("gpu 1", "lock", second.write.get());
  first.write.reset();
  second.write.reset();
  daemon.Watch("gpu 0", of_both.pid());
  daemon.Watch("gpu 1", of_both.pid());
  daemon.Watch("gpu 1", of_one.pid());
  EXPECT_EQ(daemon.Count(), 5u);
  of_both.Kill();
  EXPECT_TRUE(WaitUntil("the dead one is forgotten", [&] { return daemon.Count() == 3; }));
  EXPECT_FALSE(Closed(first)) << "a daemon is connected: it says when";
  daemon.Close();
  EXPECT_TRUE(WaitUntil("the first group is closed", [&] { return Closed(first); }));
  EXPECT_FALSE(Closed(second));
  EXPECT_FALSE(Ended());
  of_one.Kill();
  EXPECT_TRUE(WaitUntil("the second group is closed", [&] { return Closed(second); }));
  ExpectItEnds();
}

TEST_F(Keeper, ForgetsWhatTheDaemonBeforeHeldAndThisOneDoesNot) {
  Sleeper process;
  Pipe stale = MakePipe(), kept = MakePipe(), released = MakePipe();
  {
    Link first(path_);
    first.Watch("gpu", process.pid());
    first.Hold("gpu", "stale", stale.write.get());
    first.Hold("gpu", "kept", kept.write.get());
    EXPECT_EQ(first.Count(), 3u);
  }
  stale.write.reset();
  Link second(path_);
  second.Hold("gpu", "kept", kept.write.get());
  second.Hold("gpu", "released", released.write.get());
  kept.write.reset();
  released.write.reset();
  EXPECT_EQ(second.Count(), 4u);
  EXPECT_TRUE(second.Send(MakeFrame(GPUMUX_KEEPER_FORGET_OTHERS)));
  EXPECT_EQ(second.Count(), 2u);
  EXPECT_TRUE(Closed(stale));
  EXPECT_TRUE(second.Send(MakeFrame(GPUMUX_KEEPER_RELEASE, "gpu", "released")));
  EXPECT_EQ(second.Count(), 1u);
  EXPECT_TRUE(Closed(released));
  EXPECT_FALSE(Closed(kept));
  EXPECT_TRUE(second.Send(MakeFrame(GPUMUX_KEEPER_RELEASE, "gpu")));
  EXPECT_EQ(second.Count(), 0u);
  EXPECT_FALSE(Ended()) << "a daemon is connected";
  second.Close();
  ExpectItEnds();
}

TEST_F(Keeper, HangsUpOnWhatIsNoFrameAndKeepsWhatItHas) {
  Pipe lock = MakePipe();
  Link daemon(path_);
  daemon.Hold("gpu", "lock", lock.write.get());
  const gpumux_keeper_frame good = MakeFrame(GPUMUX_KEEPER_RELEASE, "gpu", "lock");
  std::vector<gpumux_keeper_frame> bad(8, good);
  bad[0].magic = 1;
  bad[1].version = 1;
  bad[2].type = GPUMUX_KEEPER_ITEM;
  bad[3].flags = GPUMUX_KEEPER_WATCH;
  bad[4].linger_ms = 1;
  std::memset(bad[5].group, 'x', sizeof bad[5].group);
  std::memset(bad[6].name, 'x', sizeof bad[6].name);
  bad[7].group[0] = 0;
  for (const auto& frame : bad) {
    Link hostile(path_);
    EXPECT_TRUE(hostile.Send(frame));
    EXPECT_TRUE(hostile.HungUp()) << &frame - bad.data();
  }
  for (const int fd : {-1, lock.write.get()}) {
    // A Hold without a descriptor, a Take with one.
    Link hostile(path_);
    EXPECT_TRUE(hostile.Send(MakeFrame(fd < 0 ? GPUMUX_KEEPER_HOLD : GPUMUX_KEEPER_TAKE, "gpu", "x"), fd));
    EXPECT_TRUE(hostile.HungUp());
  }
  for (const size_t size : {size_t{1}, sizeof(gpumux_keeper_frame) - 1, sizeof(gpumux_keeper_frame) + 1}) {
    auto socket = ipc::SeqpacketSocket::Connect(path_).value();
    std::vector<std::byte> packet(size);
    std::memcpy(packet.data(), &good, std::min(size, sizeof good));
    EXPECT_TRUE(socket.Send(packet));
    EXPECT_TRUE(Link(std::move(socket)).HungUp());
  }
  EXPECT_EQ(daemon.Count(), 1u);
}

TEST_F(Keeper, HoldsNoMoreThanItsNumber) {
  Pipe lock = MakePipe();
  Link daemon(path_), other(path_);
  for (unsigned i = 0; i < GPUMUX_KEEPER_MAX_ITEMS; ++i)
    daemon.Hold("gpu", std::to_string(i), lock.write.get());
  // All of them come, although no queue takes so many.
  EXPECT_EQ(other.Count(), GPUMUX_KEEPER_MAX_ITEMS);
  EXPECT_TRUE(other.Send(MakeFrame(GPUMUX_KEEPER_HOLD, "gpu", "one more"), lock.write.get()));
  EXPECT_TRUE(other.HungUp());
  EXPECT_EQ(daemon.Count(), GPUMUX_KEEPER_MAX_ITEMS);
}

// As a daemon does that lost patience with it.
TEST_F(Keeper, ReadsWhatAnEarlierConnectionSentBeforeALaterOne) {
  Link daemon(path_);
  Pipe lock = MakePipe(), superseded = MakePipe();
  daemon.Hold("gpu", "lock", lock.write.get());
  ASSERT_EQ(daemon.Count(), 1u);
  kill(pid_, SIGSTOP);
  Link before(path_);
  for (int i = 0; i < 200; ++i) before.Hold("gpu", "lock", lock.write.get());
  before.Hold("round 1", "devices", superseded.write.get());
  before.Close();
  superseded.write.reset();
  Link after(path_);
  EXPECT_TRUE(after.Send(MakeFrame(GPUMUX_KEEPER_RELEASE, "round 1")));
  kill(pid_, SIGCONT);
  EXPECT_EQ(after.Count(), 1u);
  EXPECT_TRUE(WaitUntil("what was released is closed", [&] { return Closed(superseded); }));
}

TEST_F(Keeper, IsNotForOtherUsers) {
  if (getuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  Link daemon(path_);
  Pipe lock = MakePipe();
  daemon.Hold("gpu", "lock", lock.write.get());
  // Also where the modes of folder and socket would allow it.
  ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setgid(23001) != 0 || setuid(23001) != 0) _exit(99);
    const auto socket = ipc::SeqpacketSocket::Connect(path_);
    if (!socket) _exit(98);
    Link link(ipc::SeqpacketSocket::Connect(path_).value());
    _exit(link.Take() ? 1 : 0);
  }
  int status = 0;
  waitpid(stranger, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(daemon.Count(), 1u);
}

TEST(KeeperProgram, DoesNotRunWithoutItsSocket) {
  Sandbox box;
  const Outcome o = box.Run({Sandbox::Program("gpumux-keeper")});
  EXPECT_EQ(o.exit_code, 2);
  EXPECT_NE(o.err.find("descriptor 3"), std::string::npos) << o.err;
  EXPECT_EQ(box.Run({Sandbox::Program("gpumux-keeper"), "--version"}).exit_code, 0);
}

}  // namespace
}  // namespace gpumux::test
