// SPDX-License-Identifier: Apache-2.0
//
// Launches, counted: a tenant that holds memory and launches nothing is idle.
// This is the hot path; it makes no call but the driver's.
#include "guard/driver.h"
#include "guard/session.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

// A launch's GPU is that of its stream, which the driver alone knows; counting
// on the process's first slot keeps the path to a few instructions. Relaxed and
// not atomic: two threads may lose a count, and nothing depends on it.
inline void Count() {
  if (!InForce()) return;
  uint64_t* launches = &Counters(0)->launches;
  __atomic_store_n(launches, __atomic_load_n(launches, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

}  // namespace

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void** params, void** extra) {
  Count();
  return Through(Real().cuLaunchKernel, f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned shared, CUstream stream, void** params, void** extra) {
  Count();
  return Through(Real().cuLaunchKernel_ptsz, f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  Count();
  return Through(Real().cuLaunchKernelEx, config, f, params, extra);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  Count();
  return Through(Real().cuLaunchKernelEx_ptsz, config, f, params, extra);
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  Count();
  return Through(Real().cuGraphLaunch, graph, stream);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
  Count();
  return Through(Real().cuGraphLaunch_ptsz, graph, stream);
}

}  // extern "C"
