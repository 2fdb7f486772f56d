// SPDX-License-Identifier: Apache-2.0
//
// Graphs, their memory and stream capture. What they take and what they answer
// was recorded on an H200 (driver 580.159.04).
#include <unistd.h>

#include <atomic>
#include <string>
#include <vector>

#include "child.h"
#include "cuda_functions.h"
#include "ledger.h"
#include "softgpu/driver/graph_types.h"

namespace gpumux::test {
namespace {

using namespace cuda;
using softgpu::Copy3D;
using softgpu::GraphNodeParams;
using softgpu::HostNodeParams;
using softgpu::KernelNodeParams;
using softgpu::MemAllocNodeParams;
using softgpu::MemsetNodeParams;

constexpr auto kInvalidated = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
constexpr auto kUnsupported = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
constexpr auto kImplicit = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
CUresult Code(int value) { return static_cast<CUresult>(value); }

class SoftGpuGraph : public SoftGpuTest {};
class SoftGpuCapture : public SoftGpuTest {};

CUstream NewStream(unsigned flags = CU_STREAM_NON_BLOCKING) {
  CUstream stream = nullptr;
  EXPECT_EQ(CU(cuStreamCreate, CUstream*, unsigned)(&stream, flags), CUDA_SUCCESS);
  return stream;
}
CUresult Sync(CUstream stream) { return CU(cuStreamSynchronize, CUstream)(stream); }
CUgraph NewGraph() {
  CUgraph graph = nullptr;
  EXPECT_EQ(CU(cuGraphCreate, CUgraph*, unsigned)(&graph, 0), CUDA_SUCCESS);
  return graph;
}
CUresult Instantiate(CUgraphExec* exec, CUgraph graph, unsigned long long flags = 0) {
  return CU(cuGraphInstantiateWithFlags, CUgraphExec*, CUgraph, unsigned long long)(exec, graph, flags);
}
CUresult LaunchGraph(CUgraphExec exec, CUstream stream) {
  return CU(cuGraphLaunch, CUgraphExec, CUstream)(exec, stream);
}
CUresult DestroyExec(CUgraphExec exec) { return CU(cuGraphExecDestroy, CUgraphExec)(exec); }
CUresult DestroyGraph(CUgraph graph) { return CU(cuGraphDestroy, CUgraph)(graph); }
CUresult Trim() { return CU(cuDeviceGraphMemTrim, int)(0); }
CUresult FreeAsync(CUdeviceptr p, CUstream stream) {
  return CU(cuMemFreeAsync, CUdeviceptr, CUstream)(p, stream);
}
CUresult AddAlloc(CUgraphNode* node, CUgraph graph, std::vector<CUgraphNode> before, size_t bytes,
                  CUdeviceptr* address) {
  MemAllocNodeParams params = {};
  params.pool.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.pool.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  params.bytes = bytes;
  const CUresult result = CU(cuGraphAddMemAllocNode, CUgraphNode*, CUgraph, const CUgraphNode*, size_t,
                             MemAllocNodeParams*)(node, graph, before.data(), before.size(), &params);
  *address = params.address;
  return result;
}
CUresult AddFree(CUgraphNode* node, CUgraph graph, std::vector<CUgraphNode> before, CUdeviceptr address) {
  return CU(cuGraphAddMemFreeNode, CUgraphNode*, CUgraph, const CUgraphNode*, size_t, CUdeviceptr)(
      node, graph, before.data(), before.size(), address);
}
CUresult AddEmpty(CUgraphNode* node, CUgraph graph, std::vector<CUgraphNode> before) {
  return CU(cuGraphAddEmptyNode, CUgraphNode*, CUgraph, const CUgraphNode*, size_t)(
      node, graph, before.data(), before.size());
}
uint64_t Attribute(int attribute) {
  uint64_t value = 0;
  EXPECT_EQ(CU(cuDeviceGetGraphMemAttribute, int, int, void*)(0, attribute, &value), CUDA_SUCCESS);
  return value;
}

// fill(p, value, count) as a node.
CUresult AddFillKernel(CUgraphNode* node, CUgraph graph, std::vector<CUgraphNode> before, CUdeviceptr p,
                       uint32_t value, uint64_t count) {
  void* arguments[] = {&p, &value, &count};
  KernelNodeParams params = {GetFunction("fill"), 1, 1, 1, 32, 1, 1, 0, arguments, nullptr, nullptr, nullptr};
  return CU(cuGraphAddKernelNode_v2, CUgraphNode*, CUgraph, const CUgraphNode*, size_t,
            const KernelNodeParams*)(node, graph, before.data(), before.size(), &params);
}

TEST_F(SoftGpuGraph, RunsItsNodesInTheOrderOfItsEdges) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUstream stream = NewStream();
    CUdeviceptr a, b;
    ASSERT_EQ(Alloc(&a, 4096), CUDA_SUCCESS);
    ASSERT_EQ(Alloc(&b, 4096), CUDA_SUCCESS);
    CUgraph graph = NewGraph();
    CUgraphNode left, right, join, host, set;
    MemsetNodeParams zero = {a, 0, 0, 4, 1024, 1, nullptr};
    ASSERT_EQ((CU(cuGraphAddMemsetNode, CUgraphNode*, CUgraph, const CUgraphNode*, size_t,
                  const MemsetNodeParams*, CUcontext)(&set, graph, nullptr, 0, &zero, nullptr)),
              CUDA_SUCCESS);
    ASSERT_EQ(AddFillKernel(&left, graph, {set}, a, 7, 512), CUDA_SUCCESS);
    ASSERT_EQ(AddFillKernel(&right, graph, {set}, a + 2048, 9, 512), CUDA_SUCCESS);
    Copy3D copy = {};
    copy.from.type = copy.to.type = softgpu::kDeviceMemory;
    copy.from.device = a;
    copy.to.device = b;
    copy.width_bytes = 4096;
    copy.height = copy.depth = 1;
    const CUgraphNode both[] = {left, right};
    ASSERT_EQ((CU(cuGraphAddMemcpyNode, CUgraphNode*, CUgraph, const CUgraphNode*, size_t, const Copy3D*,
                  CUcontext)(&join, graph, both, 2, &copy, nullptr)),
              CUDA_SUCCESS);
    static std::atomic<int> calls{0};
    HostNodeParams call = {[](void* by) { calls += *static_cast<int*>(by); }, nullptr};
    int by = 3;
    call.data = &by;
    ASSERT_EQ((CU(cuGraphAddHostNode, CUgraphNode*, CUgraph, const CUgraphNode*, size_t,
                  const HostNodeParams*)(&host, graph, &join, 1, &call)),
              CUDA_SUCCESS);

