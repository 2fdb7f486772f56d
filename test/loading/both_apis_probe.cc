// SPDX-License-Identifier: Apache-2.0
//
// Sets the driver and NVML up together, and makes a context through each version
// of cuCtxCreate.
//
//   both_apis_probe cuda-first|nvml-first|threads    prints the codes
//   both_apis_probe contexts                         prints code and version
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "gpumux/abi/cuda/driver.h"
#include "gpumux/abi/nvml/nvml.h"

using namespace gpumux::cuda;
namespace nv = gpumux::nvml;

namespace {

void* Symbol(const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_NOW);
  return handle ? dlsym(handle, name) : nullptr;
}

template <typename... P>
int Call(const char* library, const char* name, P... args) {
  auto* f = reinterpret_cast<int (*)(P...)>(Symbol(library, name));
  return f ? f(args...) : -1;
}

constexpr char kCuda[] = "libcuda.so.1", kNvml[] = "libnvidia-ml.so.1";

int SetUpCuda() {
  CUcontext context = nullptr;
  size_t free = 0, total = 0;
  int r = Call(kCuda, "cuInit", 0u);
  if (r == 0) r = Call(kCuda, "cuDevicePrimaryCtxRetain", &context, 0);
  if (r == 0) r = Call(kCuda, "cuCtxSetCurrent", context);
  if (r == 0) r = Call(kCuda, "cuMemGetInfo_v2", &free, &total);
  return r == 0 && total != size_t{2} << 30 ? -2 : r;
}

int SetUpNvml() {
  nv::nvmlDevice_t device = nullptr;
  nv::nvmlMemory_t memory = {};
  int r = Call(kNvml, "nvmlInit_v2");
  if (r == 0) r = Call(kNvml, "nvmlDeviceGetHandleByIndex_v2", 0u, &device);
  if (r == 0) r = Call(kNvml, "nvmlDeviceGetMemoryInfo", device, &memory);
  return r == 0 && memory.total != uint64_t{2} << 30 ? -2 : r;
}

using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

// As programs built with each toolkit ask for it, with that version's own parameters.
int Contexts() {
  Call(kCuda, "cuInit", 0u);
  auto ask = reinterpret_cast<GetProcAddress>(Symbol(kCuda, "cuGetProcAddress_v2"));
  for (int version : {3020, 11040, 11080, 12000, 12050, 12090, 13000}) {
    void* pfn = nullptr;
    CUdriverProcAddressQueryResult status;
    CUcontext context = nullptr;
    unsigned api = 0;
    if (ask("cuCtxCreate", &pfn, version, 0, &status) != CUDA_SUCCESS || pfn == nullptr) return 9;
    CUresult r;
    if (version < 11040) {
      r = reinterpret_cast<CUresult (*)(CUcontext*, unsigned, CUdevice)>(pfn)(&context, 0, 0);
    } else if (version < 12050) {
      r = reinterpret_cast<CUresult (*)(CUcontext*, CUexecAffinityParam*, int, unsigned, CUdevice)>(pfn)(
          &context, nullptr, 0, 0, 0);
    } else {
      r = reinterpret_cast<CUresult (*)(CUcontext*, CUctxCreateParams*, unsigned, CUdevice)>(pfn)(
          &context, nullptr, 0, 0);
    }
    const int known = Call(kCuda, "cuCtxGetApiVersion", context, &api);
    const int ended = Call(kCuda, "cuCtxDestroy_v2", context);
    std::printf("%d: %d %d %d\n", version, r, known, ended);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string order = argc > 1 ? argv[1] : "";
  int cuda = -3, nvml = -3;
  if (order == "contexts") return Contexts();
  if (order == "cuda-first") {
    cuda = SetUpCuda();
    nvml = SetUpNvml();
  } else if (order == "nvml-first") {
    nvml = SetUpNvml();
    cuda = SetUpCuda();
  } else {
    std::thread a([&] { cuda = SetUpCuda(); }), b([&] { nvml = SetUpNvml(); });
    a.join();
    b.join();
  }
  std::printf("cuda %d nvml %d\n", cuda, nvml);
  return 0;
}
