// SPDX-License-Identifier: Apache-2.0
//
// One daemon for a machine: started as systemd does it, with the rights that its
// unit leaves it, and used by two users (docs/guide/one-daemon-for-a-machine.md).
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../support/sandbox.h"
#include "service_player.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr uint64_t kGiB = 1ull << 30;
const std::string kProbe = Sandbox::TestProgram("guard_probe");

class SystemDaemon : public ::testing::Test {
 protected:
  void SetUp() override {
    if (getuid() != 0) GTEST_SKIP() << "needs root, as the machine's daemon does";
    player_ = std::make_unique<ServicePlayer>(box_.dir() + "/machine");
    player_->SetEnv("GPUMUX_RUNTIME_DIR", box_.runtime_dir());
    player_->SetEnv("GPUMUX_SOFTGPU", "H200");
    player_->SetEnv("GPUMUX_SOFTGPU_DIR", box_.softgpu_dir());
  }
  void TearDown() override {
    if (HasFailure() && player_) std::cerr << "--- log of the daemon\n" << player_->Log();
  }
  void Start(std::vector<std::string> arguments = {}) {
    player_->Start(Sandbox::Program("gpumuxd"), std::move(arguments));
    ASSERT_TRUE(player_->Hear("READY=1")) << player_->Log();
  }

  Sandbox box_;
  std::unique_ptr<ServicePlayer> player_;
};

TEST_F(SystemDaemon, SaysWhenItIsReadyAndServesWhoCameBefore) {
  player_->OpenSockets(0666, SOCK_SEQPACKET, SOCK_STREAM);
  // A command that came while nobody listened but systemd.
  const auto early = ipc::ConnectUnix(player_->api(), SOCK_STREAM);
  ASSERT_TRUE(early);
  const std::string request = "GET /v1/version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  ASSERT_EQ(send(early->get(), request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  Start();
  const auto status = player_->Hear("STATUS=");
  EXPECT_THAT(status.value_or(""), HasSubstr("1 GPU(s), 0 tenant(s)"));
  char answer[64] = {};
  ASSERT_GT(recv(early->get(), answer, sizeof answer - 1, 0), 0);
  EXPECT_THAT(std::string(answer), StartsWith("HTTP/1.1 200"));
  player_->Kill(SIGTERM);
  EXPECT_TRUE(player_->Hear("STOPPING=1"));
  EXPECT_EQ(player_->Wait(), 0);
  // The sockets are systemd's: they stay, and who comes waits for the next daemon.
  EXPECT_TRUE(ipc::ConnectUnix(player_->session(), SOCK_SEQPACKET));
  Start();
}

TEST_F(SystemDaemon, BeatsFromItsLoopAlone) {
  const std::string faults = box_.dir() + "/faults";
  player_->SetEnv("GPUMUX_SOFTGPU_FAULTS", "@" + faults);
  player_->SetEnv("WATCHDOG_USEC", "100000");
  player_->OpenSockets(0666, SOCK_SEQPACKET, SOCK_STREAM);
  Start();
  for (int beat = 0; beat < 3; ++beat) ASSERT_TRUE(player_->Hear("WATCHDOG=1"));
  // NVML hangs, as a driver may: the process lives, its loop does not turn.
  std::ofstream(faults + ".new") << "slow nvml* by 700ms";
  fs::rename(faults + ".new", faults);
  ASSERT_TRUE(WaitUntil("no beat comes for three times as long as one may take",
                        [&] { return !player_->Hear("WATCHDOG=1", 300ms); }));
  fs::remove(faults);
  EXPECT_TRUE(player_->Hear("WATCHDOG=1"));
}

TEST_F(SystemDaemon, TakesNoSocketOfAnotherKind) {
  player_->OpenSockets(0666, SOCK_STREAM, SOCK_STREAM);
  player_->Start(Sandbox::Program("gpumuxd"));
  EXPECT_EQ(player_->Wait(), 2);
  EXPECT_THAT(player_->Log(), HasSubstr("'session'"));
}