    size_t count = 0;
    EXPECT_EQ(CU(cuGraphGetNodes, CUgraph, CUgraphNode*, size_t*)(graph, nullptr, &count), CUDA_SUCCESS);
    EXPECT_EQ(count, 5u);
    CUgraphNode nodes[7];
    count = 7;
    EXPECT_EQ(CU(cuGraphGetNodes, CUgraph, CUgraphNode*, size_t*)(graph, nodes, &count), CUDA_SUCCESS);
    EXPECT_EQ(count, 5u);
    EXPECT_EQ(nodes[0], set);
    EXPECT_EQ(nodes[6], nullptr);
    EXPECT_EQ(CU(cuGraphGetRootNodes, CUgraph, CUgraphNode*, size_t*)(graph, nullptr, &count), CUDA_SUCCESS);
    EXPECT_EQ(count, 1u);
    EXPECT_EQ(
        (CU(cuGraphGetEdges, CUgraph, CUgraphNode*, CUgraphNode*, size_t*)(graph, nullptr, nullptr, &count)),
        CUDA_SUCCESS);
    EXPECT_EQ(count, 5u);
    EXPECT_EQ((CU(cuGraphNodeGetDependencies, CUgraphNode, CUgraphNode*, size_t*)(join, nullptr, &count)),
              CUDA_SUCCESS);
    EXPECT_EQ(count, 2u);
    EXPECT_EQ((CU(cuGraphNodeGetDependentNodes, CUgraphNode, CUgraphNode*, size_t*)(set, nullptr, &count)),
              CUDA_SUCCESS);
    EXPECT_EQ(count, 2u);
    int type = -1;
    EXPECT_EQ(CU(cuGraphNodeGetType, CUgraphNode, int*)(host, &type), CUDA_SUCCESS);
    EXPECT_EQ(type, softgpu::kHostNode);
    KernelNodeParams back = {};
    EXPECT_EQ(CU(cuGraphKernelNodeGetParams_v2, CUgraphNode, KernelNodeParams*)(right, &back), CUDA_SUCCESS);
    EXPECT_EQ(back.function, GetFunction("fill"));
    EXPECT_EQ(*static_cast<uint32_t*>(back.params[1]), 9u);

