// SPDX-License-Identifier: Apache-2.0
//
// Launches, counted: a tenant that holds memory and launches nothing is idle.
// This is the hot path; for a kernel that it knows to need no more local memory
// than a context includes it makes no call but the driver's.
#include "guard/backlog.h"
#include "guard/capturing.h"
#include "guard/driver.h"
#include "guard/gate.h"
#include "guard/graph_segments.h"
#include "guard/graphs.h"
#include "guard/local_memory.h"
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

// The tenant is a client of MPS whose time to end by itself is over: nothing new goes to
// the GPU, so that what is there can end before the server ends it. The answer is what the
// program gets from the server soon, in any case.
__attribute__((noinline, cold)) CUresult EndWork() {
  Wait wait(true);
  wait.Over(Through(Real().cuCtxSynchronize));
  return CUDA_ERROR_MPS_CLIENT_TERMINATED;
}

struct Where {
  CUstream stream;
  bool per_thread;  // the null stream is the thread's own
};
constexpr Where kLegacy = {nullptr, false};

// Out of the hot path: a kernel that was not looked at yet or needs much local
// memory, the first call of a program that is linked with the driver, or a
// driver without the function. Takes the call's own arguments, so that the
// wrapper keeps none of them across a call and stays a few instructions and a
// jump. What is captured takes memory when its graph is instantiated.
template <auto Entry, typename... A>
__attribute__((noinline, cold)) CUresult LaunchUnknown(CUfunction f, Where where, A... args) {
  auto* real = Real().*Entry;
  if (!real) return kMissing;
  auto call = [&] { return real(args...); };
  if (!InForce()) return call();
  const uint64_t local = LocalBytesOf(f);
  if (IsSmallKernel(f) || IsCapturing(where.stream, where.per_thread)) return call();
  return WithStack(local, call);
}

struct Shape {
  unsigned gx, gy, gz, bx, by, bz;
};
constexpr Shape kNoShape = {};

Shape ShapeOf(const CUlaunchConfig* config) {
  if (!config) return kNoShape;
  return {config->gridDimX,  config->gridDimY,  config->gridDimZ,
          config->blockDimX, config->blockDimY, config->blockDimZ};
}

Work WorkOf(const void* what, const Shape& shape) {
  return {reinterpret_cast<uint64_t>(what), uint64_t{shape.gx} * shape.gy * shape.gz,
          uint64_t{shape.bx} * shape.by * shape.bz};
}

// The driver's function. An entry that is set was set for good, so no order with
// the "bound" flag is needed.
template <auto Entry, typename... A>
__attribute__((always_inline)) inline CUresult LaunchNow(CUfunction f, Where where, A... args) {
  auto* real = __atomic_load_n(&(g_driver.*Entry), __ATOMIC_RELAXED);
  Count();
  if (__builtin_expect(real == nullptr || !IsSmallKernel(f), 0))
    return LaunchUnknown<Entry, A...>(f, where, args...);
  return real(args...);
}

// Out of the hot path: the launch has something to do beside.
template <auto Entry, typename... A>
__attribute__((noinline, cold)) CUresult LaunchBeside(CUfunction f, Where where, Shape shape, A... args) {
  const uint32_t word = LaunchWord();
  if (word & GPUMUX_LAUNCH_STOPS) return EndWork();
  const GatedLaunch gate(word, where.stream, where.per_thread, WorkOf(f, shape));
  return LaunchNow<Entry, A...>(f, where, args...);
}

template <auto Entry, typename... A>
__attribute__((always_inline)) inline CUresult Launch(CUfunction f, Where where, Shape shape, A... args) {
  if (__builtin_expect(LaunchWord() != 0, 0)) return LaunchBeside<Entry, A...>(f, where, shape, args...);
  return LaunchNow<Entry, A...>(f, where, args...);
}

template <auto Entry>
__attribute__((always_inline)) inline CUresult LaunchGraphNow(CUgraphExec graph, CUstream stream) {
  Count();
  if (__builtin_expect(__atomic_load_n(&g_graphs_with_memory, __ATOMIC_RELAXED) != 0, 0)) {
    return RunGraph(graph, Real().*Entry, stream);
  }
  auto* real = __atomic_load_n(&(g_driver.*Entry), __ATOMIC_RELAXED);
  if (__builtin_expect(real == nullptr, 0)) return Through(Real().*Entry, graph, stream);
  return real(graph, stream);
}

