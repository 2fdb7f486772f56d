// SPDX-License-Identifier: Apache-2.0
#include "without_symbols.h"

#include <elf.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "softgpu/faults.h"

namespace gpumux::test {

namespace fs = std::filesystem;

namespace {

// Makes dynamic symbols undefined: the loader passes over them in every search.
// Nothing within the library needs them, since it binds its own names itself.
void Strip(std::string* bytes, const std::vector<std::string>& names, std::set<std::string>* found) {
  auto* header = reinterpret_cast<Elf64_Ehdr*>(bytes->data());
  auto* sections = reinterpret_cast<Elf64_Shdr*>(bytes->data() + header->e_shoff);
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_DYNSYM) continue;
    auto* symbols = reinterpret_cast<Elf64_Sym*>(bytes->data() + sections[i].sh_offset);
    const char* strings = bytes->data() + sections[sections[i].sh_link].sh_offset;
    for (size_t s = 0; s < sections[i].sh_size / sizeof(Elf64_Sym); ++s) {
      for (const std::string& name : names) {
        if (symbols[s].st_shndx == SHN_UNDEF || name != strings + symbols[s].st_name) continue;
        symbols[s].st_shndx = SHN_UNDEF;
        symbols[s].st_value = 0;
        symbols[s].st_info = ELF64_ST_INFO(STB_WEAK, STT_FUNC);  // weak: nobody has to define it
        found->insert(name);
      }
    }
  }
}

// The library's own list, for its answers of cuGetProcAddress.
bool List(std::string* bytes, const std::vector<std::string>& names) {
  static constexpr char kMark[] = "gpumux software GPU lacks:\n";
  const size_t at = bytes->find(kMark);
  std::string list = kMark;
  for (const std::string& name : names) list += name + "\n";
  if (at == std::string::npos || list.size() >= softgpu::kLackingBytes) return false;
  bytes->replace(at, list.size(), list);
  return true;
}

}  // namespace

bool CopySoftGpuWithout(const std::string& library, const std::string& dir,
                        const std::vector<std::string>& names) {
  const fs::path from = fs::path(library).parent_path();
  std::error_code error;
  fs::create_directories(dir, error);
  std::set<std::string> found;
  for (const char* file : {"libcuda.so.1", "libnvidia-ml.so.1"}) {
    std::ifstream in(from / file, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    if (bytes.size() < sizeof(Elf64_Ehdr) || memcmp(bytes.data(), ELFMAG, SELFMAG) != 0) {
      fprintf(stderr, "%s: not a library\n", (from / file).c_str());
      return false;
    }
    Strip(&bytes, names, &found);
    if (!List(&bytes, names)) return false;
    std::ofstream out(fs::path(dir) / file, std::ios::binary);
    if (!out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()))) return false;
  }
  fs::copy_file(from / "gpumux-softgpud", fs::path(dir) / "gpumux-softgpud",
                fs::copy_options::overwrite_existing, error);
  if (error) fprintf(stderr, "%s: %s\n", dir.c_str(), error.message().c_str());
  for (const std::string& name : names) {
    if (found.contains(name)) continue;
    fprintf(stderr, "%s: exported by neither library\n", name.c_str());
    return false;
  }
  return !error;
}

}  // namespace gpumux::test
