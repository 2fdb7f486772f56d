// SPDX-License-Identifier: Apache-2.0
//
// Whatever way a program finds the driver's functions.
#include <dlfcn.h>
#include <fcntl.h>

#include <cstdio>
#include <string>

#include "commands.h"
#include "driver.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

namespace {

using AllocFn = CUresult (*)(CUdeviceptr*, size_t);
using ProcFn1 = CUresult (*)(const char*, void**, int, cuuint64_t);
using ProcFn2 = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

AllocFn FindAlloc(const std::string& way) {
  if (way == "handle") return Find<AllocFn>("cuMemAlloc_v2");
  if (way == "default") {
    dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return reinterpret_cast<AllocFn>(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  }
  if (way == "next") {
    dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return reinterpret_cast<AllocFn>(dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
  }
  if (way == "self") return reinterpret_cast<AllocFn>(dlsym(dlopen(nullptr, RTLD_NOW), "cuMemAlloc_v2"));
  if (way == "dlsym-of-dlsym") {
    auto found = reinterpret_cast<void* (*)(void*, const char*)>(dlsym(RTLD_DEFAULT, "dlsym"));
    return reinterpret_cast<AllocFn>(found(Driver(), "cuMemAlloc_v2"));
  }
  if (way == "dlvsym-of-dlsym") {
    auto found =
        reinterpret_cast<void* (*)(void*, const char*)>(dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5"));
    return found ? reinterpret_cast<AllocFn>(found(Driver(), "cuMemAlloc_v2")) : nullptr;
  }
  void* p = nullptr;
  if (way == "proc-address") {
    Find<ProcFn1>("cuGetProcAddress")("cuMemAlloc", &p, 12000, 0);
  } else if (way == "proc-address-v2") {
    CUdriverProcAddressQueryResult status;
    Find<ProcFn2>("cuGetProcAddress_v2")("cuMemAlloc", &p, 3020, 0, &status);
  } else if (way == "proc-address-by-itself") {
    // As a runtime library does: the look-up function is looked up by itself.
    void* again = nullptr;
    CUdriverProcAddressQueryResult status;
    Find<ProcFn2>("cuGetProcAddress_v2")("cuGetProcAddress", &again, 12000, 0, &status);
    reinterpret_cast<ProcFn2>(again)("cuMemAlloc", &p, 3020, 0, &status);
  }
  return reinterpret_cast<AllocFn>(p);
}

}  // namespace

int LookUp(const std::string& way, uint64_t bytes) {
  StartUp();
  AllocFn alloc = FindAlloc(way);
  if (!alloc) {
    std::printf("not found\n");
    return 4;
  }
  CUdeviceptr p = 0;
  std::printf("small %d\n", alloc(&p, kMiB));
  std::printf("large %d\n", alloc(&p, bytes));
  return 0;
}

// The missing function stays missing: a driver without it, or no driver at all.
int Absent() {
  std::printf("default before loading %d\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != nullptr);
  std::printf("next before loading %d\n", dlsym(RTLD_NEXT, "cuMemAlloc_v2") != nullptr);
  std::printf("other name %d\n", dlsym(Driver(), "cuThereIsNoSuchFunction") != nullptr);
  std::printf("error text %d\n", dlerror() != nullptr);
  // RTLD_NEXT is relative to the caller: this program's own `marker` must not
  // be found after it.
  std::printf("next of C library %d\n", dlsym(RTLD_NEXT, "malloc") != nullptr);
  return 0;
}

// Loads the driver and calls nothing else: what a program without a GPU does.
int Untouched() {
  std::printf("SESSION fds:");
  for (int fd = 3; fd < 1024; fd++) {
    if (fcntl(fd, F_GETFD) >= 0) std::printf(" %d", fd);
  }
  std::printf("\n");
  return 0;
}

}  // namespace gpumux::probe
