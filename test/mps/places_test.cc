// SPDX-License-Identifier: Apache-2.0
//
// More processes than an MPS server has places for, and a server that takes nobody just now.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Mps(const std::string& name, const std::vector<std::string>& options,
                             const std::vector<std::string>& probe) {
  std::vector<std::string> argv = {"run", "--mode", "mps", "--name", name};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.insert(argv.end(), {"--", Sandbox::TestProgram("mps_places_probe")});
  argv.insert(argv.end(), probe.begin(), probe.end());
  return argv;
}

// Processes of the tenant that wait, and why.
std::vector<std::pair<pid_t, std::string>> Waiting(Sandbox& box, const std::string& name) {
  std::vector<std::pair<pid_t, std::string>> found;
  const auto status = box.StatusData();
  for (const auto& tenant : status["tenants"]) {
    if (tenant["name"] != name) continue;
    for (const auto& member : tenant["members"]) {
      if (member["waits"].is_string()) found.emplace_back(member["pid"], member["waits"]);
    }
  }
  return found;
}

// "" if none does.
std::string Waits(Sandbox& box, const std::string& name) {
  const auto waiting = Waiting(box, name);
  return waiting.empty() ? "" : waiting.front().second;
}

bool Says(const Process& process, const std::string& text) {
  return process.Out().find(text) != std::string::npos;
}

std::string PipeDirectory(const Sandbox& box) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(box.runtime_dir())) {
    if (entry.path().filename() == "nvidia-cuda-mps-control.pid") return entry.path().parent_path().string();
  }
  return "";
}

TEST(Places, AProcessBeyondThoseDeclaredWaitsForOne) {
  MpsBox box;
  Process many = box.Gpumux(Mps("many", {"--mem", "40GiB", "--processes", "47"}, {"pair"}));
  ASSERT_TRUE(WaitUntil("both processes have their contexts", [&] { return Says(many, "second in"); }));
  // 47 and 1 are declared: the pair's second process is number 49.
  Process pair = box.Gpumux(Mps("pair", {"--mem", "8GiB"}, {"pair"}));
  ASSERT_TRUE(WaitUntil("it waits", [&] { return !Waits(box, "pair").empty(); })) << pair.Out() << pair.Err();
  EXPECT_EQ(Waits(box, "pair"), "GPU 0 has 48 of 48 MPS clients");
  EXPECT_TRUE(Says(pair, "first in"));
  EXPECT_FALSE(Says(pair, "second")) << pair.Out();
  EXPECT_THAT(box.RunGpumux({"ps"}).out, HasSubstr("waits for its context: GPU 0 has 48 of 48 MPS clients"));
  EXPECT_THAT(box.RunGpumux({"status"}).out, HasSubstr("waits for its context: GPU 0 has 48 of 48"));
  many.Signal(SIGTERM);
  many.Wait();
  EXPECT_TRUE(WaitUntil("it has its context", [&] { return Says(pair, "second in"); })) << pair.Out();
  EXPECT_EQ(Waits(box, "pair"), "");
  pair.Signal(SIGTERM);
  pair.Wait();
}

TEST(Places, AreWaitedForAsTheTenantWaitsForItsStart) {
  MpsBox box;
  Process many = box.Gpumux(Mps("many", {"--mem", "40GiB", "--processes", "47"}, {"pair"}));
  ASSERT_TRUE(WaitUntil("both processes have their contexts", [&] { return Says(many, "second in"); }));
  for (const auto& options : std::vector<std::vector<std::string>>{{"--no-wait"}, {"--wait=1s"}}) {
    std::vector<std::string> all = {"--mem", "8GiB"};
    all.insert(all.end(), options.begin(), options.end());
    Process pair = box.Gpumux(Mps("pair", all, {"pair"}));
    ASSERT_TRUE(WaitUntil("it is refused", [&] { return Says(pair, "second "); })) << pair.Out();
    EXPECT_THAT(pair.Out(), HasSubstr("second error 808"));
    pair.Signal(SIGTERM);
    pair.Wait();
  }
  many.Signal(SIGTERM);
  many.Wait();
}

TEST(Places, AreGivenInTheOrderOfArrival) {
  MpsBox box;
  Process most = box.Gpumux(Mps("most", {"--mem", "40GiB", "--processes", "46"}, {"pair"}));
  Process one = box.Gpumux(Mps("one", {"--mem", "4GiB"}, {"late", "/"}));
  ASSERT_TRUE(WaitUntil("they are in", [&] { return Says(most, "second in") && Says(one, "\nin\n"); }));
  Process crowd = box.Gpumux(Mps("crowd", {"--mem", "8GiB"}, {"crowd", box.dir() + "/go"}));
  pid_t waits_first = 0;
  // The first has the tenant's own place, number 48.
  for (int i = 0; i < 4; ++i) {
    Touch(box.dir() + "/go" + std::to_string(i));
    ASSERT_TRUE(WaitUntil("it is in, or waits", [&] {
      return i == 0 ? Says(crowd, "0 in") : Waiting(box, "crowd").size() == static_cast<size_t>(i);
    })) << crowd.Out();
    if (i == 1) waits_first = Waiting(box, "crowd")[0].first;
  }
  ASSERT_GT(waits_first, 1);
  // It comes last to the place that is free, and the place is kept for it.
  kill(waits_first, SIGSTOP);
  one.Signal(SIGTERM);
  one.Wait();
  ASSERT_TRUE(WaitUntil("another is turned away", [&] {
    const auto waiting = Waiting(box, "crowd");
    return std::ranges::any_of(waiting, [](const auto& each) {
      return each.second == "GPU 0 has 47 of 48 MPS clients, and others came before";
    });
  })) << crowd.Out();
  kill(waits_first, SIGCONT);
  EXPECT_TRUE(WaitUntil("it is in", [&] { return Says(crowd, "1 in"); })) << crowd.Out();
  EXPECT_FALSE(Says(crowd, "2 in") || Says(crowd, "3 in")) << crowd.Out();
  most.Signal(SIGTERM);
  most.Wait();
  EXPECT_TRUE(WaitUntil("all are in", [&] { return Says(crowd, "2 in") && Says(crowd, "3 in"); }))
      << crowd.Out();
  crowd.Signal(SIGTERM);
  crowd.Wait();
}

