// SPDX-License-Identifier: Apache-2.0
#include "guard/image_globals.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <vector>

namespace gpumux::guard {
namespace {

const std::string kHead = ".version 7.8\n.target sm_80\n.address_size 64\n";

TEST(ImageGlobals, OfPtxAreAddedUp) {
  const struct {
    const char* text;
    uint64_t bytes;
  } cases[] = {
      {"", 0},
      {".global .align 16 .b8 big[1073741824];", 1073741824},
      {".visible .global .align 4 .u32 one;", 4},
      {".global .f64 a[10][20];", 1600},
      {".global .v4 .f32 v[8];", 128},
      {".extern .global .align 8 .b8 hex[0x100];", 256},
      {"// .global .b8 no[100];\n/* .global .b8 no[100]; */ .global .b8 yes[3];", 3},
      {".global .u32 t[4] = {1, 2, 3, 4};\n.global .b8 s[2] = {0, 0};", 18},
      {".entry k() { .reg .b64 r; ld.global.u32 r, [r]; st.global.u32 [r], 5; }\n.global .b8 after[7];", 7},
      {".file 1 \"a.global.b8 x[9];.cu\"\n.shared .b8 s[100];\n.const .b8 c[100];", 0},
      {".global .b8 huge[99999999999999999999999];", 1ull << 60},
      {".global .b8 cut[12", 12},
  };
  for (const auto& c : cases) EXPECT_EQ(GlobalsOfPtx((kHead + c.text).c_str()), c.bytes) << c.text;
}

TEST(ImageGlobals, OfACubinAreItsSections) {
  // A minimal ELF with the two sections that hold variables and one that does not.
  const char names[] = "\0.nv.global\0.nv.global.init\0.text.k\0.shstrtab";
  std::vector<char> image(sizeof(Elf64_Ehdr) + 5 * sizeof(Elf64_Shdr) + sizeof names);
  auto* header = reinterpret_cast<Elf64_Ehdr*>(image.data());
  std::memcpy(header->e_ident, ELFMAG, SELFMAG);
  header->e_ident[EI_CLASS] = ELFCLASS64;
  header->e_shoff = sizeof(Elf64_Ehdr);
  header->e_shentsize = sizeof(Elf64_Shdr);
  header->e_shnum = 5;
  header->e_shstrndx = 4;
  auto* sections = reinterpret_cast<Elf64_Shdr*>(image.data() + header->e_shoff);
  const size_t name_offsets[] = {0, 1, 12, 28, 36};
  const uint64_t sizes[] = {0, 5'000'000, 300, 999, sizeof names};
  for (int i = 0; i < 5; i++) {
    sections[i].sh_name = static_cast<Elf64_Word>(name_offsets[i]);
    sections[i].sh_size = sizes[i];
  }
  sections[4].sh_offset = header->e_shoff + 5 * sizeof(Elf64_Shdr);
  std::memcpy(image.data() + sections[4].sh_offset, names, sizeof names);
  const ImageGlobals globals = GlobalsOf(image.data());
  EXPECT_TRUE(globals.known);
  EXPECT_EQ(globals.bytes, 5'000'300u);
  sections[2].sh_name = 0x7fffffff;
  EXPECT_FALSE(GlobalsOf(image.data()).known) << "a name beyond the names";
}

TEST(ImageGlobals, AreUnknownWhereTheImageDoesNotTell) {
  EXPECT_FALSE(GlobalsOf(nullptr).known);
  EXPECT_FALSE(GlobalsOf("hello, this is no image").known);
  // A fat binary whose only entry is compressed.
  struct {
    uint32_t magic = 0xba55ed50;
    uint16_t version = 1, header = 16;
    uint64_t bytes = 64 + 32;
    uint16_t kind = 2, unknown = 0;
    uint32_t entry_header = 64;
    uint64_t entry_bytes = 32;
    uint32_t compressed = 32;
    char rest[128] = {};
  } fat;
  EXPECT_FALSE(GlobalsOf(&fat).known);
}

// Memory that ends at `end()` with a page that nobody may read.
class BeforeAWall {
 public:
  BeforeAWall() {
    memory_ = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(end(), kPage, PROT_NONE);
  }
  ~BeforeAWall() { munmap(memory_, 2 * kPage); }
  char* end() { return static_cast<char*>(memory_) + kPage; }

 private:
  static constexpr size_t kPage = 4096;
  void* memory_;
};

TEST(ImageGlobals, OfAnImageThatPointsNowhereAreUnknown) {
  BeforeAWall wall;
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  for (const uint64_t nowhere : {sizeof header, size_t{8192}, size_t{1} << 40, size_t{1} << 63, ~size_t{0}}) {
    header.e_shoff = nowhere;
    char* const image = wall.end() - sizeof header;
    std::memcpy(image, &header, sizeof header);
    EXPECT_FALSE(GlobalsOf(image).known) << nowhere;
  }
  // Cut within the header, and a text without an end.
  std::memcpy(wall.end() - 20, &header, 20);
  EXPECT_FALSE(GlobalsOf(wall.end() - 20).known);
  const char text[] = {'.', 'g', 'l', 'o', 'b', 'a', 'l', ' ', '.', 'b', '8', ' ', 'x', '[', '9', ']'};
  std::memcpy(wall.end() - sizeof text, text, sizeof text);
  EXPECT_EQ(GlobalsOf(wall.end() - sizeof text).bytes, 9u);
  EXPECT_EQ(GlobalsOf(wall.end() - sizeof text, sizeof text - 1).bytes, 9u);
}

}  // namespace
}  // namespace gpumux::guard
