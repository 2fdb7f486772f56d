// SPDX-License-Identifier: Apache-2.0
#include "workload/kernels.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace gpumux::workload {
namespace {

// NVIDIA's own assembler judges the PTX, where it is installed.
class Ptx : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* path : {"/usr/local/cuda/bin/ptxas", "/usr/bin/ptxas"}) {
      if (::access(path, X_OK) == 0) ptxas_ = path;
    }
    if (ptxas_.empty()) GTEST_SKIP() << "no ptxas on this machine";
  }
  void Assembles(std::string_view ptx, const char* extra = "") {
    const std::string file = "/tmp/gpumux-ptx-" + std::to_string(::getpid()) + ".ptx";
    std::ofstream(file) << ptx;
    for (const char* arch : {"sm_80", "sm_90"}) {
      const std::string command = ptxas_ + " -arch=" + arch + " " + extra + " -o /dev/null " + file;
      EXPECT_EQ(std::system(command.c_str()), 0) << command << "\n" << ptx;
    }
    ::unlink(file.c_str());
  }
  std::string ptxas_;
};

TEST_F(Ptx, OfTheKernelsAssembles) { Assembles(kKernelsPtx); }
TEST_F(Ptx, WithAGlobalAssembles) { Assembles(PtxWithGlobal(50 << 20)); }
TEST_F(Ptx, WithLocalMemoryAssembles) {
  Assembles(PtxWithLocal(4));
  Assembles(PtxWithLocal(100'000));
}
// malloc is resolved when the driver links the module, so compile only.
TEST_F(Ptx, WithAHeapAssembles) { Assembles(PtxWithHeap(), "-c"); }

}  // namespace
}  // namespace gpumux::workload