// Clients that gpumux knows nothing of.
TEST(Places, TheServersOwnRefusalIsWaitedOut) {
  MpsBox box;
  Process one = box.Gpumux(Mps("one", {"--mem", "4GiB"}, {"pair"}));
  ASSERT_TRUE(WaitUntil("the server has clients", [&] { return Says(one, "second in"); })) << one.Out();
  const std::string pipes = PipeDirectory(box);
  ASSERT_NE(pipes, "");
  Process strangers = box.Start({"/usr/bin/env", "CUDA_MPS_PIPE_DIRECTORY=" + pipes,
                                 "LD_LIBRARY_PATH=" + Sandbox::Program("../lib/gpumux/softgpu"),
                                 Sandbox::TestProgram("mps_places_probe"), "many", "46"});
  ASSERT_TRUE(WaitUntil("all places are taken", [&] { return Says(strangers, "46 in"); })) << strangers.Out();
  Process late = box.Gpumux(Mps("late", {"--mem", "4GiB"}, {"late", "/"}));
  ASSERT_TRUE(WaitUntil("it waits", [&] { return !Waits(box, "late").empty(); })) << late.Out() << late.Err();
  EXPECT_EQ(Waits(box, "late"), "the MPS server of GPU 0 takes no more clients (error 46)");
  strangers.Signal(SIGKILL);
  EXPECT_TRUE(WaitUntil("it has its context", [&] { return Says(late, "in\n"); })) << late.Out();
  late.Signal(SIGTERM);
  late.Wait();
  one.Signal(SIGTERM);
  one.Wait();
}

// Its daemon dies: nobody takes a place that others declared.
TEST(Places, WhoWaitsWaitsForTheNextDaemonToo) {
  MpsBox box;
  Process many = box.Gpumux(Mps("many", {"--mem", "40GiB", "--processes", "47"}, {"pair"}));
  ASSERT_TRUE(WaitUntil("both processes have their contexts", [&] { return Says(many, "second in"); }));
  Process pair = box.Gpumux(Mps("pair", {"--mem", "8GiB"}, {"pair"}));
  ASSERT_TRUE(WaitUntil("it waits", [&] { return !Waits(box, "pair").empty(); })) << pair.Out() << pair.Err();
  const pid_t before = box.DaemonPid();
  kill(before, SIGKILL);
  ASSERT_TRUE(WaitUntil("there is another daemon", [&] {
    const pid_t now = box.DaemonPid();
    return now != 0 && now != before;
  }));
  EXPECT_TRUE(WaitUntil("it waits there", [&] { return !Waits(box, "pair").empty(); }));
  EXPECT_FALSE(Says(pair, "second")) << pair.Out();
  many.Signal(SIGTERM);
  many.Wait();
  EXPECT_TRUE(WaitUntil("it has its context", [&] { return Says(pair, "second in"); })) << pair.Out();
  pair.Signal(SIGTERM);
  pair.Wait();
}

// One that has no part in MPS yet, and one that is a client without a context.
TEST(Places, WhoComesWhileTheServerRecoversWaitsForIt) {
  MpsBox box;
  const std::string go = box.dir() + "/go";
  // Its work is lost, but it stays, and the server waits for its end.
  Process hit = box.Gpumux(Mps("hit", {"--mem", "8GiB"}, {"pair"}));
  ASSERT_TRUE(WaitUntil("it is a client", [&] { return Says(hit, "second in"); })) << hit.Out();
  std::map<std::string, Process> comers;
  for (const char* how : {"late", "joined"})
    comers.emplace(how, box.Gpumux(Mps(how, {"--mem", "4GiB"}, {how, go})));
  for (auto& [how, comer] : comers)
    ASSERT_TRUE(WaitUntil("its program runs", [&] { return Says(comer, "here"); })) << comer.Err();
  const Outcome faulty =
      box.RunGpumux({"run", "--mode", "mps", "--mem", "4GiB", "--", Sandbox::Program("gpumux-workload"),
                     "--kernel-us", "2000", "--seconds", "0.1", "--end", "fault"});
  EXPECT_NE(faulty.exit_code, 0);
  Touch(go);
  for (auto& [how, comer] : comers) {
    ASSERT_TRUE(WaitUntil("it waits", [&] { return !Waits(box, how).empty(); })) << comer.Out();
    EXPECT_EQ(Waits(box, how), "the MPS server of GPU 0 recovers (error 807)") << how;
  }
  hit.Signal(SIGTERM);
  hit.Wait();
  for (auto& [how, comer] : comers) {
    EXPECT_TRUE(WaitUntil("it has its context", [&] { return Says(comer, "\nin\n"); })) << how << comer.Out();
    comer.Signal(SIGTERM);
    comer.Wait();
  }
}

}  // namespace
}  // namespace gpumux::test
