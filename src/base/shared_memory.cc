// SPDX-License-Identifier: Apache-2.0
#include "base/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

// Since Linux 5.1; older C library headers do not have it.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace gpumux {
namespace {

tl::unexpected<Error> SystemError(const char* what) {
  return Fail(Code::kInternal, fmt::format("{}: {}", what, std::strerror(errno)));
}

}  // namespace

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_) ::munmap(data_, size_);
}

Result<SharedMemory> SharedMemory::Create(const char* name, size_t bytes, Others others) {
  SharedMemory memory;
  memory.fd_.reset(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.fd_) return SystemError("cannot create shared memory");
  if (::ftruncate(memory.fd_.get(), static_cast<off_t>(bytes)) != 0)
    return SystemError("cannot size shared memory");
  // Mapped before it is sealed: F_SEAL_FUTURE_WRITE keeps the writable mappings
  // that exist and forbids new ones.
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd_.get(), 0);
  if (data == MAP_FAILED) return SystemError("cannot map shared memory");
  memory.data_ = data;
  memory.size_ = bytes;
  int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (others == Others::kMayOnlyRead) seals |= F_SEAL_FUTURE_WRITE;
  if (::fcntl(memory.fd_.get(), F_ADD_SEALS, seals | F_SEAL_SEAL) != 0)
    return SystemError("cannot seal shared memory");
  return memory;
}

Result<SharedMemory> SharedMemory::Map(UniqueFd fd, size_t bytes, bool writable) {
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return SystemError("cannot look at shared memory");
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Fail(Code::kInvalid, "shared memory from the peer can be truncated");
  }
  if (info.st_size < 0 || static_cast<size_t>(info.st_size) != bytes) {
    return Fail(Code::kInvalid,
                fmt::format("shared memory from the peer has {} bytes, not {}", info.st_size, bytes));
  }
  void* data = ::mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return SystemError("cannot map shared memory");
  SharedMemory memory;
  memory.fd_ = std::move(fd);
  memory.data_ = data;
  memory.size_ = bytes;
  return memory;
}

Result<UniqueFd> SharedMemory::ReadOnlyFd() const {
  UniqueFd fd(::open(fmt::format("/proc/self/fd/{}", fd_.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return SystemError("cannot open shared memory for reading");
  return fd;
}

}  // namespace gpumux
