// SPDX-License-Identifier: Apache-2.0
//
// What a tenant's program is told by NVML about processes and memory. Each
// sub-command prints lines that the tests read. PROBE_NVML names another
// library than libnvidia-ml.so.1; PROBE_HOLD_FILE is waited for at the end.
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "gpumux/abi/cuda/driver.h"
#include "gpumux/abi/nvml/nvml.h"

using namespace gpumux::cuda;
using namespace gpumux::nvml;

namespace {

template <typename F>
F Nvml(const char* name) {
  static void* library = [] {
    const char* path = getenv("PROBE_NVML");
    void* handle = dlopen(path ? path : "libnvidia-ml.so.1", RTLD_NOW);
    if (!handle) {
      std::printf("no NVML: %s\n", dlerror());
      std::exit(9);
    }
    return handle;
  }();
  return reinterpret_cast<F>(dlsym(library, name));
}

template <typename F>
F Cuda(const char* name) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<F>(dlsym(library, name));
}

using ListCall = nvmlReturn_t (*)(nvmlDevice_t, unsigned*, void*);

nvmlDevice_t Device(unsigned index) {
  nvmlDevice_t device = nullptr;
  if (Nvml<nvmlReturn_t (*)()>("nvmlInit_v2")() != NVML_SUCCESS ||
      Nvml<nvmlReturn_t (*)(unsigned, nvmlDevice_t*)>("nvmlDeviceGetHandleByIndex_v2")(index, &device) !=
          NVML_SUCCESS) {
    std::printf("no device\n");
    std::exit(9);
  }
  return device;
}

void Hold() {
  std::printf("ready\n");
  std::fflush(stdout);
  const char* hold = getenv("PROBE_HOLD_FILE");
  while (hold && access(hold, F_OK) != 0) usleep(2000);
}

void TakeMemory(size_t bytes) {
  CUcontext context = nullptr;
  CUdevice device = 0;
  CUdeviceptr p = 0;
  if (Cuda<CUresult (*)(unsigned)>("cuInit")(0) != CUDA_SUCCESS ||
      Cuda<CUresult (*)(CUdevice*, int)>("cuDeviceGet")(&device, 0) != CUDA_SUCCESS ||
      Cuda<CUresult (*)(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context, device) !=
          CUDA_SUCCESS ||
      Cuda<CUresult (*)(CUcontext)>("cuCtxSetCurrent")(context) != CUDA_SUCCESS ||
      (bytes && Cuda<CUresult (*)(CUdeviceptr*, size_t)>("cuMemAlloc_v2")(&p, bytes) != CUDA_SUCCESS)) {
    std::printf("no memory\n");
    std::exit(9);
  }
}

// Takes memory and stays.
int Take(size_t bytes) {
  TakeMemory(bytes);
  std::printf("pid %d\n", getpid());
  Hold();
  return 0;
}

// Goes on as `argv` without the preload, by a system call that nothing wraps.
int Unguarded(char** argv) {
  std::vector<char*> kept;
  for (char** e = environ; *e; e++) {
    if (strncmp(*e, "LD_PRELOAD=", 11) != 0) kept.push_back(*e);
  }
  kept.push_back(nullptr);
  return static_cast<int>(syscall(SYS_execve, argv[0], argv, kept.data()));
}

// "NAME CODE COUNT PID=BYTES ..."
void PrintList(const char* name, size_t stride, nvmlDevice_t device, unsigned room) {
  std::vector<unsigned char> buffer(stride * room + 64, 0xee);
  unsigned count = room;
  const int r = Nvml<ListCall>(name)(device, &count, room ? buffer.data() : nullptr);
  std::printf("%s/%u %d %u", name + strlen("nvmlDeviceGet"), room, r, count);
  for (unsigned i = 0; r == 0 && i < count; i++) {
    nvmlProcessInfo_v1_t info;
    memcpy(&info, buffer.data() + i * stride, sizeof info);
    std::printf(" %u=%llu", info.pid, info.usedGpuMemory);
  }
  // Beyond the entries nothing is written, and without success nothing at all.
  const size_t filled = r == 0 ? count * stride : 0;
  for (size_t i = filled; i < buffer.size(); i++) {
    if (buffer[i] != 0xee) {
      std::printf(" written beyond");
      break;
    }
  }
  std::printf("\n");
}

