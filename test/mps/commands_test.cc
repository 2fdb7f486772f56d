// SPDX-License-Identifier: Apache-2.0
//
// `gpumux mps`: shown, kept, stopped, exclusive, and somebody else's control daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class MpsCommand : public ::testing::Test {
 protected:
  Json Data(std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), "mps");
    arguments.emplace_back("--json");
    const Outcome o = box.RunGpumux(arguments);
    EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
    const Json json = Json::parse(o.out, nullptr, false);
    return json.is_object() ? json["data"] : Json();
  }
  // The only domain, or null; also while one daemon dies and the next comes.
  Json Domain() {
    const Json json = Json::parse(box.RunGpumux({"mps", "--json"}).out, nullptr, false);
    if (!json.is_object() || !json.contains("data")) return nullptr;
    const Json domains = json["data"]["domains"];
    return domains.size() == 1 ? domains[0] : Json();
  }
  Process Tenant(const std::string& name) {
    Process p = box.Gpumux({"run", "--mode", "mps", "--name", name, "--mem", "4GiB", "--",
                            Sandbox::Program("gpumux-workload"), "--alloc", "1GiB", "--hold", "60"});
    EXPECT_TRUE(WaitUntil(name + " is a client", [&] {
      const Json status = box.StatusData();
      for (const Json& tenant : status["tenants"]) {
        if (tenant["name"] == name) return tenant["enforced"]["memory"] == "guard, and MPS for each process";
      }
      return false;
    })) << p.Err();
    return p;
  }
  // At once, or when what is left of its tenants has gone.
  void StopAll() {
    (void)Data({"stop"});
    WaitUntil("it is stopped", [&] { return Data()["domains"].empty(); });
  }
  static bool Lives(pid_t pid) { return kill(pid, 0) == 0; }

  Sandbox box;
};

TEST_F(MpsCommand, StatusTellsOfTheDomainAndWhoIsInIt) {
  // Where nothing runs, nothing is started.
  const Outcome none = box.RunGpumux({"mps"});
  EXPECT_EQ(none.exit_code, 0) << none.err;
  EXPECT_THAT(none.out, HasSubstr("gpumux runs no MPS now"));
  EXPECT_EQ(box.DaemonPid(), 0);

  Process a = Tenant("a");
  const Json domain = Domain();
  ASSERT_TRUE(domain.is_object());
  EXPECT_EQ(domain["state"], "active");
  EXPECT_EQ(domain["gpus"][0]["index"], 0);
  EXPECT_EQ(domain["kept"], false);
  EXPECT_EQ(domain["adopted"], false);
  EXPECT_EQ(domain["client_places_taken"], 1);
  EXPECT_EQ(domain["client_places"], 48);
  EXPECT_EQ(domain["tenants"].size(), 1u);
  EXPECT_EQ(domain["tenants"][0]["name"], "a");
  EXPECT_TRUE(Lives(domain["control_pid"].get<pid_t>()));
  EXPECT_TRUE(Lives(domain["server_pid"].get<pid_t>()));
  EXPECT_THAT(box.RunGpumux({"mps", "status"}).out, HasSubstr("while needed"));
  a.Signal(SIGTERM);
  a.Wait();
}

TEST_F(MpsCommand, WhatWasStartedStaysUntilItIsStopped) {
  std::ofstream(box.ConfigFile()) << "mps.idle_time = \"0s\"\n";
  const Json started = Data({"start"})["domains"][0];
  EXPECT_EQ(started["state"], "active");
  EXPECT_EQ(started["kept"], true);
  const pid_t control = started["control_pid"];
  // A tenant joins it, and leaves it as it was.
  Process a = Tenant("a");
  EXPECT_EQ(Domain()["control_pid"], control);
  a.Signal(SIGTERM);
  a.Wait();
  // It survives the daemon that looks after it, and its own death.
  const pid_t daemon = box.DaemonPid();
  kill(daemon, SIGKILL);
  kill(control, SIGKILL);
  ASSERT_TRUE(WaitUntil("both are gone", [&] { return !Lives(control) && box.DaemonPid() == 0; }));
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "1GiB", "--", "/bin/true"}).exit_code, 0);
  ASSERT_TRUE(WaitUntil("it is started again", [&] {
    const Json domain = Domain();
    return domain.is_object() && domain["state"] == "active" && domain["kept"] == true;
  }));
  const pid_t second = Domain()["control_pid"];
  StopAll();
  WaitUntil("it is gone", [&] { return !Lives(second); });
  EXPECT_EQ(box.RunGpumux({"mps", "stop"}).exit_code, 6);
}

