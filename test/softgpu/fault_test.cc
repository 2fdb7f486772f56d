// SPDX-License-Identifier: Apache-2.0
//
// Scripted faults in real processes: the exported names obey the script, and
// what a fault leaves behind is nothing.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "child.h"
#include "cuda_functions.h"
#include "without_symbols.h"

namespace gpumux::test {
namespace {

using namespace cuda;

constexpr unsigned long long kContextOwn = 543'162'368;

class SoftGpuFaults : public SoftGpuTest {
 protected:
  ~SoftGpuFaults() override { unsetenv("GPUMUX_SOFTGPU_FAULTS"); }
  // In a child, in which the libraries read the script with their first call.
  void With(const std::string& script, const std::function<void()>& body) {
    InChild([&] {
      setenv("GPUMUX_SOFTGPU_FAULTS", script.c_str(), 1);
      body();
    });
  }
};

TEST_F(SoftGpuFaults, FailCallNOfAFunctionAndTakeNothing) {
  With("fail cuMemAlloc_v2 with CUDA_ERROR_OUT_OF_MEMORY on 2; fail cuMemFree_v2 with 700 from 2", [] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    const auto device = Gpu0();
    CUdeviceptr a = 0, b = 1, c = 0;
    EXPECT_EQ(Alloc(&a, 100 << 20), CUDA_SUCCESS);
    EXPECT_EQ(Alloc(&b, 100 << 20), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(b, 1u) << "untouched";
    EXPECT_EQ(OwnBytes(device, getpid()), static_cast<long long>(kContextOwn + (100 << 20)));
    EXPECT_EQ(Alloc(&c, 100 << 20), CUDA_SUCCESS);
    EXPECT_EQ(Free(a), CUDA_SUCCESS);
    EXPECT_EQ(Free(c), static_cast<CUresult>(700));
    EXPECT_EQ(OwnBytes(device, getpid()), static_cast<long long>(kContextOwn + (100 << 20))) << "not freed";
  });
}

// A call that goes on arrives as it was made: arguments in registers, in
// vector registers and on the stack, under a rule that means another call.
TEST_F(SoftGpuFaults, ACallThatGoesOnKeepsItsArguments) {
  With("fail cuLaunchKernel with 1 on 1000; fail cu* with 1 on 100000", [] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUdeviceptr x, y;
    std::vector<float> host(1000, 2.0f);
    ASSERT_EQ(Alloc(&x, 4000), CUDA_SUCCESS);
    ASSERT_EQ(Alloc(&y, 4000), CUDA_SUCCESS);
    ASSERT_EQ(ToDevice(x, host.data(), 4000), CUDA_SUCCESS);
    ASSERT_EQ(ToDevice(y, host.data(), 4000), CUDA_SUCCESS);
    float a = 3;
    uint64_t n = 1000;
    void* params[] = {&a, &x, &y, &n};
    // Eleven arguments.
    ASSERT_EQ(Launch(GetFunction("saxpy"), 4, 256, nullptr, params), CUDA_SUCCESS);
    ASSERT_EQ(FromDevice(host.data(), y, 4000), CUDA_SUCCESS);
    EXPECT_EQ(host, std::vector<float>(1000, 8.0f));
  });
}

TEST_F(SoftGpuFaults, WhatTheLookUpHandsOutObeysToo) {
  With("fail cuMemAlloc_v2 with 46", [] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    void* found = nullptr;
    ASSERT_EQ(CU(cuGetProcAddress_v2, const char*, void**, int, uint64_t, int*)("cuMemAlloc", &found, 13000,
                                                                                0, nullptr),
              CUDA_SUCCESS);
    CUdeviceptr p;
    EXPECT_EQ(reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t)>(found)(&p, 1), static_cast<CUresult>(46));
  });
}

