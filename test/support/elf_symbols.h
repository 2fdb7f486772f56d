// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

namespace gpumux::test {

// What a shared library defines for others: name and value (an offset, or the
// address when `base` is where it is loaded), read from the file itself, so that
// nothing that stands in front of dlsym() has a say. Functions alone. Empty when
// the file is no 64-bit ELF library.
std::map<std::string, uintptr_t> ExportedFunctions(const std::string& path, uintptr_t base = 0);
// Those that it keeps to itself as well; empty when the file was stripped.
std::map<std::string, uintptr_t> AllFunctions(const std::string& path, uintptr_t base = 0);

// The same of a library that is loaded, by the start of its file name.
struct LoadedLibrary {
  std::string path;
  uintptr_t base = 0;
};
bool FindLoaded(const std::string& file_prefix, LoadedLibrary* out);

}  // namespace gpumux::test