TEST_F(MpsCommand, StopLetsTenantsEnd) {
  Process a = Tenant("a");
  const Json stopped = Data({"stop"});
  ASSERT_EQ(stopped["domains"].size(), 1u);
  EXPECT_EQ(stopped["domains"][0]["state"], "active");
  EXPECT_FALSE(a.Ended());
  const Outcome late =
      box.RunGpumux({"run", "--mode", "mps", "--mem", "1GiB", "--no-wait", "--", "/bin/true"});
  EXPECT_EQ(late.exit_code, 4);
  EXPECT_THAT(late.err, HasSubstr("its MPS is stopped"));
  a.Signal(SIGTERM);
  a.Wait();
  // With the last of them, however long an idle one would stay.
  WaitUntil("it is stopped", [&] { return Data()["domains"].empty(); });
}

TEST_F(MpsCommand, ExclusiveModeIsSetAndPutBackWhateverDies) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  // A program outside would keep the server from its GPU, or be kept from it.
  Process outside = box.Start({"/usr/bin/env", "LD_LIBRARY_PATH=" + Sandbox::Program("../lib/gpumux/softgpu"),
                               Sandbox::Program("gpumux-workload"), "--alloc", "1GiB", "--hold", "60",
                               "--ready", box.dir() + "/ready"});
  ASSERT_TRUE(WaitUntil("it is there", [&] { return access((box.dir() + "/ready").c_str(), F_OK) == 0; }));
  const Outcome refused = box.RunGpumux({"mps", "start", "--exclusive"});
  EXPECT_EQ(refused.exit_code, 4) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("gpumux-workload"));
  outside.Signal(SIGKILL);
  outside.Wait();

  const auto exclusive = [&] {
    const Json domain = Domain();
    return domain.is_object() && domain["gpus"][0]["exclusive_compute_mode"] == true;
  };
  Json started;
  ASSERT_TRUE(WaitUntil("nobody is in the way",
                        [&] { return box.RunGpumux({"mps", "start", "--exclusive"}).exit_code == 0; }));
  EXPECT_TRUE(exclusive());
  // Tenants of MPS run; others are told why they cannot.
  Process a = Tenant("a");
  const Outcome other =
      box.RunGpumux({"run", "--mem", "1GiB", "--mode", "timeslice", "--no-wait", "--", "/bin/true"});
  EXPECT_NE(other.exit_code, 0);
  EXPECT_THAT(other.err, HasSubstr("exclusive"));
  a.Signal(SIGTERM);
  a.Wait();
  // A crash of everything: the next daemon has it as it was.
  const pid_t control = Domain()["control_pid"], daemon = box.DaemonPid();
  kill(daemon, SIGKILL);
  kill(control, SIGKILL);
  ASSERT_TRUE(WaitUntil("both are gone", [&] { return !Lives(control) && box.DaemonPid() == 0; }));
  EXPECT_EQ(box.RunGpumux({"run", "--mode", "mps", "--mem", "1GiB", "--", "/bin/true"}).exit_code, 0);
  EXPECT_TRUE(exclusive());
  StopAll();
  // As it was before: anybody may use it.
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "1GiB", "--mode", "timeslice", "--no-wait", "--",
                           Sandbox::Program("gpumux-workload"), "--alloc", "100MiB"})
                .exit_code,
            0);
}

