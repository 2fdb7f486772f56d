// SPDX-License-Identifier: Apache-2.0
//
// Daemons that the kernel gives no more memory, or too few descriptors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/unique_fd.h"
#include "ipc/seqpacket.h"
#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;

uint64_t StatusBytes(pid_t pid, const std::string& key) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; file >> word;) {
    uint64_t kib = 0;
    if (word == key + ":" && file >> kib) return kib << 10;
  }
  return 0;
}

bool Limit(pid_t pid, __rlimit_resource what, rlim_t most) {
  const rlimit limit{most, RLIM_INFINITY};
  return ::prlimit(pid, what, &limit, nullptr) == 0;
}

// It keeps what it has, used or not.
bool GetsNoMoreData(pid_t pid) { return Limit(pid, RLIMIT_DATA, StatusBytes(pid, "VmData")); }
bool GetsNoMoreMappings(pid_t pid) { return Limit(pid, RLIMIT_AS, StatusBytes(pid, "VmSize")); }
bool GetsMore(pid_t pid) { return Limit(pid, RLIMIT_AS, RLIM_INFINITY); }

Outcome Ask(Sandbox& box) { return box.RunGpumux({"run", "--mem", "1GiB", "--no-wait", "--", "/bin/true"}); }

TEST(Memory, ThatIsNotThereForATenantRefusesItAndNobodyElse) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  Process a = Survivor(box, "a", 7 * kGiB, stop);
  ASSERT_TRUE(Works(a));
  const pid_t daemon = box.DaemonPid();
  ASSERT_NE(daemon, 0);
  ASSERT_TRUE(GetsNoMoreMappings(daemon)) << std::strerror(errno);
  // What it has at hand is enough to say no, and to serve who is there.
  const Outcome refused = Ask(box);
  EXPECT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("gpumuxd has no room for pages"));
  EXPECT_EQ(Tenants(box).size(), 1u);
  EXPECT_EQ(Gpu(box, "mem_guaranteed_bytes"), 8 * kGiB);
  EXPECT_EQ(box.DaemonPid(), daemon);
  ASSERT_TRUE(GetsMore(daemon));
  EXPECT_EQ(Ask(box).exit_code, 0);
  Touch(stop);
  EXPECT_EQ(a.Wait().exit_code, 0) << a.Out();
  ExpectEverythingFree(box);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

TEST(Memory, ThatHasRunOutEndsTheDaemonAndTheNextOneHasEveryTenant) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer ends the process itself when it gets no memory";
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  // The second asks the daemon each time: nothing so large stays as credit.
  Process a = Survivor(box, "a", 1 * kGiB, stop), b = Survivor(box, "b", 7 * kGiB, stop);
  ASSERT_TRUE(Works(a));
  ASSERT_TRUE(Works(b));
  const auto tenants = Tenants(box);
  const pid_t daemon = box.DaemonPid();
  ASSERT_NE(daemon, 0);
  ASSERT_TRUE(GetsNoMoreData(daemon)) << std::strerror(errno);
  // Peers that never finish what they say: each takes some of what it has.
  const std::string head = "GET /v1/status HTTP/1.1\r\nX-Long: " + std::string(3000, 'x');
  std::vector<UniqueFd> peers;
  for (int i = 0; i < 900 && box.DaemonPid() == daemon; ++i) {
    auto peer = ipc::ConnectUnix(box.runtime_dir() + "/sim/api.sock", SOCK_STREAM);
    if (!peer) break;
    (void)::send(peer->get(), head.data(), head.size(), MSG_NOSIGNAL);
    peers.push_back(std::move(*peer));
  }
  ASSERT_TRUE(WaitUntil("it has ended, and a next one is there",
                        [&] { return box.DaemonPid() != 0 && box.DaemonPid() != daemon; }));
  EXPECT_THAT(DaemonLog(box), HasSubstr("there is no more memory"));
  EXPECT_TRUE(WaitUntil("the next one has both", [&] { return IsWhole(box, daemon, tenants); }));
  EXPECT_EQ(Gpu(box, "mem_guaranteed_bytes"), 16 * kGiB);
  EXPECT_EQ(Ask(box).exit_code, 0);
  Touch(stop);
  for (Process* each : {&a, &b}) {
    const Outcome o = each->Wait();
    EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
  }
  ExpectEverythingFree(box);
}

// As many as `descriptors`, also for what it starts.
Process DaemonWith(Sandbox& box, int descriptors) {
  return box.Start({"/bin/sh", "-c",
                    "ulimit -n " + std::to_string(descriptors) + " && exec " + Sandbox::Program("gpumuxd")});
}

TEST(Descriptors, ThatAreTooFewForADaemonLoseNoLease) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  std::vector<Process> running;
  for (const char* name : {"a", "b", "c", "d"}) running.push_back(Survivor(box, name, kGiB, stop));
  for (Process& each : running) ASSERT_TRUE(Works(each));
  const auto tenants = Tenants(box);
  ASSERT_EQ(tenants.size(), running.size());
  // So that none of them starts a daemon of its own.
  for (const Process& each : running) each.Signal(SIGSTOP);
  const pid_t daemon = box.DaemonPid();
  ASSERT_NE(daemon, 0);
  ASSERT_EQ(kill(daemon, SIGKILL), 0);
  int ended = 0, served = 0;
  for (int descriptors = 6; served == 0 && descriptors < 200; ++descriptors) {
    const std::string before = DaemonLog(box);
    Process next = DaemonWith(box, descriptors);
    ASSERT_TRUE(WaitUntil("it serves, or has ended", [&] {
      return next.Ended() || DaemonLog(box).find("daemon-started", before.size()) != std::string::npos;
    }));
    const bool serves = !next.Ended();
    (serves ? served : ended) += 1;
    const bool few = DaemonLog(box).find("not taken over", before.size()) != std::string::npos;
    EXPECT_FALSE(few) << descriptors << " descriptors: " << DaemonLog(box).substr(before.size());
    next.Signal(SIGKILL);
    next.Wait();
  }
  EXPECT_GT(ended, 0);
  EXPECT_EQ(served, 1);
  for (const Process& each : running) each.Signal(SIGCONT);
  EXPECT_TRUE(WaitUntil("the next one has all of them", [&] { return IsWhole(box, daemon, tenants); }));
  EXPECT_EQ(Gpu(box, "mem_guaranteed_bytes"), 32 * kGiB);
  Touch(stop);
  for (Process& each : running) {
    const Outcome o = each.Wait();
    EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
  }
  ExpectEverythingFree(box);
}

}  // namespace
}  // namespace gpumux::test