TEST_F(SystemDaemon, TakesNoSocketThatIsForAnotherProcess) {
  player_->OpenSockets(0666, SOCK_SEQPACKET, SOCK_STREAM);
  player_->SetEnv("LISTEN_PID", "1");
  player_->Start(Sandbox::Program("gpumuxd"));
  // It wants its own, and finds that somebody listens there.
  EXPECT_EQ(player_->Wait(), 4) << player_->Log();
}

TEST_F(SystemDaemon, LetsNobodyElseInWithoutAGroup) {
  Start();
  for (const std::string& path : {player_->session(), player_->api()})
    EXPECT_EQ(fs::status(path).permissions(), fs::perms(0660)) << path;
  Sandbox ann;
  ann.SetUser(23001);
  ann.SetEnv("GPUMUX_SYSTEM_DIR", player_->dir());
  ann.ShareGpuOf(box_);
  const Outcome o = ann.RunGpumux({"ps"});
  EXPECT_EQ(o.exit_code, 3) << o.out << o.err;
}

TEST_F(SystemDaemon, LetsInTheMembersOfTheGroupThatIsConfigured) {
  const group* const users = getgrnam("users");
  if (!users) GTEST_SKIP() << "this system has no group 'users'";
  std::ofstream(box_.ConfigFile()) << "[daemon]\nsocket_group = \"users\"\n";
  // Not as the unit has it: with all rights of root, as whoever starts it by hand.
  Process daemon =
      box_.Start({Sandbox::Program("gpumuxd"), "--system", "--foreground", "--runtime-dir", player_->dir()});
  ASSERT_TRUE(WaitUntil("it is ready", [&] {
    return daemon.Err().find("daemon-started") != std::string::npos || daemon.Ended();
  }));
  for (const std::string& path : {player_->session(), player_->api()}) {
    struct stat info{};
    ASSERT_EQ(stat(path.c_str(), &info), 0) << path << daemon.Err();
    EXPECT_EQ(info.st_mode & 07777, 0660u) << path;
    EXPECT_EQ(info.st_gid, users->gr_gid) << path;
  }
}

TEST_F(SystemDaemon, DoesNotStartWithAGroupThatIsUnknown) {
  std::ofstream(box_.ConfigFile()) << "[daemon]\nlog_level = \"info\"\nsocket_group = \"no-such-group\"\n";
  player_->SetEnv("GPUMUX_CONFIG", box_.ConfigFile());
  player_->Start(Sandbox::Program("gpumuxd"));
  EXPECT_EQ(player_->Wait(), 2);
  const std::string at = box_.ConfigFile() + ":3:16: daemon.socket_group: there is no group 'no-such-group'";
  EXPECT_THAT(player_->Log(), HasSubstr(at));
  const Outcome check = box_.RunGpumux({"config", "check"});
  EXPECT_EQ(check.exit_code, 1);
  EXPECT_THAT(check.err, HasSubstr(at));
}

TEST_F(SystemDaemon, SaysThatAConfiguredGroupMeansNothingToSocketsOfSystemd) {
  std::ofstream(box_.ConfigFile()) << "[daemon]\nsocket_group = \"root\"\n";
  player_->SetEnv("GPUMUX_CONFIG", box_.ConfigFile());
  player_->OpenSockets(0666, SOCK_SEQPACKET, SOCK_STREAM);
  Start();
  EXPECT_THAT(player_->Log(), HasSubstr("daemon.socket_group means nothing to sockets that systemd opened"));
  EXPECT_EQ(fs::status(player_->api()).permissions(), fs::perms(0666));
}

// Two users of the one daemon.
class TwoUsers : public SystemDaemon {
 protected:
  void SetUp() override {
    SystemDaemon::SetUp();
    if (IsSkipped()) return;
    for (Sandbox* each : {&ann_, &bob_}) {
      each->ShareGpuOf(box_);
      each->SetEnv("GPUMUX_SYSTEM_DIR", player_->dir());
    }
    ann_.SetUser(23001);
    bob_.SetUser(23002);
    player_->OpenSockets(0666, SOCK_SEQPACKET, SOCK_STREAM);
    // From where both can reach its guard.
    player_->Start(ann_.Path(Sandbox::Program("gpumuxd")));
    ASSERT_TRUE(player_->Hear("READY=1")) << player_->Log();
  }
  Process Hold(Sandbox& box, const std::string& name, const std::string& stop) {
    Process p = box.Gpumux({"run", "--mem", "10GiB", "--name", name, "--label", "project=" + name, "--",
                            kProbe, "survive", std::to_string(kGiB), stop});
    EXPECT_TRUE(WaitUntil(name + " works",
                          [&] { return p.Out().find("working") != std::string::npos || p.Ended(); }));
    EXPECT_THAT(p.Out(), HasSubstr("working")) << p.Err();
    return p;
  }
  static nlohmann::json TenantSeenBy(Sandbox& box, const std::string& name) {
    const auto status = box.StatusData();
    for (const auto& tenant : status["tenants"]) {
      if (tenant["name"] == name) return tenant;
    }
    return nullptr;
  }
  Sandbox ann_, bob_;
};

