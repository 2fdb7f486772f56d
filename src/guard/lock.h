// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpumux::guard {

// A process-private mutex on a futex: no libpthread symbol (the glibc floor), a
// constant initialiser, and a Reset() for the child of a fork, where another
// thread of the parent may have held it.
// States: 0 free, 1 held, 2 held and somebody waits.
class Lock {
 public:
  void Acquire() {
    uint32_t expected = 0;
    if (__atomic_compare_exchange_n(&state_, &expected, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
    while (__atomic_exchange_n(&state_, 2, __ATOMIC_ACQUIRE) != 0) {
      syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, 2, nullptr, nullptr, 0);
    }
  }
  bool TryAcquire() {
    uint32_t expected = 0;
    return __atomic_compare_exchange_n(&state_, &expected, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
  }
  void Release() {
    if (__atomic_exchange_n(&state_, 0, __ATOMIC_RELEASE) == 2) {
      syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    }
  }
  void Reset() { __atomic_store_n(&state_, 0, __ATOMIC_RELAXED); }

 private:
  uint32_t state_ = 0;
};

class Held {
 public:
  explicit Held(Lock& lock) : lock_(lock) { lock_.Acquire(); }
  ~Held() { lock_.Release(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  Lock& lock_;
};

}  // namespace gpumux::guard
