// SPDX-License-Identifier: Apache-2.0
//
// Section D of docs/pitfalls.md: ordinals, and several GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;
const std::string kProbe = Sandbox::TestProgram("gpus_probe");
const std::string kSoftGpu = Sandbox::Program("../lib/gpumux/softgpu");

// One line of `gpus_probe see`.
struct Seen {
  int ordinal = -1, retain = -1, last = -1;
  unsigned index = 99;
  std::string uuid, by_pci;
  uint64_t total = 0, free = 0, granted = 0;
  uint64_t v1_total = 0, v1_free = 0, v1_used = 0;
  uint64_t v2_total = 0, v2_reserved = 0, v2_free = 0, v2_used = 0, own = 0;
};

// Of each program that printed, in order.
struct Program {
  int init = -1;
  std::vector<Seen> gpus;
  std::vector<std::string> Uuids() const {
    std::vector<std::string> uuids;
    for (const Seen& gpu : gpus) uuids.push_back(gpu.uuid);
    return uuids;
  }
};

std::vector<Program> Parse(const std::string& out) {
  std::vector<Program> programs;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    Seen s;
    char uuid[64] = {}, by_pci[64] = {};
    int init = 0, count = 0;
    if (sscanf(line.c_str(), "init %d count %d", &init, &count) == 2) {
      programs.push_back({init, {}});
    } else if (sscanf(line.c_str(),
                      "gpu %d %63s total %lu retain %d last %d free %lu granted %lu index %u v1 %lu %lu %lu "
                      "v2 %lu %lu "
                      "%lu %lu own %lu bypci %63s",
                      &s.ordinal, uuid, &s.total, &s.retain, &s.last, &s.free, &s.granted, &s.index,
                      &s.v1_total, &s.v1_free, &s.v1_used, &s.v2_total, &s.v2_reserved, &s.v2_free,
                      &s.v2_used, &s.own, by_pci) == 17) {
      s.uuid = uuid;
      s.by_pci = by_pci;
      programs.back().gpus.push_back(s);
    }
  }
  return programs;
}

// A shell's command that runs the probe once for each list of visible devices.
std::string ForEach(const std::vector<std::string>& lists) {
  std::string command;
  for (const std::string& list : lists) command += "CUDA_VISIBLE_DEVICES='" + list + "' " + kProbe + " see; ";
  return command + "env -u CUDA_VISIBLE_DEVICES " + kProbe + " see";
}

void ExpectPromised(const Seen& gpu, uint64_t limit, uint64_t context) {
  EXPECT_EQ(gpu.total, limit) << gpu.uuid;
  EXPECT_EQ(gpu.v1_total, limit) << gpu.uuid;
  EXPECT_EQ(gpu.v2_total, limit) << gpu.uuid;
  EXPECT_EQ(gpu.retain, 0);
  EXPECT_EQ(gpu.last, 2);  // the end of the promise is an ordinary out-of-memory
  // All of it can be had, and no more: what is left is less than a piece.
  EXPECT_LE(gpu.granted + context, limit);
  EXPECT_LT(gpu.free, 256 * kMiB);
  EXPECT_GT(gpu.granted + context + 80 * kMiB + 256 * kMiB, limit);
  EXPECT_EQ(gpu.own, gpu.granted + context);
  EXPECT_EQ(gpu.v1_free, gpu.free);
  EXPECT_EQ(gpu.v2_free, gpu.free);
  EXPECT_EQ(gpu.v1_free + gpu.v1_used, limit);
  EXPECT_EQ(gpu.v2_free + gpu.v2_used + gpu.v2_reserved, limit);
  EXPECT_LE(gpu.own, gpu.v1_used);
}

void ExpectNothing(const Seen& gpu) {
  EXPECT_EQ(gpu.total, 0u);
  EXPECT_EQ(gpu.retain, 2);
  EXPECT_EQ(gpu.granted, 0u);
  EXPECT_EQ(gpu.v1_free, 0u);
  EXPECT_EQ(gpu.v2_free, 0u);
  EXPECT_EQ(gpu.v1_used, gpu.v1_total);
  EXPECT_EQ(gpu.v2_used + gpu.v2_reserved, gpu.v2_total);
  EXPECT_GT(gpu.v1_total, 0u);
  EXPECT_EQ(gpu.own, 0u);
}

constexpr uint64_t kContext = 543162368;     // an H200's, in NVML's figure
constexpr uint64_t kContextL4 = 342 * kMiB;  // by the software GPU's model