    CUgraphExec exec;
    ASSERT_EQ(Instantiate(&exec, graph), CUDA_SUCCESS);
    ASSERT_EQ(Sync(stream), CUDA_SUCCESS);
    std::vector<uint32_t> words(1024);
    ASSERT_EQ(FromDevice(words.data(), a, 4096), CUDA_SUCCESS);
    EXPECT_EQ(words[0], 0u) << "nothing runs before a launch";
    for (int i = 1; i <= 20; ++i) {
      ASSERT_EQ(LaunchGraph(exec, stream), CUDA_SUCCESS);
    }
    ASSERT_EQ(Sync(stream), CUDA_SUCCESS);
    ASSERT_EQ(FromDevice(words.data(), b, 4096), CUDA_SUCCESS);
    EXPECT_EQ(words[0] * 100 + words[1023], 709u);
    EXPECT_EQ(calls, 60);

    // Other arguments for one node, another node left out.
    uint32_t value = 11;
    uint64_t words_count = 512;
    void* arguments[] = {&a, &value, &words_count};
    KernelNodeParams other = {GetFunction("fill"), 1,       1,       1,      32, 1, 1, 0,
                              arguments,           nullptr, nullptr, nullptr};
    ASSERT_EQ((CU(cuGraphExecKernelNodeSetParams_v2, CUgraphExec, CUgraphNode, const KernelNodeParams*)(
                  exec, left, &other)),
              CUDA_SUCCESS);
    ASSERT_EQ(CU(cuGraphNodeSetEnabled, CUgraphExec, CUgraphNode, unsigned)(exec, right, 0), CUDA_SUCCESS);
    ASSERT_EQ(LaunchGraph(exec, stream), CUDA_SUCCESS);
    ASSERT_EQ(Sync(stream), CUDA_SUCCESS);
    ASSERT_EQ(FromDevice(words.data(), b, 4096), CUDA_SUCCESS);
    EXPECT_EQ(words[0] * 100 + words[1023], 1100u);
    EXPECT_EQ(DestroyGraph(graph), CUDA_SUCCESS);
    EXPECT_EQ(LaunchGraph(exec, nullptr), CUDA_SUCCESS) << "an instance outlives its graph";
    EXPECT_EQ(Synchronize(), CUDA_SUCCESS);
    EXPECT_EQ(DestroyExec(exec), CUDA_SUCCESS);
    EXPECT_EQ(DestroyExec(exec), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(SoftGpuGraph, ClonesAndChildren) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUstream stream = NewStream();
    CUdeviceptr p;
    ASSERT_EQ(Alloc(&p, 4096), CUDA_SUCCESS);
    CUgraph child = NewGraph(), graph = NewGraph(), clone;
    CUgraphNode first, in_child, child_node, last, found;
    ASSERT_EQ(AddFillKernel(&in_child, child, {}, p, 5, 8), CUDA_SUCCESS);
    ASSERT_EQ(AddFillKernel(&first, graph, {}, p, 1, 16), CUDA_SUCCESS);
    ASSERT_EQ((CU(cuGraphAddChildGraphNode, CUgraphNode*, CUgraph, const CUgraphNode*, size_t, CUgraph)(
                  &child_node, graph, &first, 1, child)),
              CUDA_SUCCESS);
    ASSERT_EQ(AddFillKernel(&last, graph, {child_node}, p, 2, 4), CUDA_SUCCESS);
    ASSERT_EQ(DestroyGraph(child), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuGraphClone, CUgraph*, CUgraph)(&clone, graph), CUDA_SUCCESS);
    ASSERT_EQ((CU(cuGraphNodeFindInClone, CUgraphNode*, CUgraphNode, CUgraph)(&found, last, clone)),
              CUDA_SUCCESS);
    EXPECT_NE(found, last);
    CUgraphExec exec;
    ASSERT_EQ(Instantiate(&exec, clone), CUDA_SUCCESS);
    ASSERT_EQ(LaunchGraph(exec, stream), CUDA_SUCCESS);
    ASSERT_EQ(Sync(stream), CUDA_SUCCESS);
    uint32_t words[16];
    ASSERT_EQ(FromDevice(words, p, sizeof(words)), CUDA_SUCCESS);
    EXPECT_EQ(words[0] * 10000 + words[4] * 100 + words[8], 20501u);
    // An instance takes over the parameters of a graph of the same shape.
    CUgraphNode changed;
    ASSERT_EQ((CU(cuGraphNodeFindInClone, CUgraphNode*, CUgraphNode, CUgraph)(&changed, first, clone)),
              CUDA_SUCCESS);
    uint32_t value = 8;
    uint64_t count = 16;
    void* arguments[] = {&p, &value, &count};
    KernelNodeParams params = {GetFunction("fill"), 1,       1,       1,      1, 1, 1, 0,
                               arguments,           nullptr, nullptr, nullptr};
    ASSERT_EQ(CU(cuGraphKernelNodeSetParams_v2, CUgraphNode, const KernelNodeParams*)(changed, &params),
              CUDA_SUCCESS);
    softgpu::ExecUpdateResult result = {};
    const auto update = CU(cuGraphExecUpdate_v2, CUgraphExec, CUgraph, softgpu::ExecUpdateResult*);
    ASSERT_EQ(update(exec, clone, &result), CUDA_SUCCESS);
    ASSERT_EQ(LaunchGraph(exec, stream), CUDA_SUCCESS);
    ASSERT_EQ(Sync(stream), CUDA_SUCCESS);
    ASSERT_EQ(FromDevice(words, p, sizeof(words)), CUDA_SUCCESS);
    EXPECT_EQ(words[0] * 10000 + words[4] * 100 + words[8], 20508u);
    CUgraph empty = NewGraph();
    EXPECT_EQ(update(exec, empty, &result), Code(910));
    EXPECT_EQ(result.result, 2);
  });
}

