// SPDX-License-Identifier: Apache-2.0
//
// What a call costs the program that makes it: run bare and under `gpumux run`
// in alternation, and compare (bench/gpu/measure.py does).
//
// usage: guard_cost [--bursts N] [--burst N] [--allocs N]
// One JSON object: medians in nanoseconds over the bursts and calls of this run.
//
// Two processes differ by far more than the guard costs. So a guarded run also
// alternates, call by call within one process, between what it was given and the
// driver's own function (whose address is read from libcuda's symbol table):
// `added_launch_ns` and `added_alloc_free_ns` with a 95 % interval. Memory that is
// taken past the guard is given back past the guard.
#include <dlfcn.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "gpumux/abi/cuda/driver.h"
#include "guard/loaded_objects.h"

using namespace gpumux::cuda;

namespace {

constexpr char kPtx[] = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry nop() { ret; }\n";

double NowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

void* driver;

template <typename... P>
CUresult (*Find(const char* name))(P...) {
  auto f = reinterpret_cast<CUresult (*)(P...)>(dlsym(driver, name));
  if (!f) {
    std::fprintf(stderr, "guard_cost: the driver has no %s\n", name);
    std::exit(1);
  }
  return f;
}

void Check(CUresult r, const char* what) {
  if (r == CUDA_SUCCESS) return;
  std::fprintf(stderr, "guard_cost: %s: error %d\n", what, r);
  std::exit(1);
}

double Median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::nth_element(v.begin(), v.begin() + static_cast<long>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

// Median of paired differences and its 95 % interval (normal approximation of
// the ranks: n is in the thousands).
struct Added {
  double median, low, high;
  size_t n;
};

Added Paired(std::vector<double> differences) {
  std::sort(differences.begin(), differences.end());
  const size_t n = differences.size();
  if (n < 10) return {0, 0, 0, n};
  const double spread = 0.98 * std::sqrt(static_cast<double>(n));
  const auto at = [&](double rank) {
    return differences[static_cast<size_t>(std::clamp(rank, 0.0, static_cast<double>(n - 1)))];
  };
  const double middle = static_cast<double>(n) / 2;
  return {at(middle), at(middle - spread), at(middle + spread), n};
}

template <typename F>
F Real(F given, const char* name) {
  auto real = reinterpret_cast<F>(gpumux::guard::FindSymbol("libcuda.so", name));
  return real ? real : given;
}

}  // namespace

int main(int argc, char** argv) {
  int bursts = 2000, burst = 256, allocs = 2000;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--bursts")) bursts = std::atoi(argv[i + 1]);
    if (!std::strcmp(argv[i], "--burst")) burst = std::atoi(argv[i + 1]);
    if (!std::strcmp(argv[i], "--allocs")) allocs = std::atoi(argv[i + 1]);
  }
  const double start = NowNs();
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) {
    std::fprintf(stderr, "guard_cost: %s\n", dlerror());
    return 1;
  }
  auto init = Find<unsigned>("cuInit");
  auto get = Find<CUdevice*, int>("cuDeviceGet");
  auto retain = Find<CUcontext*, CUdevice>("cuDevicePrimaryCtxRetain");
  auto set_current = Find<CUcontext>("cuCtxSetCurrent");
  auto load = Find<CUmodule*, const void*>("cuModuleLoadData");
  auto function = Find<CUfunction*, CUmodule, const char*>("cuModuleGetFunction");
  auto create = Find<CUstream*, unsigned>("cuStreamCreate");
  auto synchronize = Find<CUstream>("cuStreamSynchronize");
  auto alloc = Find<CUdeviceptr*, size_t>("cuMemAlloc_v2");
  auto free_mem = Find<CUdeviceptr>("cuMemFree_v2");
  auto launch = Find<CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     CUstream, void**, void**>("cuLaunchKernel");
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction nop;
  CUstream stream;
  Check(init(0), "cuInit");
  Check(get(&device, 0), "cuDeviceGet");
  const double before_context = NowNs();
  Check(retain(&context, device), "cuDevicePrimaryCtxRetain");
  Check(set_current(context), "cuCtxSetCurrent");
  const double after_context = NowNs();
  Check(load(&module, kPtx), "cuModuleLoadData");
  Check(function(&nop, module, "nop"), "cuModuleGetFunction");
  Check(create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  Check(launch(nop, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr), "cuLaunchKernel");
  Check(synchronize(stream), "cuStreamSynchronize");
  const double first_kernel = NowNs();

  std::vector<double> per_launch;
  for (int b = 0; b < bursts + 20; b++) {
    const double t0 = NowNs();
    for (int i = 0; i < burst; i++) launch(nop, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr);
    const double t1 = NowNs();
    Check(synchronize(stream), "cuStreamSynchronize");
    if (b >= 20) per_launch.push_back((t1 - t0) / burst);
  }
  std::vector<double> pairs;
  for (int i = 0; i < allocs + 10; i++) {
    CUdeviceptr p;
    const double t0 = NowNs();
    Check(alloc(&p, 1 << 20), "cuMemAlloc");
    Check(free_mem(p), "cuMemFree");
    if (i >= 10) pairs.push_back(NowNs() - t0);
  }
  auto real_launch = Real(launch, "cuLaunchKernel");
  auto real_alloc = Real(alloc, "cuMemAlloc_v2");
  auto real_free = Real(free_mem, "cuMemFree_v2");
  std::vector<double> launch_added, alloc_added;
  if (real_launch != launch) {
    for (int b = 0; b < bursts; b++) {
      double took[2];
      for (int turn = 0; turn < 2; turn++) {
        const bool guarded = (b + turn) % 2 == 0;  // either goes first in half of the pairs
        auto f = guarded ? launch : real_launch;
        const double t0 = NowNs();
        for (int i = 0; i < burst; i++) f(nop, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr);
        took[guarded] = (NowNs() - t0) / burst;
        Check(synchronize(stream), "cuStreamSynchronize");
      }
      launch_added.push_back(took[1] - took[0]);
    }
    for (int i = 0; i < allocs; i++) {
      double took[2];
      for (int turn = 0; turn < 2; turn++) {
        const bool guarded = (i + turn) % 2 == 0;
        CUdeviceptr p;
        const double t0 = NowNs();
        Check((guarded ? alloc : real_alloc)(&p, 1 << 20), "cuMemAlloc");
        Check((guarded ? free_mem : real_free)(p), "cuMemFree");
        took[guarded] = NowNs() - t0;
      }
      alloc_added.push_back(took[1] - took[0]);
    }
  }
  const Added l = Paired(launch_added), a = Paired(alloc_added);
  std::printf(
      "{\"added_launch_ns\": [%.1f, %.1f, %.1f], \"added_alloc_free_ns\": [%.0f, %.0f, %.0f], "
      "\"added_pairs\": [%zu, %zu], ",
      l.median, l.low, l.high, a.median, a.low, a.high, l.n, a.n);
  std::printf(
      "\"init_ns\": %.0f, \"context_ns\": %.0f, \"first_kernel_ns\": %.0f, \"launch_ns\": %.1f, "
      "\"alloc_free_ns\": %.0f, "
      "\"bursts\": %zu, \"burst\": %d, \"allocs\": %zu}\n",
      before_context - start, after_context - before_context, first_kernel - start, Median(per_launch),
      Median(pairs), per_launch.size(), burst, pairs.size());
  return 0;
}
