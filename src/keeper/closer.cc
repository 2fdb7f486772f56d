// SPDX-License-Identifier: Apache-2.0
//
//   loop ── numbers of descriptors, in a pipe ──▶ kThreads threads: close
//
// A pipe is a queue without memory of ours and without a lock. Several threads,
// so that one process's descriptors do not wait for another's.
#include "keeper/closer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

namespace gpumux::keeper {

namespace {

constexpr int kThreads = 4;
constexpr size_t kStackBytes = 64 * 1024;

int to_threads = -1;

void* Run(void* argument) {
  const int from_loop = static_cast<int>(reinterpret_cast<intptr_t>(argument));
  for (;;) {
    int fd = -1;
    const ssize_t size = read(from_loop, &fd, sizeof fd);
    if (size < 0 && errno == EINTR) continue;
    if (size != static_cast<ssize_t>(sizeof fd)) return nullptr;
    close(fd);
  }
}

bool Start() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  // A full pipe must not stop the loop.
  pthread_attr_t attributes;
  if (fcntl(ends[1], F_SETFL, O_NONBLOCK) != 0 || pthread_attr_init(&attributes) != 0) {
    close(ends[0]);
    close(ends[1]);
    return false;
  }
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  int started = 0;
  for (int i = 0; i < kThreads; ++i) {
    pthread_t thread;
    started += pthread_create(&thread, &attributes, Run,
                              reinterpret_cast<void*>(static_cast<intptr_t>(ends[0]))) == 0;
  }
  pthread_attr_destroy(&attributes);
  if (started == 0) {
    close(ends[0]);
    close(ends[1]);
    return false;
  }
  to_threads = ends[1];
  return true;
}

}  // namespace

void CloseElsewhere(int fd) {
  if ((to_threads < 0 && !Start()) || write(to_threads, &fd, sizeof fd) != static_cast<ssize_t>(sizeof fd))
    close(fd);
}

}  // namespace gpumux::keeper