TEST_F(SoftGpuGraph, ParallelBranchesRunTogether) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUstream stream = NewStream();
    CUgraph graph = NewGraph();
    uint64_t ns = 60'000'000;
    void* arguments[] = {&ns};
    KernelNodeParams params = {GetFunction("spin"), 33,      1,       1,      1024, 1, 1, 0,
                               arguments,           nullptr, nullptr, nullptr};
    CUgraphNode node;
    for (int i = 0; i < 4; ++i) {
      ASSERT_EQ((CU(cuGraphAddKernelNode, CUgraphNode*, CUgraph, const CUgraphNode*, size_t,
                    const KernelNodeParams*)(&node, graph, nullptr, 0, &params)),
                CUDA_SUCCESS);
    }
    CUgraphExec exec;
    ASSERT_EQ(Instantiate(&exec, graph), CUDA_SUCCESS);
    CUevent start, end;
    CU(cuEventCreate, CUevent*, unsigned)(&start, 0);
    CU(cuEventCreate, CUevent*, unsigned)(&end, 0);
    CU(cuEventRecord, CUevent, CUstream)(start, stream);
    ASSERT_EQ(LaunchGraph(exec, stream), CUDA_SUCCESS);
    CU(cuEventRecord, CUevent, CUstream)(end, stream);
    ASSERT_EQ(Sync(stream), CUDA_SUCCESS);
    float ms = 0;
    ASSERT_EQ(CU(cuEventElapsedTime, float*, CUevent, CUevent)(&ms, start, end), CUDA_SUCCESS);
    EXPECT_GE(ms, 59);
    EXPECT_LT(ms, 150) << "one after another they would take 240 ms";
  });
}