template <auto Entry>
__attribute__((noinline, cold)) CUresult LaunchGraphBeside(CUgraphExec graph, Where where) {
  const uint32_t word = LaunchWord();
  if (word & GPUMUX_LAUNCH_STOPS) return EndWork();
  GraphLaunch launch(graph, word, where.stream, where.per_thread);
  if (word == 0) return LaunchGraphNow<Entry>(launch.Choose(), where.stream);
  Work work = WorkOf(graph, kNoShape);
  work.ns = launch.ns();
  const GatedLaunch gate(word, where.stream, where.per_thread, work);
  return LaunchGraphNow<Entry>(launch.Choose(), where.stream);
}

template <auto Entry>
__attribute__((always_inline)) inline CUresult LaunchGraph(CUgraphExec graph, Where where) {
  if (__builtin_expect(LaunchWord() != 0 || GraphsHaveCopies(), 0))
    return LaunchGraphBeside<Entry>(graph, where);
  return LaunchGraphNow<Entry>(graph, where.stream);
}

}  // namespace

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
  return Launch<&DriverTable::cuLaunchKernel>(f, {stream, false}, {gx, gy, gz, bx, by, bz}, f, gx, gy, gz, bx,
                                              by, bz, shared, stream, params, extra);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                             unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
  return Launch<&DriverTable::cuLaunchKernel_ptsz>(f, {stream, true}, {gx, gy, gz, bx, by, bz}, f, gx, gy, gz,
                                                   bx, by, bz, shared, stream, params, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  return Launch<&DriverTable::cuLaunchKernelEx>(f, {config ? config->hStream : nullptr, false},
                                                ShapeOf(config), config, f, params, extra);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  return Launch<&DriverTable::cuLaunchKernelEx_ptsz>(f, {config ? config->hStream : nullptr, true},
                                                     ShapeOf(config), config, f, params, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                   unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                   void** params) {
  return Launch<&DriverTable::cuLaunchCooperativeKernel>(f, {stream, false}, {gx, gy, gz, bx, by, bz}, f, gx,
                                                         gy, gz, bx, by, bz, shared, stream, params);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                        unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                        void** params) {
  return Launch<&DriverTable::cuLaunchCooperativeKernel_ptsz>(f, {stream, true}, {gx, gy, gz, bx, by, bz}, f,
                                                              gx, gy, gz, bx, by, bz, shared, stream, params);
}

// Counted alone: each element is a kernel in a context of its own. Deprecated,
// and gone from CUDA 13; what its kernels' local memory takes is found by NVML.
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launches, unsigned count, unsigned flags) {
  const uint32_t word = LaunchWord();
  if (word & GPUMUX_LAUNCH_STOPS) return EndWork();
  Count();
  if (!word || !launches || count == 0)
    return Through(Real().cuLaunchCooperativeKernelMultiDevice, launches, count, flags);
  // Each waits for the others: at the first one's gate all of them do.
  const GatedLaunch gate(word, launches[0].hStream, false, WorkOf(launches[0].function, kNoShape));
  return Through(Real().cuLaunchCooperativeKernelMultiDevice, launches, count, flags);
}

// From before CUDA 4.
CUresult cuLaunch(CUfunction f) { return Launch<&DriverTable::cuLaunch>(f, kLegacy, kNoShape, f); }

CUresult cuLaunchGrid(CUfunction f, int width, int height) {
  return Launch<&DriverTable::cuLaunchGrid>(f, kLegacy, kNoShape, f, width, height);
}

CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
  return Launch<&DriverTable::cuLaunchGridAsync>(f, {stream, false}, kNoShape, f, width, height, stream);
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  return LaunchGraph<&DriverTable::cuGraphLaunch>(graph, {stream, false});
}

CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
  return LaunchGraph<&DriverTable::cuGraphLaunch_ptsz>(graph, {stream, true});
}

}  // extern "C"
