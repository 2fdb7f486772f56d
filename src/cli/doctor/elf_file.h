// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/result.h"

namespace gpumux::cli::doctor {

// What an ELF file says of itself. The file may be anybody's and may be wrong in
// every byte; sizes in it are bounded before they are believed.
struct ElfFile {
  bool x86_64 = false;
  bool program = false;                  // has an entry for the kernel, as opposed to a plain library
  std::string interpreter;               // of a dynamically linked program; empty: none
  std::set<std::string> sections;        // ".nv_fatbin", ...
  std::set<std::string> defines;         // functions that others can find in it
  std::set<std::string> needs_glibc;     // versions that it needs of the C library: "2.2.5", "2.17"
  std::set<std::string> provides_glibc;  // versions that it defines, if it is a C library
};

// kNotFound, kDenied; kInvalid: no 64-bit little-endian ELF file, or a broken one.
Result<ElfFile> ReadElf(const std::string& path);

// The newest of a set of version numbers; "" of none.
std::string NewestOf(const std::set<std::string>& versions);

}  // namespace gpumux::cli::doctor
