// SPDX-License-Identifier: Apache-2.0
//
// Memory that graphs allocate. What it takes and what is answered was recorded on
// an H200 (driver 580.159.04).
#include <vector>

#include "child.h"
#include "cuda_functions.h"
#include "graph_functions.h"
#include "ledger.h"
#include "softgpu/driver/graph_types.h"

namespace gpumux::test {
namespace {

using namespace cuda;
using softgpu::MemAllocNodeParams;

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

uint64_t Attribute(int attribute) {
  uint64_t value = 0;
  EXPECT_EQ(CU(cuDeviceGetGraphMemAttribute, int, int, void*)(0, attribute, &value), CUDA_SUCCESS);
  return value;
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

}  // namespace
}  // namespace gpumux::test
