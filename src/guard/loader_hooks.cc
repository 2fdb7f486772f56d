// SPDX-License-Identifier: Apache-2.0
// cuInit and the driver's own look-up.
#include "guard/driver.h"
#include "guard/mps.h"
#include "guard/session.h"
#include "guard/wrappers.h"

using namespace gpumux::guard;

extern "C" {

CUresult cuInit(unsigned flags) {
  CUresult r = Through(Real().cuInit, flags);
  // No GPU is known yet: as if it were of the first.
  if (__builtin_expect(MayBeReadyLater(r), 0))
    r = AsMpsClient(0, [&] { return Through(Real().cuInit, flags); });
  // A program that sets CUDA up without a GPU behind it stays untouched.
  if (r == CUDA_SUCCESS && Attach() == State::kRefused) return CUDA_ERROR_NOT_PERMITTED;
  return r;
}

CUresult cuGetProcAddress(const char* symbol, void** pfn, int version, cuuint64_t flags) {
  const CUresult r = Through(Real().cuGetProcAddress, symbol, pfn, version, flags);
  if (r == CUDA_SUCCESS && pfn && *pfn) *pfn = RouteDriverAddress(*pfn);
  return r;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  const CUresult r = Through(Real().cuGetProcAddress_v2, symbol, pfn, version, flags, status);
  if (r == CUDA_SUCCESS && pfn && *pfn) *pfn = RouteDriverAddress(*pfn);
  return r;
}

}  // extern "C"