TEST_F(TwoUsers, ShareTheGpuAndTouchNothingOfEachOther) {
  Process ann = Hold(ann_, "anns", box_.dir() + "/secret"), bob = Hold(bob_, "bobs", box_.dir() + "/stop");
  EXPECT_EQ(ann_.DaemonPid() + bob_.DaemonPid(), 0) << "no daemon of their own";
  EXPECT_EQ(bob_.StatusData()["gpus"][0]["mem_guaranteed_bytes"], 20 * kGiB);

  // Bob sees that Ann has a tenant and how large it is, and enforced: the daemon's rights are enough.
  const auto seen = TenantSeenBy(bob_, "anns"), own = TenantSeenBy(ann_, "anns");
  ASSERT_TRUE(seen.is_object() && own.is_object());
  EXPECT_EQ(seen["owner"], "23001");
  EXPECT_EQ(seen["mem_guaranteed_bytes"], 10 * kGiB);
  EXPECT_EQ(seen["enforced"]["memory"], "guard");
  // Not how it was called, nor where, nor its labels.
  EXPECT_EQ(seen["command"], "guard_probe");
  EXPECT_TRUE(seen["cwd"].is_null() && seen["labels"].is_null()) << seen;
  EXPECT_THAT(own["command"].get<std::string>(), HasSubstr("secret"));
  EXPECT_EQ(own["labels"]["project"], "anns");
  EXPECT_TRUE(own["cwd"].is_string());
  for (const auto& args : std::vector<std::vector<std::string>>{{"status"},
                                                                {"ps"},
                                                                {"ps", "--all"},
                                                                {"explain", "anns"},
                                                                {"ps", "--json"},
                                                                {"explain", "anns", "--json"}}) {
    const Outcome o = bob_.RunGpumux(args);
    EXPECT_EQ(o.exit_code, 0) << args[0] << o.err;
    EXPECT_THAT(o.out, HasSubstr("anns"));
    EXPECT_EQ(o.out.find("secret"), std::string::npos) << o.out;
    EXPECT_EQ(o.out.find("\"project\":\"anns\""), std::string::npos) << o.out;
  }

  // Nor can he stop it.
  const Outcome stopping = bob_.RunGpumux({"stop", "anns"});
  EXPECT_EQ(stopping.exit_code, 4) << stopping.out << stopping.err;
  EXPECT_THAT(stopping.err, HasSubstr("23001"));
  const Outcome setting = bob_.RunGpumux({"set", "anns", "--mem", "1GiB"});
  EXPECT_EQ(setting.exit_code, 4) << setting.out << setting.err;
  EXPECT_EQ(TenantSeenBy(ann_, "anns")["mem_guaranteed_bytes"], 10 * kGiB);
  EXPECT_FALSE(ann.Ended());
  EXPECT_EQ(bob_.RunGpumux({"stop", "bobs"}).exit_code, 0);
  EXPECT_NE(bob.Wait().exit_code, 0);

  // Root may: the daemon signals across users.
  box_.SetEnv("GPUMUX_SYSTEM_DIR", player_->dir());
  EXPECT_EQ(box_.RunGpumux({"stop", "anns"}).exit_code, 0);
  EXPECT_NE(ann.Wait().exit_code, 0);
}

