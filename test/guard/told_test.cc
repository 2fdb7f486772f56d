// SPDX-License-Identifier: Apache-2.0
//
// What NVML tells a tenant's program: its own processes, its own memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;
constexpr int kNotFound = 6, kInsufficientSize = 7;
const std::string kProbe = Sandbox::TestProgram("told_probe");
const std::string kSoftGpu = Sandbox::Program("../lib/gpumux/softgpu");
const std::string kFakeNvml = Sandbox::TestProgram("fake_nvml/libnvidia-ml.so.1");

struct List {
  int code = -1;
  unsigned count = 0;
  std::map<unsigned, uint64_t> bytes_of_pid;
  bool beyond = false;  // something was written beyond the entries
};

// The lines of `lists` by their first word.
std::map<std::string, List> ParseLists(const std::string& out) {
  std::map<std::string, List> lists;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, word;
    List list;
    if (!(words >> name >> list.code >> list.count)) continue;
    while (words >> word) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos) {
        list.beyond = true;
      } else {
        list.bytes_of_pid[static_cast<unsigned>(std::stoul(word))] = std::stoull(word.substr(equals + 1));
      }
    }
    lists[name] = list;
  }
  return lists;
}

unsigned PidIn(const std::string& out) {
  const size_t at = out.find("pid ");
  return at == std::string::npos ? 0 : static_cast<unsigned>(std::stoul(out.substr(at + 4)));
}

// All processes of the GPU by a client that nothing guards.
std::map<unsigned, uint64_t> Bare(Sandbox& box) {
  box.SetEnv("LD_LIBRARY_PATH", kSoftGpu);
  const Outcome o = box.Run({kProbe, "lists", "0"});
  return ParseLists(o.out)["ComputeRunningProcesses_v3/100"].bytes_of_pid;
}

// A tenant whose program takes `mib` and stays until `hold` exists.
Process Holder(Sandbox& box, const std::string& name, uint64_t mib) {
  Process p =
      box.Gpumux({"run", "--mem", "4GiB", "--name", name, "--", kProbe, "take", std::to_string(mib * kMiB)});
  WaitUntil(name + " holds its memory", [&] { return p.Out().find("ready") != std::string::npos; });
  return p;
}

class ProcessLists : public ::testing::Test {
 protected:
  ProcessLists() { box.SetEnv("PROBE_HOLD_FILE", box.dir() + "/hold"); }
  Sandbox box;
};

TEST_F(ProcessLists, AreTheTenantsOwnInEveryVersion) {
  Process other = Holder(box, "other", 300);
  // Two processes of one tenant: a shell's child that stays, and the one that looks.
  const std::string both = kProbe + " take " + std::to_string(100 * kMiB) + " > " + box.dir() + "/first & " +
                           "until grep -q ready " + box.dir() + "/first; do :; done; exec " + kProbe +
                           " take-and-list " + std::to_string(200 * kMiB);
  Process mine = box.Gpumux({"run", "--mem", "4GiB", "--name", "mine", "--", "/bin/sh", "-c", both});
  ASSERT_TRUE(WaitUntil("the lists are read",
                        [&] { return mine.Out().find("DetailList2/100") != std::string::npos; }))
      << mine.Out() << mine.Err();
  std::ifstream first_file(box.dir() + "/first");
  const std::string first_text((std::istreambuf_iterator<char>(first_file)), {});
  const unsigned first = PidIn(first_text), second = PidIn(mine.Out());

  auto lists = ParseLists(mine.Out());
  EXPECT_EQ(lists.size(), 3u * 3 * 3 + 3 * 3);
  for (const char* name : {"ComputeRunningProcesses", "ComputeRunningProcesses_v2",
                           "ComputeRunningProcesses_v3", "DetailList0"}) {
    const std::string stem = name;
    const List all = lists[stem + "/100"];
    EXPECT_EQ(all.code, 0) << name;
    EXPECT_EQ(all.count, 2u) << name;
    ASSERT_TRUE(all.bytes_of_pid.contains(first) && all.bytes_of_pid.contains(second)) << name << mine.Out();
    // What NVML says of each: the context and what it took.
    EXPECT_EQ(all.bytes_of_pid.at(first), 543162368 + 100 * kMiB);
    EXPECT_EQ(all.bytes_of_pid.at(second), 543162368 + 200 * kMiB);
    EXPECT_FALSE(all.beyond) << name;
    // Too small: how many there are, of one's own, and nothing written.
    for (const char* room : {"/0", "/1"}) {
      EXPECT_EQ(lists[stem + room].code, kInsufficientSize) << name << room;
      EXPECT_EQ(lists[stem + room].count, 2u) << name << room;
      EXPECT_FALSE(lists[stem + room].beyond) << name << room;
    }
  }
  for (const char* name :
       {"GraphicsRunningProcesses", "GraphicsRunningProcesses_v2", "GraphicsRunningProcesses_v3",
        "MPSComputeRunningProcesses", "MPSComputeRunningProcesses_v2", "MPSComputeRunningProcesses_v3",
        "DetailList1", "DetailList2"}) {
    for (const char* room : {"/0", "/1", "/100"}) {
      EXPECT_EQ(lists[std::string(name) + room].code, 0) << name << room;
      EXPECT_EQ(lists[std::string(name) + room].count, 0u) << name << room;
    }
  }
}

