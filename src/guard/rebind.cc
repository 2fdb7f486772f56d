// SPDX-License-Identifier: Apache-2.0
//
// References that the loader has bound past the guard: of objects that were
// loaded with RTLD_DEEPBIND, whose own dependencies come before all preloads.
// What is written are pointers in their tables, as the loader itself writes them.
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guard/loaded_objects.h"

namespace gpumux::guard {

namespace {

struct Relocations {
  const ElfW(Rela) * start;
  size_t bytes;
};

struct Object {
  uintptr_t base = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  Relocations plt = {};
  Relocations data = {};
  bool has_search_path = false;
  // Read-only since the loader is done with it.
  uintptr_t relro_start = 0, relro_end = 0;
  uintptr_t start = UINTPTR_MAX, end = 0;
};

Object Read(const dl_phdr_info* info) {
  Object o;
  o.base = info->dlpi_addr;
  const ElfW(Dyn)* d = nullptr;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& p = info->dlpi_phdr[i];
    const uintptr_t at = info->dlpi_addr + p.p_vaddr;
    if (p.p_type == PT_DYNAMIC) d = reinterpret_cast<const ElfW(Dyn)*>(at);
    if (p.p_type == PT_GNU_RELRO) {
      o.relro_start = at;
      o.relro_end = at + p.p_memsz;
    }
    if (p.p_type == PT_LOAD) {
      if (at < o.start) o.start = at;
      if (at + p.p_memsz > o.end) o.end = at + p.p_memsz;
    }
  }
  for (; d && d->d_tag != DT_NULL; d++) {
    uintptr_t p = d->d_un.d_ptr;
    if (p < o.base) p += o.base;
    if (d->d_tag == DT_SYMTAB) o.symbols = reinterpret_cast<const ElfW(Sym)*>(p);
    if (d->d_tag == DT_STRTAB) o.strings = reinterpret_cast<const char*>(p);
    if (d->d_tag == DT_JMPREL) o.plt.start = reinterpret_cast<const ElfW(Rela)*>(p);
    if (d->d_tag == DT_PLTRELSZ) o.plt.bytes = d->d_un.d_val;
    if (d->d_tag == DT_RELA) o.data.start = reinterpret_cast<const ElfW(Rela)*>(p);
    if (d->d_tag == DT_RELASZ) o.data.bytes = d->d_un.d_val;
    if (d->d_tag == DT_RPATH || d->d_tag == DT_RUNPATH) o.has_search_path = true;
  }
  return o;
}

void Write(const Object& o, void** slot, void* value) {
  const auto at = reinterpret_cast<uintptr_t>(slot);
  const bool read_only = at >= o.relro_start && at < o.relro_end;
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  auto* page = reinterpret_cast<void*>(at & ~(page_bytes - 1));
  if (read_only && mprotect(page, page_bytes, PROT_READ | PROT_WRITE) != 0) return;
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  if (read_only) mprotect(page, page_bytes, PROT_READ);
}

void Rebind(const Object& o, const Relocations& relocations, Replacement replace) {
  if (!relocations.start || !o.symbols || !o.strings) return;
  for (size_t i = 0; i < relocations.bytes / sizeof(ElfW(Rela)); i++) {
    const ElfW(Rela)& r = relocations.start[i];
    const auto type = ELF64_R_TYPE(r.r_info);
    if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT && (type != R_X86_64_64 || r.r_addend != 0)) {
      continue;
    }
    const ElfW(Sym)& symbol = o.symbols[ELF64_R_SYM(r.r_info)];
    if (symbol.st_shndx != SHN_UNDEF || symbol.st_name == 0) continue;
    auto** slot = reinterpret_cast<void**>(o.base + r.r_offset);
    void* current = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    // Until its first call a function leads back into the object's own table.
    const auto at = reinterpret_cast<uintptr_t>(current);
    const bool unbound = type == R_X86_64_JUMP_SLOT && at >= o.start && at < o.end;
    if (!current) continue;  // weak, and absent
    void* value = replace(o.strings + symbol.st_name, unbound ? nullptr : current);
    if (value && value != current) Write(o, slot, value);
  }
}

struct Walk {
  uintptr_t last;
  bool behind;
  Replacement replace;
};

int VisitForLast(dl_phdr_info* info, size_t, void* data) {
  static_cast<LoadedObjects*>(data)->last = info->dlpi_addr;
  return 0;
}

int VisitToRebind(dl_phdr_info* info, size_t, void* data) {
  auto* walk = static_cast<Walk*>(data);
  if (walk->behind) {
    const Object o = Read(info);
    Rebind(o, o.plt, walk->replace);
    Rebind(o, o.data, walk->replace);
  }
  if (info->dlpi_addr == walk->last) walk->behind = true;
  return 0;
}

struct Asker {
  uintptr_t address;
  bool has_search_path;
};

int VisitAsker(dl_phdr_info* info, size_t, void* data) {
  auto* asker = static_cast<Asker*>(data);
  const Object o = Read(info);
  if (asker->address < o.start || asker->address >= o.end) return 0;
  asker->has_search_path = o.has_search_path;
  return 1;
}

}  // namespace

LoadedObjects ObjectsNow() {
  LoadedObjects now = {0};
  dl_iterate_phdr(VisitForLast, &now);
  return now;
}

void RebindNewObjects(const LoadedObjects& before, Replacement replace) {
  Walk walk = {before.last, false, replace};
  dl_iterate_phdr(VisitToRebind, &walk);
}

bool HasSearchPath(const void* address) {
  Asker asker = {reinterpret_cast<uintptr_t>(address), false};
  return dl_iterate_phdr(VisitAsker, &asker) != 1 || asker.has_search_path;
}

}  // namespace gpumux::guard
