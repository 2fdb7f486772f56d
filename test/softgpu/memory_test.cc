// SPDX-License-Identifier: Apache-2.0
//
// What each way to take memory takes, in the process's own figure and in the
// device's: the deltas of a recording on an H200 (driver 580.159.04).
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "child.h"
#include "cuda_functions.h"
#include "ledger.h"

namespace gpumux::test {
namespace {

using namespace cuda;

class SoftGpuMemory : public SoftGpuTest {};

TEST_F(SoftGpuMemory, Contexts) {
  InChild([] {
    const auto device = Gpu0();
    EXPECT_EQ(ReadMemory(device).used, 0u);
    EXPECT_EQ(ReadMemory(device).free, 150'109'880'320u);
    ASSERT_EQ(CU(cuInit, unsigned)(0), CUDA_SUCCESS);
    EXPECT_EQ(OwnBytes(device, getpid()), -1) << "no context before the first retain";
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    Ledger ledger;
    EXPECT_EQ(ledger.own(), 543'162'368);
    EXPECT_EQ(ledger.used(), 552'402'944);
    CUcontext second;
    ASSERT_EQ(CU(cuCtxCreate_v4, CUcontext*, void*, unsigned, int)(&second, nullptr, 0, 0), CUDA_SUCCESS);
    ledger.Expect("second context", 543'162'368, 548'995'072);
    ASSERT_EQ(CU(cuCtxDestroy_v2, CUcontext)(second), CUDA_SUCCESS);
    CUcontext primary;
    ASSERT_EQ(CU(cuDevicePrimaryCtxRetain, CUcontext*, int)(&primary, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxSetCurrent, CUcontext)(primary), CUDA_SUCCESS);
    ledger.Expect("destroyed", -543'162'368, -548'995'072);
    ASSERT_EQ(CU(cuDevicePrimaryCtxReset_v2, int)(0), CUDA_SUCCESS);
    EXPECT_EQ(OwnBytes(device, getpid()), -1) << "a reset leaves nothing";
    EXPECT_EQ(ReadMemory(device).used, 3'407'872u);
    size_t free, total;
    EXPECT_EQ(CU(cuMemGetInfo_v2, size_t*, size_t*)(&free, &total), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  });
}

TEST_F(SoftGpuMemory, Plain) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    Ledger ledger;
    const struct {
      size_t bytes;
      long long first, second;
    } cases[] = {{1, 2 * kMiB, 0},
                 {513, 2 * kMiB, 0},
                 {1 << 20, 2 * kMiB, 0},
                 {(1 << 20) + 1, 2 * kMiB, 2 * kMiB},
                 {2 << 20, 2 * kMiB, 2 * kMiB},
                 {(2 << 20) + 1, 4 * kMiB, 4 * kMiB},
                 {100'000'000, 100'663'296, 100'663'296},
                 {(1u << 30) + 1, 1'075'838'976, 1'075'838'976}};
    for (const auto& c : cases) {
      CUdeviceptr a, b;
      ASSERT_EQ(Alloc(&a, c.bytes), CUDA_SUCCESS);
      ledger.Expect("first", c.first);
      ASSERT_EQ(Alloc(&b, c.bytes), CUDA_SUCCESS);
      ledger.Expect("second", c.second);
      EXPECT_EQ(a >> 21 == b >> 21, c.second == 0) << "pieces of one slab share it";
      EXPECT_EQ(Free(b), CUDA_SUCCESS);
      ledger.Expect("second freed", -c.second);
      EXPECT_EQ(Free(a), CUDA_SUCCESS);
      ledger.Expect("first freed", -c.first);
    }
    std::vector<CUdeviceptr> pieces(5000);
    std::set<CUdeviceptr> slabs;
    for (auto& piece : pieces) {
      ASSERT_EQ(Alloc(&piece, 513), CUDA_SUCCESS);
      slabs.insert(piece >> 21);
    }
    ledger.Expect("5000 x 513", 6 * kMiB);
    EXPECT_EQ(slabs.size(), 3u);
    for (auto piece : pieces) EXPECT_EQ(Free(piece), CUDA_SUCCESS);
    ledger.Expect("freed", -6 * kMiB);

    CUdeviceptr pitched;
    size_t pitch = 0;
    ASSERT_EQ(CU(cuMemAllocPitch_v2, CUdeviceptr*, size_t*, size_t, size_t, unsigned)(&pitched, &pitch,
                                                                                      100'000, 3000, 16),
              CUDA_SUCCESS);
    EXPECT_EQ(pitch, 100'352u);
    ledger.Expect("pitched", 301'989'888);
    EXPECT_EQ(Free(pitched), CUDA_SUCCESS);
    ledger.Expect("freed", -301'989'888);
  });
}

TEST_F(SoftGpuMemory, StreamOrdered) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUstream stream;
    ASSERT_EQ(CU(cuStreamCreate, CUstream*, unsigned)(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CUmemoryPool pool;
    ASSERT_EQ(CU(cuDeviceGetDefaultMemPool, CUmemoryPool*, int)(&pool, 0), CUDA_SUCCESS);
    Ledger ledger;
    const auto alloc = CU(cuMemAllocAsync, CUdeviceptr*, size_t, CUstream);
    const auto free = CU(cuMemFreeAsync, CUdeviceptr, CUstream);
    const auto sync = CU(cuStreamSynchronize, CUstream);
    const auto reserved = [&] {
      uint64_t value = 0;
      EXPECT_EQ(CU(cuMemPoolGetAttribute, CUmemoryPool, int, void*)(
                    pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value),
                CUDA_SUCCESS);
      return static_cast<long long>(value);
    };
    const struct {
      size_t bytes;
      long long taken;
    } cases[] = {{1, 32 * kMiB}, {31 << 20, 32 * kMiB}, {33 << 20, 64 * kMiB}, {(1u << 30) + 1, 1056 * kMiB}};
    for (const auto& c : cases) {
      CUdeviceptr p;
      ASSERT_EQ(alloc(&p, c.bytes, stream), CUDA_SUCCESS);
      ledger.Expect("alloc", c.taken);
      EXPECT_EQ(reserved(), c.taken);
      ASSERT_EQ(free(p, stream), CUDA_SUCCESS);
      ledger.Expect("a free keeps it", 0);
      ASSERT_EQ(sync(stream), CUDA_SUCCESS);
      ledger.Expect("a synchronise returns it", -c.taken);
    }
    CUdeviceptr ten, thirty, five;
    ASSERT_EQ(alloc(&ten, 10 << 20, stream), CUDA_SUCCESS);
    ASSERT_EQ(alloc(&thirty, 30 << 20, stream), CUDA_SUCCESS);
    ledger.Expect("10 + 30 MiB", 64 * kMiB);
    free(ten, stream);
    sync(stream);
    ledger.Expect("10 freed", 0);
    ASSERT_EQ(alloc(&five, 5 << 20, stream), CUDA_SUCCESS);
    ledger.Expect("5 MiB", 0);
    ASSERT_EQ(Free(thirty), CUDA_SUCCESS);
    ledger.Expect("cuMemFree(30)", -32 * kMiB);
    free(five, stream);
    sync(stream);
    ledger.Expect("all freed", -32 * kMiB);

    uint64_t threshold = ~0ULL;
    const auto set = CU(cuMemPoolSetAttribute, CUmemoryPool, int, void*);
    ASSERT_EQ(set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), CUDA_SUCCESS);
    ASSERT_EQ(alloc(&ten, 100 << 20, stream), CUDA_SUCCESS);
    free(ten, stream);
    sync(stream);
    ledger.Expect("kept below the threshold", 128 * kMiB);
    // A plain allocation that needs them gets them.
    CUdeviceptr big;
    const auto rest = static_cast<size_t>(150'109'880'320 - ledger.used()) / (2 << 20) * (2 << 20);
    ASSERT_EQ(Alloc(&big, rest), CUDA_SUCCESS);
    EXPECT_EQ(reserved(), 0);
    EXPECT_EQ(Free(big), CUDA_SUCCESS);
    ledger.Expect("pool given up", -128 * kMiB);

    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool own;
    ASSERT_EQ(CU(cuMemPoolCreate, CUmemoryPool*, const CUmemPoolProps*)(&own, &props), CUDA_SUCCESS);
    CUdeviceptr p;
    const auto from = CU(cuMemAllocFromPoolAsync, CUdeviceptr*, size_t, CUmemoryPool, CUstream);
    ASSERT_EQ(from(&p, 5 << 20, own, stream), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemPoolDestroy, CUmemoryPool)(own), CUDA_SUCCESS);
    ledger.Expect("a destroyed pool waits for its allocations", 32 * kMiB);
    EXPECT_EQ(from(&p, 1, own, stream), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(free(p, stream), CUDA_SUCCESS);
    sync(stream);
    ledger.Expect("and goes with them", -32 * kMiB);
  });
}

TEST_F(SoftGpuMemory, AStreamReusesWhatItFreesItself) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUstream stream;
    ASSERT_EQ(CU(cuStreamCreate, CUstream*, unsigned)(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(Spin(1), CUDA_SUCCESS);
    ASSERT_EQ(Synchronize(), CUDA_SUCCESS);
    Ledger ledger;
    for (int i = 0; i < 50; ++i) {
      CUdeviceptr p;
      ASSERT_EQ(CU(cuMemAllocAsync, CUdeviceptr*, size_t, CUstream)(&p, 20 << 20, stream), CUDA_SUCCESS);
      ASSERT_EQ(Spin(2'000'000, stream), CUDA_SUCCESS);
      ASSERT_EQ(CU(cuMemFreeAsync, CUdeviceptr, CUstream)(p, stream), CUDA_SUCCESS);
    }
    ledger.Expect("one place for all", 32 * kMiB);
    ASSERT_EQ(CU(cuStreamSynchronize, CUstream)(stream), CUDA_SUCCESS);
    ledger.Expect("synchronised", -32 * kMiB);
  });
}

TEST_F(SoftGpuMemory, VirtualMemory) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    Ledger ledger;
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const auto create =
        CU(cuMemCreate, CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, uint64_t);
    const auto release = CU(cuMemRelease, CUmemGenericAllocationHandle);
    const auto map = CU(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, uint64_t);
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(create(&handle, 1 << 20, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(create(&handle, 200ULL << 30, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ledger.Expect("refused", 0);
    ASSERT_EQ(create(&handle, 6 << 20, &prop, 0), CUDA_SUCCESS);
    ledger.Expect("create", 6 * kMiB);
    CUdeviceptr va;
    ASSERT_EQ(
        CU(cuMemAddressReserve, CUdeviceptr*, size_t, size_t, CUdeviceptr, uint64_t)(&va, 64 << 20, 0, 0, 0),
        CUDA_SUCCESS);
    ASSERT_EQ(map(va, 6 << 20, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(map(va + (2 << 20), 6 << 20, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "taken";
    EXPECT_EQ(map(va + (60 << 20), 6 << 20, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "past the end";
    ledger.Expect("map", 0);
    EXPECT_EQ(CU(cuMemUnmap, CUdeviceptr, size_t)(va, 4 << 20), CUDA_ERROR_INVALID_VALUE)
        << "a part of a mapping";
    EXPECT_EQ(CU(cuMemUnmap, CUdeviceptr, size_t)(va, 6 << 20), CUDA_SUCCESS);
    ledger.Expect("unmap", 0);
    EXPECT_EQ(release(handle), CUDA_SUCCESS);
    ledger.Expect("release", -6 * kMiB);
  });
}

TEST_F(SoftGpuMemory, AHandleLivesUntilItsLastUse) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    Ledger ledger;
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const auto release = CU(cuMemRelease, CUmemGenericAllocationHandle);
    CUmemGenericAllocationHandle handle = 0, again = 0;
    ASSERT_EQ((CU(cuMemCreate, CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, uint64_t)(
                  &handle, 6 << 20, &prop, 0)),
              CUDA_SUCCESS);
    CUdeviceptr va;
    ASSERT_EQ(
        CU(cuMemAddressReserve, CUdeviceptr*, size_t, size_t, CUdeviceptr, uint64_t)(&va, 64 << 20, 0, 0, 0),
        CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, uint64_t)(va, 6 << 20,
                                                                                                0, handle, 0),
              CUDA_SUCCESS);
    ledger.Expect("created", 6 * kMiB);
    EXPECT_EQ(release(handle), CUDA_SUCCESS);
    ledger.Expect("released while mapped", 0);
    ASSERT_EQ(CU(cuMemRetainAllocationHandle, CUmemGenericAllocationHandle*, void*)(
                  &again, reinterpret_cast<void*>(va)),
              CUDA_SUCCESS);
    EXPECT_EQ(again, handle);
    EXPECT_EQ(CU(cuMemAddressFree, CUdeviceptr, size_t)(va, 64 << 20), CUDA_ERROR_INVALID_VALUE)
        << "still mapped";
    EXPECT_EQ(CU(cuMemUnmap, CUdeviceptr, size_t)(va, 6 << 20), CUDA_SUCCESS);
    ledger.Expect("unmapped, retained", 0);
    EXPECT_EQ(release(again), CUDA_SUCCESS);
    ledger.Expect("released", -6 * kMiB);
    EXPECT_EQ(release(again), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemAddressFree, CUdeviceptr, size_t)(va, 64 << 20), CUDA_SUCCESS);
  });
}

TEST_F(SoftGpuMemory, ManagedCountsWhenTheDeviceTouchesIt) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    Ledger ledger;
    CUdeviceptr p;
    ASSERT_EQ(CU(cuMemAllocManaged, CUdeviceptr*, size_t, unsigned)(&p, 100 << 20, CU_MEM_ATTACH_GLOBAL),
              CUDA_SUCCESS);
    ledger.Expect("allocated", 0);
    ASSERT_EQ(CU(cuMemsetD8_v2, CUdeviceptr, unsigned char, size_t)(p, 1, 50 << 20), CUDA_SUCCESS);
    ASSERT_EQ(Synchronize(), CUDA_SUCCESS);
    ledger.Expect("50 MiB touched", 0, 134'217'728);
    EXPECT_EQ(reinterpret_cast<volatile char*>(p)[123], 1) << "the host sees it";
    EXPECT_EQ(Free(p), CUDA_SUCCESS);
    ledger.Expect("freed", 0, -52'428'800);
  });
}

