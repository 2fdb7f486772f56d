// SPDX-License-Identifier: Apache-2.0
//
// Asks cuGetProcAddress, in both of its versions, for every name that a driver
// has ever answered, at every version and stream flavour; once as a program
// does and once past the guard, from the driver's own symbol table. Prints what
// differs from: the guard's function for the driver's own answer, or the answer
// itself where the guard has none. Then what was seen, for the test to check
// that the comparison meant something.
#include <dlfcn.h>

#include <cstdio>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "../support/elf_symbols.h"
#include "gpumux/abi/cuda/driver.h"

using namespace gpumux::cuda;
using gpumux::test::AllFunctions;
using gpumux::test::ExportedFunctions;
using gpumux::test::LoadedLibrary;

namespace {

const char* const kHooked[] = {
#define GPUMUX_HOOK(name, params) #name,
#include "guard/hooks.inc"
#undef GPUMUX_HOOK
};
const char* const kStems[] = {
#define GPUMUX_ENTRY(stem, version, flavour, symbol) #stem,
#include "gpu/entry_points.inc"
#undef GPUMUX_ENTRY
};
// Names that the driver refuses, and one that is no stem.
const char* const kOthers[] = {"", "cuNoSuchFunction", "cuMemAlloc_v2", "printf"};

// From the first that had each kind of entry to one that no driver reports yet.
constexpr int kVersions[] = {0,     2000,  3000,  3010,  3020,  4000,  7000,  8000,  9020,  10000,
                             11010, 11020, 11040, 11060, 11080, 12000, 12010, 12020, 12030, 12040,
                             12050, 12060, 12070, 12080, 12090, 13000, 13010, 14000};
constexpr cuuint64_t kFlags[] = {CU_GET_PROC_ADDRESS_DEFAULT, CU_GET_PROC_ADDRESS_LEGACY_STREAM,
                                 CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, 3, 64};

using V1 = CUresult (*)(const char*, void**, int, cuuint64_t);
using V2 = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

void* const kUntouched = reinterpret_cast<void*>(0x5a5a5a5a5a5a);

struct Answer {
  CUresult result;
  void* pointer = kUntouched;
  int status = 77;
  bool operator==(const Answer&) const = default;
};

Answer Ask(V1 f, const char* name, int version, cuuint64_t flags) {
  Answer a{};
  a.result = f(name, &a.pointer, version, flags);
  return a;
}

Answer Ask(V2 f, const char* name, int version, cuuint64_t flags) {
  Answer a{};
  auto status = static_cast<CUdriverProcAddressQueryResult>(a.status);
  a.result = f(name, &a.pointer, version, flags, &status);
  a.status = static_cast<int>(status);
  return a;
}

struct Seen {
  size_t asked = 0, different = 0;
  std::set<std::string> hooks;
  std::set<std::string> plain;
};

std::map<uintptr_t, std::string> driver_names;
std::map<std::string, uintptr_t> guards;

template <typename F>
void Compare(F asked, F own, const char* name, int version, cuuint64_t flags, Seen* seen) {
  const Answer got = Ask(asked, name, version, flags);
  Answer wanted = Ask(own, name, version, flags);
  const auto symbol = driver_names.find(reinterpret_cast<uintptr_t>(wanted.pointer));
  if (wanted.result == CUDA_SUCCESS && symbol != driver_names.end()) {
    bool hooked = false;
    for (const char* hook : kHooked) hooked |= symbol->second == hook;
    if (hooked) wanted.pointer = reinterpret_cast<void*>(guards[symbol->second]);
    (hooked ? seen->hooks : seen->plain).insert(symbol->second);
  }
  seen->asked++;
  if (got == wanted) return;
  if (++seen->different <= 20) {
    std::printf("%s at %d with %d: %d %p %d, not %d %p %d\n", name, version, static_cast<int>(flags),
                got.result, got.pointer, got.status, wanted.result, wanted.pointer, wanted.status);
  }
}

template <typename F>
void CompareAll(F asked, F own, Seen* seen) {
  std::set<std::string> names(std::begin(kStems), std::end(kStems));
  names.insert(std::begin(kOthers), std::end(kOthers));
  for (const std::string& name : names) {
    for (int version : kVersions) {
      for (cuuint64_t flags : kFlags) Compare(asked, own, name.c_str(), version, flags, seen);
    }
  }
}

}  // namespace

int main() {
  void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  LoadedLibrary driver, guard;
  if (!handle || !FindLoaded("libcuda.so", &driver) || !FindLoaded("libgpumux-guard", &guard)) {
    std::printf("driver or guard is not loaded\n");
    return 9;
  }
  const auto own = ExportedFunctions(driver.path, driver.base);
  for (const auto& [name, address] : AllFunctions(guard.path, guard.base)) {
    // By the guard's own name of it: cuMemAlloc itself is what a linked program meets first.
    constexpr std::string_view kMark = "gpumux_hook_";
    if (name.starts_with(kMark)) guards[name.substr(kMark.size())] = address;
  }
  for (const auto& [name, address] : own) driver_names[address] = name;

  Seen seen;
  CompareAll(reinterpret_cast<V2>(dlsym(handle, "cuGetProcAddress_v2")),
             reinterpret_cast<V2>(own.at("cuGetProcAddress_v2")), &seen);
  CompareAll(reinterpret_cast<V1>(dlsym(handle, "cuGetProcAddress")),
             reinterpret_cast<V1>(own.at("cuGetProcAddress")), &seen);
  for (const char* hook : kHooked) {
    if (!seen.hooks.contains(hook)) std::printf("never met: %s\n", hook);
  }
  std::printf("asked %zu different %zu hooked %zu of %zu others %zu\n", seen.asked, seen.different,
              seen.hooks.size(), std::size(kHooked), seen.plain.size());
  return 0;
}
