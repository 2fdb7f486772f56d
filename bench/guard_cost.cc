// SPDX-License-Identifier: Apache-2.0
//
// What a call costs the program that makes it: run bare and under `gpumux run`
// in alternation, and compare (bench/gpu/measure.py does).
//
// usage: guard_cost [--bursts N] [--burst N] [--allocs N]
// One JSON object: medians in nanoseconds over the bursts and calls of this run.
#include <dlfcn.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "gpumux/abi/cuda/driver.h"

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
  std::printf(
      "{\"init_ns\": %.0f, \"context_ns\": %.0f, \"first_kernel_ns\": %.0f, \"launch_ns\": %.1f, "
      "\"alloc_free_ns\": %.0f, "
      "\"bursts\": %zu, \"burst\": %d, \"allocs\": %zu}\n",
      before_context - start, after_context - before_context, first_kernel - start, Median(per_launch),
      Median(pairs), per_launch.size(), burst, pairs.size());
  return 0;
}
