// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/elf_file.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/unique_fd.h"
#include "cli/doctor/files.h"

namespace gpumux::cli::doctor {
namespace {

constexpr size_t kMostTable = 64u << 20;  // of names; PyTorch's largest library has 20 MiB
constexpr size_t kMostHeaders = 4096;     // sections or segments

class Reader {
 public:
  explicit Reader(int fd) : fd_(fd) {}

  // All of it or nothing.
  bool Read(uint64_t offset, void* into, size_t bytes) const {
    auto* out = static_cast<char*>(into);
    while (bytes > 0) {
      if (offset > INT64_MAX) return false;
      const ssize_t n = ::pread(fd_, out, bytes, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      out += n;
      offset += static_cast<uint64_t>(n);
      bytes -= static_cast<size_t>(n);
    }
    return true;
  }

  template <typename T>
  std::vector<T> Table(uint64_t offset, uint64_t bytes) const {
    std::vector<T> table;
    if (bytes == 0 || bytes > kMostTable || bytes / sizeof(T) == 0) return table;
    table.resize(bytes / sizeof(T));
    if (!Read(offset, table.data(), table.size() * sizeof(T))) table.clear();
    return table;
  }

 private:
  int fd_;
};

// A text of a table of names; "" when it would end beyond the table.
std::string_view NameAt(const std::vector<char>& names, uint64_t at) {
  if (at >= names.size()) return "";
  const char* begin = names.data() + at;
  const auto* end = static_cast<const char*>(std::memchr(begin, 0, names.size() - at));
  return end ? std::string_view(begin, static_cast<size_t>(end - begin)) : "";
}

void AddVersion(std::string_view name, std::set<std::string>& versions) {
  constexpr std::string_view kPrefix = "GLIBC_";
  if (name.starts_with(kPrefix) && name.size() > kPrefix.size() && name[kPrefix.size()] >= '0' &&
      name[kPrefix.size()] <= '9')
    versions.emplace(name.substr(kPrefix.size()));
}

// The entries of a section of versions, each of which says how far the next is.
template <typename T, typename Each>
void Walk(const std::vector<char>& bytes, size_t at, uint64_t count, Each each) {
  for (uint64_t i = 0; i < std::min<uint64_t>(count, kMostHeaders); ++i) {
    T entry;
    if (at > bytes.size() || bytes.size() - at < sizeof entry) return;
    std::memcpy(&entry, bytes.data() + at, sizeof entry);
    const size_t next = each(entry, at);
    if (next == 0) return;
    at += next;
  }
}

void ReadNeeds(const std::vector<char>& bytes, uint64_t count, const std::vector<char>& names,
               ElfFile& file) {
  Walk<Elf64_Verneed>(bytes, 0, count, [&](const Elf64_Verneed& need, size_t at) -> size_t {
    Walk<Elf64_Vernaux>(bytes, at + need.vn_aux, need.vn_cnt,
                        [&](const Elf64_Vernaux& aux, size_t) -> size_t {
                          AddVersion(NameAt(names, aux.vna_name), file.needs_glibc);
                          return aux.vna_next;
                        });
    return need.vn_next;
  });
}

void ReadDefinitions(const std::vector<char>& bytes, uint64_t count, const std::vector<char>& names,
                     ElfFile& file) {
  Walk<Elf64_Verdef>(bytes, 0, count, [&](const Elf64_Verdef& definition, size_t at) -> size_t {
    Walk<Elf64_Verdaux>(bytes, at + definition.vd_aux, 1, [&](const Elf64_Verdaux& aux, size_t) -> size_t {
      AddVersion(NameAt(names, aux.vda_name), file.provides_glibc);
      return 0;
    });
    return definition.vd_next;
  });
}

void ReadSections(const Reader& reader, const Elf64_Ehdr& header, ElfFile& file) {
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shnum > kMostHeaders) return;
  const auto sections =
      reader.Table<Elf64_Shdr>(header.e_shoff, uint64_t{header.e_shnum} * sizeof(Elf64_Shdr));
  if (header.e_shstrndx < sections.size()) {
    const Elf64_Shdr& table = sections[header.e_shstrndx];
    const auto names = reader.Table<char>(table.sh_offset, table.sh_size);
    for (const Elf64_Shdr& section : sections) file.sections.emplace(NameAt(names, section.sh_name));
  }
  for (const Elf64_Shdr& section : sections) {
    const bool of_use = section.sh_type == SHT_DYNSYM || section.sh_type == SHT_GNU_verneed ||
                        section.sh_type == SHT_GNU_verdef;
    if (!of_use || section.sh_link >= sections.size()) continue;
    const Elf64_Shdr& link = sections[section.sh_link];
    const auto names = reader.Table<char>(link.sh_offset, link.sh_size);
    if (section.sh_type == SHT_DYNSYM) {
      for (const Elf64_Sym& symbol : reader.Table<Elf64_Sym>(section.sh_offset, section.sh_size)) {
        const auto type = ELF64_ST_TYPE(symbol.st_info);
        if (symbol.st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_GNU_IFUNC))
          file.defines.emplace(NameAt(names, symbol.st_name));
      }
      continue;
    }
    const auto bytes = reader.Table<char>(section.sh_offset, section.sh_size);
    if (section.sh_type == SHT_GNU_verneed) ReadNeeds(bytes, section.sh_info, names, file);
    if (section.sh_type == SHT_GNU_verdef) ReadDefinitions(bytes, section.sh_info, names, file);
  }
}

}  // namespace

Result<ElfFile> ReadElf(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) {
    const Code code = errno == ENOENT ? Code::kNotFound : Code::kDenied;
    return Fail(code, fmt::format("{}: {}", path, std::strerror(errno)));
  }
  const Reader reader(fd.get());
  Elf64_Ehdr header{};
  if (!reader.Read(0, &header, sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
    return Fail(Code::kInvalid, fmt::format("{} is no 64-bit ELF file", path));
  }
  ElfFile file;
  file.x86_64 = header.e_machine == EM_X86_64;
  if (header.e_phentsize == sizeof(Elf64_Phdr) && header.e_phnum <= kMostHeaders) {
    for (const Elf64_Phdr& segment :
         reader.Table<Elf64_Phdr>(header.e_phoff, uint64_t{header.e_phnum} * sizeof(Elf64_Phdr))) {
      if (segment.p_type != PT_INTERP || segment.p_filesz > 4096) continue;
      file.interpreter = NameAt(reader.Table<char>(segment.p_offset, segment.p_filesz), 0);
    }
  }
  file.program = header.e_type == ET_EXEC || !file.interpreter.empty();
  ReadSections(reader, header, file);
  return file;
}

std::string NewestOf(const std::set<std::string>& versions) {
  std::string newest;
  for (const std::string& version : versions) {
    if (newest.empty() || OlderThan(newest, version)) newest = version;
  }
  return newest;
}

}  // namespace gpumux::cli::doctor
