// SPDX-License-Identifier: Apache-2.0
//
// Memory and events that processes share. Whose figure the memory is in, and
// when, was recorded on an H200 (driver 580.159.04).
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "child.h"
#include "cuda_functions.h"
#include "ledger.h"

namespace gpumux::test {
namespace {

using namespace cuda;

class SoftGpuSharing : public SoftGpuTest {};

struct Handle {
  char bytes[64];
};

CUresult GetHandle(Handle* out, CUdeviceptr p) { return CU(cuIpcGetMemHandle, Handle*, CUdeviceptr)(out, p); }
CUresult OpenHandle(CUdeviceptr* out, const Handle& handle, unsigned flags = 1) {
  return CU(cuIpcOpenMemHandle_v2, CUdeviceptr*, Handle, unsigned)(out, handle, flags);
}
CUresult CloseHandle(CUdeviceptr p) { return CU(cuIpcCloseMemHandle, CUdeviceptr)(p); }

// Both ends of a socket for messages and descriptors between parent and child.
struct Wire {
  int ends[2];
  Wire() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0); }
  ~Wire() {
    close(ends[0]);
    close(ends[1]);
  }
};
template <typename T>
void Send(int to, const T& data, int fd = -1) {
  iovec part = {const_cast<T*>(&data), sizeof(data)};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  EXPECT_EQ(sendmsg(to, &message, 0), static_cast<ssize_t>(sizeof(data)));
}
template <typename T>
T Receive(int from, int* fd = nullptr) {
  T data = {};
  iovec part = {&data, sizeof(data)};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  EXPECT_EQ(recvmsg(from, &message, 0), static_cast<ssize_t>(sizeof(data)));
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr && fd != nullptr) {
    memcpy(fd, CMSG_DATA(header), sizeof(*fd));
  }
  return data;
}

// The figures of this process and of another, and the device's.
class Figures {
 public:
  explicit Figures(pid_t other) : device_(Gpu0()), other_(other) { Read(); }
  void Expect(const char* what, long long own, long long other, long long used) {
    const Figures before = *this;
    // A descriptor that was closed is noticed a moment later.
    Eventually([&] {
      Read();
      return own_ - before.own_ == own && theirs_ - before.theirs_ == other && used_ - before.used_ == used;
    });
    EXPECT_EQ(own_ - before.own_, own) << what;
    EXPECT_EQ(theirs_ - before.theirs_, other) << what << ", of the other process";
    EXPECT_EQ(used_ - before.used_, used) << what << ", of the device";
  }
  long long theirs() const { return theirs_; }

 private:
  void Read() {
    own_ = OwnBytes(device_, getpid());
    theirs_ = OwnBytes(device_, other_);
    used_ = static_cast<long long>(ReadMemory(device_).used);
  }
  nvml::nvmlDevice_t device_;
  pid_t other_;
  long long own_ = 0, theirs_ = 0, used_ = 0;
};

