// SPDX-License-Identifier: Apache-2.0
//
// The control program and daemon of MPS: options, commands, whom they take effect
// on, users. What the commands do is documented by NVIDIA; the texts that are
// compared here are the documented ones, or lists that a script reads.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "mps_world.h"

namespace gpumux::test {
namespace {

using namespace cuda;

class SoftGpuMpsControl : public MpsTest {};

void Idle(const Child::Step& step) {
  ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
  step.Report();
  step.Wait();
}

std::vector<std::string> Lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST_F(SoftGpuMpsControl, OptionsAndExitStatus) {
  Printed printed = Control("", "get_server_list\n");
  EXPECT_EQ(printed.status, 1);
  EXPECT_EQ(printed.text, "Cannot find MPS control daemon process\n");
  StartDaemon();
  printed = Control("-d");
  EXPECT_EQ(printed.status, 1);
  EXPECT_EQ(printed.text, "An instance of this daemon is already running\n");
  EXPECT_EQ(Control("-v").status, 0);
  EXPECT_NE(Control("-v").text.find("13000"), std::string::npos);
  EXPECT_EQ(Control("-h").status, 0);
  EXPECT_NE(Control("-h").text.find("-multiuser-server"), std::string::npos);
  for (const char* option : {"-S", "--static-partitioning", "-x"}) {
    EXPECT_EQ(Control(option).status, 1) << option << ": as a driver of R580";
  }
  EXPECT_EQ(Control("", "no_such_command\n").status, 0) << "the daemon was reached";
  struct stat st;
  for (const char* name : {"control", "control_lock", "nvidia-cuda-mps-control.pid"}) {
    EXPECT_EQ(stat((pipes() + "/" + name).c_str(), &st), 0) << name;
  }
  EXPECT_TRUE(IsAlive(DaemonPid()));
  const pid_t daemon = DaemonPid();
  EXPECT_EQ(Control("", "quit\n").status, 0);
  EXPECT_TRUE(Eventually([&] { return !IsAlive(daemon); }));
  EXPECT_EQ(DaemonPid(), 0);
  EXPECT_EQ(Control("", "quit\n").status, 1);
}

TEST_F(SoftGpuMpsControl, InTheForegroundItServesUntilItIsTerminated) {
  Child child([](const Child::Step&) { Control("-f"); });
  ASSERT_TRUE(Eventually([&] { return DaemonPid() > 0; }));
  const pid_t daemon = DaemonPid();
  Child client(Idle);
  ASSERT_TRUE(client.WaitReport());
  const pid_t server = ServerPid();
  kill(daemon, SIGTERM);
  EXPECT_EQ(child.Join(), 0);
  EXPECT_FALSE(IsAlive(daemon));
  EXPECT_FALSE(IsAlive(server));
}

TEST_F(SoftGpuMpsControl, AServerThatIsNotReadyKeepsProgramsWaiting) {
  StartDaemon();
  const pid_t gpu = SoftgpudPid();
  ASSERT_GT(gpu, 0);
  kill(gpu, SIGSTOP);  // the server cannot make its contexts
  EXPECT_EQ(Command("start_server -uid " + std::to_string(geteuid())), "");
  EXPECT_EQ(ServerState(), "INITIALIZING\n");
  EXPECT_NE(Command("start_server -uid " + std::to_string(geteuid())), "") << "one at a time";
  kill(gpu, SIGCONT);
  EXPECT_TRUE(Eventually([] { return ServerState() == "ACTIVE\n"; }));
  InChild([] { EXPECT_EQ(InitWithContext(), CUDA_SUCCESS); });
}

TEST_F(SoftGpuMpsControl, DefaultsAreForTheNextServerAServersSettingsForItsNextClients) {
  StartDaemon();
  EXPECT_EQ(Command("get_default_active_thread_percentage"), "100.0\n");
  EXPECT_EQ(Command("start_server -uid " + std::to_string(geteuid())), "");
  ASSERT_TRUE(Eventually([&] { return ServerPid() > 0 && ServerState() == "ACTIVE\n"; }));
  const std::string server = std::to_string(ServerPid());
  EXPECT_EQ(Command("set_default_active_thread_percentage 25"), "25.0\n");
  Command("set_default_device_pinned_mem_limit 0 2G");
  Command("set_default_client_priority 1");
  EXPECT_EQ(Command("get_default_active_thread_percentage"), "25.0\n");
  EXPECT_EQ(Command("get_default_device_pinned_mem_limit 0"), "2G\n");
  EXPECT_EQ(Command("get_default_client_priority"), "1\n");
  EXPECT_EQ(Command("get_active_thread_percentage " + server), "100.0\n") << "it was there before";
  const auto limits = [](int sms, bool limited) {
    InChild([=] {
      ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
      EXPECT_EQ(Sms(), sms);
      EXPECT_EQ(FreeMiB() < 4096, limited);
    });
  };
  limits(132, false);
  Child there(Idle);
  ASSERT_TRUE(there.WaitReport());
  EXPECT_EQ(Command("set_active_thread_percentage " + server + " 50"), "50.0\n");
  Command("set_device_pinned_mem_limit " + server + " 0 3G");
  EXPECT_EQ(Command("get_device_pinned_mem_limit " + server + " 0"), "3G\n");
  limits(66, true);
  there.Continue();
  there.Join();
  Command("shutdown_server " + server);
  EXPECT_EQ(ServerPid(), 0);
  limits(32, true);  // the next server has the defaults
  EXPECT_NE(Command("set_default_active_thread_percentage 0"), "0.0\n");
  EXPECT_EQ(Command("get_default_active_thread_percentage"), "25.0\n");
}

TEST_F(SoftGpuMpsControl, ADeviceThatALimitNamesIsNotCheckedAndTheLaterEntryCounts) {
  StartDaemon();
  char text[96] = {};
  NVML(nvmlDeviceGetUUID, nvml::nvmlDevice_t, char*, unsigned)(Gpu0(), text, sizeof(text));
  Command("set_default_device_pinned_mem_limit 7 1G");
  Command("set_default_device_pinned_mem_limit " + std::string(text) + " 3G");
  Command("set_default_device_pinned_mem_limit 0 2G");
  EXPECT_EQ(Command("get_default_device_pinned_mem_limit 7"), "1G\n");
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    EXPECT_EQ(FreeMiB(), 2048u - 514);
  });
}

