// SPDX-License-Identifier: Apache-2.0
#include "past_guard.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstring>

namespace gpumux::probe {

namespace {

// A table of this form says how many symbols there are only by its last chain.
size_t SymbolsOfGnuHash(const uint32_t* table) {
  const uint32_t buckets = table[0], first = table[1], bloom_words = table[2];
  const uint32_t* bucket = table + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t* chain = bucket + buckets;
  uint32_t last = 0;
  for (uint32_t i = 0; i < buckets; i++) last = bucket[i] > last ? bucket[i] : last;
  if (last < first) return first;
  while ((chain[last - first] & 1) == 0) last++;
  return last + 1;
}

}  // namespace

void* PastGuard(void* handle, const char* symbol) {
  link_map* map = nullptr;
  if (!handle || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || !map) return nullptr;
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  size_t count = 0;
  for (const ElfW(Dyn)* d = map->l_ld; d->d_tag != DT_NULL; d++) {
    const void* at = reinterpret_cast<const void*>(d->d_un.d_ptr);
    if (d->d_tag == DT_SYMTAB) symbols = static_cast<const ElfW(Sym)*>(at);
    if (d->d_tag == DT_STRTAB) names = static_cast<const char*>(at);
    if (d->d_tag == DT_HASH) count = static_cast<const uint32_t*>(at)[1];
    if (d->d_tag == DT_GNU_HASH && count == 0) count = SymbolsOfGnuHash(static_cast<const uint32_t*>(at));
  }
  for (size_t i = 0; symbols && names && i < count; i++) {
    if (symbols[i].st_shndx != SHN_UNDEF && std::strcmp(names + symbols[i].st_name, symbol) == 0)
      return reinterpret_cast<void*>(map->l_addr + symbols[i].st_value);
  }
  return nullptr;
}

}  // namespace gpumux::probe
