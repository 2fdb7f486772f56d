// SPDX-License-Identifier: Apache-2.0
//
// The names that the libraries export, and what the look-up refuses. That it
// finds every recorded row is tested in test/abi.
#include <elf.h>

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