TEST_F(ProcessLists, OfOneWhoUsesNoGpuAreEmptyAmongOthers) {
  Process other = Holder(box, "other", 300);
  EXPECT_EQ(Bare(box).size(), 1u);  // the control: it is there
  auto lists = ParseLists(box.RunGpumux({"run", "--mem", "1GiB", "--", kProbe, "lists", "0"}).out);
  for (const char* room : {"/0", "/1", "/100"}) {
    EXPECT_EQ(lists[std::string("ComputeRunningProcesses_v3") + room].code, 0);
    EXPECT_EQ(lists[std::string("ComputeRunningProcesses_v3") + room].count, 0u);
  }
}

TEST_F(ProcessLists, FailAsNvmlDoes) {
  box.SetEnv("LD_LIBRARY_PATH", kSoftGpu);
  const std::string bare = box.Run({kProbe, "wrong"}).out;
  EXPECT_THAT(bare, HasSubstr("not initialised 1\nno count 2\nno buffer 2\nno device 2\nother version 25\n"));
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "1GiB", "--", kProbe, "wrong"}).out, bare);
}

TEST_F(ProcessLists, ReachALinkedProgramToo) {
  Process other = Holder(box, "other", 300);
  const Outcome o =
      box.RunGpumux({"run", "--mem", "2GiB", "--", Sandbox::TestProgram("guard_linked_nvml_probe")});
  EXPECT_EQ(o.out, "memory 0 " + std::to_string(2 * kGiB) + "\nlist 0 0\n") << o.err;
}

TEST_F(ProcessLists, OfAnOrphanAreItsOwnAlone) {
  Process other = Holder(box, "other", 300);
  const std::string look = kProbe + " take " + std::to_string(100 * kMiB) + " >/dev/null & exec " + kProbe +
                           " hold-and-list " + std::to_string(200 * kMiB);
  Process mine = box.Gpumux({"run", "--mem", "4GiB", "--", "/bin/sh", "-c", look});
  ASSERT_TRUE(
      WaitUntil("it holds its memory", [&] { return mine.Out().find("ready") != std::string::npos; }));
  ASSERT_TRUE(WaitUntil("all three are there", [&] { return Bare(box).size() == 3; }));
  const pid_t daemon = box.DaemonPid();
  kill(daemon, SIGKILL);
  ASSERT_TRUE(WaitUntil("the daemon is gone", [&] { return box.DaemonPid() != daemon; }));
  std::ofstream(box.dir() + "/hold").put('\n');
  ASSERT_TRUE(WaitUntil("the lists are read",
                        [&] { return mine.Out().find("DetailList2/100") != std::string::npos; }));
  const List list = ParseLists(mine.Out())["ComputeRunningProcesses_v3/100"];
  ASSERT_EQ(list.count, 1u);
  EXPECT_EQ(list.bytes_of_pid.begin()->first, PidIn(mine.Out()));
}

// --- nothing of NVML that names processes is forgotten -----------------------------------

TEST(NvmlNames, ThatNameProcessesAreGuardedOrHaveAReason) {
  const std::set<std::string> hooked = {
#define GPUMUX_NVML_HOOK(name, parameters) #name,
#include "guard/nvml_hooks.inc"
#undef GPUMUX_NVML_HOOK
  };
  const std::map<std::string, std::string> reasons = {
      {"nvmlDeviceClearAccountingPids", "lists nothing; root alone may"},
      {"nvmlSystemGetProcessName", "reads /proc as the caller sees it"},
      {"nvmlDeviceGetVgpuProcessUtilization", "processes inside virtual machines"},
      {"nvmlDeviceGetVgpuProcessesUtilizationInfo", "processes inside virtual machines"},
      {"nvmlVgpuInstanceClearAccountingPids", "processes inside virtual machines"},
      {"nvmlVgpuInstanceGetAccountingPids", "processes inside virtual machines"},
      {"nvmlVgpuInstanceGetAccountingStats", "processes inside virtual machines"},
      {"nvmlVgpuInstanceGetEncoderSessions", "processes inside virtual machines"},
      {"nvmlVgpuInstanceGetFBCSessions", "processes inside virtual machines"},
  };
  const std::vector<std::string> all = {
#define GPUMUX_NVML_ENTRY(name) #name,
#include "softgpu/nvml/entry_points.inc"
#undef GPUMUX_NVML_ENTRY
  };
  size_t naming = 0;
  for (const std::string& name : all) {
    const bool names = name.find("Process") != std::string::npos || name.find("Pids") != std::string::npos ||
                       name.find("Sessions") != std::string::npos || name.ends_with("AccountingStats");
    if (!names) continue;
    naming++;
    EXPECT_NE(hooked.contains(name), reasons.contains(name)) << name;
  }
  EXPECT_EQ(naming, 25u);
}

