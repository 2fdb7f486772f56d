// SPDX-License-Identifier: Apache-2.0
#include "guard/loaded_objects.h"

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

namespace gpumux::guard {

namespace {

const char* FileName(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

bool NameMatches(const dl_phdr_info* info, const char* prefix) {
  return info->dlpi_name && strncmp(FileName(info->dlpi_name), prefix, strlen(prefix)) == 0;
}

// The parts of an object's dynamic section that a look-up needs. The loader has
// relocated these pointers already (all but the vDSO's, which has no file name).
struct Tables {
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const uint32_t* gnu_hash = nullptr;
  const uint32_t* sysv_hash = nullptr;
  const uint16_t* versions = nullptr;  // of the symbols, where they have any
};

Tables ReadTables(uintptr_t base, const ElfW(Dyn) * d) {
  Tables t;
  for (; d->d_tag != DT_NULL; d++) {
    // Some loaders leave these relative to the load address.
    uintptr_t p = d->d_un.d_ptr;
    if (p < base) p += base;
    if (d->d_tag == DT_SYMTAB) t.symbols = reinterpret_cast<const ElfW(Sym)*>(p);
    if (d->d_tag == DT_STRTAB) t.strings = reinterpret_cast<const char*>(p);
    if (d->d_tag == DT_GNU_HASH) t.gnu_hash = reinterpret_cast<const uint32_t*>(p);
    if (d->d_tag == DT_HASH) t.sysv_hash = reinterpret_cast<const uint32_t*>(p);
    if (d->d_tag == DT_VERSYM) t.versions = reinterpret_cast<const uint16_t*>(p);
  }
  return t;
}

Tables ReadTables(const dl_phdr_info* info) {
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    return ReadTables(info->dlpi_addr,
                      reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr));
  }
  return {};
}

// A function of that name which new programs are linked with: an object may have
// older versions of it as well, hidden from them.
bool Defines(const Tables& t, uint32_t index, const char* name) {
  constexpr uint16_t kHidden = 0x8000;
  const ElfW(Sym)& s = t.symbols[index];
  const int type = ELF64_ST_TYPE(s.st_info);
  return s.st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_NOTYPE || type == STT_GNU_IFUNC) &&
         !(t.versions && (t.versions[index] & kHidden)) && strcmp(t.strings + s.st_name, name) == 0;
}

const ElfW(Sym) * LookUpGnu(const Tables& t, const char* name) {
  uint32_t hash = 5381;
  for (const char* c = name; *c; c++) hash = hash * 33 + static_cast<unsigned char>(*c);
  const uint32_t bucket_count = t.gnu_hash[0], first = t.gnu_hash[1], bloom_words = t.gnu_hash[2];
  if (bucket_count == 0) return nullptr;
  const auto* bloom = reinterpret_cast<const ElfW(Addr)*>(t.gnu_hash + 4);
  const auto* buckets = reinterpret_cast<const uint32_t*>(bloom + bloom_words);
  const uint32_t* chain = buckets + bucket_count;
  uint32_t i = buckets[hash % bucket_count];
  if (i < first) return nullptr;
  for (;; i++) {
    uint32_t h = chain[i - first];
    if ((h | 1) == (hash | 1) && Defines(t, i, name)) return &t.symbols[i];
    if (h & 1) return nullptr;
  }
}

const ElfW(Sym) * LookUpSysv(const Tables& t, const char* name) {
  uint32_t hash = 0;
  for (const char* c = name; *c; c++) {
    hash = (hash << 4) + static_cast<unsigned char>(*c);
    uint32_t g = hash & 0xf0000000;
    if (g) hash ^= g >> 24;
    hash &= ~g;
  }
  const uint32_t bucket_count = t.sysv_hash[0];
  if (bucket_count == 0) return nullptr;
  const uint32_t* buckets = t.sysv_hash + 2;
  const uint32_t* chain = buckets + bucket_count;
  for (uint32_t i = buckets[hash % bucket_count]; i != 0; i = chain[i]) {
    if (Defines(t, i, name)) return &t.symbols[i];
  }
  return nullptr;
}

