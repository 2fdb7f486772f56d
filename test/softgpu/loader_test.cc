// SPDX-License-Identifier: Apache-2.0
//
// The names that the libraries export, and what the look-up refuses. That it
// finds every recorded row is tested in test/abi.
#include <dlfcn.h>
#include <elf.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "child.h"
#include "cuda_functions.h"

namespace gpumux::test {
namespace {

using namespace cuda;

class SoftGpuLoader : public SoftGpuTest {};

std::set<std::string> Exported(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(bytes.data());
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(bytes.data() + header->e_shoff);
  std::set<std::string> names;
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_DYNSYM) continue;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(bytes.data() + sections[i].sh_offset);
    const char* strings = bytes.data() + sections[sections[i].sh_link].sh_offset;
    for (size_t s = 0; s < sections[i].sh_size / sizeof(Elf64_Sym); ++s) {
      if (symbols[s].st_shndx != SHN_UNDEF) names.insert(strings + symbols[s].st_name);
    }
  }
  return names;
}

TEST_F(SoftGpuLoader, ExportsTheDriversNamesAndNothingElse) {
  const std::set<std::string> recorded = {
#define GPUMUX_ENTRY(stem, version, flavour, symbol) #symbol,
#include "gpu/entry_points.inc"
#undef GPUMUX_ENTRY
  };
  EXPECT_GE(recorded.size(), 637u);
  EXPECT_EQ(Exported(SOFTGPU_LIBCUDA), recorded);
  for (const std::string& name : Exported(SOFTGPU_LIBNVML)) EXPECT_EQ(name.find("nvml"), 0u) << name;
}

