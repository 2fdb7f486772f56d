// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "driver.h"
#include "gpumux/abi/pages.h"

namespace gpumux::probe {

// What is written about this process's memory, and by whom.
struct Figures {
  int64_t taken = 0;    // NVML: the process's device memory
  int64_t charged = 0;  // the guard's page: bytes that are committed
  int64_t used = 0;     // what the program is told as used by its tenant
};

class Books {
 public:
  // Finds the page that the guard shares with the daemon, by its magic; without
  // a guard there is none, and `charged` stays 0.
  Books();
  bool guarded() const { return page_ != nullptr; }
  // Needs a current context.
  Figures Read() const;
  uint64_t FreeBytes() const;

 private:
  Truth truth_;
  const gpumux_process_page* page_ = nullptr;
};

inline Figures operator-(const Figures& a, const Figures& b) {
  return {a.taken - b.taken, a.charged - b.charged, a.used - b.used};
}

}  // namespace gpumux::probe