// Index 0 is an L4, index 1 an H200: for CUDA the faster one is first.
class PitfallsD : public ::testing::TestWithParam<const char*> {
 protected:
  PitfallsD() : box("1xL4,1xH200") {}
  void SetUp() override {
    Sandbox bare("1xL4,1xH200");
    bare.ShareGpuOf(box);
    bare.SetEnv("LD_LIBRARY_PATH", kSoftGpu);
    bare.SetEnv("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    // UUIDs come from the directory: the bare run is on the same GPUs.
    const auto programs = Parse(bare.Run({kProbe, "see"}).out);
    ASSERT_EQ(programs.size(), 1u);
    ASSERT_EQ(programs[0].gpus.size(), 2u);
    l4 = programs[0].gpus[0].uuid;
    h200 = programs[0].gpus[1].uuid;
    EXPECT_EQ(programs[0].gpus[0].index, 0u);
    EXPECT_EQ(programs[0].gpus[1].index, 1u);
  }
  std::vector<std::string> Lists() const {
    return {"0",
            "1",
            "0,1",
            "1,0",
            l4,
            h200,
            h200 + "," + l4,
            h200.substr(0, 12),
            l4.substr(0, 9) + ",0",
            "",
            "7",
            "1,7,0",
            "0,0",
            h200 + "," + h200,
            "-1",
            "NoDevFiles",
            "MIG-" + h200.substr(4),
            "MIG-" + h200 + "/1/0",
            "0,MIG-" + l4 + "/1/0"};
  }
  // The program of every list, in the order of the test's parameter.
  std::vector<Program> Guarded(const std::string& mem, const std::string& gpus) {
    std::string order = GetParam();
    if (!order.empty()) order = "export CUDA_DEVICE_ORDER=" + order + "; ";
    const Outcome o =
        box.RunGpumux({"run", "--mem", mem, "--gpu", gpus, "--", "/bin/sh", "-c", order + ForEach(Lists())},
                      std::chrono::seconds(100));
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return Parse(o.out);
  }
  std::vector<Program> Bare() {
    Sandbox bare("1xL4,1xH200");
    bare.ShareGpuOf(box);
    bare.SetEnv("LD_LIBRARY_PATH", kSoftGpu);
    if (*GetParam()) bare.SetEnv("CUDA_DEVICE_ORDER", GetParam());
    return Parse(bare.Run({"/bin/sh", "-c", ForEach(Lists())}, std::chrono::seconds(100)).out);
  }
  Sandbox box;
  std::string l4, h200;
};

TEST_P(PitfallsD, D1_EveryFormOfVisibleDevicesShowsWhatItShowsBareAndTheLimitStaysWithItsGpu) {
  const auto bare = Bare(), guarded = Guarded("10%", "0,1");
  const auto lists = Lists();
  ASSERT_EQ(bare.size(), lists.size() + 1);
  ASSERT_EQ(guarded.size(), bare.size());
  std::map<std::string, uint64_t> limits;
  for (const Seen& gpu : guarded.back().gpus) limits[gpu.uuid] = gpu.total;
  ASSERT_EQ(limits.size(), 2u);
  EXPECT_LT(limits[l4], 2500 * kMiB);
  EXPECT_GT(limits[h200], 13 * kGiB);
  size_t devices = 0, none = 0;
  for (size_t i = 0; i < guarded.size(); i++) {
    const std::string list = i < lists.size() ? lists[i] : "(unset)";
    SCOPED_TRACE(list);
    EXPECT_EQ(guarded[i].init, bare[i].init);
    ASSERT_EQ(guarded[i].Uuids(), bare[i].Uuids());
    none += guarded[i].gpus.empty();
    for (const Seen& gpu : guarded[i].gpus) {
      devices++;
      EXPECT_EQ(gpu.by_pci, gpu.uuid);
      EXPECT_EQ(gpu.index, gpu.uuid == h200 ? 1u : 0u);
      ExpectPromised(gpu, limits[gpu.uuid], gpu.uuid == h200 ? kContext : kContextL4);
    }
  }
  // Empty, unknown, twice, and partitions that are none. "GPU-<the L4>,0" names
  // it twice where it is the first.
  const bool l4_first = std::string_view(GetParam()) == "PCI_BUS_ID";
  EXPECT_EQ(none, l4_first ? 9u : 8u);
  EXPECT_EQ(devices, l4_first ? 15u : 17u);
}

TEST_P(PitfallsD, D2_WhatIsVisibleBesidesThePromiseGivesNothing) {
  const auto guarded = Guarded("3GiB", "1");
  ASSERT_EQ(guarded.size(), Lists().size() + 1);
  size_t promised = 0, others = 0;
  for (const Program& program : guarded) {
    for (const Seen& gpu : program.gpus) {
      if (gpu.uuid == h200) {
        ExpectPromised(gpu, 3 * kGiB, kContext);
        promised++;
      } else {
        ExpectNothing(gpu);
        others++;
      }
    }
  }
  EXPECT_GE(promised, 7u);
  EXPECT_GE(others, 7u);
}

INSTANTIATE_TEST_SUITE_P(Order, PitfallsD, ::testing::Values("", "FASTEST_FIRST", "PCI_BUS_ID"),
                         [](const auto& info) { return *info.param ? std::string(info.param) : "Unset"; });

TEST(PitfallsDGpus, D4_UseIsBookedOnTheGpuThatHasIt) {
  Sandbox box("2xH200");
  const std::string hold = box.dir() + "/hold";
  box.SetEnv("PROBE_HOLD_FILE", hold);
  Process p = box.Gpumux({"run", "--mem", "4GiB", "--gpu", "1", "--", Sandbox::TestProgram("told_probe"),
                          "take", std::to_string(kGiB)});
  ASSERT_TRUE(WaitUntil("it holds its memory", [&] { return p.Out().find("ready") != std::string::npos; }));
  const auto data = box.StatusData();
  EXPECT_EQ(data["gpus"][0]["mem_used_bytes"], 0);
  EXPECT_EQ(data["gpus"][0]["mem_guaranteed_bytes"], 0);
  EXPECT_GT(data["gpus"][1]["mem_used_bytes"].get<uint64_t>(), kGiB + kContext - 1);
  ASSERT_EQ(data["tenants"].size(), 1u);
  ASSERT_EQ(data["tenants"][0]["gpus"].size(), 1u);
  EXPECT_EQ(data["tenants"][0]["gpus"][0]["uuid"], data["gpus"][1]["uuid"]);
}

// One line of `gpus_probe across`.
struct Step {
  int code = -1;
  std::vector<long> own, used, back;
};

std::map<std::string, Step> ParseSteps(const std::string& out) {
  std::map<std::string, Step> steps;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    char name[32];
    Step s{-1, {0, 0}, {0, 0}, {0, 0}};
    if (sscanf(line.c_str(), "%31s %d own %ld %ld used %ld %ld back %ld %ld", name, &s.code, &s.own[0],
               &s.own[1], &s.used[0], &s.used[1], &s.back[0], &s.back[1]) == 8)
      steps[name] = s;
  }
  return steps;
}