TEST_F(MpsCommand, SomebodysControlDaemonIsNamedAndAdopted) {
  const std::string pipe = box.dir() + "/theirs", log = box.dir() + "/theirs-log";
  std::filesystem::create_directory(pipe);
  std::filesystem::create_directory(log);
  const std::string libraries = Sandbox::Program("../lib/gpumux/softgpu");
  const std::vector<std::string> env{"/usr/bin/env", "LD_LIBRARY_PATH=" + libraries,
                                     "CUDA_MPS_PIPE_DIRECTORY=" + pipe, "CUDA_MPS_LOG_DIRECTORY=" + log};
  auto argv = env;
  argv.insert(argv.end(), {libraries + "/bin/nvidia-cuda-mps-control", "-d"});
  ASSERT_EQ(box.Run(argv).exit_code, 0);
  const auto theirs = [&](const Json& data) {
    for (const Json& daemon : data["foreign"]) {
      if (daemon["pipe_dir"] == pipe) return daemon["pid"].get<pid_t>();
    }
    return pid_t{0};
  };
  const pid_t control = theirs(Data());
  ASSERT_GT(control, 0);
  EXPECT_THAT(box.RunGpumux({"mps"}).out, HasSubstr("adopt --pid " + std::to_string(control)));

  // Its server is on the GPU with the first client: a second one there would share by turns.
  argv = env;
  argv.insert(argv.end(), {Sandbox::Program("gpumux-workload"), "--alloc", "1GiB", "--hold", "60", "--ready",
                           box.dir() + "/ready"});
  Process client = box.Start(argv);
  ASSERT_TRUE(WaitUntil("it is there", [&] { return access((box.dir() + "/ready").c_str(), F_OK) == 0; }));
  const Outcome refused =
      box.RunGpumux({"run", "--mode", "mps", "--mem", "1GiB", "--no-wait", "--", "/bin/true"});
  EXPECT_EQ(refused.exit_code, 4) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("another MPS server"));

  const Json adopted = Data({"adopt", "--pid", std::to_string(control)})["domains"][0];
  EXPECT_EQ(adopted["adopted"], true);
  EXPECT_EQ(adopted["control_pid"], control);
  EXPECT_EQ(adopted["pipe_dir"], pipe);
  EXPECT_EQ(theirs(Data()), 0);
  Process a = Tenant("a");
  EXPECT_EQ(Domain()["server_pid"], adopted["server_pid"]);
  // The next daemon has it too.
  kill(box.DaemonPid(), SIGKILL);
  ASSERT_TRUE(WaitUntil("the next daemon has it", [&] {
    const Json domain = Domain();
    return domain.is_object() && domain["adopted"] == true && domain["control_pid"] == control;
  }));
  a.Signal(SIGTERM);
  a.Wait();
  // It is let go, not ended.
  StopAll();
  EXPECT_TRUE(Lives(control));
  EXPECT_FALSE(client.Ended());
  EXPECT_EQ(box.RunGpumux({"mps", "adopt", "--pid", std::to_string(getpid())}).exit_code, 6);
}

TEST_F(MpsCommand, WordsAreChecked) {
  const std::vector<std::vector<std::string>> wrong{{"mps", "begin"},
                                                    {"mps", "stop", "--exclusive"},
                                                    {"mps", "start", "--pid", "1"},
                                                    {"mps", "adopt", "--pid", "x"},
                                                    {"mps", "start", "stop"}};
  for (const auto& arguments : wrong) EXPECT_EQ(box.RunGpumux(arguments).exit_code, 2) << arguments.back();
  EXPECT_EQ(box.DaemonPid(), 0);
  EXPECT_EQ(box.RunGpumux({"mps", "start", "--gpu", "7"}).exit_code, 6);
  EXPECT_EQ(box.RunGpumux({"mps", "start", "--gpu", "0,0"}).exit_code, 2);
}

}  // namespace
}  // namespace gpumux::test
