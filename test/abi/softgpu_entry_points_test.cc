// SPDX-License-Identifier: Apache-2.0
//
// The program that recorded a real driver's entry points (tools/record_entry_points.cc)
// finds the same rows on the software GPU: every name, version and flavour.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <set>
#include <string>

namespace {

std::set<std::string> RecordedRows() {
  return {
#define GPUMUX_ENTRY(stem, version, flavour, symbol) \
  "GPUMUX_ENTRY(" #stem ", " #version ", " #flavour ", " #symbol ")\n",
#include "gpu/entry_points.inc"
#undef GPUMUX_ENTRY
  };
}

TEST(SoftwareGpu, AnswersLookUpsAsTheRecordedDriver) {
  char dir[] = "/tmp/gpumux-abi.XXXXXX";
  ASSERT_NE(mkdtemp(dir), nullptr);
  const std::string command = std::string("LD_LIBRARY_PATH=") + GPUMUX_SOFTGPU_LIB_DIR +
                              " GPUMUX_SOFTGPU=H200 GPUMUX_SOFTGPU_DIR=" + dir + " " + GPUMUX_RECORDER;
  FILE* output = popen(command.c_str(), "r");
  ASSERT_NE(output, nullptr);
  std::set<std::string> rows;
  char line[512];
  while (fgets(line, sizeof line, output) != nullptr) rows.insert(line);
  EXPECT_EQ(pclose(output), 0);
  EXPECT_EQ(rows, RecordedRows());
  std::filesystem::remove_all(dir);
}

}  // namespace
