// SPDX-License-Identifier: Apache-2.0
//
// Prints src/gpu/entry_points.inc as the CUDA driver of this machine answers it:
// which exported symbol cuGetProcAddress returns for every name, CUDA version
// and stream flavour. How to use it: tools/README.md.
//
// The names are the driver's own: every symbol it exports, and every symbol
// without its _v2, _ptsz or _ptds ending. A name that it answers with an
// address it does not export is reported on stderr and left out.
#include <dlfcn.h>

#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "exported_names.h"
#include "gpumux/abi/cuda/driver.h"

namespace cuda = gpumux::cuda;

namespace {

using GetProcAddressFn = cuda::CUresult (*)(const char*, void**, int, cuda::cuuint64_t,
                                            cuda::CUdriverProcAddressQueryResult*);

bool IsPerThread(std::string_view name) { return name.ends_with("_ptsz") || name.ends_with("_ptds"); }

std::string WithoutEnding(std::string name) {
  if (IsPerThread(name)) name.resize(name.size() - 5);
  const size_t n = name.size();
  if (n > 3 && name[n - 3] == '_' && name[n - 2] == 'v' && name[n - 1] >= '0' && name[n - 1] <= '9') {
    name.resize(n - 3);
  }
  return name;
}

}  // namespace

int main() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    fprintf(stderr, "record_entry_points: %s\n", dlerror());
    return 3;
  }
  const auto init = reinterpret_cast<cuda::CUresult (*)(unsigned)>(dlsym(library, "cuInit"));
  const auto version_of = reinterpret_cast<cuda::CUresult (*)(int*)>(dlsym(library, "cuDriverGetVersion"));
  const auto get = reinterpret_cast<GetProcAddressFn>(dlsym(library, "cuGetProcAddress_v2"));
  int driver = 0;
  if (init == nullptr || version_of == nullptr || get == nullptr || init(0) != cuda::CUDA_SUCCESS ||
      version_of(&driver) != cuda::CUDA_SUCCESS) {
    fprintf(stderr, "record_entry_points: needs a working driver of CUDA 12.0 or later\n");
    return 3;
  }

  std::map<void*, std::string> exported;
  std::set<std::string> stems;
  for (const std::string& name : gpumux::tools::ExportedNames(library, "cu")) {
    exported.emplace(dlsym(library, name.c_str()), name);
    stems.insert(WithoutEnding(name));
  }

  int unknown = 0;
  for (const std::string& stem : stems) {
    for (const auto flags :
         {cuda::CU_GET_PROC_ADDRESS_LEGACY_STREAM, cuda::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM}) {
      void* before = nullptr;
      for (int version = 1000; version <= driver; version += 10) {
        void* address = nullptr;
        cuda::CUdriverProcAddressQueryResult status;
        if (get(stem.c_str(), &address, version, flags, &status) != cuda::CUDA_SUCCESS) continue;
        if (address == nullptr || address == before) continue;
        before = address;
        const auto found = exported.find(address);
        if (found == exported.end()) {
          fprintf(stderr, "%s from %d on: an address that is not exported\n", stem.c_str(), version);
          ++unknown;
          continue;
        }
        const bool per_thread = flags == cuda::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
        // A name without a per-thread twin answers both flavours alike: one row.
        if (per_thread && !IsPerThread(found->second)) continue;
        printf("GPUMUX_ENTRY(%s, %d, %s, %s)\n", stem.c_str(), version, per_thread ? "kPerThread" : "kLegacy",
               found->second.c_str());
      }
    }
  }
  fprintf(stderr, "%zu symbols, %zu names, driver of CUDA %d.%d\n", exported.size(), stems.size(),
          driver / 1000, driver % 1000 / 10);
  return unknown == 0 ? 0 : 1;
}