TEST(PitfallsDGpus, D8_MemoryIsChargedToTheGpuThatItIsOn) {
  for (const char* visible : {"0,1", "1,0"}) {
    SCOPED_TRACE(visible);
    Sandbox box("2xH200");
    const Outcome o = box.RunGpumux({"run", "--mem", "4GiB", "--gpu", "0,1", "--", "/usr/bin/env",
                                     std::string("CUDA_VISIBLE_DEVICES=") + visible, kProbe, "across"});
    const auto steps = ParseSteps(o.out);
    EXPECT_EQ(steps.size(), 7u) << o.out << o.err;
    for (const auto& [name, step] : steps) {
      SCOPED_TRACE(name);
      EXPECT_EQ(step.code, 0);
      if (name == "plain") {
        EXPECT_THAT(step.own, ElementsAre(64, 0));
      } else {
        EXPECT_THAT(step.own, ElementsAre(0, 64));
      }
      EXPECT_EQ(step.used, step.own);  // the ledger's and the device's figure are one
      EXPECT_THAT(step.back, ElementsAre(0, 0));
    }
  }
}

TEST(PitfallsDGpus, D2_AFullGpuRefusesThoughAnotherHasRoom) {
  Sandbox box("2xH200");
  const Outcome o = box.RunGpumux({"run", "--mem", "4GiB", "--gpu", "0,1", "--", kProbe, "across", "3200"});
  EXPECT_THAT(o.out, HasSubstr("filled 0\n"));
  const auto steps = ParseSteps(o.out);
  EXPECT_EQ(steps.size(), 7u) << o.out << o.err;
  for (const auto& [name, step] : steps) {
    EXPECT_EQ(step.code, name == "plain" ? 0 : 2) << name;
    EXPECT_EQ(step.own[1], 0) << name;
    EXPECT_THAT(step.back, ElementsAre(0, 0)) << name;
  }
}

TEST(PitfallsDGpus, D8_MemoryOnAGpuWithoutAPromiseIsRefusedWhateverContextAsks) {
  Sandbox box("2xH200");
  const Outcome o = box.RunGpumux({"run", "--mem", "4GiB", "--gpu", "0", "--", "/usr/bin/env", "-u",
                                   "CUDA_VISIBLE_DEVICES", kProbe, "across-one"});
  const auto steps = ParseSteps(o.out);
  EXPECT_EQ(steps.size(), 4u) << o.out << o.err;
  for (const auto& [name, step] : steps) {
    EXPECT_EQ(step.code, 2) << name;
    EXPECT_THAT(step.own, ElementsAre(0, 0)) << name;
  }
}

}  // namespace
}  // namespace gpumux::test
