// SPDX-License-Identifier: Apache-2.0

#include "guard/clock.h"
#include "guard/session.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

// By the documentation of the driver's API, "the process must be terminated and
// relaunched": faults of kernels (702, 710, 714 to 719), and what MPS says of a
// server or a client that is gone.
bool Lasts(uint32_t result) {
  return result == cuda::CUDA_ERROR_ILLEGAL_ADDRESS || result == 702 || result == 710 ||
         (result >= 714 && result <= cuda::CUDA_ERROR_LAUNCH_FAILED) || result == 806 ||
         result == cuda::CUDA_ERROR_MPS_CLIENT_TERMINATED;
}

}  // namespace

void NoteLastingError(cuda::CUresult result) {
  if (!Lasts(static_cast<uint32_t>(result)) || !InForce()) return;
  gpumux_process_page* page = OwnPage();
  uint32_t none = 0;
  if (!__atomic_compare_exchange_n(&page->first_error, &none, static_cast<uint32_t>(result), false,
                                   __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
    return;
  __atomic_store_n(&page->first_error_ns, NowNs(), __ATOMIC_SEQ_CST);
}

}  // namespace gpumux::guard
