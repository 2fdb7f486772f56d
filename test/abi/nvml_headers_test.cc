// SPDX-License-Identifier: Apache-2.0
//
// As cuda_headers_test.cc, for NVML: not every toolkit brings nvml.h.
#include <gtest/gtest.h>

#ifdef GPUMUX_NVML_HEADER

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <cstddef>
#include <map>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "gpumux/abi/nvml/mig.h"
#include "gpumux/abi/nvml/nvml.h"
#include "signature_text.h"

#if __has_include("guard/nvml_hooks.inc")
namespace gpumux::nvml {
// Inside the namespace, for the list names its types without it.
static std::map<std::string, std::string> HookSignatures() {
  std::map<std::string, std::string> ours;
#define GPUMUX_NVML_HOOK(symbol, parameters) \
  ours.emplace(#symbol, OurSignature(typeid(nvmlReturn_t parameters).name()));
#include "guard/nvml_hooks.inc"
  return ours;
}
}  // namespace gpumux::nvml
#endif

namespace {

#define ABI_TYPE(T)
#define ABI_NAME(T)
#define ABI_FIELD(T, f)
#define ABI_VALUE(V)
#define ABI_FUNCTION(F)
#define ABI_TWIN(F, base)
#define ABI_ABSENT(name)

struct Pair {
  const char* name;
  long long ours;
  long long theirs;
};

TEST(NvmlHeaders, Compared) {
  std::vector<Pair> pairs;
#undef ABI_TYPE
#define ABI_TYPE(T) pairs.push_back({#T, sizeof(::gpumux::nvml::T), sizeof(::T)});
#undef ABI_FIELD
#define ABI_FIELD(T, f)                                                                        \
  pairs.push_back({"offset of " #T "." #f, offsetof(::gpumux::nvml::T, f), offsetof(::T, f)}); \
  pairs.push_back(                                                                             \
      {"size of " #T "." #f, sizeof(std::declval<::gpumux::nvml::T&>().f), sizeof(std::declval<::T&>().f)});
#undef ABI_VALUE
#define ABI_VALUE(V) \
  pairs.push_back({#V, static_cast<long long>(::gpumux::nvml::V), static_cast<long long>(::V)});
#include "nvml_checks.inc"
  EXPECT_GE(pairs.size(), 60u);
  const size_t without_mig = pairs.size();
#include "nvml_mig_checks.inc"
  EXPECT_GE(pairs.size(), without_mig + 150);
  for (const Pair& pair : pairs) EXPECT_EQ(pair.ours, pair.theirs) << pair.name;
  EXPECT_EQ(gpumux::nvml::kMemoryV2, nvmlMemory_v2);
  EXPECT_EQ(gpumux::nvml::kGpuInstanceProfileV2, nvmlGpuInstanceProfileInfo_v2);
  EXPECT_EQ(gpumux::nvml::kGpuInstanceProfileV3, nvmlGpuInstanceProfileInfo_v3);
  EXPECT_EQ(gpumux::nvml::kComputeInstanceProfileV2, nvmlComputeInstanceProfileInfo_v2);
  EXPECT_EQ(gpumux::nvml::kComputeInstanceProfileV3, nvmlComputeInstanceProfileInfo_v3);
}

#undef ABI_TYPE
#undef ABI_FIELD
#undef ABI_VALUE
#define ABI_FIELD(T, f)
#define ABI_VALUE(V)

#if __has_include("guard/nvml_hooks.inc")
TEST(NvmlHeaders, EveryHookHasTheLibrarysSignature) {
  std::map<std::string, std::string> tags, theirs;
#define ABI_TYPE(T)                                          \
  if constexpr (std::is_class_v<::T> || std::is_enum_v<::T>) \
    tags.emplace(gpumux::SignatureText(typeid(::T).name()), #T);
#include "nvml_checks.inc"
#undef ABI_TYPE
#define ABI_TYPE(T)
#undef ABI_FUNCTION
#define ABI_FUNCTION(F) theirs.emplace(#F, gpumux::TheirSignature(typeid(decltype(::F)).name(), tags));
#include "nvml_checks.inc"
  EXPECT_EQ(gpumux::nvml::HookSignatures(), theirs);
}
#endif

}  // namespace

#else

TEST(NvmlHeaders, Compared) { GTEST_SKIP() << "skipped: no nvml.h in a CUDA toolkit"; }

#endif
