// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "base/result.h"
#include "base/unique_fd.h"

namespace gpumux {

// Memory that other processes map too: a memfd of fixed size. Its size is
// sealed, so that no holder of a descriptor can truncate it and so kill the
// others with SIGBUS. Zeroed at first.
class SharedMemory {
 public:
  enum class Others { kMayWrite, kMayOnlyRead };

  // `name` shows in /proc/PID/maps. With kMayOnlyRead no mapping for writing
  // can be made after this one, through any descriptor.
  static Result<SharedMemory> Create(const char* name, size_t bytes, Others others);

  // Maps a descriptor that came from a peer: checks that it is a memfd of
  // exactly `bytes` whose size is sealed.
  static Result<SharedMemory> Map(UniqueFd fd, size_t bytes, bool writable);

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  void* data() const { return data_; }
  size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    static_assert(sizeof(T) > 0);
    return sizeof(T) <= size_ ? static_cast<T*>(data_) : nullptr;
  }

  // For passing to a peer. `read_write` is the memfd itself; with kMayOnlyRead
  // pass `ReadOnlyFd` instead.
  int read_write() const { return fd_.get(); }
  Result<UniqueFd> ReadOnlyFd() const;

 private:
  UniqueFd fd_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace gpumux
