// SPDX-License-Identifier: Apache-2.0
//
// Every entry point that a driver or a toolkit has is one that the guard stands
// in front of (hooks.inc), or one that somebody has judged and gave a reason for
// (reviewed.inc). A new driver or toolkit with a name in neither fails here, so
// that a new way to device memory is not met by surprise.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "exported_names.h"

namespace gpumux {
namespace {

namespace fs = std::filesystem;

const std::set<std::string>& Hooked() {
  static const std::set<std::string> names = {
#define GPUMUX_HOOK(name, params) #name,
#include "guard/hooks.inc"
#undef GPUMUX_HOOK
  };
  return names;
}

struct Group {
  std::string why;
  std::string names;
};
const Group kGroups[] = {
#define GPUMUX_REVIEWED(why, names) {why, names},
#include "guard/reviewed.inc"
#undef GPUMUX_REVIEWED
};

std::vector<std::string> Words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

// How often each name is listed.
std::map<std::string, int> Reviewed() {
  std::map<std::string, int> count;
  for (const Group& group : kGroups) {
    for (const std::string& name : Words(group.names)) count[name]++;
  }
  return count;
}

void ExpectJudged(const std::set<std::string>& names) {
  const auto reviewed = Reviewed();
  for (const std::string& name : names) {
    EXPECT_TRUE(Hooked().contains(name) || reviewed.contains(name))
        << name << " is neither hooked (src/guard/hooks.inc) nor judged (src/guard/reviewed.inc)";
  }
}

std::set<std::string> Recorded() {
  return {
#define GPUMUX_ENTRY(stem, version, flavour, symbol) #symbol,
#include "gpu/entry_points.inc"
#undef GPUMUX_ENTRY
  };
}

TEST(GuardReview, EveryRecordedEntryPointIsHookedOrJudged) {
  const std::set<std::string> recorded = Recorded();
  ASSERT_GT(recorded.size(), 600u);
  ExpectJudged(recorded);
}

TEST(GuardReview, NoNameIsJudgedTwiceOrJudgedAndHooked) {
  for (const auto& [name, times] : Reviewed()) {
    EXPECT_EQ(times, 1) << name << " is listed more than once";
    EXPECT_FALSE(Hooked().contains(name)) << name << " is hooked: take it off the list";
  }
}

TEST(GuardReview, EveryJudgedNameExists) {
  const std::set<std::string> recorded = Recorded();
  for (const auto& [name, times] : Reviewed()) EXPECT_TRUE(recorded.contains(name)) << name;
}

TEST(GuardReview, EveryGroupHasAReason) {
  for (const Group& group : kGroups) EXPECT_GT(Words(group.why).size(), 2u) << group.names;
}

// Both flavours of a call are of one kind: a twin is not let pass where its
// sister is charged.
TEST(GuardReview, TwinsAreTreatedAlike) {
  const std::set<std::string> recorded = Recorded();
  for (const std::string& name : recorded) {
    if (!name.ends_with("_ptsz") && !name.ends_with("_ptds")) continue;
    const std::string sister = name.substr(0, name.size() - 5);
    if (!recorded.contains(sister)) continue;
    EXPECT_EQ(Hooked().contains(name), Hooked().contains(sister)) << name;
  }
}

std::string ReadText(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// What a header declares, and what its macros make of it: a program calls
// cuMemAlloc and is linked with cuMemAlloc_v2, or cuMemAllocAsync_ptsz.
std::set<std::string> NamesOf(const std::string& header) {
  static const std::regex kDeclared(R"(CUresult\s+CUDAAPI\s+(cu[A-Z]\w*)\s*\()");
  static const std::regex kMacro(
      R"(#\s*define\s+cu[A-Z]\w*\s+(__CUDA_API_PTSZ|__CUDA_API_PTDS)?\(?(cu[A-Z]\w*)\)?\s*\n)");
  std::set<std::string> names;
  const std::sregex_iterator end;
  for (std::sregex_iterator it(header.begin(), header.end(), kDeclared); it != end; ++it)
    names.insert((*it)[1]);
  for (std::sregex_iterator it(header.begin(), header.end(), kMacro); it != end; ++it) {
    const std::string twin = (*it)[1], name = (*it)[2];
    if (!twin.empty()) names.insert(name + (twin.ends_with("PTSZ") ? "_ptsz" : "_ptds"));
    names.insert(name);
  }
  return names;
}

TEST(GuardReview, ReadsAHeaderAsACompilerDoes) {
  const std::string header =
      "#define cuOne cuOne_v2\n"
      "    #define cuTwo                               __CUDA_API_PTSZ(cuTwo_v3)\n"
      "CUresult CUDAAPI cuThree(int a);\n"
      "CUresult CUDAAPI\ncuFour(void);\n"
      "#define CU_FIVE 5\n/* cuSix(int) */\n";
  EXPECT_EQ(NamesOf(header),
            (std::set<std::string>{"cuOne_v2", "cuTwo_v3", "cuTwo_v3_ptsz", "cuThree", "cuFour"}));
}

TEST(GuardReview, EveryNameOfAnInstalledToolkitIsHookedOrJudged) {
  std::vector<fs::path> toolkits;
  std::error_code error;
  for (const fs::directory_entry& dir : fs::directory_iterator("/usr/local", error)) {
    if (dir.path().filename().string().starts_with("cuda")) toolkits.push_back(dir.path());
  }
#ifdef GPUMUX_CUDA_TOOLKIT
  toolkits.emplace_back(GPUMUX_CUDA_TOOLKIT);
#endif
  std::set<std::string> names;
  for (const fs::path& toolkit : toolkits) {
    for (const char* file : {"cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h"})
      names.merge(NamesOf(ReadText(toolkit / "include" / file)));
  }
  if (names.empty()) GTEST_SKIP() << "skipped: no CUDA toolkit";
  EXPECT_GT(names.size(), 500u);
  // An inline function of the header, which calls cuGetProcAddress_v2.
  names.erase("cuGetProcAddress_v2_ptsz");
  // Declared by the header alone: embedded GPUs, and another operating system.
  names.erase("cuEventCreateFromEGLSync");
  names.erase("cuWGLGetDevice");
  ExpectJudged(names);
}

TEST(GuardReview, EveryNameOfThisMachinesDriverIsHookedOrJudged) {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) GTEST_SKIP() << "skipped: no NVIDIA driver on this machine";
  std::set<std::string> names;
  for (const std::string& name : tools::ExportedNames(driver, "cu")) {
    // cudbg..., cuda...: the debugger's, and no function of the driver API.
    if (name.size() > 2 && name[2] >= 'A' && name[2] <= 'Z') names.insert(name);
  }
  dlclose(driver);
  EXPECT_GT(names.size(), 600u);
  ExpectJudged(names);
}

}  // namespace
}  // namespace gpumux