void PrintDetails(nvmlDevice_t device, unsigned mode, unsigned room) {
  std::vector<nvmlProcessDetail_v1_t> entries(room + 1);
  nvmlProcessDetailList_t list = {kProcessDetailListV1, mode, room, room ? entries.data() : nullptr};
  const int r = Nvml<nvmlReturn_t (*)(nvmlDevice_t, nvmlProcessDetailList_t*)>(
      "nvmlDeviceGetRunningProcessDetailList")(device, &list);
  std::printf("DetailList%u/%u %d %u", mode, room, r, list.numProcArrayEntries);
  for (unsigned i = 0; r == 0 && i < list.numProcArrayEntries; i++)
    std::printf(" %u=%llu", entries[i].pid, entries[i].usedGpuMemory);
  std::printf("\n");
}

int Lists(unsigned index) {
  nvmlDevice_t device = Device(index);
  for (const char* kind : {"Compute", "Graphics", "MPSCompute"}) {
    const std::string stem = std::string("nvmlDeviceGet") + kind + "RunningProcesses";
    for (unsigned room : {0u, 1u, 100u}) {
      PrintList(stem.c_str(), sizeof(nvmlProcessInfo_v1_t), device, room);
      PrintList((stem + "_v2").c_str(), sizeof(nvmlProcessInfo_v2_t), device, room);
      PrintList((stem + "_v3").c_str(), sizeof(nvmlProcessInfo_t), device, room);
    }
  }
  for (unsigned mode : {0u, 1u, 2u}) {
    for (unsigned room : {0u, 1u, 100u}) PrintDetails(device, mode, room);
  }
  return 0;
}

// The same calls as NVML's own checks want them to fail.
int Wrong() {
  const auto v3 = "nvmlDeviceGetComputeRunningProcesses_v3";
  unsigned count = 5;
  char buffer[256];
  std::printf("not initialised %d\n", Nvml<ListCall>(v3)(nullptr, &count, buffer));
  nvmlDevice_t device = Device(0);
  std::printf("no count %d\n", Nvml<ListCall>(v3)(device, nullptr, buffer));
  std::printf("no buffer %d\n", Nvml<ListCall>(v3)(device, &count, nullptr));
  count = 5;
  std::printf("no device %d\n", Nvml<ListCall>(v3)(nullptr, &count, buffer));
  nvmlProcessDetailList_t list = {1, 0, 0, nullptr};
  const auto details =
      Nvml<nvmlReturn_t (*)(nvmlDevice_t, nvmlProcessDetailList_t*)>("nvmlDeviceGetRunningProcessDetailList");
  std::printf("other version %d\n", details(device, &list));
  std::printf("no list %d\n", details(device, nullptr));
  return 0;
}

// Entries of `stride` bytes under one name, as the library of PROBE_NVML fills them.
int Stride(const char* name, size_t stride) {
  nvmlDevice_t device = Device(0);
  for (unsigned room : {0u, 1u, 100u}) PrintList(name, stride, device, room);
  return 0;
}

int Sessions() {
  nvmlDevice_t device = Device(0);
  const auto sessions = Nvml<nvmlReturn_t (*)(nvmlDevice_t, unsigned*, nvmlEncoderSessionInfo_t*)>(
      "nvmlDeviceGetEncoderSessions");
  nvmlEncoderSessionInfo_t list[8];
  for (unsigned room : {0u, 8u}) {
    unsigned count = room;
    const int r = sessions(device, &count, room ? list : nullptr);
    std::printf("sessions/%u %d %u", room, r, count);
    for (unsigned i = 0; room && r == 0 && i < count; i++)
      std::printf(" %u=%u", list[i].pid, list[i].sessionId);
    std::printf("\n");
  }
  return 0;
}

int Accounting(unsigned other) {
  nvmlDevice_t device = Device(0);
  unsigned count = 100, pids[100];
  const int r = Nvml<ListCall>("nvmlDeviceGetAccountingPids")(device, &count, pids);
  std::printf("pids %d", r);
  for (unsigned i = 0; r == 0 && i < count; i++) std::printf(" %u", pids[i]);
  const auto stats =
      Nvml<nvmlReturn_t (*)(nvmlDevice_t, unsigned, nvmlAccountingStats_t*)>("nvmlDeviceGetAccountingStats");
  nvmlAccountingStats_t own = {}, others = {};
  std::printf("\nown %d", stats(device, static_cast<unsigned>(getpid()), &own));
  std::printf(" %llu\nother %d %llu\n", own.maxMemoryUsage, stats(device, other, &others),
              others.maxMemoryUsage);
  return 0;
}