TEST_F(SoftGpuGraph, MemoryIsTakenAtLaunchAndKeptUntilATrim) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUstream stream = NewStream();
    Ledger ledger;
    CUgraph graph = NewGraph(), other, in_child = NewGraph();
    CUgraphNode node, child;
    CUgraphExec exec, second;
    CUdeviceptr p, q;
    ASSERT_EQ(AddAlloc(&node, graph, {}, 40 << 20, &p), CUDA_SUCCESS);
    ledger.Expect("a node", 0);
    EXPECT_EQ(CU(cuGraphClone, CUgraph*, CUgraph)(&other, graph), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ((CU(cuGraphAddChildGraphNode, CUgraphNode*, CUgraph, const CUgraphNode*, size_t, CUgraph)(
                  &child, in_child, nullptr, 0, graph)),
              CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(CU(cuGraphDestroyNode, CUgraphNode)(node), CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_EQ(Instantiate(&exec, graph), CUDA_SUCCESS);
    EXPECT_EQ(Instantiate(&second, graph), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(Free(p), CUDA_ERROR_INVALID_VALUE) << "no launch has made it";
    EXPECT_EQ(FreeAsync(p, stream), CUDA_ERROR_INVALID_VALUE);
    ledger.Expect("an instance", 0);
    ASSERT_EQ(CU(cuGraphUpload, CUgraphExec, CUstream)(exec, stream), CUDA_SUCCESS);
    ledger.Expect("an upload", 64 * kMiB);
    EXPECT_EQ(Attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 64u << 20);
    EXPECT_EQ(Attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 64u << 20);
    ASSERT_EQ(LaunchGraph(exec, stream), CUDA_SUCCESS);
    ledger.Expect("a launch after it", 0);
    EXPECT_EQ(LaunchGraph(exec, stream), CUDA_ERROR_INVALID_VALUE) << "what the first has made still lives";
    CUdeviceptr base;
    size_t bytes;
    EXPECT_EQ((CU(cuMemGetAddressRange_v2, CUdeviceptr*, size_t*, CUdeviceptr)(&base, &bytes, p + 100)),
              CUDA_SUCCESS);
    EXPECT_EQ(base, p);
    EXPECT_EQ(bytes, 40u << 20);
    const uint32_t value = 77;
    uint32_t back = 0;
    ASSERT_EQ(ToDevice(p + (39 << 20), &value, 4), CUDA_SUCCESS);
    ASSERT_EQ(FromDevice(&back, p + (39 << 20), 4), CUDA_SUCCESS);
    EXPECT_EQ(back, 77u);
    EXPECT_EQ(DestroyExec(exec), CUDA_SUCCESS);
    EXPECT_EQ(Free(p), CUDA_SUCCESS) << "it outlives the instance";
    ledger.Expect("freed", 0);
    EXPECT_EQ(Attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 64u << 20);
    EXPECT_EQ(Trim(), CUDA_SUCCESS);
    ledger.Expect("a trim", -64 * kMiB);
    EXPECT_EQ(Attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0u);
    EXPECT_EQ(Attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 64u << 20);
    EXPECT_EQ(Free(p), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(DestroyGraph(graph), CUDA_SUCCESS);

    // Another graph gets what an idle one has; two that are in use have their own.
    graph = NewGraph();
    other = NewGraph();
    ASSERT_EQ(AddAlloc(&node, graph, {}, 40 << 20, &p), CUDA_SUCCESS);
    ASSERT_EQ(AddAlloc(&node, other, {}, 40 << 20, &q), CUDA_SUCCESS);
    ASSERT_EQ(Instantiate(&exec, graph, softgpu::kAutoFreeOnLaunch), CUDA_SUCCESS);
    ASSERT_EQ(Instantiate(&second, other), CUDA_SUCCESS);
    ASSERT_EQ(LaunchGraph(exec, stream), CUDA_SUCCESS);
    ASSERT_EQ(LaunchGraph(exec, stream), CUDA_SUCCESS);
    ledger.Expect("freed by its own launch", 64 * kMiB);
    ASSERT_EQ(FreeAsync(p, stream), CUDA_SUCCESS);
    ASSERT_EQ(Sync(stream), CUDA_SUCCESS);
    ASSERT_EQ(LaunchGraph(second, stream), CUDA_SUCCESS);
    ledger.Expect("the other graph", 0);
    ASSERT_EQ(LaunchGraph(exec, stream), CUDA_SUCCESS);
    ledger.Expect("both", 64 * kMiB);
    EXPECT_EQ(Trim(), CUDA_SUCCESS);
    ledger.Expect("a trim takes nothing that is used", 0);
    EXPECT_EQ(FreeAsync(p, stream), CUDA_SUCCESS);
    EXPECT_EQ(Free(q), CUDA_SUCCESS);
    EXPECT_EQ(Sync(stream), CUDA_SUCCESS);
    ledger.Expect("freed both", 0);
    EXPECT_EQ(DestroyExec(exec), CUDA_SUCCESS);
    EXPECT_EQ(DestroyExec(second), CUDA_SUCCESS);
    EXPECT_EQ(DestroyGraph(graph), CUDA_SUCCESS);
    EXPECT_EQ(DestroyGraph(other), CUDA_SUCCESS);
    ledger.Expect("destroyed", 0);
    EXPECT_EQ(Trim(), CUDA_SUCCESS);
    ledger.Expect("trimmed", -128 * kMiB);
  });
}

TEST_F(SoftGpuGraph, MemoryFreedInAGraphIsUsedAgainInIt) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUstream stream = NewStream();
    Ledger ledger;
    CUgraph graph = NewGraph();
    CUgraphNode a1, f1, a2, f2, extra;
    CUdeviceptr p, q;
    ASSERT_EQ(AddAlloc(&a1, graph, {}, 40 << 20, &p), CUDA_SUCCESS);
    EXPECT_EQ(AddFree(&extra, graph, {}, p), CUDA_ERROR_INVALID_VALUE) << "before it is made";
    ASSERT_EQ(AddFree(&f1, graph, {a1}, p), CUDA_SUCCESS);
    EXPECT_EQ(AddFree(&extra, graph, {a1}, p), CUDA_ERROR_INVALID_VALUE) << "twice";
    ASSERT_EQ(AddAlloc(&a2, graph, {f1}, 40 << 20, &q), CUDA_SUCCESS);
    EXPECT_EQ(p, q);
    ASSERT_EQ(AddFree(&f2, graph, {a2}, q), CUDA_SUCCESS);
    CUgraphExec exec;
    ASSERT_EQ(Instantiate(&exec, graph), CUDA_SUCCESS);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(LaunchGraph(exec, stream), CUDA_SUCCESS);
    ASSERT_EQ(Sync(stream), CUDA_SUCCESS);
    ledger.Expect("one place for both", 64 * kMiB);
    EXPECT_EQ(Trim(), CUDA_SUCCESS);
    ledger.Expect("trimmed", -64 * kMiB);
    ASSERT_EQ(LaunchGraph(exec, stream), CUDA_SUCCESS);
    ledger.Expect("again", 64 * kMiB);
    ASSERT_EQ(Sync(stream), CUDA_SUCCESS);
    EXPECT_EQ(DestroyExec(exec), CUDA_SUCCESS);
    EXPECT_EQ(Trim(), CUDA_SUCCESS);
    ledger.Expect("trimmed again", -64 * kMiB);

    // Small ones lie side by side, and what does not fit is refused at launch.
    CUgraph small = NewGraph(), huge = NewGraph();
    ASSERT_EQ(AddAlloc(&a1, small, {}, 1, &p), CUDA_SUCCESS);
    ASSERT_EQ(AddAlloc(&a2, small, {}, 1, &q), CUDA_SUCCESS);
    EXPECT_EQ(q, p + 512);
    EXPECT_EQ(AddAlloc(&a1, small, {}, 0, &p), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(AddAlloc(&a1, huge, {}, 200ULL << 30, &p), CUDA_SUCCESS);
    ASSERT_EQ(Instantiate(&exec, huge), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuGraphUpload, CUgraphExec, CUstream)(exec, stream), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(LaunchGraph(exec, stream), CUDA_ERROR_OUT_OF_MEMORY);
    ledger.Expect("refused", 0);
    uint64_t zero = 0, five = 5;
    const auto set = CU(cuDeviceSetGraphMemAttribute, int, int, void*);
    EXPECT_EQ(set(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero), CUDA_SUCCESS);
    EXPECT_EQ(Attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 0u);
    EXPECT_EQ(set(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &five), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(set(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &zero), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuDeviceGraphMemTrim, int)(7), CUDA_ERROR_INVALID_DEVICE);
  });
}

