// SPDX-License-Identifier: Apache-2.0
//
// For the build: man-page PAGE < TEMPLATE > SCD, see man_page.h.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>

#include "cli/man_page.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: man-page PAGE < TEMPLATE > SCD\n", stderr);
    return 2;
  }
  const std::string text((std::istreambuf_iterator<char>(std::cin)), {});
  const auto page = gpumux::cli::ManPage(argv[1], text);
  if (!page) {
    std::fprintf(stderr, "man-page: %s\n", page.error().ToString().c_str());
    return 1;
  }
  std::fwrite(page->data(), 1, page->size(), stdout);
  return std::ferror(stdout) ? 1 : 0;
}
