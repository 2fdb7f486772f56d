// SPDX-License-Identifier: Apache-2.0
//
// Many short tenants of mode mps, one after another: each works, and nothing is
// left of them (ROWS of them, by the build).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "scene.h"

namespace gpumux::test {
namespace {

namespace fs = std::filesystem;

size_t Entries(const std::string& dir) {
  std::error_code none;
  return static_cast<size_t>(std::distance(fs::directory_iterator(dir, none), fs::directory_iterator()));
}

size_t Descriptors(pid_t pid) { return Entries("/proc/" + std::to_string(pid) + "/fd"); }

std::set<std::string> Files(const std::string& dir) {
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(dir)) files.insert(entry.path());
  return files;
}

class Row : public ::testing::Test {
 protected:
  // The program's whole life is a few milliseconds of work.
  void RunJobs(int count) {
    for (int i = 0; i < count; ++i) {
      const Outcome o =
          box_.Tenant("job", {"--strict"}, {Sandbox::TestProgram("mps_probe"), "idle", "return"}).Wait();
      ASSERT_EQ(o.exit_code, 0) << "job " << i << ": " << o.out << o.err;
    }
  }
  // All that the last one had is free: also what was held of it.
  void ExpectNobodyIsThere() {
    EXPECT_TRUE(WaitUntil("nobody is there", [&] {
      const auto status = box_.StatusData();
      return status["tenants"].empty() && status["gpus"][0]["mem_guaranteed_bytes"] == 0 &&
             Devices(box_.KeeperPid()) == 0;
    }));
  }

  // That the daemon logged last.
  std::string MpsState() const {
    std::string state;
    std::ifstream log(box_.runtime_dir() + "/sim/gpumuxd.log");
    for (std::string line; std::getline(log, line);) {
      if (line.find(" MPS of GPU-") != std::string::npos) state = line.substr(line.rfind(' ') + 1);
    }
    return state;
  }

  MpsBox box_;
};

TEST_F(Row, OfJobsLeavesNothing) {
  RunJobs(2);
  ExpectNobodyIsThere();
  const pid_t daemon = box_.DaemonPid(), keeper = box_.KeeperPid(), server = box_.ServerPid(),
              control = box_.ControlPid();
  const uint64_t used = box_.UsedBytes();
  const std::map<pid_t, size_t> descriptors = {{daemon, Descriptors(daemon)},
                                               {keeper, Descriptors(keeper)},
                                               {server, Descriptors(server)},
                                               {control, Descriptors(control)}};
  const size_t processes = box_.Processes().size();
  const std::set<std::string> files = Files(box_.runtime_dir());
  RunJobs(ROWS);
  ExpectNobodyIsThere();
  // One of each for all of them.
  EXPECT_EQ(box_.DaemonPid(), daemon);
  EXPECT_EQ(box_.KeeperPid(), keeper);
  EXPECT_EQ(box_.ServerPid(), server);
  EXPECT_EQ(box_.ControlPid(), control);
  for (const auto& [pid, before] : descriptors) {
    EXPECT_TRUE(WaitUntil("its descriptors are closed", [&] { return Descriptors(pid) <= before; }))
        << fs::read_symlink("/proc/" + std::to_string(pid) + "/exe") << ": " << Descriptors(pid) << ", not "
        << before;
  }
  EXPECT_TRUE(WaitUntil("their processes are gone", [&] { return box_.Processes().size() <= processes; }));
  EXPECT_TRUE(WaitUntil("their memory is free", [&] { return box_.UsedBytes() == used; }));
  EXPECT_EQ(Files(box_.runtime_dir()), files);
  // Every place is free.
  const Outcome all = box_.RunGpumux(
      {"run", "--mode", "mps", "--mem", "40GiB", "--processes", "48", "--no-wait", "--", "/bin/true"});
  EXPECT_EQ(all.exit_code, 0) << all.err;
}

// Each comes while the control daemon of the one before ends.
TEST_F(Row, WithAControlDaemonForEachServesAll) {
  std::ofstream(box_.ConfigFile()) << "[mps]\nidle_time = \"0s\"\n";
  RunJobs(ROWS);
  EXPECT_TRUE(WaitUntil("MPS has ended", [&] { return box_.ServerPid() == 0 && box_.ControlPid() == 0; }));
}

// The one that ends would be there for ever if it were waited for.
TEST_F(Row, WhoComesWhileAControlDaemonEndsGetsTheNext) {
  std::ofstream(box_.ConfigFile()) << "[mps]\nidle_time = \"500ms\"\n";
  RunJobs(1);
  const pid_t control = box_.ControlPid();
  kill(control, SIGSTOP);  // it gets no further with its end
  ASSERT_TRUE(WaitUntil("it is told to end", [&] { return MpsState() == "ending"; }));
  Process next = box_.Tenant("next", {"--strict"}, {Sandbox::TestProgram("mps_probe"), "idle", "return"});
  ASSERT_TRUE(WaitUntil("it waits", [&] { return box_.StatusData()["tenants"].size() == 1; }));
  kill(control, SIGCONT);
  const Outcome o = next.Wait();
  EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
  EXPECT_NE(box_.ControlPid(), control);
}

}  // namespace
}  // namespace gpumux::test
