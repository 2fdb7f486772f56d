// SPDX-License-Identifier: Apache-2.0
//
// Launches a kernel once by every entry point that launches, and graphs with and
// without memory. Prints how many calls that were.
#include <dlfcn.h>

#include <cstdio>
#include <initializer_list>

#include "gpumux/abi/cuda/driver.h"

using namespace gpumux::cuda;

namespace {

template <typename... P>
int Call(const char* name, P... args) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  auto* f = reinterpret_cast<int (*)(P...)>(dlsym(driver, name));
  return f ? f(args...) : -1;
}

constexpr char kImage[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }\n";

CUgraphExec Executable(bool with_memory) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUgraphNode node = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  params.bytesize = 1 << 20;
  Call("cuGraphCreate", &graph, 0u);
  if (with_memory)
    Call("cuGraphAddMemAllocNode", &node, graph, static_cast<const CUgraphNode*>(nullptr), size_t{0},
         &params);
  Call("cuGraphInstantiateWithFlags", &exec, graph, 0ull);
  return exec;
}

}  // namespace

int main() {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction f = nullptr;
  CUstream stream = nullptr;
  void** none = nullptr;
  if (Call("cuInit", 0u) || Call("cuDevicePrimaryCtxRetain", &context, 0) ||
      Call("cuCtxSetCurrent", context) || Call("cuModuleLoadData", &module, kImage) ||
      Call("cuModuleGetFunction", &f, module, "nothing")) {
    return 8;
  }
  CUlaunchConfig config = {};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  int calls = 0;
  for (const char* name : {"cuLaunchKernel", "cuLaunchKernel_ptsz"}) {
    Call(name, f, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream, none, none);
    ++calls;
  }
  for (const char* name : {"cuLaunchKernelEx", "cuLaunchKernelEx_ptsz"}) {
    Call(name, &config, f, none, none);
    ++calls;
  }
  for (const char* name : {"cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz"}) {
    Call(name, f, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream, none);
    ++calls;
  }
  Call("cuLaunchCooperativeKernelMultiDevice", none, 0u, 0u);
  Call("cuLaunch", f);
  Call("cuLaunchGrid", f, 1, 1);
  Call("cuLaunchGridAsync", f, 1, 1, stream);
  calls += 4;
  CUgraphExec plain = Executable(false);
  Call("cuGraphLaunch", plain, stream);
  Call("cuGraphLaunch_ptsz", plain, stream);
  CUgraphExec with_memory = Executable(true);
  Call("cuGraphLaunch", with_memory, stream);
  Call("cuGraphLaunch_ptsz", plain, stream);
  calls += 4;
  std::printf("%d\n", calls);
  return 0;
}
