// SPDX-License-Identifier: Apache-2.0
//
// Copies. Of a latency-critical program the first one is often the first sign of a
// request: gates close then, before its first launch. Long ones of programs that are
// held back wait as kernels do. What is short passes: holding it would cost more.
#include "guard/driver.h"
#include "guard/gate.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

// Bytes a nanosecond, rather too many: a copy is taken for no longer than it is.
constexpr uint64_t kOverTheBus = 64, kInside = 2048;
constexpr uint64_t kShortNs = 50'000;

// `stream`: of a copy that waits for itself, the default one.
template <typename Call>
CUresult Copy(CUstream stream, bool per_thread, bool waits, uint64_t ns, Call&& call) {
  const uint32_t word = LaunchWord();
  const bool sign = (word & GPUMUX_LAUNCH_LATENCY) != 0;
  if (__builtin_expect(!sign && (word == 0 || ns < kShortNs), 1)) return call();
  if (!waits) {
    const GatedLaunch gate(word & ~GPUMUX_LAUNCH_STOPS, stream, per_thread, {.ns = ns + 1});
    return call();
  }
  // On its way no more when the call is over: then it is known to be complete.
  {
    const GatedLaunch gate(word & ~GPUMUX_LAUNCH_STOPS, stream, per_thread, {.ns = ns + 1});
  }
  GateWait wait(kAnyStream, per_thread);
  return wait.Over(call());
}

}  // namespace

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return Copy(nullptr, false, true, bytes / kOverTheBus,
              [&] { return Through(Real().cuMemcpyHtoD_v2, to, from, bytes); });
}

CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, size_t bytes) {
  return Copy(nullptr, true, true, bytes / kOverTheBus,
              [&] { return Through(Real().cuMemcpyHtoD_v2_ptds, to, from, bytes); });
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return Copy(stream, false, false, bytes / kOverTheBus,
              [&] { return Through(Real().cuMemcpyHtoDAsync_v2, to, from, bytes, stream); });
}

CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return Copy(stream, true, false, bytes / kOverTheBus,
              [&] { return Through(Real().cuMemcpyHtoDAsync_v2_ptsz, to, from, bytes, stream); });
}

CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return Copy(nullptr, false, true, bytes / kOverTheBus,
              [&] { return Through(Real().cuMemcpyDtoH_v2, to, from, bytes); });
}

CUresult cuMemcpyDtoH_v2_ptds(void* to, CUdeviceptr from, size_t bytes) {
  return Copy(nullptr, true, true, bytes / kOverTheBus,
              [&] { return Through(Real().cuMemcpyDtoH_v2_ptds, to, from, bytes); });
}

CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return Copy(stream, false, false, bytes / kOverTheBus,
              [&] { return Through(Real().cuMemcpyDtoHAsync_v2, to, from, bytes, stream); });
}

CUresult cuMemcpyDtoHAsync_v2_ptsz(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return Copy(stream, true, false, bytes / kOverTheBus,
              [&] { return Through(Real().cuMemcpyDtoHAsync_v2_ptsz, to, from, bytes, stream); });
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return Copy(nullptr, false, true, bytes / kInside,
              [&] { return Through(Real().cuMemcpyDtoD_v2, to, from, bytes); });
}

CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return Copy(nullptr, true, true, bytes / kInside,
              [&] { return Through(Real().cuMemcpyDtoD_v2_ptds, to, from, bytes); });
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return Copy(stream, false, false, bytes / kInside,
              [&] { return Through(Real().cuMemcpyDtoDAsync_v2, to, from, bytes, stream); });
}

CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return Copy(stream, true, false, bytes / kInside,
              [&] { return Through(Real().cuMemcpyDtoDAsync_v2_ptsz, to, from, bytes, stream); });
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return Copy(nullptr, false, true, bytes / kInside,
              [&] { return Through(Real().cuMemcpy, to, from, bytes); });
}

CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return Copy(nullptr, true, true, bytes / kInside,
              [&] { return Through(Real().cuMemcpy_ptds, to, from, bytes); });
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return Copy(stream, false, false, bytes / kInside,
              [&] { return Through(Real().cuMemcpyAsync, to, from, bytes, stream); });
}

CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return Copy(stream, true, false, bytes / kInside,
              [&] { return Through(Real().cuMemcpyAsync_ptsz, to, from, bytes, stream); });
}

}  // extern "C"
