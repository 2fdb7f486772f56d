// SPDX-License-Identifier: Apache-2.0
//
// Stream capture: what becomes a node and what is refused, as recorded on an H200
// (driver 580.159.04).
#include <ostream>

#include "child.h"
#include "cuda_functions.h"
#include "graph_functions.h"
#include "ledger.h"
#include "softgpu/driver/graph_types.h"

namespace gpumux::test {
namespace {

using namespace cuda;

constexpr auto kInvalidated = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
constexpr auto kUnsupported = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
constexpr auto kImplicit = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;

class SoftGpuCapture : public SoftGpuTest {};

CUresult Begin(CUstream stream, int mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
  return CU(cuStreamBeginCapture_v2, CUstream, int)(stream, mode);
}
CUresult End(CUstream stream, CUgraph* graph) {
  return CU(cuStreamEndCapture, CUstream, CUgraph*)(stream, graph);
}
size_t NodesOf(CUgraph graph) {
  size_t count = 0;
  EXPECT_EQ(CU(cuGraphGetNodes, CUgraph, CUgraphNode*, size_t*)(graph, nullptr, &count), CUDA_SUCCESS);
  return count;
}

// One call while `stream` is being captured: what it answers, how the capture
// ends, how many nodes it has.
struct Trial {
  CUresult call;
  CUresult end;
  size_t nodes;
  bool operator==(const Trial&) const = default;
  friend void PrintTo(const Trial& t, std::ostream* out) {
    *out << "call " << t.call << ", end " << t.end << ", " << t.nodes << " nodes";
  }
};
template <typename Call>
Trial Try(CUstream stream, Call call, int mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
  EXPECT_EQ(Begin(stream, mode), CUDA_SUCCESS);
  Trial trial = {};
  trial.call = call();
  CUgraph graph = nullptr;
  trial.end = End(stream, &graph);
  EXPECT_EQ(graph != nullptr, trial.end == CUDA_SUCCESS);
  if (graph != nullptr) {
    trial.nodes = NodesOf(graph);
    DestroyGraph(graph);
  }
  return trial;
}
Trial Captured(size_t nodes) { return {CUDA_SUCCESS, CUDA_SUCCESS, nodes}; }
Trial Breaks(CUresult result) { return {result, kInvalidated, 0}; }

TEST_F(SoftGpuCapture, WhatAStreamIsAskedForBecomesNodes) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUstream s = NewStream(), t = NewStream();
    CUdeviceptr p;
    ASSERT_EQ(Alloc(&p, 4096), CUDA_SUCCESS);
    uint32_t one = 1, two = 2;
    uint64_t count = 4;
    void* first[] = {&p, &one, &count};
    CUevent forked, joined;
    CU(cuEventCreate, CUevent*, unsigned)(&forked, 0);
    CU(cuEventCreate, CUevent*, unsigned)(&joined, 0);
    CUdeviceptr q = p + 16;
    void* second[] = {&q, &two, &count};
    ASSERT_EQ(Begin(s), CUDA_SUCCESS);
    ASSERT_EQ(Launch(GetFunction("fill"), 1, 32, s, first), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuEventRecord, CUevent, CUstream)(forked, s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamWaitEvent, CUstream, CUevent, unsigned)(t, forked, 0), CUDA_SUCCESS);
    int status = 0;
    EXPECT_EQ(CU(cuStreamIsCapturing, CUstream, int*)(t, &status), CUDA_SUCCESS);
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE) << "a stream that waits for a captured one joins it";
    ASSERT_EQ(Launch(GetFunction("fill"), 1, 32, t, second), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemsetD32Async, CUdeviceptr, unsigned, size_t, CUstream)(p, 3, 1, s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuEventRecord, CUevent, CUstream)(joined, t), CUDA_SUCCESS);
    CUgraph graph = nullptr;
    cuuint64_t id = 0;
    const CUgraphNode* leaves = nullptr;
    size_t leaf_count = 0;
    ASSERT_EQ((CU(cuStreamGetCaptureInfo_v2, CUstream, int*, cuuint64_t*, CUgraph*, const CUgraphNode**,
                  size_t*)(s, &status, &id, &graph, &leaves, &leaf_count)),
              CUDA_SUCCESS);
    EXPECT_NE(id, 0u);
    EXPECT_EQ(leaf_count, 1u);
    int type = -1;
    EXPECT_EQ(CU(cuGraphNodeGetType, CUgraphNode, int*)(leaves[0], &type), CUDA_SUCCESS);
    EXPECT_EQ(type, softgpu::kMemsetNode);
    EXPECT_EQ(DestroyGraph(graph), CUDA_ERROR_ILLEGAL_STATE);
    ASSERT_EQ(CU(cuStreamWaitEvent, CUstream, CUevent, unsigned)(s, joined, 0), CUDA_SUCCESS);
    uint32_t out[8] = {};
    ASSERT_EQ((CU(cuMemcpyDtoHAsync_v2, void*, CUdeviceptr, size_t, CUstream)(out, p, sizeof(out), s)),
              CUDA_SUCCESS);
    ASSERT_EQ(End(s, &graph), CUDA_SUCCESS);
    EXPECT_EQ(NodesOf(graph), 4u);
    EXPECT_EQ(CU(cuStreamIsCapturing, CUstream, int*)(t, &status), CUDA_SUCCESS);
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
    EXPECT_EQ(Synchronize(), CUDA_SUCCESS);
    uint32_t now[8] = {};
    ASSERT_EQ(FromDevice(now, p, sizeof(now)), CUDA_SUCCESS);
    EXPECT_EQ(now[0], 0u) << "nothing has run";
    CUgraphExec exec;
    ASSERT_EQ(Instantiate(&exec, graph), CUDA_SUCCESS);
    ASSERT_EQ(LaunchGraph(exec, s), CUDA_SUCCESS);
    ASSERT_EQ(Sync(s), CUDA_SUCCESS);
    EXPECT_EQ(out[0] * 100 + out[1] * 10 + out[4], 312u);
    EXPECT_EQ(CU(cuEventQuery, CUevent)(forked), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(SoftGpuCapture, MemoryBecomesNodes) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUstream s = NewStream();
    Ledger ledger;
    CUdeviceptr p = 0, kept = 0, pooled;
    const auto alloc = CU(cuMemAllocAsync, CUdeviceptr*, size_t, CUstream);
    ASSERT_EQ(alloc(&pooled, 100, s), CUDA_SUCCESS);
    ledger.Expect("a pool's chunk", 32 * kMiB);
    ASSERT_EQ(Begin(s), CUDA_SUCCESS);
    ASSERT_EQ(alloc(&p, 10 << 20, s), CUDA_SUCCESS);
    ASSERT_EQ(alloc(&kept, 10 << 20, s), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuMemsetD8Async, CUdeviceptr, unsigned char, size_t, CUstream)(kept, 5, 100, s),
              CUDA_SUCCESS);
    ASSERT_EQ(FreeAsync(p, s), CUDA_SUCCESS);
    EXPECT_EQ(FreeAsync(pooled, s), CUDA_ERROR_INVALID_VALUE) << "not a graph's memory";
    CUgraph graph;
    ASSERT_EQ(End(s, &graph), CUDA_SUCCESS);
    EXPECT_EQ(NodesOf(graph), 4u);
    ledger.Expect("captured", 0);
    CUgraphExec exec;
    ASSERT_EQ(Instantiate(&exec, graph), CUDA_SUCCESS);
    ASSERT_EQ(LaunchGraph(exec, s), CUDA_SUCCESS);
    ASSERT_EQ(Sync(s), CUDA_SUCCESS);
    ledger.Expect("launched", 32 * kMiB);
    unsigned char byte = 0;
    ASSERT_EQ(FromDevice(&byte, kept + 99, 1), CUDA_SUCCESS);
    EXPECT_EQ(byte, 5);
    ASSERT_EQ(FreeAsync(kept, s), CUDA_SUCCESS);
    ASSERT_EQ(Sync(s), CUDA_SUCCESS);
    EXPECT_EQ(Trim(), CUDA_SUCCESS);
    ledger.Expect("freed and trimmed", -32 * kMiB);
  });
}

