// SPDX-License-Identifier: Apache-2.0
#include "base/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace gpumux {
namespace {

TEST(SharedMemory, AReaderSeesWritesAndCannotMapForWriting) {
  auto memory = SharedMemory::Create("test", 65536, SharedMemory::Others::kMayOnlyRead);
  ASSERT_TRUE(memory) << memory.error().message;
  auto fd = memory->ReadOnlyFd();
  ASSERT_TRUE(fd);
  const int raw = fd->get();
  auto reader = SharedMemory::Map(std::move(*fd), 65536, false);
  ASSERT_TRUE(reader) << reader.error().message;
  memory->as<int>()[3] = 42;
  EXPECT_EQ(reader->as<const int>()[3], 42);

  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, raw, 0), MAP_FAILED);
  // Nor by opening the descriptor again for writing.
  const int reopened = ::open(("/proc/self/fd/" + std::to_string(raw)).c_str(), O_RDWR);
  ASSERT_GE(reopened, 0);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, reopened, 0), MAP_FAILED);
  EXPECT_EQ(::pwrite(reopened, "x", 1, 0), -1);
  ::close(reopened);
}

TEST(SharedMemory, NobodyCanTruncateIt) {
  auto memory = SharedMemory::Create("test", 65536, SharedMemory::Others::kMayWrite);
  ASSERT_TRUE(memory);
  EXPECT_EQ(::ftruncate(memory->read_write(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  auto writer = SharedMemory::Map(UniqueFd(::dup(memory->read_write())), 65536, true);
  ASSERT_TRUE(writer);
  writer->as<int>()[0] = 7;
  EXPECT_EQ(memory->as<int>()[0], 7);
}

TEST(SharedMemory, APeersUnsealedOrWronglySizedDescriptorIsRefused) {
  UniqueFd plain(::memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(plain.get(), 65536), 0);
  EXPECT_EQ(SharedMemory::Map(std::move(plain), 65536, true).error().code, Code::kInvalid);
  EXPECT_EQ(SharedMemory::Map(UniqueFd(::open("/dev/null", O_RDWR)), 65536, true).error().code,
            Code::kInvalid);
  auto small = SharedMemory::Create("small", 4096, SharedMemory::Others::kMayWrite);
  EXPECT_EQ(SharedMemory::Map(UniqueFd(::dup(small->read_write())), 65536, true).error().code,
            Code::kInvalid);
}

TEST(SharedMemory, AViewThatIsTooLargeIsNull) {
  auto memory = SharedMemory::Create("test", 4096, SharedMemory::Others::kMayWrite);
  struct Large {
    char bytes[4097];
  };
  EXPECT_EQ(memory->as<Large>(), nullptr);
}

}  // namespace
}  // namespace gpumux
