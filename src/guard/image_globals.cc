// SPDX-License-Identifier: Apache-2.0
#include "guard/image_globals.h"

#include <elf.h>
#include <string.h>

namespace gpumux::guard {

namespace {

constexpr uint64_t kMost = 1ull << 60;

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool IsWord(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' ||
         c == '%';
}

// A walk over PTX text, token by token: words (with their leading dot), numbers
// and single signs; comments and white space left out.
class Tokens {
 public:
  explicit Tokens(const char* text) : at_(text) {}

  // False at the end.
  bool Next() {
    Skip();
    if (!*at_) return false;
    begin_ = at_;
    if (*at_ == '"') {
      for (at_++; *at_ && *at_ != '"'; at_++) {
      }
      if (*at_) at_++;
    } else if (*at_ == '.' || IsWord(*at_)) {
      for (at_++; IsWord(*at_); at_++) {
      }
    } else {
      at_++;
    }
    return true;
  }

  bool Is(const char* word) const {
    const size_t n = static_cast<size_t>(at_ - begin_);
    return strlen(word) == n && strncmp(begin_, word, n) == 0;
  }

  bool Number(uint64_t* value) const {
    if (*begin_ < '0' || *begin_ > '9') return false;
    uint64_t v = 0;
    const char* c = begin_;
    if (c[0] == '0' && (c[1] == 'x' || c[1] == 'X')) {
      for (c += 2; c < at_ && v < kMost; c++) {
        const char d = *c;
        if (d >= '0' && d <= '9') {
          v = v * 16 + static_cast<uint64_t>(d - '0');
        } else if ((d | 32) >= 'a' && (d | 32) <= 'f') {
          v = v * 16 + static_cast<uint64_t>((d | 32) - 'a' + 10);
        }
      }
    } else {
      for (; c < at_ && *c >= '0' && *c <= '9' && v < kMost; c++)
        v = v * 10 + static_cast<uint64_t>(*c - '0');
    }
    *value = v;
    return true;
  }

  // Bytes of the scalar type that this token names (".b8", ".f64", ".u32"), 0 if none.
  uint64_t TypeBytes() const {
    if (begin_[0] != '.' || !strchr("bsuf", begin_[1]) || at_ - begin_ < 3) return 0;
    uint64_t bits = 0;
    for (const char* c = begin_ + 2; c < at_; c++) {
      if (*c < '0' || *c > '9') return 0;
      bits = bits * 10 + static_cast<uint64_t>(*c - '0');
    }
    return bits == 8 || bits == 16 || bits == 32 || bits == 64 || bits == 128 ? bits / 8 : 0;
  }

 private:
  void Skip() {
    for (;;) {
      while (IsSpace(*at_)) at_++;
      if (at_[0] == '/' && at_[1] == '/') {
        while (*at_ && *at_ != '\n') at_++;
      } else if (at_[0] == '/' && at_[1] == '*') {
        at_ += 2;
        while (*at_ && !(at_[0] == '*' && at_[1] == '/')) at_++;
        if (*at_) at_ += 2;
      } else {
        return;
      }
    }
  }

  const char* at_;
  const char* begin_ = at_;
};

uint64_t Multiply(uint64_t a, uint64_t b) { return b != 0 && a > kMost / b ? kMost : a * b; }
uint64_t Add(uint64_t a, uint64_t b) { return a + b > kMost ? kMost : a + b; }

ImageGlobals GlobalsOfElf(const char* image) {
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(image);
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_shentsize != sizeof(Elf64_Shdr) ||
      header->e_shoff == 0 || header->e_shstrndx >= header->e_shnum) {
    return {false, 0};
  }
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(image + header->e_shoff);
  const char* names = image + sections[header->e_shstrndx].sh_offset;
  const uint64_t names_bytes = sections[header->e_shstrndx].sh_size;
  uint64_t sum = 0;
  for (unsigned i = 0; i < header->e_shnum; i++) {
    if (sections[i].sh_name >= names_bytes) return {false, 0};
    const char* name = names + sections[i].sh_name;
    // ".nv.global" without a content, ".nv.global.init" with one.
    if (strncmp(name, ".nv.global", 10) == 0) sum = Add(sum, sections[i].sh_size);
  }
  return {true, sum};
}

// The container that compilers write: a header, then one entry for each
// architecture, of which the driver takes one.
struct FatHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t bytes;
};
struct FatEntry {
  uint16_t kind;  // 1 PTX, 2 ELF
  uint16_t unknown;
  uint32_t header_bytes;
  uint64_t bytes;
  uint32_t compressed_bytes;  // 0: not compressed
};
constexpr uint32_t kFatMagic = 0xba55ed50;
constexpr uint32_t kWrapperMagic = 0x466243b1;

