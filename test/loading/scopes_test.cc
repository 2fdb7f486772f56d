// SPDX-License-Identifier: Apache-2.0
//
// Programs and libraries that are linked with the driver: other preloads beside
// the guard, scopes of their own, older drivers, before main and after it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../softgpu/without_symbols.h"
#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Canonical(const std::string& path) { return std::filesystem::weakly_canonical(path); }

const std::string kLinked = Sandbox::TestProgram("loading_linked_probe");
const std::string kOther = Canonical(Sandbox::TestProgram("libother_preload.so"));
const std::string kUser = Canonical(Sandbox::TestProgram("libdriver_user.so"));
const std::string kSoftGpu = Canonical(Sandbox::Program("../lib/gpumux/softgpu"));

// Under a promise of 2 GiB, of which the program asks for 3.
Outcome RunIn(Sandbox& box, std::vector<std::string> command) {
  command.insert(command.begin(), {"run", "--mem", "2GiB", "--quiet", "--"});
  return box.RunGpumux(command);
}

TEST(Preloads, AloneEveryWayIsGuarded) {
  Sandbox box;
  const Outcome o = RunIn(box, {kLinked, "ways"});
  EXPECT_EQ(o.out, "linked 0 2\ndefault 0 2\nnext 0 2\nprogram 0 2\nhandle 0 2\nproc-address 0 2\n") << o.err;
}

// What a tracer sees without the guard is what it sees with it, wherever it
// stands: the two ways that ask the driver itself pass it by in any case.
constexpr char kWithOther[] =
    "linked 0 CODE other 2\ndefault 0 CODE other 2\nnext 0 CODE other 2\nprogram 0 CODE other 2\n"
    "handle 0 CODE other 0\nproc-address 0 CODE other 0\n";

std::string WithOther(const std::string& code) {
  std::string text = kWithOther;
  for (size_t at; (at = text.find("CODE")) != std::string::npos;) text.replace(at, 4, code);
  return text;
}

TEST(Preloads, AnotherSeesItsCallsWithoutTheGuard) {
  Sandbox box;
  box.SetEnv("LD_LIBRARY_PATH", kSoftGpu);
  box.SetEnv("LD_PRELOAD", kOther);
  EXPECT_EQ(box.Run({kLinked, "ways"}).out, WithOther("0"));
}

TEST(Preloads, AnotherInFrontIsCalledAndTheGuardHolds) {
  Sandbox box;
  const Outcome o =
      RunIn(box, {"/bin/sh", "-c", "LD_PRELOAD=" + kOther + ":$LD_PRELOAD exec " + kLinked + " ways"});
  EXPECT_EQ(o.out, WithOther("2")) << o.err;
}

TEST(Preloads, AnotherBehindIsCalledAndTheGuardHolds) {
  Sandbox box;
  box.SetEnv("LD_PRELOAD", kOther);  // `run` puts the guard in front
  const Outcome o = RunIn(box, {kLinked, "ways"});
  EXPECT_EQ(o.out, WithOther("2")) << o.err;
}

TEST(LookUps, FromManyThreadsAtOnceAgree) {
  Sandbox box;
  const Outcome o = RunIn(box, {kLinked, "threads"});
  EXPECT_EQ(o.out, "differ 0 absent 0\n") << o.err;
}

TEST(Lifetime, AConstructorsAllocationIsGuarded) {
  Sandbox box;
  box.SetEnv("PROBE_EARLY", "1");
  EXPECT_EQ(RunIn(box, {kLinked, "early"}).out, "early 0 2\n");
}

TEST(Lifetime, DestructorsAndAtexitAreGuarded) {
  Sandbox box;
  const Outcome o = RunIn(box, {kLinked, "late"});
  EXPECT_EQ(o.out, "atexit 0 0 2\ndestructor 0 0 2\n") << o.err;
  EXPECT_EQ(o.exit_code, 0);
}

TEST(Lifetime, WhatChildrenStartAfterCudaWasSetUpIsGuarded) {
  // By fork and by vfork, with no environment; the parent's books stay right.
  Sandbox box;
  const Outcome o = RunIn(box, {kLinked, "forks", Sandbox::TestProgram("guard_linked_probe")});
  EXPECT_EQ(o.out, "held 0\nsmall 0\nlarge 2\nsmall 0\nlarge 2\nexit 0 0\nparent 0 2\nfreed 0\n") << o.err;
}

// --- a library that is bound to its own names first ---------------------------------

constexpr char kRefused[] = "linked 0 2\nlooked up 2\n";

TEST(Scopes, ALibraryInTheOrdinaryScopeIsGuarded) {
  Sandbox box;
  const Outcome o = RunIn(box, {kLinked, "local", "plain", kUser});
  EXPECT_EQ(o.out, std::string(kRefused) + "name program's\n") << o.err;
}

