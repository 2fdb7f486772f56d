// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

namespace gpumux::softgpu {

// The calling thread's T. Programs call the driver from atexit() and from
// destructors of other thread-local objects, when those of C++ may have run
// already: so this one goes with the thread's POSIX keys, and the main thread's
// never. One T has one value a thread.
template <typename T>
T& OfThisThread() {
  static thread_local T* value = nullptr;
  if (value == nullptr) {
    static const pthread_key_t key = [] {
      pthread_key_t k = 0;
      pthread_key_create(&k, [](void* p) {
        delete static_cast<T*>(p);
        value = nullptr;
      });
      return k;
    }();
    value = new T;
    pthread_setspecific(key, value);
  }
  return *value;
}

}  // namespace gpumux::softgpu