// --- releases of NVML that fill entries of other sizes under the same names -------------

class EntrySize : public ::testing::TestWithParam<int> {};

TEST_P(EntrySize, IsWhatTheDriverWrites) {
  const int bytes = GetParam();
  Sandbox box;
  box.SetEnv("PROBE_NVML", kFakeNvml);
  box.SetEnv("FAKE_NVML_ENTRY_BYTES", std::to_string(bytes));
  // Strangers around, and before, the own one: 1 MiB, 2 MiB and 3 MiB.
  box.SetEnv("FAKE_NVML_PIDS", "1,self,2");
  for (const char* version : {"", "_v2", "_v3"}) {
    const std::string name = std::string("nvmlDeviceGetComputeRunningProcesses") + version;
    const Outcome o =
        box.RunGpumux({"run", "--mem", "1GiB", "--", "/bin/sh", "-c",
                       "echo pid $$; exec " + kProbe + " stride " + name + " " + std::to_string(bytes)});
    auto lists = ParseLists(o.out);
    const std::string stem = name.substr(strlen("nvmlDeviceGet"));
    for (const char* room : {"/1", "/100"}) {
      const List& list = lists[stem + room];
      EXPECT_EQ(list.code, 0) << o.out << o.err;
      EXPECT_EQ(list.bytes_of_pid, (std::map<unsigned, uint64_t>{{PidIn(o.out), 2 * kMiB}})) << o.out;
      EXPECT_FALSE(list.beyond) << o.out;
    }
    EXPECT_EQ(lists[stem + "/0"].code, kInsufficientSize);
    EXPECT_EQ(lists[stem + "/0"].count, 1u);
  }
}
INSTANTIATE_TEST_SUITE_P(Releases, EntrySize, ::testing::Values(16, 24, 32));

TEST(Accounting, IsOfTheTenantsProcesses) {
  Sandbox box;
  box.SetEnv("PROBE_NVML", kFakeNvml);
  box.SetEnv("FAKE_NVML_PIDS", "1,self,2");
  const Outcome o = box.RunGpumux(
      {"run", "--mem", "1GiB", "--", "/bin/sh", "-c", "echo pid $$; exec " + kProbe + " accounting 1"});
  const std::string pid = std::to_string(PidIn(o.out));
  EXPECT_THAT(o.out, HasSubstr("pids 0 " + pid + "\nown 0 " + std::to_string(2 * kMiB) + "\nother " +
                               std::to_string(kNotFound) + " 0\n"));
}

TEST(VideoSessions, AreOfTheTenantsProcesses) {
  Sandbox box;
  box.SetEnv("PROBE_NVML", kFakeNvml);
  box.SetEnv("FAKE_NVML_PIDS", "1,self,2,self");
  const Outcome o = box.RunGpumux(
      {"run", "--mem", "1GiB", "--", "/bin/sh", "-c", "echo pid $$; exec " + kProbe + " sessions"});
  const std::string pid = std::to_string(PidIn(o.out));
  EXPECT_THAT(o.out, HasSubstr("sessions/0 0 2\nsessions/8 0 2 " + pid + "=2 " + pid + "=4\n")) << o.err;
}

// --- pid namespaces ---------------------------------------------------------------------

class PidNamespace : public ProcessLists {
 protected:
  void SetUp() override {
    if (system("unshare --pid --fork --mount-proc true 2>/dev/null") != 0)
      GTEST_SKIP() << "skipped: no pid namespace can be made here (needs root)";
  }
  // `command` by a shell that is process 1 of a namespace of its own.
  std::vector<std::string> Inside(const std::string& command) {
    return {"run",          "--mem",   "4GiB", "--",   "/usr/bin/unshare", "--pid", "--fork",
            "--mount-proc", "/bin/sh", "-c",   command};
  }
};

