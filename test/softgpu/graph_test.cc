// SPDX-License-Identifier: Apache-2.0
//
// Graphs, their nodes and instances. What they take and what they answer was
// recorded on an H200 (driver 580.159.04).
#include <atomic>
#include <vector>

#include "child.h"
#include "cuda_functions.h"
#include "graph_functions.h"
#include "softgpu/driver/graph_types.h"

namespace gpumux::test {
namespace {

using namespace cuda;
using softgpu::Copy3D;
using softgpu::GraphNodeParams;
using softgpu::HostNodeParams;
using softgpu::KernelNodeParams;
using softgpu::MemsetNodeParams;

CUresult AddEmpty(CUgraphNode* node, CUgraph graph, std::vector<CUgraphNode> before) {
  return CU(cuGraphAddEmptyNode, CUgraphNode*, CUgraph, const CUgraphNode*, size_t)(
      node, graph, before.data(), before.size());
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

}  // namespace
}  // namespace gpumux::test