TEST_F(SoftGpuCapture, RefusesWhatCannotBeCaptured) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUstream s = NewStream(), t = NewStream(), b = NewStream(CU_STREAM_DEFAULT);
    CUdeviceptr p, plain;
    ASSERT_EQ(Alloc(&plain, 4096), CUDA_SUCCESS);
    CUevent event;
    CU(cuEventCreate, CUevent*, unsigned)(&event, 0);
    CUgraph graph = nullptr;
    EXPECT_EQ(Begin(nullptr), kUnsupported);
    EXPECT_EQ(Begin(s, 7), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(End(s, &graph), CUDA_ERROR_ILLEGAL_STATE);
    const auto query = CU(cuStreamQuery, CUstream);
    const auto wait = CU(cuStreamWaitEvent, CUstream, CUevent, unsigned);
    const auto record = CU(cuEventRecord, CUevent, CUstream);
    void* host = nullptr;
    size_t free, total;
    EXPECT_EQ(Try(s, [&] { return Begin(s); }), (Trial{CUDA_ERROR_ILLEGAL_STATE, CUDA_SUCCESS, 0}));
    EXPECT_EQ(Try(s, [&] { return Alloc(&p, 100); }), Breaks(kUnsupported));
    EXPECT_EQ(Try(s, [&] { return Free(plain); }), Breaks(kUnsupported));
    EXPECT_EQ(Try(s, [&] { return CU(cuMemAllocHost_v2, void**, size_t)(&host, 100); }),
              Breaks(kUnsupported));
    EXPECT_EQ(Try(s, [&] { return CU(cuMemAllocManaged, CUdeviceptr*, size_t, unsigned)(&p, 100, 1); }),
              Breaks(kUnsupported));
    EXPECT_EQ(Try(s, [&] { return Synchronize(); }), Breaks(kUnsupported));
    EXPECT_EQ(Try(s, [&] { return Sync(s); }), Breaks(kUnsupported));
    EXPECT_EQ(Try(s, [&] { return Sync(t); }), Breaks(kUnsupported));
    EXPECT_EQ(Try(s, [&] { return query(s); }), Breaks(kUnsupported));
    EXPECT_EQ(Try(s, [&] { return query(t); }), Breaks(kUnsupported));
    EXPECT_EQ(Try(s, [&] { return CU(cuEventQuery, CUevent)(event); }), Breaks(kUnsupported));
    EXPECT_EQ(Try(s, [&] { return CU(cuEventSynchronize, CUevent)(event); }), Breaks(kUnsupported));
    EXPECT_EQ(Try(s, [&] { return CU(cuCtxSetLimit, int, size_t)(CU_LIMIT_STACK_SIZE, 4096); }),
              Breaks(kUnsupported));
    EXPECT_EQ(Try(s, [&] { return CU(cuMemGetInfo_v2, size_t*, size_t*)(&free, &total); }), Captured(0));
    EXPECT_EQ(Try(s, [&] { return Launch(GetFunction("other"), 1, 1, nullptr, nullptr); }), Captured(0))
        << "a stream that does not block has nothing to do with the legacy one";
    for (auto call : {+[] { return Launch(GetFunction("other"), 1, 1, nullptr, nullptr); },
                      +[] { return Sync(nullptr); }, +[] { return CU(cuStreamQuery, CUstream)(nullptr); }}) {
      EXPECT_EQ(Try(b, call), Breaks(kImplicit));
    }
    EXPECT_EQ(Try(b, [&] { return ToDevice(plain, &free, 8); }), Breaks(kImplicit));
    EXPECT_EQ(Try(b, [&] { return record(event, nullptr); }), Breaks(kImplicit));
    EXPECT_EQ(Try(b, [&] { return CU(cuMemAllocAsync, CUdeviceptr*, size_t, CUstream)(&p, 1, nullptr); }),
              Breaks(kImplicit));
    // Events.
    EXPECT_EQ(Try(s, [&] { return record(event, s); }), Captured(0));
    EXPECT_EQ(wait(t, event, 0), CUDA_ERROR_INVALID_VALUE) << "it stands for a capture that is over";
    EXPECT_EQ(record(event, t), CUDA_SUCCESS);
    EXPECT_EQ(Try(s, [&] { return wait(s, event, 0); }), Breaks(Code(905)));
    EXPECT_EQ(Try(s, [&] { return record(event, s), CU(cuEventQuery, CUevent)(event); }), Breaks(Code(907)));
    EXPECT_EQ(Try(s, [&] { return record(event, s), wait(t, event, 0), End(t, &graph); }), Breaks(Code(903)));
    EXPECT_EQ(Try(s, [&] { return record(event, s), wait(t, event, 0); }), Captured(0));
    const Trial unjoined = Try(s, [&] {
      return record(event, s), wait(t, event, 0), Launch(GetFunction("other"), 1, 1, t, nullptr);
    });
    EXPECT_EQ(unjoined, (Trial{CUDA_SUCCESS, Code(904), 0}));
    // Two captures do not become one.
    ASSERT_EQ(Begin(t), CUDA_SUCCESS);
    ASSERT_EQ(record(event, t), CUDA_SUCCESS);
    EXPECT_EQ(Try(s, [&] { return wait(s, event, 0); }), Breaks(Code(902)));
    EXPECT_EQ(End(t, &graph), kInvalidated);
    // Modes.
    EXPECT_EQ(
        Try(s, [&] { return Alloc(&p, 100); }, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), Breaks(kUnsupported));
    EXPECT_EQ(Try(s, [&] { return Alloc(&p, 100); }, CU_STREAM_CAPTURE_MODE_RELAXED), Captured(0));
    EXPECT_EQ(Try(s, [&] { return Synchronize(); }, CU_STREAM_CAPTURE_MODE_RELAXED), Breaks(kUnsupported));
    const auto exchange = CU(cuThreadExchangeStreamCaptureMode, int*);
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    ASSERT_EQ(exchange(&mode), CUDA_SUCCESS);
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_EQ(Try(s, [&] { return Alloc(&p, 100); }), Captured(0)) << "the thread takes care itself";
    ASSERT_EQ(exchange(&mode), CUDA_SUCCESS);
    // Graphs.
    CUgraph empty = NewGraph();
    CUgraphExec exec;
    EXPECT_EQ(Try(s, [&] { return Instantiate(&exec, empty); }), Breaks(kUnsupported));
    ASSERT_EQ(Instantiate(&exec, empty), CUDA_SUCCESS);
    EXPECT_EQ(Try(s, [&] { return LaunchGraph(exec, s); }), Breaks(kUnsupported));
    EXPECT_EQ(Try(s, [&] { return LaunchGraph(exec, t); }), Captured(0));
    EXPECT_EQ(Try(s, [&] { return DestroyExec(exec); }), Breaks(kUnsupported));
    // A stream that is destroyed takes its capture along.
    ASSERT_EQ(Begin(s), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamDestroy_v2, CUstream)(s), CUDA_SUCCESS);
    EXPECT_EQ(Alloc(&p, 100), CUDA_SUCCESS);
  });
}

}  // namespace
}  // namespace gpumux::test
