// SPDX-License-Identifier: Apache-2.0
#include "elf_symbols.h"

#include <elf.h>
#include <link.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

namespace gpumux::test {

namespace {

std::map<std::string, uintptr_t> Functions(const std::string& path, uintptr_t base, unsigned table_type) {
  std::ifstream in(path, std::ios::binary);
  const std::string file((std::istreambuf_iterator<char>(in)), {});
  std::map<std::string, uintptr_t> out;
  Elf64_Ehdr header;
  if (file.size() < sizeof header || memcmp(file.data(), ELFMAG, SELFMAG) != 0) return out;
  memcpy(&header, file.data(), sizeof header);
  const auto section = [&](size_t i) {
    Elf64_Shdr s = {};
    const size_t at = header.e_shoff + i * sizeof s;
    if (i < header.e_shnum && at + sizeof s <= file.size()) memcpy(&s, file.data() + at, sizeof s);
    return s;
  };
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr table = section(i);
    if (table.sh_type != table_type || table.sh_offset + table.sh_size > file.size()) continue;
    const Elf64_Shdr strings = section(table.sh_link);
    for (size_t at = 0; at + sizeof(Elf64_Sym) <= table.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym s;
      memcpy(&s, file.data() + table.sh_offset + at, sizeof s);
      const size_t name = strings.sh_offset + s.st_name;
      if (s.st_shndx == SHN_UNDEF || ELF64_ST_TYPE(s.st_info) != STT_FUNC || name >= file.size()) continue;
      out[std::string(file.c_str() + name)] = base + s.st_value;
    }
  }
  return out;
}

}  // namespace

std::map<std::string, uintptr_t> ExportedFunctions(const std::string& path, uintptr_t base) {
  return Functions(path, base, SHT_DYNSYM);
}

std::map<std::string, uintptr_t> AllFunctions(const std::string& path, uintptr_t base) {
  return Functions(path, base, SHT_SYMTAB);
}

bool FindLoaded(const std::string& file_prefix, LoadedLibrary* out) {
  struct Query {
    const std::string& prefix;
    LoadedLibrary* out;
  } query{file_prefix, out};
  return dl_iterate_phdr(
             [](dl_phdr_info* info, size_t, void* data) {
               auto* q = static_cast<Query*>(data);
               const std::string_view path = info->dlpi_name ? info->dlpi_name : "";
               const size_t slash = path.rfind('/');
               if (!path.substr(slash == path.npos ? 0 : slash + 1).starts_with(q->prefix)) return 0;
               *q->out = {std::string(path), info->dlpi_addr};
               return 1;
             },
             &query) == 1;
}

}  // namespace gpumux::test