TEST_F(SoftGpuMpsControl, ClientsAreListed) {
  StartDaemon();
  Child one(Idle), two(Idle);
  ASSERT_TRUE(one.WaitReport());
  ASSERT_TRUE(two.WaitReport());
  const std::string server = std::to_string(ServerPid());
  EXPECT_EQ(Lines(Command("get_server_list")), std::vector<std::string>{server});
  auto pids = Lines(Command("get_client_list " + server));
  std::sort(pids.begin(), pids.end());
  std::vector<std::string> expected = {std::to_string(one.pid()), std::to_string(two.pid())};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(pids, expected);
  char uuid[96] = {};
  NVML(nvmlDeviceGetUUID, nvml::nvmlDevice_t, char*, unsigned)(Gpu0(), uuid, sizeof(uuid));
  const auto devices = Lines(Command("get_device_client_list"));
  ASSERT_EQ(devices.size(), 3u);
  EXPECT_TRUE(devices[0].starts_with("[0] 00:00.0, NVIDIA H200")) << devices[0];
  expected[0] += ".1";
  expected[1] += ".1";
  EXPECT_EQ((std::multiset<std::string>(devices.begin() + 1, devices.end())),
            (std::multiset<std::string>(expected.begin(), expected.end())));

  auto rows = Lines(Command("ps"));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_TRUE(std::regex_match(rows[0], std::regex("PID +ID +SERVER +DEVICE +NAMESPACE +COMMAND *")))
      << rows[0];
  rows = Lines(Command("ps -p " + std::to_string(two.pid())));
  ASSERT_EQ(rows.size(), 2u);
  std::istringstream row(rows[1]);
  std::string pid, id, of, device, pid_namespace, command;
  row >> pid >> id >> of >> device >> pid_namespace >> command;
  EXPECT_EQ(pid, std::to_string(two.pid()));
  EXPECT_EQ(of, server);
  EXPECT_EQ(device, std::string(uuid).substr(0, 22));
  struct stat st;
  ASSERT_EQ(stat("/proc/self/ns/pid", &st), 0);
  EXPECT_EQ(pid_namespace, std::to_string(st.st_ino));
  EXPECT_NE(command.find("softgpu_mps_test"), std::string::npos);
  EXPECT_NE(Command("device_query " + server).find(uuid), std::string::npos);
  EXPECT_EQ(Lines(Command("device_query --csv")).back().substr(0, 2), "0,");
  EXPECT_NE(Command("get_client_list 1"), "");
}

