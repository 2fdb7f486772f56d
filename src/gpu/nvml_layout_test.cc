// SPDX-License-Identifier: Apache-2.0
//
// The library of test/guard/fake_nvml.cc fills process lists as other releases
// do: 16, 24 or 32 bytes an entry under one name.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "gpu/nvml.h"

namespace gpumux::gpu {
namespace {

class NvmlLayout : public testing::TestWithParam<const char*> {};

TEST_P(NvmlLayout, OfProcessListsIsWhatTheLibraryWrites) {
  setenv("FAKE_NVML_ENTRY_BYTES", GetParam(), 1);
  setenv("FAKE_NVML_PIDS", "", 1);
  const auto test_dir = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  auto nvml = Nvml::Open({.simulated = true, .spec = "", .dir = "", .libraries_dir = test_dir / "fake_nvml"});
  ASSERT_TRUE(nvml) << nvml.error().ToString();
  const Uuid gpu = (*nvml)->Devices().at(0).uuid;
  EXPECT_TRUE((*nvml)->Processes(gpu)->empty());
  // More than fit at first, fewer, and more again: pid N has the bytes of its place.
  for (const unsigned count : {3u, 200u, 1u, 80u}) {
    std::string pids;
    for (unsigned i = 0; i < count; ++i) pids += (i ? "," : "") + std::to_string(1000 + i);
    setenv("FAKE_NVML_PIDS", pids.c_str(), 1);
    const auto uses = (*nvml)->Processes(gpu);
    ASSERT_TRUE(uses);
    ASSERT_EQ(uses->size(), count);
    for (unsigned i = 0; i < count; ++i) {
      EXPECT_EQ((*uses)[i].pid, static_cast<pid_t>(1000 + i));
      EXPECT_EQ((*uses)[i].used_bytes, (i + 1) * 1048576ull);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Releases, NvmlLayout, testing::Values("16", "24", "32"));

}  // namespace
}  // namespace gpumux::gpu
