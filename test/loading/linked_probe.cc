// SPDX-License-Identifier: Apache-2.0
//
// A program that is linked with the driver, and what such a program does at odd
// moments and by odd ways. Prints the driver's codes.
//
//   loading_linked_probe ways           allocates by each way of finding the function
//   loading_linked_probe threads        looks functions up from many threads at once
//   loading_linked_probe early          what a constructor allocated before main()
//   loading_linked_probe late           allocates in atexit() and in a static destructor
//   loading_linked_probe older NAMES... what a driver without these names gives
//   loading_linked_probe local HOW LIB  loads a library that is linked with the driver;
//                                       stays until $PROBE_HOLD_FILE is there
//   loading_linked_probe forks PROGRAM  starts the program from children, with CUDA set up
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gpumux/abi/cuda/driver.h"

using namespace gpumux::cuda;

extern "C" {
CUresult cuInit(unsigned);
CUresult cuDeviceGet(CUdevice*, int);
CUresult cuDevicePrimaryCtxRetain(CUcontext*, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr*, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemAllocAsync(CUdeviceptr*, size_t, CUstream);
CUresult cuMemAllocManaged(CUdeviceptr*, size_t, unsigned);
CUresult cuArrayCreate_v2(CUarray*, const CUDA_ARRAY_DESCRIPTOR*);
CUresult cuGetProcAddress_v2(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
// Of the other preload, where there is one.
__attribute__((weak)) int OtherPreloadCalls();
}

namespace {

using Alloc = CUresult (*)(CUdeviceptr*, size_t);
constexpr size_t kSmall = 1 << 20, kLarge = size_t{3} << 30;

CUresult StartUp() {
  CUdevice device;
  CUcontext context;
  if (CUresult r = cuInit(0); r != CUDA_SUCCESS) return r;
  if (CUresult r = cuDeviceGet(&device, 0); r != CUDA_SUCCESS) return r;
  if (CUresult r = cuDevicePrimaryCtxRetain(&context, device); r != CUDA_SUCCESS) return r;
  return cuCtxSetCurrent(context);
}

// "early" alone: before main, in a constructor that no library comes after.
struct Early {
  CUresult small = CUDA_ERROR_UNKNOWN, large = CUDA_ERROR_UNKNOWN;
};
Early early;
__attribute__((constructor)) void BeforeMain() {
  const char* wanted = getenv("PROBE_EARLY");
  if (wanted == nullptr || StartUp() != CUDA_SUCCESS) return;
  CUdeviceptr p;
  early.small = cuMemAlloc_v2(&p, kSmall);
  early.large = cuMemAlloc_v2(&p, kLarge);
}

void Report(const char* way, Alloc alloc) {
  const int before = OtherPreloadCalls ? OtherPreloadCalls() : 0;
  CUdeviceptr p = 0;
  const int small = alloc ? alloc(&p, kSmall) : -1;
  if (small == CUDA_SUCCESS) cuMemFree_v2(p);
  const int large = alloc ? alloc(&p, kLarge) : -1;
  if (large == CUDA_SUCCESS) cuMemFree_v2(p);
  std::printf("%s %d %d", way, small, large);
  if (OtherPreloadCalls) std::printf(" other %d", OtherPreloadCalls() - before);
  std::printf("\n");
}

int Ways() {
  const auto find = [](void* where) { return reinterpret_cast<Alloc>(dlsym(where, "cuMemAlloc_v2")); };
  Report("linked", cuMemAlloc_v2);
  Report("default", find(RTLD_DEFAULT));
  Report("next", find(RTLD_NEXT));
  Report("program", find(dlopen(nullptr, RTLD_NOW)));
  Report("handle", find(dlopen("libcuda.so.1", RTLD_NOW)));
  void* pfn = nullptr;
  CUdriverProcAddressQueryResult status;
  cuGetProcAddress_v2("cuMemAlloc", &pfn, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status);
  Report("proc-address", reinterpret_cast<Alloc>(pfn));
  return 0;
}

int Threads() {
  std::atomic<int> differ{0}, absent{0};
  std::vector<std::thread> threads;
  void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&] {
      void* const first = dlsym(handle, "cuMemAlloc_v2");
      for (int i = 0; i < 2000; ++i) {
        if (dlsym(handle, "cuMemAlloc_v2") != first) ++differ;
        if (dlsym(RTLD_DEFAULT, "cuMemFree_v2") == nullptr || dlsym(RTLD_NEXT, "cuInit") == nullptr) ++absent;
        if (dlsym(RTLD_DEFAULT, "printf") == nullptr || dlsym(handle, "cuNoSuch") != nullptr) ++absent;
        dlclose(dlopen("libcuda.so.1", RTLD_NOW));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  std::printf("differ %d absent %d\n", differ.load(), absent.load());
  return 0;
}

void AllocateLate(const char* when) {
  CUdeviceptr p = 0;
  const int small = cuMemAlloc_v2(&p, kSmall);
  const int freed = cuMemFree_v2(p);
  const int large = cuMemAlloc_v2(&p, kLarge);
  std::printf("%s %d %d %d\n", when, small, freed, large);
  std::fflush(stdout);
}

struct AtTheEnd {
  bool wanted = false;
  ~AtTheEnd() {
    if (wanted) AllocateLate("destructor");
  }
};
AtTheEnd at_the_end;

int Late() {
  at_the_end.wanted = true;
  atexit([] { AllocateLate("atexit"); });
  return StartUp();
}

int Older(char** names) {
  void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  for (; *names; ++names) {
    void* pfn = handle;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    const CUresult asked = cuGetProcAddress_v2(*names, &pfn, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status);
    std::printf("%s dlsym %d default %d proc %d %d %d\n", *names, dlsym(handle, *names) != nullptr,
                dlsym(RTLD_DEFAULT, *names) != nullptr, asked, pfn != nullptr, status);
  }
  CUdeviceptr p = 0;
  Report("plain", cuMemAlloc_v2);
  std::printf("async %d %d\n", cuMemAllocAsync(&p, kSmall, nullptr), cuMemAllocAsync(&p, kLarge, nullptr));
  std::printf("managed %d\n", cuMemAllocManaged(&p, kLarge, 1));
  CUarray array;
  constexpr int kByte = 1;  // CU_AD_FORMAT_UNSIGNED_INT8
  // 3 GiB.
  const CUDA_ARRAY_DESCRIPTOR large = {131072, 24576, kByte, 1};
  const CUDA_ARRAY_DESCRIPTOR small = {1024, 1024, kByte, 1};
  std::printf("array %d %d\n", cuArrayCreate_v2(&array, &small), cuArrayCreate_v2(&array, &large));
  return 0;
}

int Local(const std::string& how, const char* library) {
  void* handle = how == "dlmopen" ? dlmopen(LM_ID_NEWLM, library, RTLD_NOW)
                                  : dlopen(library, (how == "lazy" ? RTLD_LAZY : RTLD_NOW) | RTLD_LOCAL |
                                                        (how == "plain" ? 0 : RTLD_DEEPBIND));
  if (handle == nullptr) {
    std::printf("%s\n", dlerror());
    return 9;
  }
  auto allocate = reinterpret_cast<int (*)(size_t)>(dlsym(handle, "AllocateInLibrary"));
  auto look_up = reinterpret_cast<int (*)(size_t)>(dlsym(handle, "LookUpInLibrary"));
  auto own = reinterpret_cast<const char* (*)()>(dlsym(handle, "WhoseName"));
  const int small = allocate(kSmall), large = allocate(kLarge);
  std::printf("linked %d %d\n", small, large);
  std::printf("looked up %d\n", look_up(kLarge));
  std::printf("name %s\n", own());
  std::fflush(stdout);
  if (const char* file = getenv("PROBE_HOLD_FILE")) {
    while (access(file, F_OK) != 0) usleep(5000);
  }
  return 0;
}

__attribute__((noinline)) int StartFrom(bool shares_memory, char* program, char* bytes) {
  char* argv[] = {program, bytes, nullptr};
  char* none[] = {nullptr};
  const pid_t child = shares_memory ? vfork() : fork();
  if (child == 0) {
    execve(program, argv, none);
    _exit(96);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int Forks(char* program) {
  CUdeviceptr held = 0;
  std::string bytes = std::to_string(kLarge);
  std::printf("held %d\n", cuMemAlloc_v2(&held, kSmall));
  std::fflush(stdout);
  const int forked = StartFrom(false, program, bytes.data());
  const int vforked = StartFrom(true, program, bytes.data());
  std::printf("exit %d %d\n", forked, vforked);
  Report("parent", cuMemAlloc_v2);
  std::printf("freed %d\n", cuMemFree_v2(held));
  return 0;
}

}  // namespace

// The library has a function of this name too: which of them it calls shows
// whether it is bound to its own names first.
extern "C" const char* NameOfBoth() { return "program's"; }

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "threads") return Threads();
  if (what == "early") {
    std::printf("early %d %d\n", early.small, early.large);
    return 0;
  }
  if (what == "late") return Late();
  if (what == "local" && argc > 3) return Local(argv[2], argv[3]);
  if (const CUresult r = StartUp(); r != CUDA_SUCCESS) {
    std::printf("start-up %d\n", r);
    return 8;
  }
  if (what == "ways") return Ways();
  if (what == "forks" && argc > 2) return Forks(argv[2]);
  if (what == "older") return Older(argv + 2);
  return 0;
}