TEST_F(SoftGpuLoader, RefusesAsRecorded) {
  InChild([] {
    // Works before cuInit, as in the driver.
    const auto get2 = CU(cuGetProcAddress_v2, const char*, void**, int, uint64_t, int*);
    const auto get1 = CU(cuGetProcAddress, const char*, void**, int, uint64_t);
    void* const untouched = reinterpret_cast<void*>(1);
    for (const char* name : {"", "cuNoSuchThing", "cuMemcpyHtoDAsync_v2"}) {
      void* p = untouched;
      int status = 77;
      EXPECT_EQ(get2(name, &p, 13000, 0, &status), CUDA_SUCCESS);
      EXPECT_EQ(p, nullptr);
      EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) << name;
      p = untouched;
      EXPECT_EQ(get1(name, &p, 13000, 0), CUDA_ERROR_NOT_FOUND);
      EXPECT_EQ(p, nullptr);
    }
    void* p = untouched;
    int status = 77;
    EXPECT_EQ(get2("cuMemAlloc", &p, 13010, 0, &status), CUDA_ERROR_INVALID_VALUE) << "newer than the driver";
    EXPECT_EQ(p, untouched);
    EXPECT_EQ(status, 77);
    EXPECT_EQ(get2("cuMemAlloc", &p, 1000, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(p, nullptr);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    EXPECT_EQ(get2("cuMemAlloc", &p, 13000, 0, nullptr), CUDA_SUCCESS) << "without a status";
    EXPECT_EQ(p, Symbol(SOFTGPU_LIBCUDA, "cuMemAlloc_v2"));
    EXPECT_EQ(get2(nullptr, &p, 13000, 0, &status), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(get2("cuMemAlloc", nullptr, 13000, 0, &status), CUDA_ERROR_INVALID_VALUE);
    const void* table = untouched;
    EXPECT_EQ(CU(cuGetExportTable, const void**, const void*)(&table, "0123456789abcdef"),
              CUDA_ERROR_NOT_FOUND);
  });
}

// Names that are not built, by their beginnings, each with why; anything else
// has to answer for itself.
struct Family {
  const char* prefix;
  const char* why;
};
constexpr Family kNotBuilt[] = {
    {"cuTex", "textures: no code runs that could read one"},
    {"cuSurf", "surfaces: the same"},
    {"cuTensorMap", "descriptors for code that does not run"},
    {"cuModuleGetTexRef", "textures"},
    {"cuModuleGetSurfRef", "surfaces"},
    {"cuGraphics", "no graphics"},
    {"cuGL", "no graphics"},
    {"cuEGL", "no graphics"},
    {"cuVDPAU", "no graphics"},
    {"cuLink", "no code to link"},
    {"cuParam", "launches of before CUDA 4"},
    {"cuLaunch", "launches of before CUDA 4"},
    {"cuFuncSet", "launches of before CUDA 4"},
    {"cuCheckpoint", "the process is a process of the host"},
    {"cuCoredump", "no code that could dump"},
    {"cuProfiler", "nothing to profile"},
    {"cuLogs", "no logs"},
    {"cuFlush", "no RDMA"},
    {"cuMulticast", "no multicast, as its attribute says"},
    {"cuImportExternal", "no other interface to import from"},
    {"cuExternalMemory", "the same"},
    {"cuDestroyExternal", "the same"},
    {"cuSignalExternal", "the same"},
    {"cuWaitExternal", "the same"},
    {"cuGraphAddExternal", "the same"},
    {"cuGraphExternal", "the same"},
    {"cuGraphExecExternal", "the same"},
    {"cuGraphConditional", "conditions are set by code"},
    {"cuMemMapArrayAsync", "sparse and deferred arrays get no memory"},
    {"cuMemGetHandleForAddressRange", "no DMA buffers"},
    {"cuMemBatchDecompress", "no decompression"},
    {"cuMemcpyBatch", "batches"},
    {"cuMemcpy3DBatch", "batches"},
    {"cuMemDiscard", "batches"},
    {"cuMemPrefetchBatch", "batches"},
    {"cuMemRangeGet", "where managed pages are"},
    {"cuPointerSetAttribute", "hints"},
    {"cuStreamAttachMem", "hints"},
    {"cuStreamCopyAttributes", "hints"},
    {"cuStreamGetAttribute", "hints"},
    {"cuStreamSetAttribute", "hints"},
    {"cuOccupancyMax", "clusters"},
    {"cuKernelGetParamInfo", "queries of kernels"},
    {"cuKernelSetCacheConfig", "hints"},
    {"cuLibraryGet", "variables of libraries"},
    {"cuCtxCreate_v4", "affinity and contexts shared with graphics, which its arguments ask for here"},
    {"cuCtxGetExecAffinity", "affinity"},
    {"cuDeviceGetExecAffinity", "affinity"},
    {"cuCtxGetSharedMemConfig", "hints"},
    {"cuCtxSetSharedMemConfig", "hints"},
    {"cuCtxEnablePeerAccess", "no peers"},
    {"cuCtxDisablePeerAccess", "no peers"},
    {"cuDeviceGetP2P", "no peers"},
    {"cuDeviceGetHostAtomic", "queries of the device"},
    {"cuDeviceGetLuid", "Windows"},
    {"cuDeviceGetNvSciSync", "no NvSci"},
    {"cuDeviceGetTexture1D", "textures"},
    {"cuDeviceRegisterAsync", "notifications"},
    {"cuDeviceUnregisterAsync", "notifications"},
};
// Version 1 of what has a version 2, with addresses of 32 bits.
bool IsOldVersion(const std::string& name, const std::set<std::string>& all) {
  return all.contains(name + "_v2");
}

// Every name is called in a process of its own with pointers to memory that it
// may write. What answers "not supported" must not have written anything.
TEST_F(SoftGpuLoader, WhatIsNotBuiltSaysSoAndTouchesNothing) {
  void* library = dlopen(SOFTGPU_LIBCUDA, RTLD_NOW);
  ASSERT_NE(library, nullptr);
  const std::set<std::string> names = Exported(SOFTGPU_LIBCUDA);
  int unsupported = 0;
  for (const std::string& name : names) {
    if (name == "cuInit") continue;
    void* function = dlsym(library, name.c_str());
    ASSERT_NE(function, nullptr) << name;
    fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      constexpr size_t kBytes = 8192;
      static unsigned char memory[12][kBytes];
      memset(memory, 0x5a, sizeof(memory));
      const int result = reinterpret_cast<int (*)(void*, void*, void*, void*, void*, void*, void*, void*,
                                                  void*, void*, void*, void*)>(function)(
          memory[0], memory[1], memory[2], memory[3], memory[4], memory[5], memory[6], memory[7], memory[8],
          memory[9], memory[10], memory[11]);
      if (result != 801) _exit(0);
      for (const auto& part : memory) {
        for (unsigned char byte : part) {
          if (byte != 0x5a) _exit(11);
        }
      }
      _exit(10);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 0) continue;
    EXPECT_EQ(WEXITSTATUS(status), 10) << name << " writes what it does not support";
    ++unsupported;
    const bool known = IsOldVersion(name, names) ||
                       std::any_of(std::begin(kNotBuilt), std::end(kNotBuilt),
                                   [&](const Family& family) { return name.starts_with(family.prefix); });
    EXPECT_TRUE(known) << name << " is not supported, and no list says why";
  }
  EXPECT_GT(unsupported, 0);
  EXPECT_LE(unsupported, 261) << "what was built is gone";
}

TEST_F(SoftGpuLoader, WhatItDoesNotDoItSays) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    size_t granularity = 77;
    EXPECT_EQ(CU(cuMulticastGetGranularity, size_t*, const void*, int)(&granularity, nullptr, 0),
              CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(granularity, 77u);
    const char* text = nullptr;
    EXPECT_EQ(CU(cuGetErrorName, int, const char**)(801, &text), CUDA_SUCCESS);
    EXPECT_STREQ(text, "CUDA_ERROR_NOT_SUPPORTED");
    EXPECT_EQ(CU(cuGetErrorString, int, const char**)(2, &text), CUDA_SUCCESS);
    EXPECT_STREQ(text, "out of memory");
    EXPECT_EQ(CU(cuGetErrorName, int, const char**)(12345, &text), CUDA_ERROR_INVALID_VALUE);
  });
}

}  // namespace
}  // namespace gpumux::test