// Until `wanted` shows in the samples of use: every pid that was listed meanwhile.
int Use(unsigned wanted) {
  nvmlDevice_t device = Device(0);
  const auto samples =
      Nvml<nvmlReturn_t (*)(nvmlDevice_t, nvmlProcessUtilizationSample_t*, unsigned*, unsigned long long)>(
          "nvmlDeviceGetProcessUtilization");
  const auto info = Nvml<nvmlReturn_t (*)(nvmlDevice_t, nvmlProcessesUtilizationInfo_t*)>(
      "nvmlDeviceGetProcessesUtilizationInfo");
  bool seen = false, strangers = false;
  unsigned most = 0;
  for (int i = 0; i < 20'000 && !seen; i++, usleep(2000)) {
    unsigned count = 0;
    if (samples(device, nullptr, &count, 0) != NVML_ERROR_INSUFFICIENT_SIZE) std::printf("no size\n");
    most = count;
    nvmlProcessUtilizationSample_t list[64];
    count = 64;
    bool by_samples = false, by_info = false;
    const int r = samples(device, list, &count, 0);
    for (unsigned k = 0; r == 0 && k < count; k++) {
      by_samples |= list[k].pid == wanted && list[k].smUtil > 0;
      strangers |= list[k].pid != wanted;
    }
    nvmlProcessUtilizationInfo_v1_t entries[64];
    nvmlProcessesUtilizationInfo_t all = {kProcessesUtilizationV1, 64, 0, entries};
    const int r2 = info(device, &all);
    for (unsigned k = 0; r2 == 0 && k < all.processSamplesCount; k++) {
      by_info |= entries[k].pid == wanted && entries[k].smUtil > 0;
      strangers |= entries[k].pid != wanted;
    }
    if ((r != 0 && r != NVML_ERROR_NOT_FOUND) || (r2 != 0 && r2 != NVML_ERROR_NOT_FOUND))
      std::printf("codes %d %d\n", r, r2);
    seen = by_samples && by_info;
  }
  std::printf("seen %d strangers %d most %u\n", seen, strangers, most);
  return 0;
}

// Every out-pointer that may be left out, left out: the driver's own codes.
int Nulls() {
  TakeMemory(0);
  nvmlDevice_t device = Device(0);
  size_t free = 1, total = 1;
  const auto info = Cuda<CUresult (*)(size_t*, size_t*)>("cuMemGetInfo_v2");
  std::printf("info %d %d %d\n", info(nullptr, &total), info(&free, nullptr), info(nullptr, nullptr));
  std::printf("set %d %d\n", free > 1, total > 1);
  std::printf("total %d\n", Cuda<CUresult (*)(size_t*, CUdevice)>("cuDeviceTotalMem_v2")(nullptr, 0));
  std::printf("v1 %d\n", Nvml<nvmlReturn_t (*)(nvmlDevice_t, nvmlMemory_t*)>("nvmlDeviceGetMemoryInfo")(
                             device, nullptr));
  const auto v2 = Nvml<nvmlReturn_t (*)(nvmlDevice_t, nvmlMemory_v2_t*)>("nvmlDeviceGetMemoryInfo_v2");
  nvmlMemory_v2_t other = {};
  other.version = 2;  // not the structure's version: some programs pass this
  std::printf("v2 %d %d\n", v2(device, nullptr), v2(device, &other));
  return 0;
}

// NVML's codes once PROBE_HOLD_FILE is there.
int Codes() {
  nvmlDevice_t device = Device(0);
  Hold();
  nvmlMemory_t memory = {};
  nvmlProcessInfo_t list[8];
  unsigned count = 8;
  const int m =
      Nvml<nvmlReturn_t (*)(nvmlDevice_t, nvmlMemory_t*)>("nvmlDeviceGetMemoryInfo")(device, &memory);
  std::printf("memory %d list %d\n", m,
              Nvml<ListCall>("nvmlDeviceGetComputeRunningProcesses_v3")(device, &count, list));
  return 0;
}

