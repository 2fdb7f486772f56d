// SPDX-License-Identifier: Apache-2.0
//
// Data is really there: copies, fills and kernels move it, in stream order.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "child.h"
#include "cuda_functions.h"
#include "softgpu/driver/graph_types.h"

namespace gpumux::test {
namespace {

using namespace cuda;

class SoftGpuData : public SoftGpuTest {};

CUstream NewStream(unsigned flags = CU_STREAM_NON_BLOCKING) {
  CUstream stream = nullptr;
  EXPECT_EQ(CU(cuStreamCreate, CUstream*, unsigned)(&stream, flags), CUDA_SUCCESS);
  return stream;
}
CUresult Sync(CUstream stream) { return CU(cuStreamSynchronize, CUstream)(stream); }

TEST_F(SoftGpuData, CopiesAndFillsMoveBytes) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    constexpr size_t kBytes = 3 << 20;
    CUdeviceptr a, b;
    ASSERT_EQ(Alloc(&a, kBytes), CUDA_SUCCESS);
    ASSERT_EQ(Alloc(&b, kBytes), CUDA_SUCCESS);
    std::vector<uint32_t> host(kBytes / 4);
    std::iota(host.begin(), host.end(), 17);
    ASSERT_EQ(ToDevice(a, host.data(), kBytes), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr, size_t)(b, a, kBytes), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemsetD32_v2, CUdeviceptr, unsigned, size_t)(a, 0xabcd1234, 100), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemsetD16_v2, CUdeviceptr, unsigned short, size_t)(a + 400, 0x5678, 2), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemsetD8_v2, CUdeviceptr, unsigned char, size_t)(a + 404, 9, 3), CUDA_SUCCESS);
    std::vector<uint32_t> back(kBytes / 4);
    ASSERT_EQ(FromDevice(back.data(), b, kBytes), CUDA_SUCCESS);
    EXPECT_EQ(back, host);
    ASSERT_EQ(FromDevice(back.data(), a, kBytes), CUDA_SUCCESS);
    EXPECT_EQ(back[0], 0xabcd1234);
    EXPECT_EQ(back[99], 0xabcd1234);
    EXPECT_EQ(back[100], 0x56785678u);
    EXPECT_EQ(back[101], (host[101] & 0xff000000) | 0x090909u);
    EXPECT_EQ(back[102], host[102]);
    // A large fill with zero, which gives memory back, is a fill all the same.
    ASSERT_EQ(CU(cuMemsetD8_v2, CUdeviceptr, unsigned char, size_t)(b + 5, 0, kBytes - 10), CUDA_SUCCESS);
    ASSERT_EQ(FromDevice(back.data(), b, kBytes), CUDA_SUCCESS);
    EXPECT_EQ(back[0], host[0]);
    EXPECT_EQ(back[1], host[1] & 0xff);
    EXPECT_EQ(std::accumulate(back.begin() + 2, back.end() - 2, 0ULL), 0u);
    EXPECT_EQ(back.back(), host.back());
  });
}