TEST_F(SoftGpuMemory, ModulesAndStacks) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    Ledger ledger;
    const std::string ptx = std::string(".version 7.8\n.target sm_80\n.address_size 64\n") +
                            ".visible .global .align 16 .b8 big[52428800];\n"
                            ".visible .global .u32 primed[3] = {7, 0x8, 9};\n"
                            ".visible .entry k() { ret; }\n";
    CUmodule module;
    ASSERT_EQ(CU(cuModuleLoadData, CUmodule*, const void*)(&module, ptx.c_str()), CUDA_SUCCESS);
    ledger.Expect("loaded", 52 * kMiB);
    CUdeviceptr address = 0;
    size_t bytes = 0;
    ASSERT_EQ(CU(cuModuleGetGlobal_v2, CUdeviceptr*, size_t*, CUmodule, const char*)(&address, &bytes, module,
                                                                                     "primed"),
              CUDA_SUCCESS);
    EXPECT_EQ(bytes, 12u);
    uint32_t values[3] = {};
    ASSERT_EQ(FromDevice(values, address, 12), CUDA_SUCCESS);
    EXPECT_EQ(values[0] * 100 + values[1] * 10 + values[2], 789u);
    EXPECT_EQ(CU(cuModuleUnload, CUmodule)(module), CUDA_SUCCESS);
    ledger.Expect("unloaded", -52 * kMiB);

    const auto limit = CU(cuCtxSetLimit, int, size_t);
    ASSERT_EQ(limit(CU_LIMIT_MALLOC_HEAP_SIZE, 256 << 20), CUDA_SUCCESS);
    ledger.Expect("heap, not used yet", 0);
    ASSERT_EQ(limit(CU_LIMIT_STACK_SIZE, 8192), CUDA_SUCCESS);
    ledger.Expect("stack of 8 KiB", 1'937'768'448);
    ASSERT_EQ(limit(CU_LIMIT_STACK_SIZE, 1024), CUDA_SUCCESS);
    ledger.Expect("stack of 1 KiB", -1'937'768'448);
  });
}

