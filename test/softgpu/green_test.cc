// SPDX-License-Identifier: Apache-2.0
//
// Green contexts and contexts with several users: the rules that NVIDIA's header
// states, and the memory that an H200 (driver 580.159.04) took.
#include <unistd.h>

#include "child.h"
#include "cuda_functions.h"
#include "ledger.h"
#include "softgpu/driver/error_codes.h"
#include "softgpu/driver/resources.h"

namespace gpumux::test {
namespace {

using namespace cuda;
using namespace softgpu;

class SoftGpuGreen : public SoftGpuTest {};

CUresult OfDevice(Resource* out, int type = kSmResource, int device = 0) {
  return CU(cuDeviceGetDevResource, int, Resource*, int)(device, out, type);
}
CUresult Split(Resource* result, unsigned* groups, const Resource& input, Resource* rest, unsigned least,
               unsigned flags = 0) {
  return CU(cuDevSmResourceSplitByCount, Resource*, unsigned*, const Resource*, Resource*, unsigned,
            unsigned)(result, groups, &input, rest, flags, least);
}
CUresult Describe(CUdevResourceDesc* out, Resource* resources, unsigned count) {
  return CU(cuDevResourceGenerateDesc, CUdevResourceDesc*, Resource*, unsigned)(out, resources, count);
}
CUresult Create(CUgreenCtx* out, CUdevResourceDesc desc, unsigned flags = 1) {
  return CU(cuGreenCtxCreate, CUgreenCtx*, CUdevResourceDesc, int, unsigned)(out, desc, 0, flags);
}
CUresult Destroy(CUgreenCtx green) { return CU(cuGreenCtxDestroy, CUgreenCtx)(green); }
CUresult SetCurrent(CUcontext context) { return CU(cuCtxSetCurrent, CUcontext)(context); }
CUcontext Current() {
  CUcontext context = nullptr;
  EXPECT_EQ(CU(cuCtxGetCurrent, CUcontext*)(&context), CUDA_SUCCESS);
  return context;
}
CUcontext View(CUgreenCtx green) {
  CUcontext context = nullptr;
  EXPECT_EQ(CU(cuCtxFromGreenCtx, CUcontext*, CUgreenCtx)(&context, green), CUDA_SUCCESS);
  return context;
}
CUresult StreamOf(CUgreenCtx green, CUstream* out, unsigned flags = CU_STREAM_NON_BLOCKING) {
  return CU(cuGreenCtxStreamCreate, CUstream*, CUgreenCtx, unsigned, int)(out, green, flags, 0);
}
CUresult DestroyStream(CUstream stream) { return CU(cuStreamDestroy_v2, CUstream)(stream); }
CUresult Query(CUstream stream) { return CU(cuStreamQuery, CUstream)(stream); }
// Work that ends when `flag` is set.
CUresult WaitFor(CUstream stream, CUdeviceptr flag) {
  return CU(cuStreamWaitValue32_v2, CUstream, CUdeviceptr, uint32_t, unsigned)(stream, flag, 1, 0);
}
CUresult Set(CUstream stream, CUdeviceptr flag) {
  return CU(cuStreamWriteValue32_v2, CUstream, CUdeviceptr, uint32_t, unsigned)(stream, flag, 1, 0);
}
CUdeviceptr NewFlag() {
  CUdeviceptr flag = 0;
  const uint32_t zero = 0;
  EXPECT_EQ(Alloc(&flag, 4), CUDA_SUCCESS);
  EXPECT_EQ(ToDevice(flag, &zero, 4), CUDA_SUCCESS);
  return flag;
}
int PrimaryIsActive() {
  unsigned flags = 0;
  int active = -1;
  EXPECT_EQ(CU(cuDevicePrimaryCtxGetState, int, unsigned*, int*)(0, &flags, &active), CUDA_SUCCESS);
  return active;
}

// 32 SMs, and the 100 that are left.
struct Parts {
  Resource part = {}, rest = {};
  Parts() {
    Resource all = {};
    unsigned groups = 1;
    EXPECT_EQ(OfDevice(&all), CUDA_SUCCESS);
    EXPECT_EQ(Split(&part, &groups, all, &rest, 32), CUDA_SUCCESS);
  }
};
CUgreenCtx Make(Resource resource) {
  CUdevResourceDesc desc = nullptr;
  CUgreenCtx green = nullptr;
  EXPECT_EQ(Describe(&desc, &resource, 1), CUDA_SUCCESS);
  EXPECT_EQ(Create(&green, desc), CUDA_SUCCESS);
  return green;
}

TEST_F(SoftGpuGreen, SmsAreSplitAsTheHeaderSays) {
  InChild([] {
    ASSERT_EQ(CU(cuInit, unsigned)(0), CUDA_SUCCESS);
    Resource all = {}, parts[32] = {}, rest = {};
    EXPECT_EQ(OfDevice(&all, kSmResource, 7), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(OfDevice(nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(OfDevice(&all, kInvalidResource), CUDA_ERROR_INVALID_RESOURCE_TYPE);
    EXPECT_EQ(OfDevice(&all, 1000), CUDA_ERROR_INVALID_RESOURCE_TYPE);
    ASSERT_EQ(OfDevice(&all), CUDA_SUCCESS);
    EXPECT_EQ(all.type, kSmResource);
    EXPECT_EQ(all.sms, 132u);
    EXPECT_EQ(all.min_sms, 8u);
    EXPECT_EQ(all.alignment, 8u);

    // How many there would be.
    const struct {
      unsigned least, groups;
    } cases[] = {{0, 16}, {1, 16}, {8, 16}, {9, 8}, {16, 8}, {32, 4}, {33, 3}, {128, 1}};
    for (const auto& c : cases) {
      unsigned groups = 99;
      EXPECT_EQ(Split(nullptr, &groups, all, nullptr, c.least), CUDA_SUCCESS) << c.least;
      EXPECT_EQ(groups, c.groups) << c.least;
    }
    unsigned groups = 99;
    EXPECT_EQ(Split(nullptr, &groups, all, nullptr, 2, 1), CUDA_SUCCESS);
    EXPECT_EQ(groups, 66u) << "each SM for itself";

    groups = 32;
    ASSERT_EQ(Split(parts, &groups, all, &rest, 8), CUDA_SUCCESS);
    EXPECT_EQ(groups, 16u) << "fewer than asked for";
    for (unsigned i = 0; i < groups; ++i) EXPECT_EQ(parts[i].sms, 8u);
    EXPECT_EQ(parts[16].type, kInvalidResource) << "beyond the groups nothing is written";
    EXPECT_EQ(rest.sms, 4u);
    groups = 2;
    ASSERT_EQ(Split(parts, &groups, all, &rest, 30), CUDA_SUCCESS);
    EXPECT_EQ(groups, 2u);
    EXPECT_EQ(parts[1].sms, 32u);
    EXPECT_EQ(rest.sms, 68u);

    groups = 1;
    EXPECT_EQ(Split(parts, &groups, all, &rest, 133), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Split(parts, &groups, all, &rest, 8, 8), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Split(parts, nullptr, all, &rest, 8), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Split(parts, &groups, Resource{}, &rest, 8), CUDA_ERROR_INVALID_RESOURCE_TYPE);
    const Resource part = parts[0];
    EXPECT_EQ(Split(nullptr, &groups, part, nullptr, 8), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)
        << "a part is not split again before a green context has it";
  });
}

TEST_F(SoftGpuGreen, ADescriptionTakesPartsOfOneSplit) {
  InChild([] {
    ASSERT_EQ(CU(cuInit, unsigned)(0), CUDA_SUCCESS);
    Parts one, other;
    CUdevResourceDesc desc = nullptr;
    Resource both[2] = {one.part, one.rest};
    EXPECT_EQ(Describe(&desc, both, 2), CUDA_SUCCESS);
    both[1] = other.rest;
    EXPECT_EQ(Describe(&desc, both, 2), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    both[1] = {};
    EXPECT_EQ(Describe(&desc, both, 2), CUDA_ERROR_INVALID_RESOURCE_TYPE);
    EXPECT_EQ(Describe(&desc, both, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Describe(nullptr, both, 1), CUDA_ERROR_INVALID_VALUE);
    CUgreenCtx green = nullptr;
    EXPECT_EQ(Create(&green, desc, 0), CUDA_ERROR_INVALID_VALUE) << "the default stream is required";
    EXPECT_EQ(PrimaryIsActive(), 0);
  });
}

TEST_F(SoftGpuGreen, TakesWhatTheH200Took) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    const CUcontext primary = Current();
    Ledger ledger;
    Parts parts;
    const CUgreenCtx green = Make(parts.part);
    ledger.Expect("32 SMs", 4 * kMiB);
    const CUgreenCtx rest = Make(parts.rest);
    ledger.Expect("100 SMs", 6 * kMiB);
    const CUcontext view = View(green);
    ledger.Expect("its context", 0);
    ASSERT_EQ(SetCurrent(view), CUDA_SUCCESS);
    EXPECT_EQ(Current(), view);
    CUdeviceptr pointer = 0;
    EXPECT_EQ(Alloc(&pointer, 3 << 20), CUDA_SUCCESS);
    ledger.Expect("3 MiB", 4 * kMiB);
    CUstream stream = nullptr;
    EXPECT_EQ(StreamOf(green, &stream), CUDA_SUCCESS);
    ledger.Expect("a stream", 0);
    EXPECT_EQ(CU(cuCtxSetLimit, CUlimit, size_t)(CU_LIMIT_STACK_SIZE, 2048), CUDA_SUCCESS);
    ledger.Expect("stack", 276824064);
    EXPECT_EQ(SetCurrent(primary), CUDA_SUCCESS);
    size_t limit = 0;
    EXPECT_EQ(CU(cuCtxGetLimit, size_t*, CUlimit)(&limit, CU_LIMIT_STACK_SIZE), CUDA_SUCCESS);
    EXPECT_EQ(limit, 2048u) << "one limit for both";
    EXPECT_EQ(DestroyStream(stream), CUDA_SUCCESS);
    EXPECT_EQ(Destroy(green), CUDA_SUCCESS);
    EXPECT_EQ(Destroy(rest), CUDA_SUCCESS);
    ledger.Expect("destroyed", 0);
    const unsigned char byte = 7;
    EXPECT_EQ(ToDevice(pointer, &byte, 1), CUDA_SUCCESS) << "what was allocated there is the primary's";
    const CUgreenCtx next = Make(parts.part);
    ledger.Expect("the next one", 4 * kMiB);
    EXPECT_EQ(CU(cuDevicePrimaryCtxReset_v2, int)(0), CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(Destroy(next), CUDA_SUCCESS);
    CUgreenCtx whole = nullptr;
    EXPECT_EQ(CU(cuGreenCtxCreate, CUgreenCtx*, CUdevResourceDesc, int, unsigned)(&whole, nullptr, 0, 1),
              CUDA_SUCCESS);
    ledger.Expect("one without a description: all SMs", 6 * kMiB);
    EXPECT_EQ(Destroy(whole), CUDA_SUCCESS);
    const auto device = Gpu0();
    ASSERT_EQ(CU(cuDevicePrimaryCtxReset_v2, int)(0), CUDA_SUCCESS);
    EXPECT_EQ(OwnBytes(device, getpid()), -1) << "a reset leaves nothing";
  });
}

TEST_F(SoftGpuGreen, KeepsThePrimaryContext) {
  InChild([] {
    ASSERT_EQ(CU(cuInit, unsigned)(0), CUDA_SUCCESS);
    const auto device = Gpu0();
    Parts parts;
    const CUgreenCtx green = Make(parts.part), other = Make(parts.part);
    EXPECT_EQ(PrimaryIsActive(), 1);
    EXPECT_EQ(OwnBytes(device, getpid()), 543'162'368 + 8 * kMiB);
    EXPECT_EQ(Current(), nullptr) << "creating one makes nothing current";
    CUcontext primary = nullptr;
    ASSERT_EQ(CU(cuDevicePrimaryCtxRetain, CUcontext*, int)(&primary, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuDevicePrimaryCtxRelease_v2, int)(0), CUDA_SUCCESS);
    EXPECT_EQ(Destroy(green), CUDA_SUCCESS);
    EXPECT_EQ(PrimaryIsActive(), 1);
    EXPECT_EQ(Destroy(green), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(Destroy(other), CUDA_SUCCESS);
    EXPECT_EQ(PrimaryIsActive(), 0);
    EXPECT_EQ(OwnBytes(device, getpid()), -1);
    EXPECT_EQ(Destroy(nullptr), CUDA_ERROR_INVALID_CONTEXT);
    // One that was current when it ended.
    const CUgreenCtx third = Make(parts.part);
    ASSERT_EQ(SetCurrent(View(third)), CUDA_SUCCESS);
    ASSERT_EQ(Destroy(third), CUDA_SUCCESS);
    CUdeviceptr pointer = 0;
    EXPECT_EQ(Alloc(&pointer, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(Destroy(third), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  });
}

TEST_F(SoftGpuGreen, SaysWhatItIs) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    const CUcontext primary = Current();
    Parts parts;
    const CUgreenCtx green = Make(parts.part);
    const CUcontext view = View(green);
    EXPECT_NE(view, primary);
    EXPECT_EQ(SetCurrent(reinterpret_cast<CUcontext>(green)), CUDA_ERROR_INVALID_CONTEXT)
        << "a green context is converted first";
    EXPECT_EQ(CU(cuCtxDestroy_v2, CUcontext)(view), CUDA_ERROR_INVALID_CONTEXT);

    Resource of = {};
    EXPECT_EQ(CU(cuGreenCtxGetDevResource, CUgreenCtx, Resource*, int)(green, &of, kSmResource),
              CUDA_SUCCESS);
    EXPECT_EQ(of.sms, 32u);
    unsigned groups = 0;
    EXPECT_EQ(Split(nullptr, &groups, of, nullptr, 8), CUDA_SUCCESS);
    EXPECT_EQ(groups, 4u) << "its SMs can be split";
    EXPECT_EQ(CU(cuCtxGetDevResource, CUcontext, Resource*, int)(view, &of, kSmResource), CUDA_SUCCESS);
    EXPECT_EQ(of.sms, 32u);
    EXPECT_EQ(CU(cuCtxGetDevResource, CUcontext, Resource*, int)(primary, &of, kSmResource), CUDA_SUCCESS);
    EXPECT_EQ(of.sms, 132u);
    EXPECT_EQ(CU(cuCtxGetDevResource, CUcontext, Resource*, int)(nullptr, &of, kSmResource),
              CUDA_ERROR_INVALID_CONTEXT);

    const auto get_id = CU(cuGreenCtxGetId, CUgreenCtx, unsigned long long*);
    unsigned long long id = 0, current = 0;
    EXPECT_EQ(get_id(green, &id), CUDA_SUCCESS);
    EXPECT_EQ(get_id(nullptr, &current), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_EQ(SetCurrent(view), CUDA_SUCCESS);
    EXPECT_EQ(get_id(nullptr, &current), CUDA_SUCCESS);
    EXPECT_EQ(current, id);
    EXPECT_EQ(get_id(Make(parts.rest), &current), CUDA_SUCCESS);
    EXPECT_NE(current, id);
  });
}

TEST_F(SoftGpuGreen, StreamsKnowTheirContexts) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    const CUcontext primary = Current();
    Parts parts;
    const CUgreenCtx green = Make(parts.part);
    const CUcontext view = View(green);
    CUstream outside = nullptr, inside = nullptr, of_green = nullptr;
    EXPECT_EQ(StreamOf(green, &of_green, CU_STREAM_DEFAULT), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(StreamOf(green, &of_green), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamCreate, CUstream*, unsigned)(&outside, 0), CUDA_SUCCESS);
    ASSERT_EQ(SetCurrent(view), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamCreate, CUstream*, unsigned)(&inside, 0), CUDA_SUCCESS);

    const auto green_of = CU(cuStreamGetGreenCtx, CUstream, CUgreenCtx*);
    const auto context_of = CU(cuStreamGetCtx, CUstream, CUcontext*);
    const auto both_of = CU(cuStreamGetCtx_v2, CUstream, CUcontext*, CUgreenCtx*);
    const auto expect = [&](CUstream stream, CUcontext context, CUgreenCtx theirs) {
      CUgreenCtx g = green;
      CUcontext c = nullptr;
      EXPECT_EQ(green_of(stream, &g), CUDA_SUCCESS);
      EXPECT_EQ(g, theirs);
      EXPECT_EQ(context_of(stream, &c), CUDA_SUCCESS);
      EXPECT_EQ(c, context);
      g = green;
      EXPECT_EQ(both_of(stream, &c, &g), CUDA_SUCCESS);
      EXPECT_EQ(c, primary);
      EXPECT_EQ(g, theirs);
    };
    expect(of_green, view, green);
    expect(inside, view, green);
    expect(outside, primary, nullptr);
    expect(nullptr, view, green);
    CUgreenCtx g = nullptr;
    CUcontext c = nullptr;
    EXPECT_EQ(both_of(kPerThreadStream, &c, &g), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_EQ(SetCurrent(primary), CUDA_SUCCESS);
    expect(nullptr, primary, nullptr);

    EXPECT_EQ(DestroyStream(of_green), CUDA_SUCCESS);
    ASSERT_EQ(Destroy(green), CUDA_SUCCESS);
    EXPECT_EQ(Query(inside), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(DestroyStream(inside), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(Query(outside), CUDA_SUCCESS);
  });
}

TEST_F(SoftGpuGreen, WaitsForItsOwnWork) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    const CUcontext primary = Current();
    const CUfunction spin = GetFunction("spin");
    Parts parts;
    const CUgreenCtx green = Make(parts.part), other = Make(parts.rest);
    CUstream stream = nullptr, theirs = nullptr;
    ASSERT_EQ(StreamOf(green, &stream), CUDA_SUCCESS);
    ASSERT_EQ(StreamOf(other, &theirs), CUDA_SUCCESS);
    const CUdeviceptr flag = NewFlag();
    uint64_t ns = 30'000'000;
    void* params[] = {&ns};
    ASSERT_EQ(WaitFor(theirs, flag), CUDA_SUCCESS);
    ASSERT_EQ(Launch(spin, 1, 32, stream, params), CUDA_SUCCESS);
    ASSERT_EQ(SetCurrent(View(green)), CUDA_SUCCESS);
    EXPECT_EQ(Query(nullptr), CUDA_SUCCESS) << "its default stream is its own, and has nothing to do";
    EXPECT_EQ(Synchronize(), CUDA_SUCCESS);
    EXPECT_EQ(Query(stream), CUDA_SUCCESS);
    EXPECT_EQ(Query(theirs), CUDA_ERROR_NOT_READY) << "the other green context's work is none of its own";
    ASSERT_EQ(SetCurrent(primary), CUDA_SUCCESS);
    ASSERT_EQ(Launch(spin, 1, 32, theirs, params), CUDA_SUCCESS);
    EXPECT_EQ(Set(stream, flag), CUDA_SUCCESS);
    EXPECT_EQ(Synchronize(), CUDA_SUCCESS);
    EXPECT_EQ(Query(theirs), CUDA_SUCCESS) << "the primary context waits for all of them";
  });
}

TEST_F(SoftGpuGreen, EventsStandForAllOfItsWork) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    const CUfunction spin = GetFunction("spin");
    Parts parts;
    const CUgreenCtx green = Make(parts.part), other = Make(parts.rest);
    const auto record = CU(cuGreenCtxRecordEvent, CUgreenCtx, CUevent);
    const auto wait = CU(cuGreenCtxWaitEvent, CUgreenCtx, CUevent);
    const auto query = CU(cuEventQuery, CUevent);
    CUstream first = nullptr, second = nullptr, theirs = nullptr;
    ASSERT_EQ(StreamOf(green, &first), CUDA_SUCCESS);
    ASSERT_EQ(StreamOf(green, &second), CUDA_SUCCESS);
    ASSERT_EQ(StreamOf(other, &theirs), CUDA_SUCCESS);
    CUevent done = nullptr, empty = nullptr;
    ASSERT_EQ(CU(cuEventCreate, CUevent*, unsigned)(&done, 0), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuEventCreate, CUevent*, unsigned)(&empty, 0), CUDA_SUCCESS);
    const CUdeviceptr flag = NewFlag();
    uint64_t brief = 1'000'000;
    void* params[] = {&brief};
    ASSERT_EQ(WaitFor(second, flag), CUDA_SUCCESS);
    EXPECT_EQ(record(green, done), CUDA_SUCCESS);
    EXPECT_EQ(record(other, empty), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventSynchronize, CUevent)(empty), CUDA_SUCCESS);
    EXPECT_EQ(query(done), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(wait(other, done), CUDA_SUCCESS);
    CUstream later = nullptr;  // future work of streams that do not exist yet, too
    ASSERT_EQ(StreamOf(other, &later), CUDA_SUCCESS);
    ASSERT_EQ(Launch(spin, 1, 32, later, params), CUDA_SUCCESS);
    ASSERT_EQ(Launch(spin, 1, 32, first, params), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamSynchronize, CUstream)(first), CUDA_SUCCESS);
    EXPECT_EQ(query(done), CUDA_ERROR_NOT_READY) << "its own later work does not wait";
    EXPECT_EQ(Query(later), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(Set(first, flag), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamSynchronize, CUstream)(later), CUDA_SUCCESS);
    EXPECT_EQ(query(done), CUDA_SUCCESS);

