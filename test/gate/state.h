// SPDX-License-Identifier: Apache-2.0
//
// A file that a test and one of its programs have mapped: what the program shall do, and
// how far it is.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace gpumux::test {

struct ProgramState {
  std::atomic<uint64_t> done;     // kernels whose end the program has seen
  std::atomic<uint32_t> ready;    // 1: it has its context; 2: it did what it was told
  std::atomic<uint32_t> command;  // 1: go; 2: stop; 3: do what the role says of this
};
enum : uint32_t { kReady = 1, kDid = 2, kGo = 1, kStop = 2, kChange = 3 };

inline ProgramState* MapState(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* memory = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, sizeof(ProgramState)) == 0)
    memory = mmap(nullptr, sizeof(ProgramState), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd >= 0) close(fd);
  return memory == MAP_FAILED ? nullptr : static_cast<ProgramState*>(memory);
}

}  // namespace gpumux::test