TEST_F(PidNamespace, ListsArePidsOfTheProgramsOwn) {
  Process other = Holder(box, "other", 300);
  // 1 is the shell; the first probe becomes 2 or so, as it says itself.
  Process mine = box.Gpumux(Inside(kProbe + " take " + std::to_string(100 * kMiB) + " > " + box.dir() +
                                   "/first & until grep -q ready " + box.dir() + "/first; do :; done; " +
                                   kProbe + " take-and-list " + std::to_string(200 * kMiB)));
  ASSERT_TRUE(WaitUntil("the lists are read",
                        [&] { return mine.Out().find("DetailList2/100") != std::string::npos; }))
      << mine.Out() << mine.Err();
  std::ifstream first_file(box.dir() + "/first");
  const std::string first_text((std::istreambuf_iterator<char>(first_file)), {});
  const unsigned first = PidIn(first_text), second = PidIn(mine.Out());
  auto lists = ParseLists(mine.Out());
  for (const char* name : {"ComputeRunningProcesses/100", "ComputeRunningProcesses_v2/100",
                           "ComputeRunningProcesses_v3/100", "DetailList0/100"}) {
    EXPECT_EQ(lists[name].bytes_of_pid, (std::map<unsigned, uint64_t>{{first, 543162368 + 100 * kMiB},
                                                                      {second, 543162368 + 200 * kMiB}}))
        << name << mine.Out();
  }
  // Outside, the machine's pids: neither is one of these.
  const auto bare = Bare(box);
  EXPECT_EQ(bare.size(), 3u);
  EXPECT_FALSE(bare.contains(first) || bare.contains(second));
}

TEST_F(PidNamespace, OfATenantOutsideIsTranslatedFromThere) {
  // The tenant's process outside sees the one inside under its pid out here.
  Process mine =
      box.Gpumux({"run", "--mem", "4GiB", "--", "/bin/sh", "-c",
                  "unshare --pid --fork " + kProbe + " take " + std::to_string(100 * kMiB) + " > " +
                      box.dir() + "/first & until grep -q ready " + box.dir() + "/first; do :; done; exec " +
                      kProbe + " take-and-list " + std::to_string(200 * kMiB)});
  ASSERT_TRUE(WaitUntil("the lists are read",
                        [&] { return mine.Out().find("DetailList2/100") != std::string::npos; }))
      << mine.Out() << mine.Err();
  EXPECT_EQ(ParseLists(mine.Out())["ComputeRunningProcesses_v3/100"].bytes_of_pid, Bare(box)) << mine.Out();
}

TEST_F(PidNamespace, OfADriverThatTranslatesItselfIsLeftAsItIs) {
  // Such a driver leaves out who is not in the namespace.
  box.SetEnv("PROBE_NVML", kFakeNvml);
  box.SetEnv("FAKE_NVML_PIDS", "self");
  Process mine = box.Gpumux(
      Inside(":; " + kProbe + " stride nvmlDeviceGetComputeRunningProcesses_v3 24; echo pids done"));
  const Outcome o = mine.Wait();
  const List list = ParseLists(o.out)["ComputeRunningProcesses_v3/100"];
  EXPECT_EQ(list.code, 0) << o.out << o.err;
  ASSERT_EQ(list.count, 1u) << o.out;
  EXPECT_LT(list.bytes_of_pid.begin()->first, 20u);  // a young namespace's pid
}

// --- use of the processors -----------------------------------------------------------------

TEST(ProcessUse, IsOfTheTenantsProcesses) {
  Sandbox box;
  const std::string workload = Sandbox::Program("gpumux-workload");
  Process other = box.Gpumux(
      {"run", "--mem", "2GiB", "--name", "other", "--", workload, "--kernel-us", "5000", "--seconds", "100"});
  // Until a client that nothing guards sees it at work.
  ASSERT_TRUE(WaitUntil("the other is there", [&] { return Bare(box).size() == 1; }));
  const std::string pid = std::to_string(Bare(box).begin()->first);
  EXPECT_THAT(box.Run({kProbe, "use", pid}).out, HasSubstr("seen 1"));
  Process mine =
      box.Gpumux({"run", "--mem", "2GiB", "--name", "mine", "--", "/bin/sh", "-c",
                  workload + " --kernel-us 5000 --seconds 100 >/dev/null & " + kProbe + " use $!; kill $!"});
  ASSERT_TRUE(WaitUntil(
      "its own process is seen", [&] { return mine.Out().find("seen") != std::string::npos; },
      std::chrono::seconds(50)))
      << mine.Err();
  // How many there could be: its own, and itself, as far as they are on the GPU by then.
  EXPECT_THAT(mine.Out().substr(mine.Out().find("seen")),
              AnyOf("seen 1 strangers 0 most 1\n", "seen 1 strangers 0 most 2\n"));
}

}  // namespace
}  // namespace gpumux::test
