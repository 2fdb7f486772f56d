// SPDX-License-Identifier: Apache-2.0
#include "workload/ending.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace gpumux::workload {

cuda::CUresult Fault(const Driver& driver, const Kernels& kernels) {
  const auto r = driver.LaunchKernel(kernels.fault, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  return r == cuda::CUDA_SUCCESS ? driver.CtxSynchronize() : r;
}

int EndProcess(const Driver& driver, const Kernels& kernels, Ending ending, int status) {
  switch (ending) {
    case Ending::kReturn:
    case Ending::kFault:
      return status;
    case Ending::kExit:
      std::exit(status);
    case Ending::kSegv: {
      // A real one, from a page that cannot be read.
      volatile int* page =
          static_cast<int*>(::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      *page = 1;
      return 1;
    }
    case Ending::kKill:
      ::raise(SIGKILL);
      return 1;
    case Ending::kHang: {
      uint64_t forever = UINT64_MAX;
      void* arguments[] = {&forever};
      driver.LaunchKernel(kernels.spin, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr);
      driver.CtxSynchronize();
      // The launch failed; hanging was asked for all the same.
      for (;;) ::pause();
    }
  }
  return status;
}

}  // namespace gpumux::workload
