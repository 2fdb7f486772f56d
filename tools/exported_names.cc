// SPDX-License-Identifier: Apache-2.0
#include "exported_names.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace gpumux::tools {

namespace {

// A GNU hash table does not say how many symbols there are: the last one is at
// the end of the chain of the highest bucket.
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

}  // namespace

std::vector<std::string> ExportedNames(void* library, const char* prefix) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return {};
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  size_t count = 0;
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    const auto address = entry->d_un.d_ptr;
    switch (entry->d_tag) {
      case DT_SYMTAB:
        symbols = reinterpret_cast<const ElfW(Sym)*>(address);
        break;
      case DT_STRTAB:
        strings = reinterpret_cast<const char*>(address);
        break;
      case DT_GNU_HASH:
        count = SymbolCount(reinterpret_cast<const uint32_t*>(address));
        break;
      case DT_HASH:  // its second word is the number of symbols
        count = reinterpret_cast<const uint32_t*>(address)[1];
        break;
      default:
        break;
    }
  }
  if (symbols == nullptr || strings == nullptr) return {};
  std::vector<std::string> names;
  for (size_t i = 1; i < count; ++i) {
    const char* name = strings + symbols[i].st_name;
    if (symbols[i].st_shndx != SHN_UNDEF && std::string_view(name).starts_with(prefix))
      names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace gpumux::tools
