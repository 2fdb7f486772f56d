// SPDX-License-Identifier: Apache-2.0
#include "guard/thread.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "guard/driver.h"

namespace gpumux::guard {

namespace {

// By look-up: on glibc before 2.34 they are in a library of their own, which a program
// with a driver has loaded.
template <typename F>
F ThreadFunction(const char* name) {
  using Dlsym = void* (*)(void*, const char*);
  const auto look_up = reinterpret_cast<Dlsym>(RealDlsym());
  return look_up ? reinterpret_cast<F>(look_up(RTLD_DEFAULT, name)) : nullptr;
}

}  // namespace

bool StartThread(ThreadBody body) {
  const auto create =
      ThreadFunction<int (*)(pthread_t*, const pthread_attr_t*, ThreadBody, void*)>("pthread_create");
  const auto detach = ThreadFunction<int (*)(pthread_t)>("pthread_detach");
  if (!create || !detach) return false;
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, &before);
  pthread_t thread;
  const bool made = create(&thread, nullptr, body, nullptr) == 0;
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (made) detach(thread);
  return made;
}

void Nap(uint64_t ns) {
  const timespec time = {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  nanosleep(&time, nullptr);
}

}  // namespace gpumux::guard
