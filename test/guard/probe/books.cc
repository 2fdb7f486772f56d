// SPDX-License-Identifier: Apache-2.0
#include "books.h"

#include <cstdio>
#include <fstream>
#include <string>

namespace gpumux::probe {

Books::Books() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    char access[8] = {};
    if (line.find("/memfd:") == std::string::npos ||
        std::sscanf(line.c_str(), "%lx-%lx %7s", &begin, &end, access) != 3 || access[0] != 'r' ||
        end - begin < sizeof(gpumux_process_page)) {
      continue;
    }
    const auto* page = reinterpret_cast<const gpumux_process_page*>(begin);
    if (page->magic == GPUMUX_PROCESS_MAGIC) page_ = page;
  }
}

Figures Books::Read() const {
  size_t free = 0, total = 0;
  Check(api.cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
  Figures figures;
  figures.taken = static_cast<int64_t>(truth_.Own());
  if (page_) {
    figures.charged =
        static_cast<int64_t>(__atomic_load_n(&page_->gpus[0].committed_bytes, __ATOMIC_SEQ_CST));
  }
  figures.used = static_cast<int64_t>(total - free);
  return figures;
}

uint64_t Books::FreeBytes() const { return Free(); }

}  // namespace gpumux::probe
