// SPDX-License-Identifier: Apache-2.0
//
// Short forms of what the tests of graphs and of captures need, and what they
// share.
#pragma once

#include <vector>

#include "child.h"
#include "cuda_functions.h"

namespace gpumux::test {

class SoftGpuGraph : public SoftGpuTest {};

inline cuda::CUresult Code(int value) { return static_cast<cuda::CUresult>(value); }
inline cuda::CUstream NewStream(unsigned flags = cuda::CU_STREAM_NON_BLOCKING) {
  cuda::CUstream stream = nullptr;
  EXPECT_EQ(CU(cuStreamCreate, cuda::CUstream*, unsigned)(&stream, flags), cuda::CUDA_SUCCESS);
  return stream;
}
inline cuda::CUresult Sync(cuda::CUstream stream) { return CU(cuStreamSynchronize, cuda::CUstream)(stream); }
inline cuda::CUgraph NewGraph() {
  cuda::CUgraph graph = nullptr;
  EXPECT_EQ(CU(cuGraphCreate, cuda::CUgraph*, unsigned)(&graph, 0), cuda::CUDA_SUCCESS);
  return graph;
}
inline cuda::CUresult Instantiate(cuda::CUgraphExec* exec, cuda::CUgraph graph,
                                  unsigned long long flags = 0) {
  return CU(cuGraphInstantiateWithFlags, cuda::CUgraphExec*, cuda::CUgraph, unsigned long long)(exec, graph,
                                                                                                flags);
}
inline cuda::CUresult LaunchGraph(cuda::CUgraphExec exec, cuda::CUstream stream) {
  return CU(cuGraphLaunch, cuda::CUgraphExec, cuda::CUstream)(exec, stream);
}
inline cuda::CUresult DestroyExec(cuda::CUgraphExec exec) {
  return CU(cuGraphExecDestroy, cuda::CUgraphExec)(exec);
}
inline cuda::CUresult DestroyGraph(cuda::CUgraph graph) { return CU(cuGraphDestroy, cuda::CUgraph)(graph); }
inline cuda::CUresult Trim() { return CU(cuDeviceGraphMemTrim, int)(0); }
inline cuda::CUresult FreeAsync(cuda::CUdeviceptr p, cuda::CUstream stream) {
  return CU(cuMemFreeAsync, cuda::CUdeviceptr, cuda::CUstream)(p, stream);
}
inline cuda::CUresult AddFree(cuda::CUgraphNode* node, cuda::CUgraph graph,
                              std::vector<cuda::CUgraphNode> before, cuda::CUdeviceptr address) {
  return CU(cuGraphAddMemFreeNode, cuda::CUgraphNode*, cuda::CUgraph, const cuda::CUgraphNode*, size_t,
            cuda::CUdeviceptr)(node, graph, before.data(), before.size(), address);
}

}  // namespace gpumux::test
