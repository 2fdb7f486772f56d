// SPDX-License-Identifier: Apache-2.0
//
// Connections that break while both ends live.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>

#include "base/unique_fd.h"
#include "scene.h"

namespace gpumux::test {
namespace {

// Shuts the process's connections to the daemon down, from outside; how many.
int BreakSessions(Sandbox& box, pid_t pid) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  int broken = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    const int number = std::stoi(entry.path().filename());
    const UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), number, 0)));
    sockaddr_un peer{};
    socklen_t size = sizeof peer;
    if (!fd || ::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    // The software GPU has connections too.
    if (peer.sun_family != AF_UNIX || !std::string_view(peer.sun_path).starts_with(box.runtime_dir()))
      continue;
    broken += ::shutdown(fd.get(), SHUT_RDWR) == 0;
  }
  return broken;
}

TEST(Sessions, OfARunThatBreaksIsMadeAnew) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  Process run = Survivor(box, "a", kGiB, stop);
  ASSERT_TRUE(Works(run));
  const auto tenants = Tenants(box);
  const pid_t daemon = box.DaemonPid();
  const auto back = [&] { return DaemonLog(box).find("its run is back") != std::string::npos; };
  ASSERT_FALSE(back());
  ASSERT_EQ(BreakSessions(box, run.pid()), 1);
  ASSERT_TRUE(WaitUntil("it is back", back));
  EXPECT_EQ(Tenants(box), tenants);
  EXPECT_EQ(box.DaemonPid(), daemon);
  Touch(stop);
  EXPECT_EQ(run.Wait().exit_code, 0);
  // The end that it told is the end that is known.
  ASSERT_TRUE(WaitUntil("it has ended", [&] { return Tenants(box).empty(); }));
  const auto ps = nlohmann::json::parse(box.RunGpumux({"ps", "--all", "--json"}).out, nullptr, false);
  ASSERT_EQ(ps["data"]["tenants"].size(), 1u) << ps.dump(1);
  EXPECT_EQ(ps["data"]["tenants"][0]["ended"]["exit_code"], 0);
}

TEST(Sessions, OfAGuardThatBreaksIsMadeAnew) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  Process run = Survivor(box, "a", kGiB, stop);
  ASSERT_TRUE(Works(run));
  const nlohmann::json before = Status(box);
  const pid_t program = before["tenants"][0]["pid"];
  ASSERT_EQ(BreakSessions(box, program), 1);
  ASSERT_TRUE(WaitUntil("it has a session again", [&] { return BreakSessions(box, program) == 1; }));
  ASSERT_TRUE(WaitUntil("and again", [&] {
    const auto status = Status(box);
    return status["tenants"][0]["enforced"]["memory"] == before["tenants"][0]["enforced"]["memory"];
  }));
  Touch(stop);
  EXPECT_EQ(run.Wait().exit_code, 0) << run.Out();
  ExpectEverythingFree(box);
}

}  // namespace
}  // namespace gpumux::test