TEST_F(SoftGpuSharing, PlainMemory) {
  Wire wire;
  // The importer.
  Child child([&](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    step.Report();
    const auto small = Receive<Handle>(wire.ends[1]);
    const auto second = Receive<Handle>(wire.ends[1]);
    const auto large = Receive<Handle>(wire.ends[1]);
    CUdeviceptr a, b, c, again;
    uint32_t value = 0;
    ASSERT_EQ(OpenHandle(&a, small), CUDA_SUCCESS);
    ASSERT_EQ(OpenHandle(&b, second), CUDA_SUCCESS);
    EXPECT_EQ(b - a, 1024u) << "pieces of one slab";
    ASSERT_EQ(FromDevice(&value, a, 4), CUDA_SUCCESS);
    EXPECT_EQ(value, 5u);
    CUdeviceptr base;
    size_t bytes;
    EXPECT_EQ((CU(cuMemGetAddressRange_v2, CUdeviceptr*, size_t*, CUdeviceptr)(&base, &bytes, b + 4)),
              CUDA_SUCCESS);
    EXPECT_EQ(base, b);
    EXPECT_EQ(bytes, 1000u);
    ASSERT_EQ(OpenHandle(&c, large), CUDA_SUCCESS);
    ASSERT_EQ(OpenHandle(&again, large), CUDA_SUCCESS);
    EXPECT_EQ(again, c);
    ASSERT_EQ(FromDevice(&value, c + (9 << 20), 4), CUDA_SUCCESS);
    EXPECT_EQ(value, 9u);
    value = 10;
    ASSERT_EQ(ToDevice(c + (9 << 20), &value, 4), CUDA_SUCCESS);
    EXPECT_EQ(Free(c), CUDA_ERROR_INVALID_VALUE) << "it is not ours to free";
    step.Report();
    step.Wait();
    EXPECT_EQ(CloseHandle(c), CUDA_SUCCESS);
    ASSERT_EQ(FromDevice(&value, c, 4), CUDA_SUCCESS) << "opened twice, closed once";
    step.Report();
    step.Wait();
    EXPECT_EQ(CloseHandle(c), CUDA_SUCCESS);
    EXPECT_EQ(CloseHandle(c), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(FromDevice(&value, c, 4), CUDA_ERROR_INVALID_VALUE);
    step.Report();
    step.Wait();
    EXPECT_EQ(CloseHandle(a), CUDA_SUCCESS);
    EXPECT_EQ(CloseHandle(b), CUDA_SUCCESS);
    step.Report();
    step.Wait();
  });
  Child parent([&](const Child::Step&) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    ASSERT_TRUE(child.WaitReport());
    Figures figures(child.pid());
    CUdeviceptr a, b, c;
    ASSERT_EQ(Alloc(&a, 1000), CUDA_SUCCESS);
    ASSERT_EQ(Alloc(&b, 1000), CUDA_SUCCESS);
    ASSERT_EQ(Alloc(&c, 10 << 20), CUDA_SUCCESS);
    uint32_t value = 5;
    ASSERT_EQ(ToDevice(a, &value, 4), CUDA_SUCCESS);
    value = 9;
    ASSERT_EQ(ToDevice(c + (9 << 20), &value, 4), CUDA_SUCCESS);
    figures.Expect("allocated", 12 * kMiB, 0, 12 * kMiB);
    Handle small, second, large, inner;
    ASSERT_EQ(GetHandle(&small, a), CUDA_SUCCESS);
    ASSERT_EQ(GetHandle(&second, b), CUDA_SUCCESS);
    ASSERT_EQ(GetHandle(&large, c), CUDA_SUCCESS);
    ASSERT_EQ(GetHandle(&inner, b + 16), CUDA_SUCCESS);
    EXPECT_EQ(memcmp(&inner, &second, sizeof(inner)), 0) << "a pointer means its allocation";
    CUdeviceptr own, managed;
    EXPECT_EQ(OpenHandle(&own, large), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(OpenHandle(&own, large, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(CU(cuMemAllocManaged, CUdeviceptr*, size_t, unsigned)(&managed, 100, 1), CUDA_SUCCESS);
    EXPECT_EQ(GetHandle(&inner, managed), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(GetHandle(&inner, 0x1234), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CloseHandle(c), CUDA_ERROR_INVALID_VALUE);
    figures.Expect("handles", 0, 0, 0);
    Send(wire.ends[0], small);
    Send(wire.ends[0], second);
    Send(wire.ends[0], large);
    ASSERT_TRUE(child.WaitReport());
    figures.Expect("opened", 0, 0, 0);
    ASSERT_EQ(FromDevice(&value, c + (9 << 20), 4), CUDA_SUCCESS);
    EXPECT_EQ(value, 10u) << "both see the same bytes";
    // A piece that is freed and a large fill with zero, in memory that is shared.
    ASSERT_EQ((CU(cuMemsetD8_v2, CUdeviceptr, unsigned char, size_t)(c, 0, 10 << 20)), CUDA_SUCCESS);
    ASSERT_EQ(FromDevice(&value, c + (9 << 20), 4), CUDA_SUCCESS);
    EXPECT_EQ(value, 0u);
    child.Continue();
    ASSERT_TRUE(child.WaitReport());
    figures.Expect("closed one of two", 0, 0, 0);
    EXPECT_EQ(Free(c), CUDA_SUCCESS);
    figures.Expect("freed while another has it", -10 * kMiB, 10 * kMiB, 0);
    child.Continue();
    ASSERT_TRUE(child.WaitReport());
    figures.Expect("closed", 0, -10 * kMiB, -10 * kMiB);
    EXPECT_EQ(Free(a), CUDA_SUCCESS);
    EXPECT_EQ(Free(b), CUDA_SUCCESS);
    figures.Expect("the slab", -2 * kMiB, 2 * kMiB, 0);
    child.Continue();
    ASSERT_TRUE(child.WaitReport());
    figures.Expect("closed both", 0, -2 * kMiB, -2 * kMiB);
  });
  EXPECT_EQ(parent.Join(), 0);
  child.Continue();
  EXPECT_EQ(child.Join(), 0);
}

TEST_F(SoftGpuSharing, MemoryOutlivesTheProcessThatMadeIt) {
  Wire wire;
  Child maker([&](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUdeviceptr p;
    ASSERT_EQ(Alloc(&p, 100 << 20), CUDA_SUCCESS);
    const uint32_t value = 42;
    ASSERT_EQ(ToDevice(p, &value, 4), CUDA_SUCCESS);
    Handle handle;
    ASSERT_EQ(GetHandle(&handle, p), CUDA_SUCCESS);
    Send(wire.ends[0], handle);
    step.Report();
    step.Wait();
  });
  ASSERT_TRUE(maker.WaitReport());
  InChild([&] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    Figures figures(maker.pid());
    CUdeviceptr p;
    ASSERT_EQ(OpenHandle(&p, Receive<Handle>(wire.ends[1])), CUDA_SUCCESS);
    figures.Expect("opened", 0, 0, 0);
    const long long theirs = figures.theirs();
    maker.Kill();
    const auto device = Gpu0();
    const pid_t dead = maker.pid();
    EXPECT_TRUE(Eventually([&] { return OwnBytes(device, dead) == -1; }));
    // It has lost its context as well, and is not listed: -1.
    figures.Expect("its maker has died", 100 * kMiB, -1 - theirs, -548'995'072);
    uint32_t value = 0;
    ASSERT_EQ(FromDevice(&value, p, 4), CUDA_SUCCESS);
    EXPECT_EQ(value, 42u);
    EXPECT_EQ(CloseHandle(p), CUDA_SUCCESS);
    figures.Expect("closed", -100 * kMiB, 0, -100 * kMiB);
  });
}

TEST_F(SoftGpuSharing, HandlesByDescriptor) {
  Wire wire;
  Child child([&](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    step.Report();
    const auto import = CU(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle*, intptr_t, int);
    const auto release = CU(cuMemRelease, CUmemGenericAllocationHandle);
    CUdeviceptr va;
    ASSERT_EQ(
        (CU(cuMemAddressReserve, CUdeviceptr*, size_t, size_t, CUdeviceptr, uint64_t)(&va, 6 << 20, 0, 0, 0)),
        CUDA_SUCCESS);
    for (int round = 0; round < 2; ++round) {
      int fd = -1;
      Receive<int>(wire.ends[1], &fd);
      CUmemGenericAllocationHandle handle = 0;
      ASSERT_EQ(import(&handle, fd, 1), CUDA_SUCCESS);
      close(fd);
      ASSERT_EQ((CU(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, uint64_t)(
                    va, 6 << 20, 0, handle, 0)),
                CUDA_SUCCESS);
      const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
      ASSERT_EQ(
          (CU(cuMemSetAccess, CUdeviceptr, size_t, const CUmemAccessDesc*, size_t)(va, 6 << 20, &access, 1)),
          CUDA_SUCCESS);
      uint32_t value = 0;
      ASSERT_EQ(FromDevice(&value, va + 4096, 4), CUDA_SUCCESS);
      EXPECT_EQ(value, round == 0 ? 77u : 0u);
      step.Report();
      step.Wait();
      EXPECT_EQ(CU(cuMemUnmap, CUdeviceptr, size_t)(va, 6 << 20), CUDA_SUCCESS);
      EXPECT_EQ(release(handle), CUDA_SUCCESS);
      step.Report();
      step.Wait();
    }
  });
  Child parent([&](const Child::Step&) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    ASSERT_TRUE(child.WaitReport());
    Figures figures(child.pid());
    const auto create =
        CU(cuMemCreate, CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, uint64_t);
    const auto release = CU(cuMemRelease, CUmemGenericAllocationHandle);
    const auto give =
        CU(cuMemExportToShareableHandle, int*, CUmemGenericAllocationHandle, int, unsigned long long);
    const auto import = CU(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle*, intptr_t, int);
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemGenericAllocationHandle handle = 0, second = 0;
    int fd = -1;
    ASSERT_EQ(create(&handle, 6 << 20, &prop, 0), CUDA_SUCCESS);
    EXPECT_EQ(give(&fd, handle, 1, 0), CUDA_ERROR_INVALID_VALUE) << "not asked for when it was made";
    ASSERT_EQ(release(handle), CUDA_SUCCESS);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    ASSERT_EQ(create(&handle, 6 << 20, &prop, 0), CUDA_SUCCESS);
    figures.Expect("created", 6 * kMiB, 0, 6 * kMiB);
    CUdeviceptr va;
    ASSERT_EQ(
        (CU(cuMemAddressReserve, CUdeviceptr*, size_t, size_t, CUdeviceptr, uint64_t)(&va, 6 << 20, 0, 0, 0)),
        CUDA_SUCCESS);
    ASSERT_EQ((CU(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, uint64_t)(
                  va, 6 << 20, 0, handle, 0)),
              CUDA_SUCCESS);
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    ASSERT_EQ(
        (CU(cuMemSetAccess, CUdeviceptr, size_t, const CUmemAccessDesc*, size_t)(va, 6 << 20, &access, 1)),
        CUDA_SUCCESS);
    const uint32_t value = 77;
    ASSERT_EQ(ToDevice(va + 4096, &value, 4), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemUnmap, CUdeviceptr, size_t)(va, 6 << 20), CUDA_SUCCESS);
    ASSERT_EQ(give(&fd, handle, 1, 0), CUDA_SUCCESS);
    ASSERT_EQ(import(&second, fd, 1), CUDA_SUCCESS);
    EXPECT_NE(second, handle);
    EXPECT_EQ(release(second), CUDA_SUCCESS);
    EXPECT_EQ(import(&second, 0, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(import(&second, 12345, 1), CUDA_ERROR_INVALID_VALUE);
    figures.Expect("exported and imported here", 0, 0, 0);
    Send(wire.ends[0], 0, fd);
    ASSERT_TRUE(child.WaitReport());
    figures.Expect("imported there", 0, 0, 0);
    EXPECT_EQ(release(handle), CUDA_SUCCESS);
    figures.Expect("released, with an open descriptor", -6 * kMiB, 0, 0);
    child.Continue();
    ASSERT_TRUE(child.WaitReport());
    figures.Expect("released there", 0, 0, 0);
    close(fd);
    figures.Expect("the descriptor was the last", 0, 0, -6 * kMiB);

    // A descriptor alone keeps memory; whoever imports it has it then.
    ASSERT_EQ(create(&handle, 6 << 20, &prop, 0), CUDA_SUCCESS);
    ASSERT_EQ(give(&fd, handle, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(release(handle), CUDA_SUCCESS);
    figures.Expect("only a descriptor", 0, 0, 6 * kMiB);
    child.Continue();
    Send(wire.ends[0], 0, fd);
    ASSERT_TRUE(child.WaitReport());
    figures.Expect("imported there", 0, 0, 0);
    close(fd);
    figures.Expect("descriptor closed", 0, 6 * kMiB, 0);
    child.Continue();
    ASSERT_TRUE(child.WaitReport());
    figures.Expect("released there", 0, -6 * kMiB, -6 * kMiB);
  });
  EXPECT_EQ(parent.Join(), 0);
  child.Continue();
  EXPECT_EQ(child.Join(), 0);
}

TEST_F(SoftGpuSharing, PoolsAndTheirPointers) {
  Wire wire;
  Child child([&](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    step.Report();
    int fd = -1;
    const auto data = Receive<Handle>(wire.ends[1], &fd);
    CUmemoryPool pool;
    ASSERT_EQ((CU(cuMemPoolImportFromShareableHandle, CUmemoryPool*, intptr_t, int, unsigned long long)(
                  &pool, fd, 1, 0)),
              CUDA_SUCCESS);
    close(fd);
    CUdeviceptr p;
    EXPECT_EQ(
        (CU(cuMemAllocFromPoolAsync, CUdeviceptr*, size_t, CUmemoryPool, CUstream)(&p, 100, pool, nullptr)),
        CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ((CU(cuMemPoolImportPointer, CUdeviceptr*, CUmemoryPool, const Handle*)(&p, pool, &data)),
              CUDA_SUCCESS);
    uint32_t value = 0;
    ASSERT_EQ(FromDevice(&value, p, 4), CUDA_SUCCESS);
    EXPECT_EQ(value, 31u);
    step.Report();
    step.Wait();
    EXPECT_EQ(CU(cuMemFreeAsync, CUdeviceptr, CUstream)(p, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(Synchronize(), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemPoolDestroy, CUmemoryPool)(pool), CUDA_SUCCESS);
    step.Report();
    step.Wait();
  });
  Child parent([&](const Child::Step&) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    ASSERT_TRUE(child.WaitReport());
    Figures figures(child.pid());
    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemoryPool pool;
    ASSERT_EQ(CU(cuMemPoolCreate, CUmemoryPool*, const CUmemPoolProps*)(&pool, &props), CUDA_SUCCESS);
    CUdeviceptr p;
    ASSERT_EQ((CU(cuMemAllocFromPoolAsync, CUdeviceptr*, size_t, CUmemoryPool, CUstream)(&p, 5 << 20, pool,
                                                                                         nullptr)),
              CUDA_SUCCESS);
    const uint32_t value = 31;
    ASSERT_EQ(ToDevice(p, &value, 4), CUDA_SUCCESS);
    figures.Expect("allocated", 32 * kMiB, 0, 32 * kMiB);
    int fd = -1;
    ASSERT_EQ(
        (CU(cuMemPoolExportToShareableHandle, int*, CUmemoryPool, int, unsigned long long)(&fd, pool, 1, 0)),
        CUDA_SUCCESS);
    Handle data;
    ASSERT_EQ(CU(cuMemPoolExportPointer, Handle*, CUdeviceptr)(&data, p), CUDA_SUCCESS);
    Send(wire.ends[0], data, fd);
    ASSERT_TRUE(child.WaitReport());
    figures.Expect("imported", 0, 0, 0);
    EXPECT_EQ(CU(cuMemFreeAsync, CUdeviceptr, CUstream)(p, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(Synchronize(), CUDA_SUCCESS);
    figures.Expect("freed here", -32 * kMiB, 0, 0);
    EXPECT_EQ(CU(cuMemPoolDestroy, CUmemoryPool)(pool), CUDA_SUCCESS);
    figures.Expect("destroyed here", 0, 0, 0);
    child.Continue();
    ASSERT_TRUE(child.WaitReport());
    figures.Expect("freed there", 0, 0, 0);
    close(fd);
    figures.Expect("the descriptor was the last", 0, 0, -32 * kMiB);
  });
  EXPECT_EQ(parent.Join(), 0);
  child.Continue();
  EXPECT_EQ(child.Join(), 0);
}

TEST_F(SoftGpuSharing, EventsOfAnotherProcess) {
  Wire wire;
  Child child([&](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUevent event;
    ASSERT_EQ(CU(cuIpcOpenEventHandle, CUevent*, Handle)(&event, Receive<Handle>(wire.ends[1])),
              CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventQuery, CUevent)(event), CUDA_ERROR_NOT_READY);
    CUstream stream;
    ASSERT_EQ(CU(cuStreamCreate, CUstream*, unsigned)(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamWaitEvent, CUstream, CUevent, unsigned)(stream, event, 0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamQuery, CUstream)(stream), CUDA_ERROR_NOT_READY);
    step.Report();
    EXPECT_EQ(CU(cuStreamSynchronize, CUstream)(stream), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventQuery, CUevent)(event), CUDA_SUCCESS);
  });
  Child parent([&](const Child::Step&) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    const auto create = CU(cuEventCreate, CUevent*, unsigned);
    CUevent event, plain, none;
    EXPECT_EQ(create(&event, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(create(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(create(&plain, 0), CUDA_SUCCESS);
    Handle handle;
    const auto get = CU(cuIpcGetEventHandle, Handle*, CUevent);
    EXPECT_EQ(get(&handle, plain), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_EQ(get(&handle, event), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuIpcOpenEventHandle, CUevent*, Handle)(&none, handle), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(CU(cuEventQuery, CUevent)(event), CUDA_SUCCESS);
    // The stream waits for a word that is written once the other process waits.
    CUdeviceptr word;
    ASSERT_EQ(Alloc(&word, 64), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemsetD8_v2, CUdeviceptr, unsigned char, size_t)(word, 0, 64), CUDA_SUCCESS);
    ASSERT_EQ(Synchronize(), CUDA_SUCCESS);
    CUstream stream, other;
    ASSERT_EQ(CU(cuStreamCreate, CUstream*, unsigned)(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamCreate, CUstream*, unsigned)(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ((CU(cuStreamWaitValue32_v2, CUstream, CUdeviceptr, uint32_t, unsigned)(stream, word, 1, 1)),
              CUDA_SUCCESS);
    ASSERT_EQ(CU(cuEventRecord, CUevent, CUstream)(event, stream), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventQuery, CUevent)(event), CUDA_ERROR_NOT_READY);
    Send(wire.ends[0], handle);
    ASSERT_TRUE(child.WaitReport());
    ASSERT_EQ((CU(cuStreamWriteValue32_v2, CUstream, CUdeviceptr, uint32_t, unsigned)(other, word, 1, 0)),
              CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventSynchronize, CUevent)(event), CUDA_SUCCESS);
  });
  EXPECT_EQ(parent.Join(), 0);
  EXPECT_EQ(child.Join(), 0);
}

}  // namespace
}  // namespace gpumux::test