TEST_F(SoftGpuData, CopiesToAndFromArrays) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUarray array;
    const CUDA_ARRAY3D_DESCRIPTOR shape = {8, 8, 3, 0x20, 1, 0};
    ASSERT_EQ(CU(cuArray3DCreate_v2, CUarray*, const CUDA_ARRAY3D_DESCRIPTOR*)(&array, &shape), CUDA_SUCCESS);
    std::vector<uint32_t> host(8 * 8 * 3), back(8 * 8 * 3);
    std::iota(host.begin(), host.end(), 1);
    softgpu::Copy3D copy = {};
    copy.from.type = softgpu::kHostMemory;
    copy.from.host = host.data();
    copy.to.type = softgpu::kArrayMemory;
    copy.to.array = array;
    copy.width_bytes = 32;
    copy.height = 8;
    copy.depth = 3;
    const auto copy_volume = CU(cuMemcpy3D_v2, const softgpu::Copy3D*);
    ASSERT_EQ(copy_volume(&copy), CUDA_SUCCESS);
    std::swap(copy.from, copy.to);
    copy.to.host = back.data();
    ASSERT_EQ(copy_volume(&copy), CUDA_SUCCESS);
    EXPECT_EQ(back, host);
    // One row of the second slice, from the third element on.
    copy.from.x_bytes = 8;
    copy.from.y = 4;
    copy.from.z = 1;
    copy.width_bytes = 8;
    copy.height = copy.depth = 1;
    ASSERT_EQ(copy_volume(&copy), CUDA_SUCCESS);
    EXPECT_EQ(back[0], 64u + 32 + 3);
    copy.width_bytes = 28;
    EXPECT_EQ(copy_volume(&copy), CUDA_ERROR_INVALID_VALUE) << "past the end of a row";
    const auto to_array = CU(cuMemcpyHtoA_v2, CUarray, size_t, const void*, size_t);
    EXPECT_EQ(to_array(array, 0, host.data(), 32), CUDA_SUCCESS);
    EXPECT_EQ(to_array(array, 0, host.data(), 64), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(to_array(array, 16, host.data(), 32), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuArrayDestroy, CUarray)(array), CUDA_SUCCESS);
    EXPECT_EQ(to_array(array, 0, host.data(), 32), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(SoftGpuData, StreamMemoryOperations) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUstream s = NewStream(), t = NewStream();
    CUdeviceptr p;
    ASSERT_EQ(Alloc(&p, 64), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemsetD8_v2, CUdeviceptr, unsigned char, size_t)(p, 0, 64), CUDA_SUCCESS);
    ASSERT_EQ(Synchronize(), CUDA_SUCCESS);
    const auto wait = CU(cuStreamWaitValue32_v2, CUstream, CUdeviceptr, uint32_t, unsigned);
    const auto write = CU(cuStreamWriteValue32_v2, CUstream, CUdeviceptr, uint32_t, unsigned);
    const auto wait64 = CU(cuStreamWaitValue64_v2, CUstream, CUdeviceptr, uint64_t, unsigned);
    const auto write64 = CU(cuStreamWriteValue64_v2, CUstream, CUdeviceptr, uint64_t, unsigned);
    ASSERT_EQ(wait(s, p, 7, 1), CUDA_SUCCESS);
    ASSERT_EQ(write64(s, p + 8, 99, 0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamQuery, CUstream)(s), CUDA_ERROR_NOT_READY);
    ASSERT_EQ(write(t, p, 7, 0), CUDA_SUCCESS);
    ASSERT_EQ(wait64(t, p + 8, 98, 0), CUDA_SUCCESS) << "greater or equal";
    EXPECT_EQ(Sync(t), CUDA_SUCCESS);
    EXPECT_EQ(Sync(s), CUDA_SUCCESS);
    uint64_t back = 0;
    ASSERT_EQ(FromDevice(&back, p + 8, 8), CUDA_SUCCESS);
    EXPECT_EQ(back, 99u);
    uint32_t plain = 0;
    uint32_t* pinned = nullptr;
    ASSERT_EQ(CU(cuMemAllocHost_v2, uint32_t**, size_t)(&pinned, 64), CUDA_SUCCESS);
    EXPECT_EQ(write(s, reinterpret_cast<CUdeviceptr>(&plain), 7, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(write(s, reinterpret_cast<CUdeviceptr>(pinned), 7, 0), CUDA_SUCCESS);
    EXPECT_EQ(Sync(s), CUDA_SUCCESS);
    EXPECT_EQ(*pinned, 7u);
    EXPECT_EQ(write(s, p + 2, 7, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(write64(s, p + 4, 7, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(wait(s, 0x1234, 7, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(wait(s, p, 7, 4), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(wait(s, p, 7, 1u << 30), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(write(s, p, 7, 2), CUDA_ERROR_INVALID_VALUE);
    softgpu::StreamMemoryOp operations[3] = {};
    operations[0].value = {softgpu::kWriteValue32, p, 1, 0, 0};
    operations[1].operation = softgpu::kMemoryBarrier;
    operations[2].value = {softgpu::kWaitValue32, p, 1, 1, 0};
    const auto batch = CU(cuStreamBatchMemOp_v2, CUstream, unsigned, softgpu::StreamMemoryOp*, unsigned);
    EXPECT_EQ(batch(s, 3, operations, 0), CUDA_SUCCESS);
    EXPECT_EQ(batch(s, 0, operations, 0), CUDA_SUCCESS);
    EXPECT_EQ(Sync(s), CUDA_SUCCESS);
    operations[0].operation = 77;
    EXPECT_EQ(batch(s, 1, operations, 0), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(SoftGpuData, HugeAllocationsAreSparse) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUdeviceptr p;
    ASSERT_EQ(Alloc(&p, 100ULL << 30), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemsetD8_v2, CUdeviceptr, unsigned char, size_t)(p, 0, 100ULL << 30), CUDA_SUCCESS);
    const uint64_t value = 42;
    uint64_t back = 0;
    ASSERT_EQ(ToDevice(p + (99ULL << 30), &value, 8), CUDA_SUCCESS);
    ASSERT_EQ(FromDevice(&back, p + (99ULL << 30), 8), CUDA_SUCCESS);
    EXPECT_EQ(back, 42u);
    EXPECT_EQ(Free(p), CUDA_SUCCESS);
  });
}

TEST_F(SoftGpuData, AHandleMappedTwiceShowsTheSameBytes) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const auto create =
        CU(cuMemCreate, CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, uint64_t);
    const auto map = CU(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, uint64_t);
    const auto access = CU(cuMemSetAccess, CUdeviceptr, size_t, const CUmemAccessDesc*, size_t);
    const auto unmap = CU(cuMemUnmap, CUdeviceptr, size_t);
    CUmemGenericAllocationHandle one, two;
    ASSERT_EQ(create(&one, 2 << 20, &prop, 0), CUDA_SUCCESS);
    ASSERT_EQ(create(&two, 2 << 20, &prop, 0), CUDA_SUCCESS);
    CUdeviceptr va;
    ASSERT_EQ(
        CU(cuMemAddressReserve, CUdeviceptr*, size_t, size_t, CUdeviceptr, uint64_t)(&va, 8 << 20, 0, 0, 0),
        CUDA_SUCCESS);
    ASSERT_EQ(map(va, 2 << 20, 0, one, 0), CUDA_SUCCESS);
    ASSERT_EQ(map(va + (2 << 20), 2 << 20, 0, two, 0), CUDA_SUCCESS);
    ASSERT_EQ(map(va + (4 << 20), 2 << 20, 0, one, 0), CUDA_SUCCESS);
    const CUmemAccessDesc readwrite = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    ASSERT_EQ(access(va, 6 << 20, &readwrite, 1), CUDA_SUCCESS);
    // Neighbouring mappings are one piece of memory.
    std::vector<char> bytes(4 << 20, 'x');
    bytes.back() = 'y';
    ASSERT_EQ(ToDevice(va, bytes.data(), bytes.size()), CUDA_SUCCESS);
    char c[2] = {};
    ASSERT_EQ(FromDevice(&c[0], va + (4 << 20), 1), CUDA_SUCCESS);
    ASSERT_EQ(FromDevice(&c[1], va + (4 << 20) - 1, 1), CUDA_SUCCESS);
    EXPECT_EQ(c[0], 'x') << "the alias";
    EXPECT_EQ(c[1], 'y');
    // Mapped again after unmapping, the bytes are still there.
    ASSERT_EQ(unmap(va, 6 << 20), CUDA_SUCCESS);
    ASSERT_EQ(map(va, 2 << 20, 0, two, 0), CUDA_SUCCESS);
    ASSERT_EQ(access(va, 2 << 20, &readwrite, 1), CUDA_SUCCESS);
    ASSERT_EQ(FromDevice(&c[0], va + (2 << 20) - 1, 1), CUDA_SUCCESS);
    EXPECT_EQ(c[0], 'y');
    EXPECT_EQ(FromDevice(&c[0], va + (2 << 20), 1), CUDA_ERROR_INVALID_VALUE) << "nothing mapped there";
  });
}

TEST_F(SoftGpuData, UsingMemoryWithoutAccessIsAFault) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemGenericAllocationHandle handle;
    ASSERT_EQ((CU(cuMemCreate, CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, uint64_t)(
                  &handle, 2 << 20, &prop, 0)),
              CUDA_SUCCESS);
    CUdeviceptr va;
    ASSERT_EQ(
        CU(cuMemAddressReserve, CUdeviceptr*, size_t, size_t, CUdeviceptr, uint64_t)(&va, 2 << 20, 0, 0, 0),
        CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, uint64_t)(va, 2 << 20,
                                                                                                0, handle, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(ToDevice(va, "x", 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(Synchronize(), CUDA_ERROR_ILLEGAL_ADDRESS) << "and stays";
  });
}

TEST_F(SoftGpuData, KernelsComputeByName) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    constexpr uint64_t kCount = 100'000;
    CUdeviceptr x, y, out;
    ASSERT_EQ(Alloc(&x, kCount * 4), CUDA_SUCCESS);
    ASSERT_EQ(Alloc(&y, kCount * 4), CUDA_SUCCESS);
    ASSERT_EQ(Alloc(&out, 8), CUDA_SUCCESS);
    uint64_t n = kCount;
    uint32_t value = 0x10001;
    uint64_t sum = 5;
    ASSERT_EQ(ToDevice(out, &sum, 8), CUDA_SUCCESS);
    void* fill[] = {&x, &value, &n};
    void* check[] = {&x, &n, &out};
    ASSERT_EQ(Launch(GetFunction("fill"), 10, 256, nullptr, fill), CUDA_SUCCESS);
    ASSERT_EQ(Launch(GetFunction("checksum"), 10, 256, nullptr, check), CUDA_SUCCESS);
    ASSERT_EQ(FromDevice(&sum, out, 8), CUDA_SUCCESS);
    EXPECT_EQ(sum, 5 + 0x10001ULL * kCount) << "adds to what is there";

    std::vector<float> hx(kCount), hy(kCount), result(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      hx[i] = static_cast<float>(i % 1000);
      hy[i] = static_cast<float>(i % 7);
    }
    ToDevice(x, hx.data(), kCount * 4);
    ToDevice(y, hy.data(), kCount * 4);
    // By a buffer, as the other way to pass parameters.
    struct {
      float a = 3;
      CUdeviceptr x, y;
      uint64_t n = kCount;
    } packed;
    packed.x = x;
    packed.y = y;
    size_t size = sizeof(packed);
    void* extra[] = {reinterpret_cast<void*>(1), &packed, reinterpret_cast<void*>(2), &size, nullptr};
    ASSERT_EQ(
        (CU(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
            CUstream, void**, void**)(GetFunction("saxpy"), 1, 1, 1, 64, 1, 1, 0, nullptr, nullptr, extra)),
        CUDA_SUCCESS);
    ASSERT_EQ(FromDevice(result.data(), y, kCount * 4), CUDA_SUCCESS);
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(result[i], 3 * hx[i] + hy[i]) << i;
  });
}

TEST_F(SoftGpuData, AStreamKeepsItsOrder) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUdeviceptr p;
    ASSERT_EQ(Alloc(&p, 4096), CUDA_SUCCESS);
    CUstream stream = NewStream();
    uint32_t* pinned;
    ASSERT_EQ(CU(cuMemHostAlloc, void**, size_t, unsigned)(reinterpret_cast<void**>(&pinned), 4096, 0),
              CUDA_SUCCESS);
    const auto to = CU(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void*, size_t, CUstream);
    const auto from = CU(cuMemcpyDtoHAsync_v2, void*, CUdeviceptr, size_t, CUstream);
    uint64_t one = 1;
    for (uint32_t round = 1; round <= 50; ++round) {
      // A kernel between that takes a while, a pageable source that changes
      // right after the call, and a fill by a kernel: only order makes it right.
      uint32_t pageable = round;
      ASSERT_EQ(Spin(200'000, stream), CUDA_SUCCESS);
      ASSERT_EQ(to(p, &pageable, 4, stream), CUDA_SUCCESS);
      pageable = 0;
      CUdeviceptr second = p + 4;
      uint32_t value = round * 2;
      void* fill[] = {&second, &value, &one};
      ASSERT_EQ(Launch(GetFunction("fill"), 1, 32, stream, fill), CUDA_SUCCESS);
      ASSERT_EQ(from(pinned + 2 * round, p, 8, stream), CUDA_SUCCESS);
    }
    EXPECT_EQ(CU(cuStreamQuery, CUstream)(stream), CUDA_ERROR_NOT_READY);
    ASSERT_EQ(Sync(stream), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamQuery, CUstream)(stream), CUDA_SUCCESS);
    for (uint32_t round = 1; round <= 50; ++round) {
      EXPECT_EQ(pinned[2 * round], round);
      EXPECT_EQ(pinned[2 * round + 1], round * 2);
    }
  });
}