// Address of a function in an object, or null.
void* LookUp(const Tables& t, uintptr_t base, const char* name) {
  if (!t.symbols || !t.strings) return nullptr;
  const ElfW(Sym)* s = nullptr;
  if (t.gnu_hash) s = LookUpGnu(t, name);
  if (!s && t.sysv_hash) s = LookUpSysv(t, name);
  if (!s || ELF64_ST_TYPE(s->st_info) == STT_GNU_IFUNC) return nullptr;
  return reinterpret_cast<void*>(base + s->st_value);
}

struct SymbolQuery {
  const char* prefix;
  const char* symbol;
  void* found;
};

int VisitForSymbol(dl_phdr_info* info, size_t, void* data) {
  auto* q = static_cast<SymbolQuery*>(data);
  if (!NameMatches(info, q->prefix)) return 0;
  q->found = LookUp(ReadTables(info), info->dlpi_addr, q->symbol);
  return q->found != nullptr;
}

struct ObjectQuery {
  const char* prefix;
  char* out;
  size_t out_bytes;
  const void* address;
};

int VisitForObject(dl_phdr_info* info, size_t, void* data) {
  auto* q = static_cast<ObjectQuery*>(data);
  if (!NameMatches(info, q->prefix) || strlen(info->dlpi_name) >= q->out_bytes) return 0;
  memcpy(q->out, info->dlpi_name, strlen(info->dlpi_name) + 1);
  return 1;
}

int VisitForAddress(dl_phdr_info* info, size_t, void* data) {
  auto* q = static_cast<ObjectQuery*>(data);
  if (!NameMatches(info, q->prefix)) return 0;
  const auto address = reinterpret_cast<uintptr_t>(q->address);
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& p = info->dlpi_phdr[i];
    const uintptr_t start = info->dlpi_addr + p.p_vaddr;
    if (p.p_type == PT_LOAD && address >= start && address < start + p.p_memsz) return 1;
  }
  return 0;
}

// 1: the address was met first; 2: the object.
int VisitInOrder(dl_phdr_info* info, size_t size, void* data) {
  auto* q = static_cast<ObjectQuery*>(data);
  if (NameMatches(info, q->prefix)) return 2;
  const ObjectQuery any{"", nullptr, 0, q->address};
  return VisitForAddress(info, size, const_cast<ObjectQuery*>(&any));
}

}  // namespace

void* FindSymbol(const char* file_prefix, const char* symbol) {
  SymbolQuery q{file_prefix, symbol, nullptr};
  dl_iterate_phdr(VisitForSymbol, &q);
  return q.found;
}

void* NextSymbol(const char* symbol) {
  const link_map* map = _r_debug.r_map;
  while (map && map->l_ld != _DYNAMIC) map = map->l_next;
  if (!map) return nullptr;
  for (map = map->l_next; map; map = map->l_next) {
    if (void* found = LookUp(ReadTables(map->l_addr, map->l_ld), map->l_addr, symbol)) return found;
  }
  return nullptr;
}

bool FindObject(const char* file_prefix, char* out, size_t out_bytes) {
  ObjectQuery q{file_prefix, out, out_bytes, nullptr};
  return dl_iterate_phdr(VisitForObject, &q) == 1;
}

bool IsInFrontOf(const void* address, const char* file_prefix) {
  ObjectQuery q{file_prefix, nullptr, 0, address};
  return dl_iterate_phdr(VisitInOrder, &q) == 1;
}

bool InObject(const void* address, const char* file_prefix) {
  ObjectQuery q{file_prefix, nullptr, 0, address};
  return dl_iterate_phdr(VisitForAddress, &q) == 1;
}

}  // namespace gpumux::guard