TEST_F(SoftGpuGraph, MemoryOfAGraphEndsWithItsContext) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUgraph graph = NewGraph();
    CUgraphNode node;
    CUgraphExec exec;
    CUdeviceptr p;
    ASSERT_EQ(AddAlloc(&node, graph, {}, 40 << 20, &p), CUDA_SUCCESS);
    ASSERT_EQ(Instantiate(&exec, graph), CUDA_SUCCESS);
    ASSERT_EQ(LaunchGraph(exec, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuDevicePrimaryCtxReset_v2, int)(0), CUDA_SUCCESS);
    EXPECT_EQ(ReadMemory(Gpu0()).used, 3'407'872u);
  });
}

TEST_F(SoftGpuGraph, AnswersWrongGraphsAsTheDriver) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUgraph graph = NewGraph(), other;
    CUgraphExec exec;
    CUgraphNode x, y, z;
    EXPECT_EQ(CU(cuGraphCreate, CUgraph*, unsigned)(&other, 1), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(AddEmpty(&x, graph, {}), CUDA_SUCCESS);
    ASSERT_EQ(AddEmpty(&y, graph, {x}), CUDA_SUCCESS);
    const auto add = CU(cuGraphAddDependencies, CUgraph, const CUgraphNode*, const CUgraphNode*, size_t);
    const auto remove =
        CU(cuGraphRemoveDependencies, CUgraph, const CUgraphNode*, const CUgraphNode*, size_t);
    EXPECT_EQ(add(graph, &y, &x, 1), CUDA_SUCCESS) << "a cycle is found when it is instantiated";
    EXPECT_EQ(Instantiate(&exec, graph), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(add(graph, &x, &y, 1), CUDA_ERROR_INVALID_VALUE) << "twice";
    EXPECT_EQ(remove(graph, &y, &x, 1), CUDA_SUCCESS);
    EXPECT_EQ(remove(graph, &y, &x, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(add(graph, &x, &x, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Instantiate(&exec, graph), CUDA_SUCCESS);
    other = NewGraph();
    EXPECT_EQ(AddEmpty(&z, other, {x}), CUDA_ERROR_INVALID_VALUE) << "of another graph";
    EXPECT_EQ(AddFree(&z, other, {}, 0x1234), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(LaunchGraph(nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(DestroyGraph(nullptr), CUDA_ERROR_INVALID_VALUE);
    MemsetNodeParams nowhere = {0x1234, 0, 0, 1, 4, 1, nullptr};
    EXPECT_EQ((CU(cuGraphAddMemsetNode, CUgraphNode*, CUgraph, const CUgraphNode*, size_t,
                  const MemsetNodeParams*, CUcontext)(&z, other, nullptr, 0, &nowhere, nullptr)),
              CUDA_ERROR_INVALID_VALUE);
    KernelNodeParams large = {
        GetFunction("other"), 1, 1, 1, 2000, 1, 1, 0, nullptr, nullptr, nullptr, nullptr};
    EXPECT_EQ((CU(cuGraphAddKernelNode, CUgraphNode*, CUgraph, const CUgraphNode*, size_t,
                  const KernelNodeParams*)(&z, other, nullptr, 0, &large)),
              CUDA_ERROR_INVALID_VALUE);
    GraphNodeParams any = {};
    any.type = softgpu::kMemAllocNode;
    any.alloc.pool.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    any.alloc.pool.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    any.alloc.bytes = 100;
    const auto add_any = CU(cuGraphAddNode_v2, CUgraphNode*, CUgraph, const CUgraphNode*, const void*, size_t,
                            GraphNodeParams*);
    EXPECT_EQ(add_any(&z, other, nullptr, nullptr, 0, &any), CUDA_SUCCESS);
    EXPECT_NE(any.alloc.address, 0u);
    any.reserved2 = 1;
    EXPECT_EQ(add_any(&z, other, nullptr, nullptr, 0, &any), CUDA_ERROR_INVALID_VALUE);
    any.reserved2 = 0;
    any.type = softgpu::kConditionalNode;
    EXPECT_EQ(add_any(&z, other, nullptr, nullptr, 0, &any), CUDA_ERROR_NOT_SUPPORTED);
  });
}

// --- capture

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
