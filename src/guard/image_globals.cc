// SPDX-License-Identifier: Apache-2.0
#include "guard/image_globals.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace gpumux::guard {

namespace {

constexpr uint64_t kMost = 1ull << 60;

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool IsWord(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' ||
         c == '%';
}

// Where an image may be read: within its size, or, where nobody knows it, where
// there is memory.
class Extent {
 public:
  explicit Extent(const char* begin) : begin_(begin), bytes_(kMost) {}
  Extent(const char* begin, uint64_t bytes) : begin_(begin), bytes_(bytes) {}

  const char* begin() const { return begin_; }
  bool Covers(uint64_t offset, uint64_t bytes) {
    if (offset > bytes_ || bytes > bytes_ - offset) return false;
    if (bytes_ != kMost) return true;
    if (bytes > kLargestPart) return false;
    const auto first = reinterpret_cast<uintptr_t>(begin_) + offset;
    for (uintptr_t page = first / kPage; page <= (first + (bytes ? bytes - 1 : 0)) / kPage; page++) {
      if (!Readable(page)) return false;
    }
    return true;
  }
  // The first offset that holds a NUL, or the end.
  uint64_t NulOffset() {
    uint64_t at = 0;
    while (Covers(at, 1) && begin_[at]) at++;
    return at;
  }

 private:
  static constexpr uintptr_t kPage = 4096;
  static constexpr uint64_t kLargestPart = 1ull << 31;

  // Asks the kernel. Where it may not be asked, the image is believed, as the
  // driver does.
  bool Readable(uintptr_t page) {
    if (page >= first_ && page < end_) return true;
    char byte;
    const iovec to = {&byte, 1};
    const iovec from = {reinterpret_cast<void*>(page * kPage), 1};
    const int saved_errno = errno;
    const long n = syscall(SYS_process_vm_readv, getpid(), &to, 1, &from, 1, 0);
    const bool fault = n != 1 && errno == EFAULT;
    errno = saved_errno;
    if (fault) return false;
    if (page != end_) first_ = page;
    end_ = page + 1;
    return true;
  }

  const char* begin_;
  uint64_t bytes_;                 // kMost: not known
  uintptr_t first_ = 0, end_ = 0;  // pages that were readable when asked last
};

// A walk over PTX text, token by token: words (with their leading dot), numbers
// and single signs; comments and white space left out.
class Tokens {
 public:
  Tokens(const char* text, const char* end) : at_(text), end_(end) {}