TEST_F(SoftGpuMemory, Arrays) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    Ledger ledger;
    const auto create = CU(cuArrayCreate_v2, CUarray*, const CUDA_ARRAY_DESCRIPTOR*);
    const auto destroy = CU(cuArrayDestroy, CUarray);
    constexpr int kFloat = 0x20;
    CUarray array;
    const struct {
      size_t width, height;
      long long taken;
    } cases[] = {{1024, 1024, 4 * kMiB}, {1000, 1000, 4 * kMiB}, {10, 0, 2 * kMiB}};
    for (const auto& c : cases) {
      const CUDA_ARRAY_DESCRIPTOR descriptor = {c.width, c.height, kFloat, 1};
      ASSERT_EQ(create(&array, &descriptor), CUDA_SUCCESS);
      ledger.Expect("created", c.taken);
      CUDA_ARRAY_DESCRIPTOR back = {};
      EXPECT_EQ(CU(cuArrayGetDescriptor_v2, CUDA_ARRAY_DESCRIPTOR*, CUarray)(&back, array), CUDA_SUCCESS);
      EXPECT_EQ(back.Width, c.width);
      EXPECT_EQ(destroy(array), CUDA_SUCCESS);
      ledger.Expect("destroyed", -c.taken);
      EXPECT_EQ(destroy(array), CUDA_ERROR_INVALID_HANDLE);
    }
    const CUDA_ARRAY_DESCRIPTOR none = {0, 0, kFloat, 1}, odd = {8, 8, kFloat, 3};
    EXPECT_EQ(create(&array, &none), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(create(&array, &odd), CUDA_ERROR_INVALID_VALUE);
    const CUDA_ARRAY3D_DESCRIPTOR huge = {16384, 16384, 16384, kFloat, 1, 0};
    EXPECT_EQ(CU(cuArray3DCreate_v2, CUarray*, const CUDA_ARRAY3D_DESCRIPTOR*)(&array, &huge),
              CUDA_ERROR_OUT_OF_MEMORY);
  });
}