// One server of MPS for both, as only root's control daemon has it.
TEST_F(TwoUsers, AreClientsOfOneServerOfMps) {
  const auto start = [&](Sandbox& box, const std::string& name) {
    return box.Gpumux({"run", "--mode", "mps", "--strict", "--mem", "10GiB", "--share", "50%", "--name", name,
                       "--", Sandbox::Program("gpumux-workload"), "--alloc", "1GiB", "--verify", "--json",
                       "--hold", "60"});
  };
  const auto enforced = [&](Sandbox& box, const std::string& name) {
    const auto tenant = TenantSeenBy(box, name);
    return tenant.is_object() && tenant["enforced"]["memory"] == "guard, and MPS for each process";
  };
  Process ann = start(ann_, "anns"), bob = start(bob_, "bobs");
  for (Sandbox* each : {&ann_, &bob_}) {
    for (const char* name : {"anns", "bobs"})
      EXPECT_TRUE(WaitUntil(std::string(name) + " is a client", [&] { return enforced(*each, name); }))
          << ann.Err() << bob.Err() << player_->Log();
  }
  EXPECT_EQ(ann_.DaemonPid() + bob_.DaemonPid(), 0) << "no daemon of their own";
  // Neither ends the other's, and each stops its own, with the server's help.
  EXPECT_EQ(bob_.RunGpumux({"stop", "anns"}).exit_code, 4);
  EXPECT_EQ(bob_.RunGpumux({"stop", "bobs"}).exit_code, 0);
  EXPECT_NE(bob.Wait().exit_code, 0);
  EXPECT_TRUE(enforced(ann_, "anns"));
  EXPECT_FALSE(ann.Ended());
  EXPECT_EQ(ann_.RunGpumux({"stop", "anns"}).exit_code, 0);
  EXPECT_NE(ann.Wait().exit_code, 0);
}

TEST_F(TwoUsers, OpenNothingThatIsTheDaemonsOrTheOthers) {
  const std::string stop = box_.dir() + "/stop";
  Process ann = Hold(ann_, "anns", stop);
  // All that lies there, but for what is for everybody.
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(player_->dir())) files.push_back(entry.path());
  EXPECT_TRUE(std::count(files.begin(), files.end(), player_->dir() + "/leases.db"));
  EXPECT_TRUE(std::count(files.begin(), files.end(), player_->dir() + "/keeper.sock"));
  for (const std::string& path : files) {
    const auto mode = fs::status(path).permissions();
    const bool for_everybody = path == player_->session() || path == player_->api();
    EXPECT_EQ((mode & fs::perms(0077)) == fs::perms::none, !for_everybody) << path;
  }
  // The tenant's memory: its pages are files without a name, in descriptors that Bob cannot reach.
  const pid_t program = TenantSeenBy(ann_, "anns")["pid"];
  for (const char* const what : {"/fd", "/maps", "/mem", "/environ"}) {
    const std::string path = "/proc/" + std::to_string(program) + what;
    const Outcome o = bob_.Run({"/bin/cat", path});
    EXPECT_NE(o.exit_code, 0) << path;
  }
  std::ofstream(stop).put('\n');
  EXPECT_EQ(ann.Wait().exit_code, 0) << ann.Err();
}

TEST_F(TwoUsers, KeepTheirTenantsThroughARestartOfTheService) {
  const std::string stop = box_.dir() + "/stop";
  Process ann = Hold(ann_, "anns", stop), bob = Hold(bob_, "bobs", stop);
  for (const int signal : {SIGTERM, SIGKILL}) {
    player_->Kill(signal);
    player_->Wait();
    player_->Forget();
    player_->Start(ann_.Path(Sandbox::Program("gpumuxd")));
    ASSERT_TRUE(player_->Hear("READY=1")) << player_->Log();
    // Open at once, for anybody.
    EXPECT_EQ(bob_.RunGpumux({"run", "--mem", "1GiB", "--no-wait", "--", "/bin/true"}).exit_code, 0);
  }
  EXPECT_EQ(ann_.StatusData()["gpus"][0]["mem_guaranteed_bytes"], 20 * kGiB);
  EXPECT_FALSE(ann.Ended() || bob.Ended());
  std::ofstream(stop).put('\n');
  EXPECT_EQ(ann.Wait().exit_code, 0) << ann.Err();
  EXPECT_EQ(bob.Wait().exit_code, 0) << bob.Err();
}

}  // namespace
}  // namespace gpumux::test
