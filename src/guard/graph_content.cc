// SPDX-License-Identifier: Apache-2.0
#include "guard/graph_content.h"

#include <string.h>
#include <sys/mman.h>

#include "guard/driver.h"
#include "guard/local_memory.h"
#include "guard/rounding.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

constexpr int kDeepestNesting = 8;
constexpr size_t kMostNodes = 1 << 20;

void Read(CUgraph graph, GraphContent* content, int depth);

// A driver that is too old for the question has nothing to tell.
template <typename Out>
bool Says(CUresult (*question)(CUgraphNode, Out*), CUgraphNode node, Out* out) {
  return !question || question(node, out) == CUDA_SUCCESS;
}

void ReadNode(CUgraphNode node, GraphContent* content, int depth) {
  CUgraphNodeType type;
  if (Real().cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) {
    content->known = false;
    return;
  }
  CUDA_KERNEL_NODE_PARAMS_v2 kernel = {};
  CUDA_MEM_ALLOC_NODE_PARAMS memory = {};
  CUgraph child = nullptr;
  bool said = true;
  if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
    said = Says(Real().cuGraphKernelNodeGetParams_v2, node, &kernel);
    const uint64_t local = said ? LocalBytesOfKernel(kernel.func, kernel.kern) : 0;
    if (local > content->local_bytes) content->local_bytes = local;
  } else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    said = Says(Real().cuGraphMemAllocNodeGetParams, node, &memory);
    if (said && memory.bytesize < kAbsurdBytes) {
      content->memory_bytes += RoundUp(memory.bytesize, kPoolGrowthBytes);
      content->device = memory.poolProps.location.id;
    }
  } else if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
    said = Says(Real().cuGraphChildGraphNodeGetGraph, node, &child);
    if (said) Read(child, content, depth + 1);
  }
  if (!said) content->known = false;
}

void Read(CUgraph graph, GraphContent* content, int depth) {
  size_t count = 0;
  if (!Real().cuGraphGetNodes || !Real().cuGraphNodeGetType) return;
  if (depth > kDeepestNesting || Real().cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS ||
      count > kMostNodes) {
    content->known = false;
    return;
  }
  if (count == 0) return;
  const size_t bytes = count * sizeof(CUgraphNode);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    content->known = false;
    return;
  }
  auto* nodes = static_cast<CUgraphNode*>(memory);
  if (Real().cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS) {
    content->nodes += count;
    for (size_t i = 0; i < count; i++) ReadNode(nodes[i], content, depth);
  } else {
    content->known = false;
  }
  munmap(memory, bytes);
}

}  // namespace

uint64_t LocalBytesOfKernel(CUfunction func, CUkernel kern) {
  const CUfunction f = func ? func : reinterpret_cast<CUfunction>(kern);
  return IsSmallKernel(f) ? 0 : LocalBytesOf(f);
}

GraphContent ReadGraph(CUgraph graph) {
  GraphContent content;
  Read(graph, &content, 0);
  if (!content.known) content.local_bytes = kUnknownLocalBytes;
  return content;
}

}  // namespace gpumux::guard
