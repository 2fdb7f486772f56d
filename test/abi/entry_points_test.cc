// SPDX-License-Identifier: Apache-2.0
//
// src/gpu/entry_points.inc against what a CUDA toolkit says of the same names:
// cudaTypedefs.h has one type for each (name, version, flavour), and the stub
// libcuda.so exports what a driver of that toolkit exports.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "exported_names.h"

namespace gpumux {
namespace {

enum Flavour { kLegacy, kPerThread };

struct Row {
  std::string stem;
  int version;
  Flavour flavour;
  std::string symbol;

  // The name of the row's type in cudaTypedefs.h.
  std::string TypeName() const {
    std::string name = "PFN_" + stem + "_v" + std::to_string(version);
    if (flavour == kPerThread) name += symbol.substr(symbol.size() - 5);  // _ptsz or _ptds
    return name;
  }
};

const std::vector<Row>& Rows() {
  static const std::vector<Row> rows = {
#define GPUMUX_ENTRY(stem, version, flavour, symbol) {#stem, version, flavour, #symbol},
#include "gpu/entry_points.inc"
#undef GPUMUX_ENTRY
  };
  return rows;
}

TEST(EntryPoints, RowsAreWellFormed) {
  std::set<std::string> symbols;
  for (const Row& row : Rows()) {
    EXPECT_TRUE(row.symbol.starts_with(row.stem)) << row.symbol;
    EXPECT_GE(row.version, 2000) << row.symbol;
    EXPECT_EQ(row.version % 10, 0) << row.symbol;
    const bool ends = row.symbol.ends_with("_ptsz") || row.symbol.ends_with("_ptds");
    EXPECT_EQ(row.flavour == kPerThread, ends) << row.symbol;
    EXPECT_TRUE(symbols.insert(row.symbol).second) << row.symbol << " twice";
  }
  EXPECT_GT(symbols.size(), 600u);
}

#ifdef GPUMUX_CUDA_TOOLKIT

std::string ReadText(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

int HeaderVersion() {
  const std::string text = ReadText(std::filesystem::path(GPUMUX_CUDA_TOOLKIT) / "include/cuda.h");
  std::smatch match;
  return std::regex_search(text, match, std::regex("#define CUDA_VERSION ([0-9]+)")) ? std::stoi(match[1])
                                                                                     : 0;
}

std::set<std::string> TypeNames() {
  std::set<std::string> names;
  static const std::regex kName(R"(\(\s*CUDAAPI\s*\*\s*(PFN_cu[A-Za-z0-9]+_v[0-9]+(_ptsz|_ptds)?)\s*\))");
  for (const char* file : {"cudaTypedefs.h", "cudaProfilerTypedefs.h", "cudaGLTypedefs.h",
                           "cudaEGLTypedefs.h", "cudaVDPAUTypedefs.h"}) {
    const std::string text = ReadText(std::filesystem::path(GPUMUX_CUDA_TOOLKIT) / "include" / file);
    for (std::sregex_iterator it(text.begin(), text.end(), kName), last; it != last; ++it)
      names.insert((*it)[1]);
  }
  return names;
}

TEST(EntryPoints, AgreeWithTheTypedefsOfTheToolkit) {
  const std::set<std::string> types = TypeNames();
  ASSERT_GT(types.size(), 300u);
  const int version = HeaderVersion();
  std::set<std::string> ours;
  std::vector<std::string> without_type;
  for (const Row& row : Rows()) {
    ours.insert(row.TypeName());
    if (row.version <= version && !types.contains(row.TypeName())) without_type.push_back(row.TypeName());
  }
  EXPECT_EQ(without_type, std::vector<std::string>{});
  std::vector<std::string> without_row;
  for (const std::string& type : types) {
    // Of another operating system, and of embedded GPUs.
    if (type == "PFN_cuWGLGetDevice_v2020" || type == "PFN_cuEventCreateFromEGLSync_v9000") continue;
    if (!ours.contains(type)) without_row.push_back(type);
  }
  EXPECT_EQ(without_row, std::vector<std::string>{});
}

// The stub library does not carry the graphics interfaces, which have headers of
// their own.
bool IsGraphics(const std::string& stem) {
  for (const char* part : {"GL", "EGL", "VDPAU", "Egl"}) {
    if (stem.find(part) != std::string::npos) return true;
  }
  return false;
}

TEST(EntryPoints, AreWhatTheStubLibraryExports) {
  const auto path = std::filesystem::path(GPUMUX_CUDA_TOOLKIT) / "lib64/stubs/libcuda.so";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "skipped: no stub library " << path;
  void* stub = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  ASSERT_NE(stub, nullptr) << dlerror();
  std::vector<std::string> theirs = tools::ExportedNames(stub, "cu");
  std::vector<std::string> ours;
  const int version = HeaderVersion();
  for (const Row& row : Rows()) {
    if (row.version <= version && !IsGraphics(row.stem)) ours.push_back(row.symbol);
  }
  std::sort(ours.begin(), ours.end());
  std::vector<std::string> only_theirs, only_ours;
  std::set_difference(theirs.begin(), theirs.end(), ours.begin(), ours.end(),
                      std::back_inserter(only_theirs));
  std::set_difference(ours.begin(), ours.end(), theirs.begin(), theirs.end(), std::back_inserter(only_ours));
  EXPECT_EQ(only_ours, std::vector<std::string>{});
  EXPECT_EQ(only_theirs, std::vector<std::string>{});
  dlclose(stub);
}

#else

TEST(EntryPoints, AgreeWithTheTypedefsOfTheToolkit) { GTEST_SKIP() << "skipped: no CUDA toolkit"; }

#endif

}  // namespace
}  // namespace gpumux