TEST(Scopes, ADeepBoundLibraryIsGuardedAndStaysDeepBound) {
  Sandbox box;
  for (const char* how : {"deep", "lazy"}) {
    const Outcome o = RunIn(box, {kLinked, "local", how, kUser});
    EXPECT_EQ(o.out, std::string(kRefused) + "name library's\n") << how << o.err;
  }
}

TEST(Scopes, ADeepBoundLibraryThatTheCallersPathFindsIsGuarded) {
  // Only the caller's own path leads there: found as without the guard, at the price of the flag.
  Sandbox box;
  const Outcome o =
      RunIn(box, {Sandbox::TestProgram("loading_runpath_probe"), "local", "deep", "libdriver_user.so"});
  EXPECT_EQ(o.out, std::string(kRefused) + "name program's\n") << o.err;
}

TEST(Scopes, WithoutASessionADeepBoundLibraryIsLeftAlone) {
  Sandbox box;
  box.SetEnv("LD_LIBRARY_PATH", kSoftGpu);
  box.SetEnv("LD_PRELOAD", Canonical(Sandbox::Program("../lib/gpumux/libgpumux-guard.so")));
  for (const char* program : {"loading_linked_probe", "loading_runpath_probe"}) {
    EXPECT_EQ(box.Run({Sandbox::TestProgram(program), "local", "deep", kUser}).out,
              "linked 0 0\nlooked up 0\nname library's\n");
  }
}

TEST(Scopes, WhatANameSpaceOfItsOwnTakesIsSeenByNvml) {
  // The limit of a preload: nothing of ours is in the other name space. The daemon
  // charges it, so the tenant's use is told truly and nobody else is promised it.
  Sandbox box;
  const std::string go_on = box.dir() + "/go-on";
  box.SetEnv("PROBE_HOLD_FILE", go_on);
  Process p = box.Gpumux({"run", "--mem", "2GiB", "--quiet", "--", kLinked, "local", "dlmopen", kUser});
  ASSERT_TRUE(WaitUntil("it has allocated", [&] { return p.Out().find("name") != std::string::npos; }))
      << p.Err();
  EXPECT_THAT(p.Out(), HasSubstr("linked 0 0\n"));
  WaitUntil("NVML's figure is charged", [&] {
    const auto tenant = box.StatusData()["tenants"][0];
    return tenant["gpus"][0]["mem_used_bytes"].get<int64_t>() >= int64_t{3} << 30 &&
           tenant["above_limit"] == true;
  });
  std::ofstream(go_on).put('\n');
  EXPECT_EQ(p.Wait().exit_code, 0);
}

// --- older drivers -------------------------------------------------------------------

Outcome WithoutSymbols(Sandbox& box, const std::vector<std::string>& names) {
  const std::string older = box.dir() + "/older-" + names[0];
  if (!CopySoftGpuWithout(kSoftGpu + "/libcuda.so.1", older, names)) return {};
  std::vector<std::string> command = {"/usr/bin/env", "LD_LIBRARY_PATH=" + older, kLinked, "older"};
  command.insert(command.end(), names.begin(), names.end());
  return RunIn(box, command);
}

TEST(OlderDriver, WithoutStreamOrderedMemoryGivesNotFoundAndIsGuarded) {
  Sandbox box;
  const Outcome o = WithoutSymbols(
      box, {"cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuDeviceGetMemPool", "cuMemPoolCreate"});
  EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
  EXPECT_THAT(o.out, HasSubstr("cuMemAllocAsync dlsym 0 default 0 proc 0 0 1\n"));
  EXPECT_THAT(o.out, HasSubstr("cuDeviceGetMemPool dlsym 0 default 0 proc 0 0 1\n"));
  EXPECT_THAT(o.out, HasSubstr("plain 0 2\n"));
  EXPECT_THAT(o.out, HasSubstr("async 500 500\n"));
  EXPECT_THAT(o.out, HasSubstr("managed 2\n"));
  EXPECT_THAT(o.out, HasSubstr("array 0 2\n"));
}

TEST(OlderDriver, WithoutItsQuestionsIsGuardedAllTheSame) {
  // What the guard itself asks, each taken away alone.
  Sandbox box;
  for (const char* name :
       {"cuMemPoolGetAttribute", "cuArrayGetMemoryRequirements", "cuDeviceGetUuid_v2", "cuCtxGetLimit",
        "cuStreamIsCapturing", "cuDevicePrimaryCtxGetState", "cuDeviceGetGraphMemAttribute"}) {
    Sandbox box;
    const Outcome o = WithoutSymbols(box, {name});
    EXPECT_EQ(o.exit_code, 0) << name << o.out << o.err;
    EXPECT_THAT(o.out, HasSubstr("plain 0 2\n")) << name;
    EXPECT_THAT(o.out, HasSubstr("async 0 2\n")) << name;
    EXPECT_THAT(o.out, HasSubstr("managed 2\n")) << name;
    EXPECT_THAT(o.out, HasSubstr("array 0 2\n")) << name;
  }
}

}  // namespace
}  // namespace gpumux::test