TEST_F(SoftGpuMpsControl, LogsHaveARealDaemonsLines) {
  StartDaemon();
  Command("set_default_active_thread_percentage 33");
  Command("set_default_device_pinned_mem_limit 0 5G");
  Child client(Idle);
  ASSERT_TRUE(client.WaitReport());
  const std::string server = std::to_string(ServerPid()),
                    name = "{PID: " + std::to_string(client.pid()) + ", Context ID: 0}";
  client.Continue();
  client.Join();
  ASSERT_TRUE(Eventually([&] { return ServerLog().find(name + " disconnected") != std::string::npos; }));
  for (const std::string& log : {ControlLog(), ServerLog()}) {
    for (const std::string& line : Lines(log)) {
      EXPECT_TRUE(std::regex_match(line, std::regex("\\[\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d\\.\\d{3} "
                                                    "(Control|Server|Other) +\\d+\\] .+")))
          << line;
    }
  }
  for (const std::string& text :
       {"Starting control daemon using socket " + pipes() + "/control",
        "NEW CLIENT " + std::to_string(client.pid()) + " from user " + std::to_string(geteuid()) +
            ": Server is not ready, push client to pending list",
        "Starting new server " + server + " for user " + std::to_string(geteuid()),
        "NEW SERVER " + server + ": Ready"}) {
    EXPECT_NE(ControlLog().find(text), std::string::npos) << text << "\nnot in\n" << ControlLog();
  }
  for (const std::string& text :
       {std::string("Active Threads Percentage set to 33.0"),
        std::string("Device pinned memory limit for device 0 set to 0x140000000 bytes"),
        std::string("Server Priority set to 0"), std::string("Server has started"),
        "Received new client request for " + name, "Client " + name + " connected",
        "Client " + name + " disconnected"}) {
    EXPECT_NE(ServerLog().find(text), std::string::npos) << text << "\nnot in\n" << ServerLog();
  }
}

TEST_F(SoftGpuMpsControl, AServerIsShutDownWhenItsClientsHaveGoneOrAtOnce) {
  StartDaemon();
  auto client = std::make_unique<Child>(Idle);
  ASSERT_TRUE(client->WaitReport());
  std::string server = std::to_string(ServerPid());
  Child shutdown([&](const Child::Step&) { EXPECT_EQ(Command("shutdown_server " + server), ""); });
  Child late([](const Child::Step&) { EXPECT_EQ(InitWithContext(), CUDA_SUCCESS) << "of the next server"; });
  EXPECT_EQ(ServerState(), "ACTIVE\n");
  client->Continue();
  client->Join();
  EXPECT_EQ(shutdown.Join(), 0);
  EXPECT_EQ(late.Join(), 0);

  client = std::make_unique<Child>([](const Child::Step& step) {
    Idle(step);
    EXPECT_TRUE(Eventually([] { return static_cast<int>(Synchronize()) == 806; }));
  });
  ASSERT_TRUE(client->WaitReport());
  server = std::to_string(ServerPid());
  EXPECT_EQ(Command("shutdown_server " + server + " -f"), "");
  EXPECT_EQ(ServerPid(), 0);
  client->Continue();
  EXPECT_EQ(client->Join(), 0);
}