TEST_F(SoftGpuMemory, ArraysOfAllKinds) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    Ledger ledger;
    constexpr int kFloat = 0x20;
    constexpr unsigned kLayered = 1, kCube = 4, kDeferred = 0x80, kSparse = 0x40;
    const auto create = CU(cuArray3DCreate_v2, CUarray*, const CUDA_ARRAY3D_DESCRIPTOR*);
    const auto destroy = CU(cuArrayDestroy, CUarray);
    CUarray array;
    const struct {
      CUDA_ARRAY3D_DESCRIPTOR shape;
      long long taken;  // -1: refused
    } cases[] = {{{1024, 0, 0, kFloat, 1, 0}, 2 * kMiB},
                 {{131072, 0, 0, kFloat, 1, 0}, 4 * kMiB},
                 {{32768, 2, 0, kFloat, 1, 0}, 2 * kMiB},
                 {{700, 700, 0, kFloat, 1, 0}, 4 * kMiB},
                 {{1025, 1024, 0, kFloat, 1, 0}, 6 * kMiB},
                 {{1500, 1100, 0, kFloat, 1, 0}, 8 * kMiB},
                 {{3000, 3000, 0, kFloat, 1, 0}, 36 * kMiB},
                 {{1024, 1024, 4, kFloat, 1, kLayered}, 16 * kMiB},
                 {{1024, 0, 8, kFloat, 1, kLayered}, 2 * kMiB},
                 {{100, 100, 100, kFloat, 1, 0}, 6 * kMiB},
                 {{130, 130, 130, kFloat, 1, 0}, 12 * kMiB},
                 {{256, 256, 6, kFloat, 1, kCube}, 2 * kMiB},
                 {{256, 256, 12, kFloat, 1, kCube | kLayered}, 4 * kMiB},
                 {{1024, 1024, 0, kFloat, 1, kDeferred}, 0},
                 {{1024, 1024, 0, kFloat, 1, kSparse}, 0},
                 {{256, 256, 5, kFloat, 1, kCube}, -1},
                 {{256, 128, 6, kFloat, 1, kCube}, -1},
                 {{64, 0, 64, kFloat, 1, 0}, -1},
                 {{1024, 1024, 3000, kFloat, 1, kLayered}, -1},
                 {{10, 10, 0, kFloat, 1, 0x1000}, -1},
                 {{40'000'000, 0, 0, kFloat, 1, 0}, -1}};
    struct {
      size_t size, alignment;
      unsigned reserved[4];
    } requirements;
    for (const auto& c : cases) {
      SCOPED_TRACE(testing::Message()
                   << c.shape.Width << " " << c.shape.Height << " " << c.shape.Depth << " " << c.shape.Flags);
      ASSERT_EQ(create(&array, &c.shape), c.taken < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
      ledger.Expect("created", std::max(c.taken, 0LL));
      if (c.taken < 0) continue;
      const CUresult result = CU(cuArrayGetMemoryRequirements, void*, CUarray, int)(&requirements, array, 0);
      EXPECT_EQ(result, c.shape.Flags == kDeferred ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
      if (c.shape.Flags == kDeferred) {
        EXPECT_EQ(requirements.size, 4u << 20);
        EXPECT_EQ(requirements.alignment, 65536u);
      }
      EXPECT_EQ(destroy(array), CUDA_SUCCESS);
      ledger.Expect("destroyed", -c.taken);
    }
    const auto create_levels =
        CU(cuMipmappedArrayCreate, CUmipmappedArray*, const CUDA_ARRAY3D_DESCRIPTOR*, unsigned);
    CUmipmappedArray levels;
    const struct {
      CUDA_ARRAY3D_DESCRIPTOR shape;
      unsigned asked, got;
      long long taken;
    } pyramids[] = {
        {{1024, 1024, 0, kFloat, 1, 0}, 11, 11, 6 * kMiB}, {{1024, 1024, 0, kFloat, 1, 0}, 12, 11, 6 * kMiB},
        {{1024, 1024, 0, kFloat, 1, 0}, 0, 1, 4 * kMiB},   {{64, 64, 64, kFloat, 1, 0}, 7, 7, 2 * kMiB},
        {{256, 256, 6, kFloat, 1, kCube}, 3, 3, 2 * kMiB}, {{1000, 500, 0, kFloat, 1, 0}, 4, 4, 4 * kMiB},
        {{4096, 4096, 0, kFloat, 1, 0}, 13, 13, 86 * kMiB}};
    for (const auto& c : pyramids) {
      SCOPED_TRACE(c.shape.Width);
      ASSERT_EQ(create_levels(&levels, &c.shape, c.asked), CUDA_SUCCESS);
      ledger.Expect("created", c.taken);
      const auto level = CU(cuMipmappedArrayGetLevel, CUarray*, CUmipmappedArray, unsigned);
      ASSERT_EQ(level(&array, levels, c.got - 1), CUDA_SUCCESS);
      CUDA_ARRAY3D_DESCRIPTOR back = {};
      EXPECT_EQ(CU(cuArray3DGetDescriptor_v2, CUDA_ARRAY3D_DESCRIPTOR*, CUarray)(&back, array), CUDA_SUCCESS);
      EXPECT_EQ(back.Width, std::max<size_t>(c.shape.Width >> (c.got - 1), 1));
      EXPECT_EQ(level(&array, levels, c.got), CUDA_ERROR_INVALID_VALUE);
      EXPECT_EQ(CU(cuMipmappedArrayDestroy, CUmipmappedArray)(levels), CUDA_SUCCESS);
      ledger.Expect("destroyed", -c.taken);
    }
  });
}

