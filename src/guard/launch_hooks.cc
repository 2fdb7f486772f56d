// SPDX-License-Identifier: Apache-2.0
//
// Launches, counted: a tenant that holds memory and launches nothing is idle.
// This is the hot path; it makes no call but the driver's.
#include "guard/driver.h"
#include "guard/graphs.h"
#include "guard/session.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

// A launch's GPU is that of its stream, which the driver alone knows; counting
// on the process's first slot keeps the path to a few instructions. Relaxed and
// not atomic: two threads may lose a count, and nothing depends on it.
inline void Count() {
  if (uint64_t* launches = __atomic_load_n(&g_launches, __ATOMIC_RELAXED)) {
    __atomic_store_n(launches, __atomic_load_n(launches, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
  }
}

// Out of the hot path: the first call of a program that is linked with the
// driver, or a driver without the function. Takes the call's own arguments, so
// that the wrapper keeps none of them across a call and stays a few
// instructions and a jump.
template <auto Entry, typename... A>
__attribute__((noinline, cold)) CUresult Unbound(A... args) {
  BindDriver();
  auto* real = g_driver.*Entry;
  return real ? real(args...) : kMissing;
}

// The driver's function. An entry that is set was set for good, so no order with
// the "bound" flag is needed.
template <auto Entry, typename... A>
__attribute__((always_inline)) inline CUresult Launch(A... args) {
  auto* real = __atomic_load_n(&(g_driver.*Entry), __ATOMIC_RELAXED);
  if (__builtin_expect(real == nullptr, 0)) return Unbound<Entry, A...>(args...);
  Count();
  return real(args...);
}

}  // namespace

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
  return Launch<&DriverTable::cuLaunchKernel>(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                             unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
  return Launch<&DriverTable::cuLaunchKernel_ptsz>(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  return Launch<&DriverTable::cuLaunchKernelEx>(config, f, params, extra);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  return Launch<&DriverTable::cuLaunchKernelEx_ptsz>(config, f, params, extra);
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  if (__builtin_expect(__atomic_load_n(&g_graphs_with_memory, __ATOMIC_RELAXED) != 0, 0)) {
    return RunGraph(graph, Real().cuGraphLaunch, stream);
  }
  return Launch<&DriverTable::cuGraphLaunch>(graph, stream);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
  if (__builtin_expect(__atomic_load_n(&g_graphs_with_memory, __ATOMIC_RELAXED) != 0, 0)) {
    return RunGraph(graph, Real().cuGraphLaunch_ptsz, stream);
  }
  return Launch<&DriverTable::cuGraphLaunch_ptsz>(graph, stream);
}

}  // extern "C"