// "cuda CODE FREE TOTAL DEVICE_TOTAL", with a context.
void PrintCuda() {
  size_t free = 0, total = 0, device_total = 0;
  const CUresult r = Cuda<CUresult (*)(size_t*, size_t*)>("cuMemGetInfo_v2")(&free, &total);
  Cuda<CUresult (*)(size_t*, CUdevice)>("cuDeviceTotalMem_v2")(&device_total, 0);
  std::printf("cuda %d %zu %zu %zu\n", r, free, total, device_total);
}

// "INDEX UUID v1 TOTAL FREE USED v2 TOTAL RESERVED FREE USED bar1 TOTAL own SUM"
// for each device that NVML has.
int Memory() {
  Nvml<nvmlReturn_t (*)()>("nvmlInit_v2")();
  unsigned count = 0;
  Nvml<nvmlReturn_t (*)(unsigned*)>("nvmlDeviceGetCount_v2")(&count);
  for (unsigned i = 0; i < count; i++) {
    nvmlDevice_t device = Device(i);
    char uuid[96] = {};
    Nvml<nvmlReturn_t (*)(nvmlDevice_t, char*, unsigned)>("nvmlDeviceGetUUID")(device, uuid, sizeof uuid);
    nvmlMemory_t v1 = {};
    nvmlMemory_v2_t v2 = {};
    v2.version = kMemoryV2;
    nvmlBAR1Memory_t bar1 = {};
    nvmlProcessInfo_t list[64];
    unsigned processes = 64;
    Nvml<nvmlReturn_t (*)(nvmlDevice_t, nvmlMemory_t*)>("nvmlDeviceGetMemoryInfo")(device, &v1);
    Nvml<nvmlReturn_t (*)(nvmlDevice_t, nvmlMemory_v2_t*)>("nvmlDeviceGetMemoryInfo_v2")(device, &v2);
    Nvml<nvmlReturn_t (*)(nvmlDevice_t, nvmlBAR1Memory_t*)>("nvmlDeviceGetBAR1MemoryInfo")(device, &bar1);
    unsigned long long own = 0;
    if (Nvml<ListCall>("nvmlDeviceGetComputeRunningProcesses_v3")(device, &processes, list) == NVML_SUCCESS)
      for (unsigned k = 0; k < processes; k++) own += list[k].usedGpuMemory;
    std::printf("%u %s v1 %llu %llu %llu v2 %llu %llu %llu %llu bar1 %llu own %llu\n", i, uuid, v1.total,
                v1.free, v1.used, v2.total, v2.reserved, v2.free, v2.used, bar1.bar1Total, own);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> a(argv + 1, argv + argc);
  auto number = [&](size_t i) { return i < a.size() ? std::strtoull(a[i].c_str(), nullptr, 10) : 0; };
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (a.empty()) return 2;
  if (a[0] == "take") return Take(number(1));
  if (a[0] == "unguarded") return Unguarded(argv + 2);
  if (a[0] == "lists") return Lists(static_cast<unsigned>(number(1)));
  if (a[0] == "take-and-list") {
    TakeMemory(number(1));
    std::printf("pid %d\n", getpid());
    Lists(0);
    Hold();
    return 0;
  }
  if (a[0] == "hold-and-list") {
    TakeMemory(number(1));
    std::printf("pid %d\n", getpid());
    Hold();
    return Lists(0);
  }
  if (a[0] == "wrong") return Wrong();
  if (a[0] == "stride") return Stride(a.at(1).c_str(), number(2));
  if (a[0] == "sessions") return Sessions();
  if (a[0] == "accounting") return Accounting(static_cast<unsigned>(number(1)));
  if (a[0] == "use") return Use(static_cast<unsigned>(number(1)));
  if (a[0] == "memory") {
    TakeMemory(number(1));
    PrintCuda();
    Memory();
    Hold();
    return 0;
  }
  if (a[0] == "memory-without-context") return Memory();
  if (a[0] == "nulls") return Nulls();
  if (a[0] == "codes") return Codes();
  std::fprintf(stderr, "unknown: %s\n", a[0].c_str());
  return 2;
}
