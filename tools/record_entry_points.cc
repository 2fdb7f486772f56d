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
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gpumux/abi/cuda/driver.h"

namespace cuda = gpumux::cuda;

namespace {

using GetProcAddressFn = cuda::CUresult (*)(const char*, void**, int, cuda::cuuint64_t,
                                            cuda::CUdriverProcAddressQueryResult*);

// A GNU hash table does not say how many symbols there are: the last one is
// found at the end of the chain of the highest bucket.
size_t SymbolCount(const uint32_t* gnu_hash) {
  const uint32_t buckets = gnu_hash[0];
  const uint32_t first = gnu_hash[1];
  const uint32_t bloom_words = gnu_hash[2];
  const uint32_t* bucket = gnu_hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t* chain = bucket + buckets;
  uint32_t last = 0;
  for (uint32_t i = 0; i < buckets; ++i) last = std::max(last, bucket[i]);
  if (last < first) return first;
  while ((chain[last - first] & 1) == 0) ++last;
  return last + 1;
}

std::vector<std::string> ExportedNames(void* library) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return {};
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  const uint32_t* gnu_hash = nullptr;
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    const auto address = entry->d_un.d_ptr;
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(address);
    if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(address);
    if (entry->d_tag == DT_GNU_HASH) gnu_hash = reinterpret_cast<const uint32_t*>(address);
  }
  if (symbols == nullptr || strings == nullptr || gnu_hash == nullptr) return {};
  std::vector<std::string> names;
  for (size_t i = 1, n = SymbolCount(gnu_hash); i < n; ++i) {
    const ElfW(Sym)& symbol = symbols[i];
    const char* name = strings + symbol.st_name;
    if (symbol.st_shndx != SHN_UNDEF && std::string_view(name).starts_with("cu")) names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

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
  for (const std::string& name : ExportedNames(library)) {
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
