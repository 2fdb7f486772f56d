// SPDX-License-Identifier: Apache-2.0
//
// Our declarations of the CUDA driver against NVIDIA's cuda.h: every type's
// size, every field's offset and size, every value, and the signature of every
// function that the guard stands in front of. What to compare is generated from
// our header (generate_checks.awk), so nothing can be left out.
#include <gtest/gtest.h>

#ifdef GPUMUX_CUDA_TOOLKIT

// The old versions of an entry point are declared only with this.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <cstddef>
#include <map>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "gpumux/abi/cuda/driver.h"
#include "signature_text.h"
#include "workload/driver.h"

namespace gpumux::workload {
// In its namespace, for the list names its types as seen from there.
static std::map<std::string, std::string> EntrySignatures() {
  std::map<std::string, std::string> ours;
#define WORKLOAD_ENTRY(member, symbol, parameters) \
  ours.emplace(symbol, OurSignature(typeid(cuda::CUresult parameters).name()));
  GPUMUX_WORKLOAD_ENTRIES(WORKLOAD_ENTRY)
#undef WORKLOAD_ENTRY
  return ours;
}
}  // namespace gpumux::workload

namespace gpumux::cuda {
namespace {

#define ABI_TYPE(T)
#define ABI_NAME(T)
#define ABI_FIELD(T, f)
#define ABI_VALUE(V)
#define ABI_FUNCTION(F)
#define ABI_TWIN(F, base)
#define ABI_RESULT(V)
#define ABI_ABSENT(name)

struct Pair {
  const char* name;
  long long ours;
  long long theirs;
};

void Compare(const std::vector<Pair>& pairs, size_t at_least) {
  EXPECT_GE(pairs.size(), at_least);
  for (const Pair& pair : pairs) EXPECT_EQ(pair.ours, pair.theirs) << pair.name;
}

TEST(CudaHeaders, EveryTypeHasTheDriversSize) {
  std::vector<Pair> pairs;
#undef ABI_TYPE
#define ABI_TYPE(T) pairs.push_back({#T, sizeof(::gpumux::cuda::T), sizeof(::T)});
#include "cuda_checks.inc"
#undef ABI_TYPE
#define ABI_TYPE(T)
  Compare(pairs, 40);
}

TEST(CudaHeaders, EveryFieldIsWhereTheDriverHasIt) {
  std::vector<Pair> pairs;
#undef ABI_FIELD
#define ABI_FIELD(T, f)                                                                        \
  pairs.push_back({"offset of " #T "." #f, offsetof(::gpumux::cuda::T, f), offsetof(::T, f)}); \
  pairs.push_back(                                                                             \
      {"size of " #T "." #f, sizeof(std::declval<::gpumux::cuda::T&>().f), sizeof(std::declval<::T&>().f)});
#include "cuda_checks.inc"
#undef ABI_FIELD
#define ABI_FIELD(T, f)
  Compare(pairs, 90);
}

TEST(CudaHeaders, EveryValueIsTheDrivers) {
  std::vector<Pair> pairs;
#undef ABI_VALUE
#define ABI_VALUE(V) \
  pairs.push_back({#V, static_cast<long long>(::gpumux::cuda::V), static_cast<long long>(::V)});
#include "cuda_checks.inc"
#undef ABI_VALUE
#define ABI_VALUE(V)
  Compare(pairs, 90);
  EXPECT_EQ(kLegacyStream, reinterpret_cast<CUstream>(CU_STREAM_LEGACY));
  EXPECT_EQ(kPerThreadStream, reinterpret_cast<CUstream>(CU_STREAM_PER_THREAD));
}

// A name that NVIDIA's header lacks is a typing error of ours, unless the
// toolkit is older than the driver that our list was recorded from.
TEST(CudaHeaders, NothingOfOursIsUnknownToTheDriver) {
  std::vector<std::string> absent;
#undef ABI_ABSENT
#define ABI_ABSENT(name) absent.emplace_back(#name);
#include "cuda_checks.inc"
#undef ABI_ABSENT
#define ABI_ABSENT(name)
  // In cudaGL.h and cudaVDPAU.h, which need headers of other projects.
  std::erase_if(absent, [](const std::string& name) {
    return name.starts_with("cuGLCtxCreate") || name.starts_with("cuVDPAUCtxCreate");
  });
  if (CUDA_VERSION < 13000) {
    GTEST_SKIP() << absent.size() << " names are newer than this toolkit (CUDA " << CUDA_VERSION / 1000
                 << ")";
  }
  EXPECT_EQ(absent, std::vector<std::string>{});
}

// NVIDIA's tag of each of our types ("CUmemLocation_st"), so that the text of
// two signatures can be compared.
std::map<std::string, std::string> TheirTags() {
  std::map<std::string, std::string> tags;
#undef ABI_TYPE
#undef ABI_NAME
#define ABI_TYPE(T)                                          \
  if constexpr (std::is_class_v<::T> || std::is_enum_v<::T>) \
    tags.emplace(SignatureText(typeid(::T).name()), #T);
#define ABI_NAME(T) ABI_TYPE(T)
#include "cuda_checks.inc"
#undef ABI_TYPE
#undef ABI_NAME
#define ABI_TYPE(T)
#define ABI_NAME(T)
  // The workload's own declarations of what nothing else uses yet.
  static_assert(sizeof(workload::IpcMemHandle) == sizeof(::CUipcMemHandle));
  tags.emplace(SignatureText(typeid(::CUipcMemHandle).name()), "IpcMemHandle");
  return tags;
}

// The signatures that we call the driver with, and that we stand in front of it with.
std::map<std::string, std::string> OurSignatures() {
  std::map<std::string, std::string> ours;
#define GPUMUX_HOOK(symbol, parameters) \
  ours.emplace(#symbol, OurSignature(typeid(CUresult parameters).name()));
#define GPUMUX_USE(symbol, parameters) GPUMUX_HOOK(symbol, parameters)
#include "guard/hooks.inc"
#include "guard/uses.inc"
  return ours;
}

std::map<std::string, std::string> TheirSignatures() {
  const std::map<std::string, std::string> tags = TheirTags();
  std::map<std::string, std::string> theirs;
#undef ABI_FUNCTION
#undef ABI_TWIN
#define ABI_TWIN(F, base) theirs.emplace(#F, TheirSignature(typeid(decltype(::base)).name(), tags));
#define ABI_FUNCTION(F) theirs.emplace(#F, TheirSignature(typeid(decltype(::F)).name(), tags));
#include "cuda_checks.inc"
#undef ABI_FUNCTION
#undef ABI_TWIN
#define ABI_FUNCTION(F)
#define ABI_TWIN(F, base)
  return theirs;
}

void CompareSignatures(const std::map<std::string, std::string>& ours) {
  const std::map<std::string, std::string> theirs = TheirSignatures();
  size_t compared = 0;
  for (const auto& [symbol, signature] : ours) {
    const auto found = theirs.find(symbol);
    if (found == theirs.end()) continue;  // an older toolkit: NothingOfOursIsUnknownToTheDriver
    EXPECT_EQ(signature, found->second) << symbol;
    ++compared;
  }
  EXPECT_GT(compared, ours.size() / 2);
}

TEST(CudaHeaders, EveryHookHasTheDriversSignature) { CompareSignatures(OurSignatures()); }

TEST(CudaHeaders, EveryCallOfTheWorkloadHasTheDriversSignature) {
  CompareSignatures(workload::EntrySignatures());
}

#if __has_include("softgpu/driver/error_codes.inc")
TEST(CudaHeaders, EveryResultCodeOfTheSoftwareGpuIsTheDrivers) {
  std::map<std::string, int> theirs;
#undef ABI_RESULT
#define ABI_RESULT(V) theirs.emplace(#V, static_cast<int>(::V));
#include "cuda_checks.inc"
#undef ABI_RESULT
#define ABI_RESULT(V)
  int compared = 0;
#define GPUMUX_RESULT(name, value, text)                        \
  if (const auto it = theirs.find(#name); it != theirs.end()) { \
    EXPECT_EQ(value, it->second) << #name;                      \
    ++compared;                                                 \
  }
#include "softgpu/driver/error_codes.inc"
#undef GPUMUX_RESULT
  EXPECT_GT(compared, 60);
}
#endif

// The comparison itself must be able to fail.
TEST(CudaHeaders, ADifferentSignatureIsSeen) {
  const std::map<std::string, std::string> tags = TheirTags();
  using Right = CUresult(CUdeviceptr*, size_t);
  using NarrowSize = CUresult(CUdeviceptr*, unsigned);
  using MissingParameter = CUresult(CUdeviceptr*);
  using OtherEnum = CUresult(CUmemoryPool, CUgraphMem_attribute, void*);
  using NotConst = CUresult(CUmemoryPool*, CUmemPoolProps*);
  const std::string alloc = TheirSignature(typeid(decltype(::cuMemAlloc_v2)).name(), tags);
  EXPECT_EQ(OurSignature(typeid(Right).name()), alloc);
  EXPECT_NE(OurSignature(typeid(NarrowSize).name()), alloc);
  EXPECT_NE(OurSignature(typeid(MissingParameter).name()), alloc);
  EXPECT_NE(OurSignature(typeid(OtherEnum).name()),
            TheirSignature(typeid(decltype(::cuMemPoolSetAttribute)).name(), tags));
  EXPECT_NE(OurSignature(typeid(NotConst).name()),
            TheirSignature(typeid(decltype(::cuMemPoolCreate)).name(), tags));
}

}  // namespace
}  // namespace gpumux::cuda

#else

TEST(CudaHeaders, Compared) { GTEST_SKIP() << "skipped: no CUDA toolkit"; }

#endif