ImageGlobals GlobalsOfFatBinary(const char* image) {
  FatHeader header;
  memcpy(&header, image, sizeof header);
  const char* at = image + header.header_bytes;
  const char* end = at + header.bytes;
  ImageGlobals most = {true, 0};
  while (at + sizeof(FatEntry) <= end) {
    FatEntry entry;
    memcpy(&entry, at, sizeof entry);
    if (entry.header_bytes < sizeof entry || entry.bytes > header.bytes) return {false, 0};
    const char* content = at + entry.header_bytes;
    ImageGlobals one = {false, 0};
    if (entry.compressed_bytes == 0 && entry.kind == 2) one = GlobalsOfElf(content);
    if (entry.compressed_bytes == 0 && entry.kind == 1) one = {true, GlobalsOfPtx(content)};
    if (!one.known) most.known = false;
    if (one.bytes > most.bytes) most.bytes = one.bytes;
    at = content + entry.bytes;
  }
  return most;
}

}  // namespace

uint64_t GlobalsOfPtx(const char* text) {
  Tokens t(text);
  uint64_t sum = 0;
  int depth = 0;  // inside a function's body there is no ".global" declaration
  while (t.Next()) {
    if (t.Is("{")) depth++;
    if (t.Is("}") && depth > 0) depth--;
    if (depth != 0 || !t.Is(".global")) continue;
    // .global .align 16 .v4 .b8 name[3][4] = {...};
    uint64_t element = 0, count = 1, number = 0;
    int braces = 0;
    bool dimension = false, initialiser = false;
    while (t.Next() && !(t.Is(";") && braces == 0)) {
      if (t.Is("{")) braces++;
      if (t.Is("}")) braces--;
      if (t.Is("=")) initialiser = true;
      if (initialiser) continue;
      if (t.Is(".align")) {
        if (!t.Next()) break;
        continue;
      }
      if (t.Is(".v2")) count = Multiply(count, 2);
      if (t.Is(".v4")) count = Multiply(count, 4);
      if (const uint64_t bytes = t.TypeBytes()) element = bytes;
      if (t.Is("[")) dimension = true;
      if (t.Is("]")) dimension = false;
      if (dimension && t.Number(&number)) count = Multiply(count, number);
    }
    sum = Add(sum, Multiply(element, count));
  }
  return sum;
}

ImageGlobals GlobalsOf(const void* image) {
  if (!image) return {false, 0};
  const auto* bytes = static_cast<const char*>(image);
  uint32_t magic;
  memcpy(&magic, bytes, sizeof magic);
  if (memcmp(bytes, ELFMAG, SELFMAG) == 0) return GlobalsOfElf(bytes);
  if (magic == kFatMagic) return GlobalsOfFatBinary(bytes);
  if (magic == kWrapperMagic) {
    const void* data;  // after the magic and a version
    memcpy(&data, bytes + 8, sizeof data);
    return data ? GlobalsOf(data) : ImageGlobals{false, 0};
  }
  // PTX is text; its first word is a directive or a comment.
  if (bytes[0] == '.' || bytes[0] == '/' || IsSpace(bytes[0])) return {true, GlobalsOfPtx(bytes)};
  return {false, 0};
}

}  // namespace gpumux::guard