TEST_F(SoftGpuData, EventsOrderStreamsAndMeasureTime) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUstream a = NewStream(), b = NewStream();
    CUevent start, end;
    const auto create = CU(cuEventCreate, CUevent*, unsigned);
    const auto record = CU(cuEventRecord, CUevent, CUstream);
    ASSERT_EQ(create(&start, 0), CUDA_SUCCESS);
    ASSERT_EQ(create(&end, 0), CUDA_SUCCESS);
    CUdeviceptr p;
    ASSERT_EQ(Alloc(&p, 4), CUDA_SUCCESS);
    uint32_t value = 0;
    ASSERT_EQ(ToDevice(p, &value, 4), CUDA_SUCCESS);
    ASSERT_EQ(record(start, a), CUDA_SUCCESS);
    ASSERT_EQ(Spin(30'000'000, a), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemsetD32Async, CUdeviceptr, unsigned, size_t, CUstream)(p, 77, 1, a), CUDA_SUCCESS);
    ASSERT_EQ(record(end, a), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventQuery, CUevent)(end), CUDA_ERROR_NOT_READY);
    float ms = 0;
    const auto elapsed = CU(cuEventElapsedTime, float*, CUevent, CUevent);
    EXPECT_EQ(elapsed(&ms, start, end), CUDA_ERROR_NOT_READY);
    ASSERT_EQ(CU(cuStreamWaitEvent, CUstream, CUevent, unsigned)(b, end, 0), CUDA_SUCCESS);
    uint32_t* pinned;
    ASSERT_EQ(CU(cuMemHostAlloc, void**, size_t, unsigned)(reinterpret_cast<void**>(&pinned), 4, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemcpyDtoHAsync_v2, void*, CUdeviceptr, size_t, CUstream)(pinned, p, 4, b), CUDA_SUCCESS);
    ASSERT_EQ(Sync(b), CUDA_SUCCESS);
    EXPECT_EQ(*pinned, 77u) << "b waited for a";
    ASSERT_EQ(elapsed(&ms, start, end), CUDA_SUCCESS);
    EXPECT_GE(ms, 30);
    EXPECT_LT(ms, 60);
    EXPECT_EQ(CU(cuEventDestroy_v2, CUevent)(start), CUDA_SUCCESS);
    EXPECT_EQ(record(start, a), CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST_F(SoftGpuData, TheLegacyStreamWaitsForBlockingStreamsAndTheyForIt) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUstream blocking = NewStream(CU_STREAM_DEFAULT), other = NewStream();
    uint32_t* pinned;
    ASSERT_EQ(CU(cuMemHostAlloc, void**, size_t, unsigned)(reinterpret_cast<void**>(&pinned), 64, 0),
              CUDA_SUCCESS);
    CUdeviceptr p;
    ASSERT_EQ(Alloc(&p, 64), CUDA_SUCCESS);
    const auto set = CU(cuMemsetD32Async, CUdeviceptr, unsigned, size_t, CUstream);
    const auto from = CU(cuMemcpyDtoHAsync_v2, void*, CUdeviceptr, size_t, CUstream);
    ASSERT_EQ(set(p, 1, 1, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(Synchronize(), CUDA_SUCCESS);

    ASSERT_EQ(Spin(20'000'000, blocking), CUDA_SUCCESS);
    ASSERT_EQ(set(p, 2, 1, blocking), CUDA_SUCCESS);
    ASSERT_EQ(from(pinned, p, 4, other), CUDA_SUCCESS);        // does not wait
    ASSERT_EQ(from(pinned + 1, p, 4, nullptr), CUDA_SUCCESS);  // waits for `blocking`
    ASSERT_EQ(Spin(20'000'000, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(set(p, 3, 1, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(from(pinned + 2, p, 4, blocking), CUDA_SUCCESS);  // waits for the legacy stream
    ASSERT_EQ(Synchronize(), CUDA_SUCCESS);
    EXPECT_EQ(pinned[0], 1u);
    EXPECT_EQ(pinned[1], 2u);
    EXPECT_EQ(pinned[2], 3u);
  });
}

TEST_F(SoftGpuData, PerThreadStreamsDoNotWaitForEachOther) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUcontext context;
    CU(cuCtxGetCurrent, CUcontext*)(&context);
    ASSERT_EQ(Spin(50'000'000, kPerThreadStream), CUDA_SUCCESS);
    CUresult other = CUDA_ERROR_UNKNOWN, mine = CUDA_SUCCESS;
    std::thread([&] {
      CU(cuCtxSetCurrent, CUcontext)(context);
      other = Sync(kPerThreadStream);
      mine = CU(cuStreamQuery_ptsz, CUstream)(nullptr);
    }).join();
    EXPECT_EQ(other, CUDA_SUCCESS);
    EXPECT_EQ(mine, CUDA_SUCCESS) << "the other thread's is idle";
    EXPECT_EQ(CU(cuStreamQuery, CUstream)(kPerThreadStream), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(Sync(kPerThreadStream), CUDA_SUCCESS);
  });
}

TEST_F(SoftGpuData, HostFunctionsRunInOrderAndMayBlock) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUstream a = NewStream(), b = NewStream();
    static std::atomic<bool> go{false};
    static std::atomic<int> calls{0};
    const auto call = CU(cuLaunchHostFunc, CUstream, void (*)(void*), void*);
    ASSERT_EQ(call(
                  a,
                  [](void*) {
                    while (!go) std::this_thread::yield();
                    ++calls;
                  },
                  nullptr),
              CUDA_SUCCESS);
    ASSERT_EQ(Spin(1'000'000, a), CUDA_SUCCESS);
    // Another stream goes on meanwhile.
    ASSERT_EQ(Spin(1'000'000, b), CUDA_SUCCESS);
    ASSERT_EQ(Sync(b), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamQuery, CUstream)(a), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(calls, 0);
    go = true;
    ASSERT_EQ(Sync(a), CUDA_SUCCESS);
    EXPECT_EQ(calls, 1);
  });
}