TEST_F(SoftGpuMemory, LocalMemoryAndStacks) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    const std::string ptx = std::string(".version 7.8\n.target sm_80\n.address_size 64\n") +
                            ".visible .entry big() { .local .align 4 .b8 buffer[65536]; ret; }\n"
                            ".visible .entry shared() { .shared .align 4 .b8 s[4096]; ret; }\n";
    CUmodule module;
    CUfunction big, shared;
    ASSERT_EQ(CU(cuModuleLoadData, CUmodule*, const void*)(&module, ptx.c_str()), CUDA_SUCCESS);
    const auto get = CU(cuModuleGetFunction, CUfunction*, CUmodule, const char*);
    ASSERT_EQ(get(&big, module, "big"), CUDA_SUCCESS);
    ASSERT_EQ(get(&shared, module, "shared"), CUDA_SUCCESS);
    Ledger ledger;
    ASSERT_EQ(Launch(big, 1, 1, nullptr, nullptr), CUDA_SUCCESS);
    ledger.Expect("64 KiB a thread", 17'439'916'032);
    size_t limit = 0;
    ASSERT_EQ(CU(cuCtxGetLimit, size_t*, int)(&limit, CU_LIMIT_STACK_SIZE), CUDA_SUCCESS);
    EXPECT_EQ(limit, 65536u);
    ASSERT_EQ(Launch(big, 1, 1, nullptr, nullptr), CUDA_SUCCESS);
    ledger.Expect("again", 0);
    const auto set = CU(cuCtxSetLimit, int, size_t);
    ASSERT_EQ(set(CU_LIMIT_STACK_SIZE, 1024), CUDA_SUCCESS);
    ledger.Expect("1 KiB", -17'439'916'032);
    ASSERT_EQ(set(CU_LIMIT_STACK_SIZE, 2048), CUDA_SUCCESS);
    ledger.Expect("2 KiB", 276'824'064);
    EXPECT_EQ(set(CU_LIMIT_STACK_SIZE, 512 * 1024), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(set(CU_LIMIT_PRINTF_FIFO_SIZE, 64 << 20), CUDA_SUCCESS);
    ledger.Expect("printf", 0);
    const auto attribute = [&](int which, CUfunction function) {
      int value = -9;
      EXPECT_EQ(CU(cuFuncGetAttribute, int*, int, CUfunction)(&value, which, function), CUDA_SUCCESS);
      return value;
    };
    EXPECT_EQ(attribute(3, big), 65536);
    EXPECT_EQ(attribute(1, shared), 4096);
    EXPECT_EQ(attribute(8, shared), 49152 - 4096);
    EXPECT_EQ(attribute(9, shared), -1);
    const auto set_attribute = CU(cuFuncSetAttribute, CUfunction, int, int);
    EXPECT_EQ(set_attribute(shared, 8, 232448), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(set_attribute(shared, 8, 232448 - 4096), CUDA_SUCCESS);
    EXPECT_EQ(set_attribute(shared, 10, 1), CUDA_ERROR_INVALID_VALUE);
    const auto cooperative = CU(cuLaunchCooperativeKernel, CUfunction, unsigned, unsigned, unsigned, unsigned,
                                unsigned, unsigned, unsigned, CUstream, void**);
    CUfunction other = GetFunction("other");
    EXPECT_EQ(cooperative(other, 264, 1, 1, 1024, 1, 1, 0, nullptr, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cooperative(other, 265, 1, 1, 1024, 1, 1, 0, nullptr, nullptr), static_cast<CUresult>(720));
    int grid = 0, block = 0;
    EXPECT_EQ((CU(cuOccupancyMaxPotentialBlockSize, int*, int*, CUfunction, void*, size_t, int)(
                  &grid, &block, other, nullptr, 0, 0)),
              CUDA_SUCCESS);
    EXPECT_EQ(grid, 264);
    EXPECT_EQ(block, 1024);
    size_t dynamic = 0;
    EXPECT_EQ((CU(cuOccupancyAvailableDynamicSMemPerBlock, size_t*, CUfunction, int, int)(&dynamic, other, 1,
                                                                                          1024)),
              CUDA_SUCCESS);
    EXPECT_EQ(dynamic, 232448u);
  });
}

TEST_F(SoftGpuMemory, AnswersWrongArgumentsAsTheDriver) {
  InChild([] {
    CUdeviceptr p = 0;
    size_t free, total;
    EXPECT_EQ(Alloc(&p, 1), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ(CU(cuMemGetInfo_v2, size_t*, size_t*)(&free, &total), CUDA_ERROR_NOT_INITIALIZED);
    ASSERT_EQ(CU(cuInit, unsigned)(0), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuInit, unsigned)(1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Alloc(&p, 1), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(CU(cuMemAllocAsync, CUdeviceptr*, size_t, CUstream)(&p, 1, nullptr),
              CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(Synchronize(), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    EXPECT_EQ(Alloc(&p, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Alloc(nullptr, 5), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Alloc(&p, 200ULL << 30), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(Alloc(&p, ~0ULL), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(Free(0), CUDA_SUCCESS);
    EXPECT_EQ(Free(0x1234), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemAllocAsync, CUdeviceptr*, size_t, CUstream)(&p, 0, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemAllocAsync, CUdeviceptr*, size_t, CUstream)(&p, 200ULL << 30, nullptr),
              CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(CU(cuMemFreeAsync, CUdeviceptr, CUstream)(0, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuMemAllocManaged, CUdeviceptr*, size_t, unsigned)(&p, 0, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(ToDevice(0x1234, &p, 4), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(Alloc(&p, 512), CUDA_SUCCESS);
    EXPECT_EQ(ToDevice(p, &p, 513 + 8), CUDA_ERROR_INVALID_VALUE) << "past the end";
    EXPECT_EQ(Free(p + 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Free(p), CUDA_SUCCESS);
    EXPECT_EQ(Free(p), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(SoftGpuMemory, ThreadsShareTheBrimExactly) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    const auto device = Gpu0();
    CUcontext context;
    CU(cuCtxGetCurrent, CUcontext*)(&context);
    std::atomic<unsigned long long> taken{0};
    std::vector<std::thread> threads;
    const auto used = ReadMemory(device).used;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        CU(cuCtxSetCurrent, CUcontext)(context);
        CUdeviceptr p;
        while (Alloc(&p, 512 << 20) == CUDA_SUCCESS) taken += 512 << 20;
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(ReadMemory(device).used, used + taken);
    EXPECT_LT(ReadMemory(device).free, 514u << 20);
  });
}

TEST_F(SoftGpuMemory, LimitsAreTheDefaultsAgainAfterAReset) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    const auto set = CU(cuCtxSetLimit, int, size_t);
    const auto get = CU(cuCtxGetLimit, size_t*, int);
    constexpr int kLimits[] = {CU_LIMIT_STACK_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE, CU_LIMIT_MALLOC_HEAP_SIZE};
    size_t defaults[3] = {}, now = 0;
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(get(&defaults[i], kLimits[i]), CUDA_SUCCESS);
      ASSERT_EQ(set(kLimits[i], 2 * defaults[i]), CUDA_SUCCESS);
    }
    ASSERT_EQ(CU(cuDevicePrimaryCtxReset_v2, int)(0), CUDA_SUCCESS);
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(get(&now, kLimits[i]), CUDA_SUCCESS);
      EXPECT_EQ(now, defaults[i]);
    }
  });
}

}  // namespace
}  // namespace gpumux::test
