// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/elf_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

namespace gpumux::cli::doctor {
namespace {

namespace fs = std::filesystem;

std::string OldCLibrary() { return fs::read_symlink("/proc/self/exe").parent_path() / "libold_c_library.so"; }

TEST(ElfFile, SaysWhatThisProgramNeeds) {
  const auto self = ReadElf("/proc/self/exe");
  ASSERT_TRUE(self) << self.error().message;
  EXPECT_TRUE(self->program);
  EXPECT_NE(self->interpreter.find("ld-linux"), std::string::npos);
  EXPECT_TRUE(self->sections.contains(".text"));
  EXPECT_FALSE(self->needs_glibc.empty());
  EXPECT_TRUE(self->provides_glibc.empty());
}

TEST(ElfFile, SaysWhatALibraryDefines) {
  const auto library = ReadElf(OldCLibrary());
  ASSERT_TRUE(library) << library.error().message;
  EXPECT_FALSE(library->program);
  EXPECT_TRUE(library->defines.contains("second"));
  EXPECT_EQ(library->provides_glibc, (std::set<std::string>{"2.2.5", "2.12"}));
}

TEST(ElfFile, RefusesWhatIsNone) {
  EXPECT_EQ(ReadElf("/nowhere").error().code, Code::kNotFound);
  EXPECT_EQ(ReadElf("/proc/self/status").error().code, Code::kInvalid);
  EXPECT_EQ(ReadElf("/tmp").error().code, Code::kInvalid);
}

// Every byte of a library that somebody preloads may be wrong.
TEST(ElfFile, SurvivesBrokenFiles) {
  std::stringstream whole;
  whole << std::ifstream(OldCLibrary(), std::ios::binary).rdbuf();
  const std::string good = whole.str();
  ASSERT_GT(good.size(), 1000u);
  std::mt19937 random(1);
  const std::string path = fs::temp_directory_path() / ("gpumux-elf-" + std::to_string(::getpid()));
  for (int round = 0; round < 500; ++round) {
    std::string bad = good;
    if (round % 4 == 0) bad.resize(random() % bad.size());
    // Mostly where the headers and tables are: the first bytes, and the sections at the end.
    for (int i = 0; i < 8 && !bad.empty(); ++i) {
      const size_t at = random() % 2 ? random() % std::min<size_t>(bad.size(), 128)
                                     : bad.size() - 1 - random() % std::min<size_t>(bad.size(), 2048);
      bad[at] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
    }
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bad;
    (void)ReadElf(path);
  }
  fs::remove(path);
}

}  // namespace
}  // namespace gpumux::cli::doctor