TEST_F(SoftGpuData, AFaultEndsTheContextAndNoOther) {
  Child neighbour([](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    step.Report();
    step.Wait();
    EXPECT_EQ(Spin(1'000'000), CUDA_SUCCESS);
    EXPECT_EQ(Synchronize(), CUDA_SUCCESS);
  });
  ASSERT_TRUE(neighbour.WaitReport());
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUdeviceptr p;
    ASSERT_EQ(Launch(GetFunction("fault"), 1, 1, nullptr, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(Synchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(Alloc(&p, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(Spin(1), CUDA_ERROR_ILLEGAL_ADDRESS);
    // A new life after a reset.
    EXPECT_EQ(CU(cuDevicePrimaryCtxReset_v2, int)(0), CUDA_SUCCESS);
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    EXPECT_EQ(Alloc(&p, 1), CUDA_SUCCESS);
  });
  neighbour.Continue();
  EXPECT_EQ(neighbour.Join(), 0);
}

TEST_F(SoftGpuData, ImagesThatAreNoPtxAreRefused) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    const auto load = CU(cuModuleLoadData, CUmodule*, const void*);
    CUmodule module;
    EXPECT_EQ(load(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(load(&module,
                   "\x7f"
                   "ELF\2\1\1"),
              CUDA_ERROR_NO_BINARY_FOR_GPU);
    EXPECT_EQ(load(&module, "\x50\xed\x55\xba\1"), CUDA_ERROR_NO_BINARY_FOR_GPU);
    EXPECT_EQ(load(&module, "hello"), CUDA_ERROR_INVALID_IMAGE);
    EXPECT_EQ(load(&module, ".version 7.8\n.target sm_80\n.visible .entry k( {"), CUDA_ERROR_INVALID_PTX);
    ASSERT_EQ(load(&module, kPtx), CUDA_SUCCESS);
    CUfunction function;
    EXPECT_EQ(CU(cuModuleGetFunction, CUfunction*, CUmodule, const char*)(&function, module, "nobody"),
              CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(Launch(reinterpret_cast<CUfunction>(0x1234), 1, 1, nullptr, nullptr),
              CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(Launch(GetFunction("other"), 1, 1025, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Launch(GetFunction("other"), 0, 1, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Launch(GetFunction("spin"), 1, 1, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE)
        << "no parameters";
    EXPECT_EQ(Launch(GetFunction("other"), 1, 1, nullptr, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(Launch(GetFunction("other"), 1, 1, reinterpret_cast<CUstream>(0x999), nullptr),
              CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(Synchronize(), CUDA_SUCCESS);
  });
}

TEST_F(SoftGpuData, ALaunchReturnsBeforeTheKernelEnds) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    ASSERT_EQ(Spin(1), CUDA_SUCCESS);
    ASSERT_EQ(Synchronize(), CUDA_SUCCESS);
    CUevent start, end;
    const auto record = CU(cuEventRecord, CUevent, CUstream);
    for (CUevent* event : {&start, &end})
      ASSERT_EQ(CU(cuEventCreate, CUevent*, unsigned)(event, 0), CUDA_SUCCESS);
    // All are there before the first of them begins, however busy this machine is.
    ASSERT_EQ(Spin(300'000'000), CUDA_SUCCESS);
    ASSERT_EQ(record(start, nullptr), CUDA_SUCCESS);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(Spin(5'000'000), CUDA_SUCCESS);
    ASSERT_EQ(record(end, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventQuery, CUevent)(end), CUDA_ERROR_NOT_READY);
    ASSERT_EQ(Synchronize(), CUDA_SUCCESS);
    float ms = 0;
    ASSERT_EQ(CU(cuEventElapsedTime, float*, CUevent, CUevent)(&ms, start, end), CUDA_SUCCESS);
    EXPECT_GE(ms, 500);
    EXPECT_LT(ms, 550) << "no gaps between kernels of a stream";
  });
}

}  // namespace
}  // namespace gpumux::test