TEST_F(SoftGpuMpsControl, QuitWaitsForClientsUnlessItIsTold) {
  StartDaemon();
  Child client(Idle);
  ASSERT_TRUE(client.WaitReport());
  const pid_t daemon = DaemonPid(), server = ServerPid();
  EXPECT_EQ(Command("quit -t 0"), "");
  EXPECT_TRUE(Eventually([&] { return !IsAlive(daemon) && !IsAlive(server); }));
}

// As `uid`, in a child; the test's directories belong to root.
void BecomeUser(uid_t uid) {
  if (setgid(uid) != 0 || setuid(uid) != 0) _exit(3);
}

TEST_F(SoftGpuMpsControl, AnotherUserWaitsUntilTheServerHasNoClients) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  chmod(dir().c_str(), 0777);
  StartDaemon();
  Child first(Idle);
  ASSERT_TRUE(first.WaitReport());
  const pid_t server = ServerPid();
  Child second([](const Child::Step& step) {
    BecomeUser(1234);
    Idle(step);
  });
  const std::string asks = "NEW CLIENT " + std::to_string(second.pid()) + " from user 1234";
  ASSERT_TRUE(Eventually([&] { return ControlLog().find(asks) != std::string::npos; })) << ControlLog();
  Child third(
      [](const Child::Step&) { EXPECT_EQ(InitWithContext(), CUDA_SUCCESS); });  // root again: queues behind
  EXPECT_EQ(ServerPid(), server);
  first.Continue();
  first.Join();
  ASSERT_TRUE(second.WaitReport());
  EXPECT_NE(ServerPid(), server);
  EXPECT_NE(ControlLog().find("for user 1234"), std::string::npos);
  second.Continue();
  EXPECT_EQ(second.Join(), 0);
  EXPECT_EQ(third.Join(), 0);
}

TEST_F(SoftGpuMpsControl, AMultiUserServerTakesAll) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  chmod(dir().c_str(), 0777);
  StartDaemon("-d -multiuser-server");
  Child first(Idle);
  ASSERT_TRUE(first.WaitReport());
  const pid_t server = ServerPid();
  Child second([](const Child::Step& step) {
    BecomeUser(1234);
    Idle(step);
  });
  ASSERT_TRUE(second.WaitReport());
  EXPECT_EQ(ServerPid(), server);
  EXPECT_EQ(Lines(Command("get_client_list " + std::to_string(server))).size(), 2u);
  InChild([&] {
    BecomeUser(1234);
    EXPECT_EQ(Command("quit"), "Permission denied\n");
    EXPECT_EQ(Command("get_server_list"), std::to_string(server) + "\n");
  });
}

TEST_F(SoftGpuMpsControl, ADaemonOfAUserServesThatUserAlone) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  chmod(dir().c_str(), 0777);
  Child daemon([](const Child::Step&) {
    BecomeUser(1234);
    EXPECT_EQ(Control("-d -multiuser-server").status, 1) << "for root alone";
    EXPECT_EQ(Control("-d").status, 0);
  });
  ASSERT_EQ(daemon.Join(), 0);
  InChild([] {
    BecomeUser(1234);
    EXPECT_EQ(InitWithContext(), CUDA_SUCCESS);
    EXPECT_EQ(MpsAttribute(), 1);
  });
  InChild([] {
    BecomeUser(1235);
    EXPECT_EQ(static_cast<int>(InitWithContext()), 800);
  });
}

}  // namespace
}  // namespace gpumux::test