  // False at the end.
  bool Next() {
    Skip();
    if (at_ == end_) return false;
    begin_ = at_;
    const char first = *at_++;
    if (first == '"') {
      while (at_ != end_ && *at_ != '"') at_++;
      if (at_ != end_) at_++;
    } else if (first == '.' || IsWord(first)) {
      while (at_ != end_ && IsWord(*at_)) at_++;
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
    if (at_ - c > 1 && c[0] == '0' && (c[1] == 'x' || c[1] == 'X')) {
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
    if (at_ - begin_ < 3 || begin_[0] != '.' || !strchr("bsuf", begin_[1])) return 0;
    uint64_t bits = 0;
    for (const char* c = begin_ + 2; c < at_; c++) {
      if (*c < '0' || *c > '9' || bits > 128) return 0;
      bits = bits * 10 + static_cast<uint64_t>(*c - '0');
    }
    return bits == 8 || bits == 16 || bits == 32 || bits == 64 || bits == 128 ? bits / 8 : 0;
  }

 private:
  void Skip() {
    for (;;) {
      while (at_ != end_ && IsSpace(*at_)) at_++;
      if (end_ - at_ < 2 || at_[0] != '/' || (at_[1] != '/' && at_[1] != '*')) return;
      if (at_[1] == '/') {
        while (at_ != end_ && *at_ != '\n') at_++;
      } else {
        at_ += 2;
        while (end_ - at_ >= 2 && !(at_[0] == '*' && at_[1] == '/')) at_++;
        at_ = end_ - at_ >= 2 ? at_ + 2 : end_;
      }
    }
  }

  const char* at_;
  const char* end_;
  const char* begin_ = at_;
};

uint64_t Multiply(uint64_t a, uint64_t b) { return b != 0 && a > kMost / b ? kMost : a * b; }
uint64_t Add(uint64_t a, uint64_t b) { return a + b > kMost ? kMost : a + b; }

uint64_t GlobalsOfText(const char* text, const char* end);

// `base`: where in the image this part of it begins.
ImageGlobals GlobalsOfElf(Extent& image, uint64_t base) {
  Elf64_Ehdr header;
  if (!image.Covers(base, sizeof header)) return {false, 0};
  memcpy(&header, image.begin() + base, sizeof header);
  const uint64_t table_bytes = static_cast<uint64_t>(header.e_shnum) * sizeof(Elf64_Shdr);
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shoff == 0 || header.e_shoff >= kMost ||
      header.e_shstrndx >= header.e_shnum || !image.Covers(base + header.e_shoff, table_bytes)) {
    return {false, 0};
  }
  const char* table = image.begin() + base + header.e_shoff;
  auto section = [&](unsigned i) {
    Elf64_Shdr s;  // the table need not be aligned
    memcpy(&s, table + i * sizeof s, sizeof s);
    return s;
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  if (names.sh_offset >= kMost || !image.Covers(base + names.sh_offset, names.sh_size)) return {false, 0};
  const char* text = image.begin() + base + names.sh_offset;
  // ".nv.global" without a content, ".nv.global.init" with one.
  constexpr char kGlobal[] = ".nv.global";
  constexpr uint64_t kLength = sizeof kGlobal - 1;
  uint64_t sum = 0;
  for (unsigned i = 0; i < header.e_shnum; i++) {
    const Elf64_Shdr s = section(i);
    if (s.sh_name >= names.sh_size) return {false, 0};
    if (names.sh_size - s.sh_name >= kLength && strncmp(text + s.sh_name, kGlobal, kLength) == 0)
      sum = Add(sum, s.sh_size);
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

ImageGlobals GlobalsOfFatBinary(Extent& image) {
  FatHeader header;
  if (!image.Covers(0, sizeof header)) return {false, 0};
  memcpy(&header, image.begin(), sizeof header);
  if (header.bytes >= kMost) return {false, 0};
  const uint64_t end = header.header_bytes + header.bytes;
  ImageGlobals most = {true, 0};
  for (uint64_t at = header.header_bytes; at + sizeof(FatEntry) <= end;) {
    FatEntry entry;
    if (!image.Covers(at, sizeof entry)) return {false, 0};
    memcpy(&entry, image.begin() + at, sizeof entry);
    if (entry.header_bytes < sizeof entry || entry.bytes > header.bytes) return {false, 0};
    const uint64_t content = at + entry.header_bytes;
    ImageGlobals one = {false, 0};
    if (entry.compressed_bytes == 0 && entry.kind == 2) one = GlobalsOfElf(image, content);
    if (entry.compressed_bytes == 0 && entry.kind == 1 && image.Covers(content, entry.bytes)) {
      const char* text = image.begin() + content;
      one = {true, GlobalsOfText(text, text + strnlen(text, entry.bytes))};
    }
    if (!one.known) most.known = false;
    if (one.bytes > most.bytes) most.bytes = one.bytes;
    at = content + entry.bytes;
  }
  return most;
}

uint64_t GlobalsOfText(const char* text, const char* end) {
  Tokens t(text, end);
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

ImageGlobals GlobalsOfImage(Extent& image, bool may_point) {
  uint32_t magic;
  if (!image.Covers(0, sizeof magic)) return {false, 0};
  const char* bytes = image.begin();
  memcpy(&magic, bytes, sizeof magic);
  if (memcmp(bytes, ELFMAG, SELFMAG) == 0) return GlobalsOfElf(image, 0);
  if (magic == kFatMagic) return GlobalsOfFatBinary(image);
  const void* data = nullptr;  // of a wrapper: after the magic and a version
  if (magic == kWrapperMagic) {
    if (!may_point || !image.Covers(8, sizeof data)) return {false, 0};
    memcpy(&data, bytes + 8, sizeof data);
    if (!data) return {false, 0};
    Extent inner(static_cast<const char*>(data));
    return GlobalsOfImage(inner, false);
  }
  // PTX is text; its first word is a directive or a comment.
  if (bytes[0] != '.' && bytes[0] != '/' && !IsSpace(bytes[0])) return {false, 0};
  return {true, GlobalsOfText(bytes, bytes + image.NulOffset())};
}

}  // namespace

uint64_t GlobalsOfPtx(const char* text) { return GlobalsOfText(text, text + strlen(text)); }

ImageGlobals GlobalsOf(const void* image) {
  if (!image) return {false, 0};
  Extent extent(static_cast<const char*>(image));
  return GlobalsOfImage(extent, true);
}

ImageGlobals GlobalsOf(const void* image, uint64_t bytes) {
  Extent extent(static_cast<const char*>(image), bytes);
  return GlobalsOfImage(extent, false);
}

}  // namespace gpumux::guard