    CUcontext second_context = nullptr;
    ASSERT_EQ(CU(cuCtxCreate_v2, CUcontext*, unsigned, int)(&second_context, 0, 0), CUDA_SUCCESS);
    CUevent foreign = nullptr;
    ASSERT_EQ(CU(cuEventCreate, CUevent*, unsigned)(&foreign, 0), CUDA_SUCCESS);
    EXPECT_EQ(record(green, foreign), CUDA_ERROR_INVALID_HANDLE) << "of another primary context";
    EXPECT_EQ(record(nullptr, done), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(wait(green, nullptr), CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST_F(SoftGpuGreen, ACaptureForbidsItsEventsAndNoOthers) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    Parts parts;
    const CUgreenCtx green = Make(parts.part), other = Make(parts.rest);
    const auto record = CU(cuGreenCtxRecordEvent, CUgreenCtx, CUevent);
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUgraph graph = nullptr;
    ASSERT_EQ(StreamOf(green, &stream), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuEventCreate, CUevent*, unsigned)(&event, 0), CUDA_SUCCESS);
    const auto begin = [&] {
      return CU(cuStreamBeginCapture_v2, CUstream, CUstreamCaptureMode)(stream,
                                                                        CU_STREAM_CAPTURE_MODE_RELAXED);
    };
    const auto end = [&] { return CU(cuStreamEndCapture, CUstream, CUgraph*)(stream, &graph); };
    ASSERT_EQ(begin(), CUDA_SUCCESS);
    EXPECT_EQ(record(other, event), CUDA_SUCCESS);
    EXPECT_EQ(end(), CUDA_SUCCESS);
    ASSERT_EQ(begin(), CUDA_SUCCESS);
    EXPECT_EQ(record(green, event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  });
}

TEST_F(SoftGpuGreen, AContextEndsWithItsLastUser) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    const CUcontext primary = Current();
    const auto attach = CU(cuCtxAttach, CUcontext*, unsigned);
    const auto detach = CU(cuCtxDetach, CUcontext);
    Ledger ledger;
    CUcontext context = nullptr, attached = nullptr;
    ASSERT_EQ(CU(cuCtxCreate_v2, CUcontext*, unsigned, int)(&context, 0, 0), CUDA_SUCCESS);
    ledger.Expect("made", 543'162'368, 548'995'072);
    EXPECT_EQ(attach(&attached, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(attach(&attached, 0), CUDA_SUCCESS);
    EXPECT_EQ(attached, context);
    EXPECT_EQ(detach(primary), CUDA_ERROR_INVALID_CONTEXT) << "not the current one";
    EXPECT_EQ(detach(context), CUDA_SUCCESS);
    ledger.Expect("detached", 0);
    EXPECT_EQ(detach(context), CUDA_SUCCESS);
    ASSERT_EQ(SetCurrent(primary), CUDA_SUCCESS);
    ledger.Expect("by the last", -543'162'368, -548'995'072);
    EXPECT_EQ(SetCurrent(context), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  });
}

}  // namespace
}  // namespace gpumux::test
