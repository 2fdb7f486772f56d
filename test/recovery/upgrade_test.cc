// SPDX-License-Identifier: Apache-2.0
//
// Programs that are replaced on the disk while tenants run, and peers of another release.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "../support/installed.h"
#include "gpumux/abi/session.h"
#include "ipc/seqpacket.h"
#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;

std::string Text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Upgrade, OfAllFilesUnderTenantsThatRun) {
  Sandbox box;
  const Installed build(box);
  const std::string stop = box.dir() + "/stop";
  const auto survivor = [&](const std::string& name) {
    return box.Start({build.Path("bin/gpumux"), "run", "--mem", "8GiB", "--name", name, "--",
                      Sandbox::TestProgram("guard_probe"), "survive", std::to_string(7 * kGiB), stop});
  };
  Process old_one = survivor("old");
  ASSERT_TRUE(Works(old_one));
  const auto tenants = Tenants(box);
  const pid_t daemon = box.DaemonPid();
  ASSERT_NE(daemon, 0);
  for (const char* name : {"bin/gpumuxd", "bin/gpumux", "lib/gpumux/libgpumux-guard.so"}) build.Replace(name);
  kill(daemon, SIGTERM);
  // The program that `run` starts again is the new one.
  ASSERT_TRUE(WaitUntil("a daemon of the new file", [&] { return build.Runs("bin/gpumuxd"); }));
  ASSERT_TRUE(WaitUntil("it has the tenant", [&] { return Tenants(box) == tenants; }));
  Process new_one = survivor("new");
  ASSERT_TRUE(Works(new_one));
  // Who runs keeps the guard that it has; who starts gets the new one.
  for (const auto& tenant : StatusList(box, "tenants")) {
    const std::string maps = Text("/proc/" + std::to_string(tenant["pid"].get<int>()) + "/maps");
    EXPECT_THAT(maps, HasSubstr("libgpumux-guard.so"));
    EXPECT_EQ(maps.find("libgpumux-guard.so (deleted)") != std::string::npos, tenant["name"] == "old")
        << maps;
  }
  Touch(stop);
  EXPECT_EQ(old_one.Wait().exit_code, 0) << old_one.Out();
  EXPECT_EQ(new_one.Wait().exit_code, 0) << new_one.Out();
  ExpectEverythingFree(box);
}

// Answers every packet with one of a later protocol, as a daemon of a later release does.
class LaterDaemon {
 public:
  explicit LaterDaemon(const std::string& path)
      : listener_(*ipc::UnixListener::Listen(path, SOCK_SEQPACKET, 0600)), thread_([this] { Serve(); }) {}
  ~LaterDaemon() {
    over_ = true;
    thread_.join();
  }
  int answered() const { return answered_; }

 private:
  void Serve() {
    std::vector<ipc::SeqpacketSocket> peers;
    while (!over_) {
      if (auto fd = listener_.Accept(); fd && fd->valid()) peers.emplace_back(std::move(*fd));
      for (auto& peer : peers) {
        const auto received = peer.Receive();
        if (!received || received->what != ipc::Received::What::kPacket) continue;
        gpumux_frame frame{.magic = GPUMUX_SESSION_MAGIC,
                           .version = GPUMUX_SESSION_VERSION + 1,
                           .type = GPUMUX_REFUSED,
                           .payload_bytes = 0,
                           .request_id = 0};
        answered_ += peer.Send(std::as_bytes(std::span(&frame, 1))).has_value();
      }
      usleep(1000);
    }
  }
  ipc::UnixListener listener_;
  std::atomic<bool> over_{false};
  std::atomic<int> answered_{0};
  std::thread thread_;
};

TEST(Upgrade, ToAnotherProtocolIsRefusedByRunWithAWord) {
  Sandbox box;
  const std::string dir = box.runtime_dir() + "/sim";
  ASSERT_EQ(mkdir(dir.c_str(), 0700), 0);
  LaterDaemon daemon(dir + "/session.sock");
  const Outcome o = box.RunGpumux({"run", "--", "/bin/true"});
  EXPECT_EQ(o.exit_code, 3) << o.err;
  EXPECT_THAT(o.err, HasSubstr("another version"));
}

TEST(Upgrade, ToAnotherProtocolLeavesWhoRunsAlone) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  Process a = Survivor(box, "a", 7 * kGiB, stop);
  ASSERT_TRUE(Works(a));
  const pid_t daemon = box.DaemonPid();
  ASSERT_NE(daemon, 0);
  kill(daemon, SIGKILL);
  unlink((box.runtime_dir() + "/sim/session.sock").c_str());
  LaterDaemon later(box.runtime_dir() + "/sim/session.sock");
  // Its guard and its `run` have both asked.
  ASSERT_TRUE(WaitUntil("both were answered", [&] { return later.answered() >= 2; }));
  EXPECT_FALSE(a.Ended());
  Touch(stop);
  EXPECT_EQ(a.Wait().exit_code, 0) << a.Out() << a.Err();
}

}  // namespace
}  // namespace gpumux::test
