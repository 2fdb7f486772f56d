// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include "cuda_functions.h"

namespace gpumux::test {

inline constexpr long long kMiB = 1 << 20;

// Reads all three figures and compares how they moved since the last reading.
class Ledger {
 public:
  Ledger() : device_(Gpu0()) { Read(); }
  void Expect(const char* what, long long own, long long used) {
    const long long own_before = own_, used_before = used_, free_before = free_;
    Read();
    EXPECT_EQ(own_ - own_before, own) << what;
    EXPECT_EQ(used_ - used_before, used) << what;
    EXPECT_EQ(free_ - free_before, -used) << what << ": cuMemGetInfo";
  }
  void Expect(const char* what, long long both) { Expect(what, both, both); }
  long long own() const { return own_; }
  long long used() const { return used_; }

 private:
  void Read() {
    own_ = OwnBytes(device_, getpid());
    used_ = static_cast<long long>(ReadMemory(device_).used);
    size_t free = 0, total = 0;
    EXPECT_EQ(CU(cuMemGetInfo_v2, size_t*, size_t*)(&free, &total), cuda::CUDA_SUCCESS);
    EXPECT_EQ(total, 150'109'880'320u);
    free_ = static_cast<long long>(free);
  }
  nvml::nvmlDevice_t device_;
  long long own_ = 0, used_ = 0, free_ = 0;
};

}  // namespace gpumux::test