TEST_F(SoftGpuFaults, LackASymbol) {
  With("lack cuMemAllocAsync*; lack cuMemAlloc_v2; lack nvmlDeviceGetMemoryInfo_v2", [] {
    const auto get = CU(cuGetProcAddress_v2, const char*, void**, int, uint64_t, int*);
    void* found = nullptr;
    int status = -1;
    EXPECT_EQ(get("cuMemAllocAsync", &found, 13000, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(found, nullptr);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    EXPECT_EQ(get("cuMemAllocAsync", &found, 13000, 2, &status), CUDA_SUCCESS);
    EXPECT_EQ(found, nullptr) << "nor the one of the thread's own stream";
    // An older version is there, and is what such a driver would give.
    EXPECT_EQ(get("cuMemAlloc", &found, 13000, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(found, Symbol(SOFTGPU_LIBCUDA, "cuMemAlloc"));
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUdeviceptr p;
    EXPECT_EQ(Alloc(&p, 1), CUDA_ERROR_NOT_FOUND);
    nvml::nvmlMemory_v2_t memory = {};
    memory.version = nvml::kMemoryV2;
    EXPECT_EQ(NVML(nvmlDeviceGetMemoryInfo_v2, nvml::nvmlDevice_t, nvml::nvmlMemory_v2_t*)(Gpu0(), &memory),
              nvml::NVML_ERROR_FUNCTION_NOT_FOUND);
  });
}

// For dlsym a name is there or is not: a copy of the library without it.
TEST_F(SoftGpuFaults, ACopyWithoutASymbol) {
  const std::string copies = dir() + "/older";
  ASSERT_TRUE(CopySoftGpuWithout(SOFTGPU_LIBCUDA, copies,
                                 {"cuMemAllocAsync", "cuMemGetInfo_v2", "nvmlDeviceGetMemoryInfo_v2"}));
  EXPECT_FALSE(CopySoftGpuWithout(SOFTGPU_LIBCUDA, copies + "2", {"cuNoSuchThing"}));
  InChild([&] {
    void* cuda = dlopen((copies + "/libcuda.so.1").c_str(), RTLD_NOW);
    ASSERT_NE(cuda, nullptr) << dlerror();
    EXPECT_EQ(dlsym(cuda, "cuMemAllocAsync"), nullptr);
    EXPECT_EQ(dlsym(cuda, "cuMemGetInfo_v2"), nullptr);
    EXPECT_NE(dlsym(cuda, "cuMemGetInfo"), nullptr);
    const auto get = reinterpret_cast<CUresult (*)(const char*, void**, int, uint64_t, int*)>(
        dlsym(cuda, "cuGetProcAddress_v2"));
    void* found = nullptr;
    EXPECT_EQ(get("cuMemAllocAsync", &found, 13000, 0, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(found, nullptr) << "the copy carries its own list of what it lacks";
    const auto init = reinterpret_cast<CUresult (*)(unsigned)>(dlsym(cuda, "cuInit"));
    EXPECT_EQ(init(0), CUDA_SUCCESS) << "and works";
    void* nvml = dlopen((copies + "/libnvidia-ml.so.1").c_str(), RTLD_NOW);
    ASSERT_NE(nvml, nullptr) << dlerror();
    EXPECT_EQ(dlsym(nvml, "nvmlDeviceGetMemoryInfo_v2"), nullptr);
    EXPECT_NE(dlsym(nvml, "nvmlDeviceGetMemoryInfo"), nullptr);
    EXPECT_EQ(reinterpret_cast<int (*)()>(dlsym(nvml, "nvmlInit_v2"))(), 0);
  });
}

TEST_F(SoftGpuFaults, AnotherDriver) {
  With("driver 535.161.08", [] {
    int version = 0;
    EXPECT_EQ(CU(cuDriverGetVersion, int*)(&version), CUDA_SUCCESS);
    EXPECT_EQ(version, 12020);
    void* found = nullptr;
    const auto get = CU(cuGetProcAddress_v2, const char*, void**, int, uint64_t, int*);
    EXPECT_EQ(get("cuMemAlloc", &found, 12030, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(get("cuMemAlloc", &found, 12020, 0, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(get("cuGreenCtxCreate", &found, 12020, 0, nullptr), CUDA_SUCCESS) << "of CUDA 12.4";
    EXPECT_EQ(found, nullptr);
    ASSERT_EQ(NVML(nvmlInit_v2, )(), nvml::NVML_SUCCESS);
    char text[80];
    EXPECT_EQ(NVML(nvmlSystemGetDriverVersion, char*, unsigned)(text, sizeof(text)), nvml::NVML_SUCCESS);
    EXPECT_STREQ(text, "535.161.08");
    EXPECT_EQ(NVML(nvmlSystemGetNVMLVersion, char*, unsigned)(text, sizeof(text)), nvml::NVML_SUCCESS);
    EXPECT_STREQ(text, "12.535.161.08");
    EXPECT_EQ(NVML(nvmlSystemGetCudaDriverVersion, int*)(&version), nvml::NVML_SUCCESS);
    EXPECT_EQ(version, 12020);
  });
}

TEST_F(SoftGpuFaults, Slow) {
  With("slow cuMemGetInfo_v2 by 120ms on 2", [] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    size_t free, total;
    const auto info = CU(cuMemGetInfo_v2, size_t*, size_t*);
    ASSERT_EQ(info(&free, &total), CUDA_SUCCESS);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(info(&free, &total), CUDA_SUCCESS) << "late, but right";
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(120));
    EXPECT_EQ(total, 150'109'880'320u);
  });
}

// A file that changes under running programs: the GPU goes and comes back, in
// two processes, one of which looks at it with NVML.
TEST_F(SoftGpuFaults, TheGpuIsLostAndComesBack) {
  const std::string path = dir() + "/faults";
  const auto write = [&](const std::string& text) {
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);
  };
  setenv("GPUMUX_SOFTGPU_FAULTS", ("@" + path).c_str(), 1);
  Child program([&](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS) << "no file, no fault";
    CUdeviceptr p = 0, q = 0;
    ASSERT_EQ(Alloc(&p, 10 << 20), CUDA_SUCCESS);
    step.Report();
    step.Wait();
    size_t free, total;
    EXPECT_EQ(Alloc(&q, 1), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(Free(p), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(CU(cuMemGetInfo_v2, size_t*, size_t*)(&free, &total), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(Synchronize(), CUDA_ERROR_UNKNOWN);
    int version;
    EXPECT_EQ(CU(cuDriverGetVersion, int*)(&version), CUDA_SUCCESS) << "the driver is still there";
    step.Report();
    step.Wait();
    EXPECT_EQ(Free(p), CUDA_SUCCESS);
    EXPECT_EQ(Alloc(&q, 1), CUDA_SUCCESS);
    step.Report();
    step.Wait();
  });
  Child monitor([&](const Child::Step& step) {
    const auto device = Gpu0();
    ASSERT_NE(device, nullptr);
    step.Report();
    step.Wait();
    nvml::nvmlMemory_t memory;
    const auto info = NVML(nvmlDeviceGetMemoryInfo, nvml::nvmlDevice_t, nvml::nvmlMemory_t*);
    EXPECT_EQ(info(device, &memory), nvml::NVML_ERROR_GPU_IS_LOST);
    unsigned count = 0;
    EXPECT_EQ(NVML(nvmlDeviceGetComputeRunningProcesses_v3, nvml::nvmlDevice_t, unsigned*, void*)(
                  device, &count, nullptr),
              nvml::NVML_ERROR_GPU_IS_LOST);
    EXPECT_EQ(NVML(nvmlDeviceGetCount_v2, unsigned*)(&count), nvml::NVML_SUCCESS);
    step.Report();
    step.Wait();
    EXPECT_EQ(info(device, &memory), nvml::NVML_SUCCESS);
    step.Report();
    step.Wait();
  });
  const auto all = [&](auto act) {
    for (Child* child : {&program, &monitor}) act(*child);
  };
  all([](Child& child) { ASSERT_TRUE(child.WaitReport()); });
  write("lost\n");
  all([](Child& child) { child.Continue(); });
  all([](Child& child) { ASSERT_TRUE(child.WaitReport()); });
  std::filesystem::remove(path);
  all([](Child& child) { child.Continue(); });
  all([](Child& child) { ASSERT_TRUE(child.WaitReport()); });
  all([](Child& child) { child.Continue(); });
  all([](Child& child) { EXPECT_EQ(child.Join(), 0); });
}

TEST_F(SoftGpuFaults, LostFromAMomentByTheClock) {
  With("lost after 200ms for 300ms", [] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUdeviceptr p;
    EXPECT_TRUE(Eventually([&] { return Alloc(&p, 1) == CUDA_ERROR_UNKNOWN; }));
    EXPECT_TRUE(Eventually([&] { return Alloc(&p, 1) == CUDA_SUCCESS; }));
  });
}

// A script that is none fails everything and says why: it must not pass for one
// that does nothing.
TEST_F(SoftGpuFaults, AWrongScriptIsLoud) {
  const std::string said = dir() + "/stderr";
  With("fail cuMemAlok with 2", [&] {
    const int fd = open(said.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const int saved = dup(2);
    dup2(fd, 2);
    const auto init = CU(cuInit, unsigned)(0);
    const auto nvml_init = NVML(nvmlInit_v2, )();
    dup2(saved, 2);
    EXPECT_EQ(init, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(nvml_init, nvml::NVML_ERROR_UNKNOWN);
  });
  std::ifstream file(said);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(text.find("line 1: \"cuMemAlok\""), std::string::npos) << text;
}

TEST_F(SoftGpuFaults, AFileThatIsNoneIsLoudToo) {
  const auto big = dir() + "/big";
  std::ofstream(big) << std::string(100'000, '#');
  for (const std::string& path : {big, dir(), std::string("/dev/zero")}) {
    With("@" + path, [] { EXPECT_EQ(CU(cuInit, unsigned)(0), CUDA_ERROR_UNKNOWN); });
  }
  With("@" + dir() + "/none", [] { EXPECT_EQ(CU(cuInit, unsigned)(0), CUDA_SUCCESS); });
  With("@", [] { EXPECT_EQ(CU(cuInit, unsigned)(0), CUDA_SUCCESS); });
}

// Counted once each, however many threads call.
TEST_F(SoftGpuFaults, ThreadsCountTogether) {
  With("fail cuDeviceGetCount with 46 every 10", [] {
    ASSERT_EQ(CU(cuInit, unsigned)(0), CUDA_SUCCESS);
    const auto count = CU(cuDeviceGetCount, int*);
    std::atomic<int> failed{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 1000; ++i) {
          int n;
          if (count(&n) != CUDA_SUCCESS) ++failed;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(failed, 400);
  });
}

// Every exported name of both libraries obeys, and each answers the code it was
// told, with arguments of no use: nothing behind it was reached.
TEST_F(SoftGpuFaults, EveryExportedNameCanFail) {
  With("fail cu* with 777; fail nvml* with 778", [] {
    int names = 0;
#define GPUMUX_ENTRY(stem, version, flavour, symbol)                                                 \
  EXPECT_EQ((reinterpret_cast<int (*)(long)>(Symbol(SOFTGPU_LIBCUDA, #symbol))(1)), 777) << #symbol; \
  ++names;
#include "gpu/entry_points.inc"
#undef GPUMUX_ENTRY
#define GPUMUX_NVML_ENTRY(symbol)                                                                      \
  if (std::string(#symbol) != "nvmlErrorString") {                                                     \
    EXPECT_EQ((reinterpret_cast<int (*)(long)>(Symbol(SOFTGPU_LIBNVML, #symbol))(1)), 778) << #symbol; \
    ++names;                                                                                           \
  }
#include "softgpu/nvml/entry_points.inc"
#undef GPUMUX_NVML_ENTRY
    EXPECT_GE(names, 637 + 397);
  });
}

}  // namespace
}  // namespace gpumux::test
