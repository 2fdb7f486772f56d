// SPDX-License-Identifier: Apache-2.0
//
// Nodes of graphs: added, and their parameters read and changed.
#include <algorithm>
#include <cstring>

#include "softgpu/driver/error_codes.h"
#include "softgpu/driver/graph_api.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

CUresult AddGraphNode(CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies,
                      const EdgeData* edges, size_t count, Operation operation, Node** made) {
  GPUMUX_REQUIRE_GRAPH(graph, handle);
  if (out == nullptr || (dependencies == nullptr && count > 0)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> before;
  for (size_t i = 0; i < count; ++i) before.push_back(Graphs::Get().FindNode(dependencies[i]));
  if (auto* child = std::get_if<ChildOperation>(&operation)) {
    if (child->graph->HasMemoryNodes()) return CUDA_ERROR_NOT_SUPPORTED;
    if (child->graph.get() == graph) return CUDA_ERROR_INVALID_VALUE;
    child->graph = Graphs::Get().Clone(*child->graph);
    child->graph->owned = true;
  }
  Node* node = nullptr;
  if (CUresult error = Graphs::Get().AddNode(graph, before, std::move(operation), &node);
      error != CUDA_SUCCESS)
    return error;
  if (edges != nullptr) node->edges.assign(edges, edges + count);
  *out = Handle(node);
  if (made != nullptr) *made = node;
  return CUDA_SUCCESS;
}

namespace {

// Of a kernel's operation what GetParams hands out; the pointers stay good as
// long as the node's parameters do.
void Describe(Node* node, KernelNodeParams* out) {
  auto& kernel = std::get<KernelOperation>(node->operation);
  node->argument_pointers.clear();
  for (auto& argument : kernel.arguments) node->argument_pointers.push_back(argument.data());
  *out = {kernel.is_kernel ? nullptr : kernel.function,
          kernel.grid[0],
          kernel.grid[1],
          kernel.grid[2],
          kernel.block[0],
          kernel.block[1],
          kernel.block[2],
          kernel.shared_bytes,
          node->argument_pointers.empty() ? nullptr : node->argument_pointers.data(),
          nullptr,
          kernel.is_kernel ? reinterpret_cast<CUkernel>(kernel.function) : nullptr,
          nullptr};
}

CUresult KernelOf(const KernelNodeParams* params, size_t bytes, Operation* out) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KernelNodeParams full = {};
  memcpy(&full, params, bytes);
  KernelOperation operation;
  const CUresult error = ReadKernel(context, full, &operation);
  // A node with a function that is none is a wrong argument.
  if (error != CUDA_SUCCESS) return error == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : error;
  *out = std::move(operation);
  return CUDA_SUCCESS;
}

CUresult MemoryOpsOf(const BatchMemOpNodeParams& params, Operation* out) {
  if (params.operations == nullptr && params.count > 0) return CUDA_ERROR_INVALID_VALUE;
  if (params.count > 256 || params.flags != 0) return CUDA_ERROR_INVALID_VALUE;
  MemoryOpsOperation operation;
  if (params.count > 0) operation.operations.assign(params.operations, params.operations + params.count);
  *out = std::move(operation);
  return CUDA_SUCCESS;
}

CUresult AllocOf(const MemAllocNodeParams& params, Operation* out) {
  if (params.bytes == 0 || (params.access == nullptr && params.access_count > 0))
    return CUDA_ERROR_INVALID_VALUE;
  if (params.pool.handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_INVALID_VALUE;
  AllocOperation operation;
  operation.params = params;
  if (params.access_count > 0) operation.access.assign(params.access, params.access + params.access_count);
  for (const auto& access : operation.access) {
    if (access.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        Driver::Get().FindDevice(access.location.id) == nullptr)
      return CUDA_ERROR_INVALID_VALUE;
  }
  *out = std::move(operation);
  return CUDA_SUCCESS;
}

CUresult Set(CUgraphNode handle, Operation operation) {
  GPUMUX_REQUIRE_NODE(node, handle, TypeOf(operation));
  return Graphs::Get().SetOperation(node, std::move(operation));
}

}  // namespace

CUresult ReadOperation(const GraphNodeParams& params, Operation* out) {
  // What is reserved has to be zero.
  if (params.reserved0[0] != 0 || params.reserved0[1] != 0 || params.reserved0[2] != 0 ||
      params.reserved2 != 0)
    return CUDA_ERROR_INVALID_VALUE;
  switch (params.type) {
    case kKernelNode:
      return KernelOf(&params.kernel, sizeof(params.kernel), out);
    case kMemcpyNode:
      if (params.memcpy.flags != 0 || params.memcpy.reserved != 0) return CUDA_ERROR_INVALID_VALUE;
      *out = CopyOperation{params.memcpy.copy};
      return CUDA_SUCCESS;
    case kMemsetNode:
      *out = FillOperation{params.memset};
      return CUDA_SUCCESS;
    case kHostNode:
      *out = HostOperation{params.host};
      return CUDA_SUCCESS;
    case kGraphNode: {
      if (params.graph.ownership != 0) return CUDA_ERROR_NOT_SUPPORTED;
      GPUMUX_GRAPHS_LOCK();
      auto child = Graphs::Get().FindShared(params.graph.graph);
      if (child == nullptr) return CUDA_ERROR_INVALID_VALUE;
      *out = ChildOperation{std::move(child)};
      return CUDA_SUCCESS;
    }
    case kEmptyNode:
      *out = EmptyOperation{};
      return CUDA_SUCCESS;
    case kEventWaitNode:
      *out = EventWaitOperation{params.event};
      return CUDA_SUCCESS;
    case kEventRecordNode:
      *out = EventRecordOperation{params.event};
      return CUDA_SUCCESS;
    case kMemAllocNode:
      return AllocOf(params.alloc, out);
    case kMemFreeNode:
      *out = FreeOperation{params.free, nullptr};
      return CUDA_SUCCESS;
    case kBatchMemOpNode:
      return MemoryOpsOf(params.mem_op, out);
    case kSemaphoreSignalNode:
    case kSemaphoreWaitNode:
    case kConditionalNode:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// What the entry points that add a node have in common.
#define NODE CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count
#define ADD(operation) AddGraphNode(out, graph, before, nullptr, count, operation)

GPUMUX_CU cuGraphAddKernelNode(NODE, const KernelNodeParams* params) {
  Operation operation;
  if (CUresult error = KernelOf(params, kKernelNodeParamsV1, &operation); error != CUDA_SUCCESS) return error;
  return ADD(std::move(operation));
}
GPUMUX_CU cuGraphAddKernelNode_v2(NODE, const KernelNodeParams* params) {
  Operation operation;
  if (CUresult error = KernelOf(params, sizeof(*params), &operation); error != CUDA_SUCCESS) return error;
  return ADD(std::move(operation));
}
GPUMUX_CU cuGraphKernelNodeGetParams(CUgraphNode handle, KernelNodeParams* out) {
  GPUMUX_REQUIRE_NODE(node, handle, kKernelNode);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KernelNodeParams full;
  Describe(node, &full);
  memcpy(out, &full, kKernelNodeParamsV1);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuGraphKernelNodeGetParams_v2(CUgraphNode handle, KernelNodeParams* out) {
  GPUMUX_REQUIRE_NODE(node, handle, kKernelNode);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Describe(node, out);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuGraphKernelNodeSetParams(CUgraphNode node, const KernelNodeParams* params) {
  Operation operation;
  if (CUresult error = KernelOf(params, kKernelNodeParamsV1, &operation); error != CUDA_SUCCESS) return error;
  return Set(node, std::move(operation));
}
GPUMUX_CU cuGraphKernelNodeSetParams_v2(CUgraphNode node, const KernelNodeParams* params) {
  Operation operation;
  if (CUresult error = KernelOf(params, sizeof(*params), &operation); error != CUDA_SUCCESS) return error;
  return Set(node, std::move(operation));
}

namespace {
// CUlaunchAttributeValue.
constexpr size_t kAttributeBytes = 64;
constexpr int kLastAttribute = 16;
}  // namespace
GPUMUX_CU cuGraphKernelNodeGetAttribute(CUgraphNode handle, int attribute, void* value) {
  GPUMUX_REQUIRE_NODE(node, handle, kKernelNode);
  if (value == nullptr || attribute < 0 || attribute > kLastAttribute) return CUDA_ERROR_INVALID_VALUE;
  const auto& set = node->attributes[attribute];
  memset(value, 0, kAttributeBytes);
  if (!set.empty()) memcpy(value, set.data(), kAttributeBytes);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuGraphKernelNodeSetAttribute(CUgraphNode handle, int attribute, const void* value) {
  GPUMUX_REQUIRE_NODE(node, handle, kKernelNode);
  if (value == nullptr || attribute < 0 || attribute > kLastAttribute) return CUDA_ERROR_INVALID_VALUE;
  constexpr int kCooperative = 2;
  const auto* bytes = static_cast<const char*>(value);
  if (attribute == kCooperative) {
    auto kernel = std::get<KernelOperation>(node->operation);
    int on = 0;
    memcpy(&on, bytes, sizeof(on));
    kernel.cooperative = on != 0;
    if (CUresult error = Graphs::Get().SetOperation(node, std::move(kernel)); error != CUDA_SUCCESS)
      return error;
  }
  node->attributes[attribute].assign(bytes, bytes + kAttributeBytes);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
  GPUMUX_REQUIRE_NODE(destination, to, kKernelNode);
  Node* source = Graphs::Get().FindNode(from);
  if (source == nullptr || TypeOf(source->operation) != kKernelNode) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < std::size(source->attributes); ++i)
    destination->attributes[i] = source->attributes[i];
  std::get<KernelOperation>(destination->operation).cooperative =
      std::get<KernelOperation>(source->operation).cooperative;
  return CUDA_SUCCESS;
}

GPUMUX_CU cuGraphAddMemcpyNode(NODE, const Copy3D* copy, CUcontext) {
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return ADD(CopyOperation{*copy});
}
GPUMUX_CU cuGraphMemcpyNodeGetParams(CUgraphNode handle, Copy3D* out) {
  GPUMUX_REQUIRE_NODE(node, handle, kMemcpyNode);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = std::get<CopyOperation>(node->operation).copy;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuGraphMemcpyNodeSetParams(CUgraphNode node, const Copy3D* copy) {
  return copy != nullptr ? Set(node, CopyOperation{*copy}) : CUDA_ERROR_INVALID_VALUE;
}

namespace {
Operation FillOf(const MemsetNodeParams& params) {
  FillOperation operation;
  memcpy(&operation.fill, &params, kMemsetNodeParamsV1);
  return operation;
}
}  // namespace
GPUMUX_CU cuGraphAddMemsetNode(NODE, const MemsetNodeParams* params, CUcontext) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return ADD(FillOf(*params));
}
GPUMUX_CU cuGraphMemsetNodeGetParams(CUgraphNode handle, MemsetNodeParams* out) {
  GPUMUX_REQUIRE_NODE(node, handle, kMemsetNode);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  memcpy(out, &std::get<FillOperation>(node->operation).fill, kMemsetNodeParamsV1);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuGraphMemsetNodeSetParams(CUgraphNode node, const MemsetNodeParams* params) {
  return params != nullptr ? Set(node, FillOf(*params)) : CUDA_ERROR_INVALID_VALUE;
}

GPUMUX_CU cuGraphAddHostNode(NODE, const HostNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return ADD(HostOperation{*params});
}
GPUMUX_CU cuGraphHostNodeGetParams(CUgraphNode handle, HostNodeParams* out) {
  GPUMUX_REQUIRE_NODE(node, handle, kHostNode);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = std::get<HostOperation>(node->operation).host;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuGraphHostNodeSetParams(CUgraphNode node, const HostNodeParams* params) {
  return params != nullptr ? Set(node, HostOperation{*params}) : CUDA_ERROR_INVALID_VALUE;
}

GPUMUX_CU cuGraphAddChildGraphNode(NODE, CUgraph child) {
  GPUMUX_REQUIRE_INIT();
  GPUMUX_GRAPHS_LOCK();
  auto shared = Graphs::Get().FindShared(child);
  if (shared == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return ADD(ChildOperation{std::move(shared)});
}
GPUMUX_CU cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph* out) {
  GPUMUX_REQUIRE_NODE(node, handle, kGraphNode);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = Handle(std::get<ChildOperation>(node->operation).graph.get());
  return CUDA_SUCCESS;
}

GPUMUX_CU cuGraphAddEmptyNode(NODE) { return ADD(EmptyOperation{}); }

GPUMUX_CU cuGraphAddEventRecordNode(NODE, CUevent event) { return ADD(EventRecordOperation{event}); }
GPUMUX_CU cuGraphEventRecordNodeGetEvent(CUgraphNode handle, CUevent* out) {
  GPUMUX_REQUIRE_NODE(node, handle, kEventRecordNode);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = std::get<EventRecordOperation>(node->operation).event;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
  return Set(node, EventRecordOperation{event});
}
GPUMUX_CU cuGraphAddEventWaitNode(NODE, CUevent event) { return ADD(EventWaitOperation{event}); }
GPUMUX_CU cuGraphEventWaitNodeGetEvent(CUgraphNode handle, CUevent* out) {
  GPUMUX_REQUIRE_NODE(node, handle, kEventWaitNode);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = std::get<EventWaitOperation>(node->operation).event;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
  return Set(node, EventWaitOperation{event});
}

GPUMUX_CU cuGraphAddBatchMemOpNode(NODE, const BatchMemOpNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Operation operation;
  if (CUresult error = MemoryOpsOf(*params, &operation); error != CUDA_SUCCESS) return error;
  return ADD(std::move(operation));
}
GPUMUX_CU cuGraphBatchMemOpNodeGetParams(CUgraphNode handle, BatchMemOpNodeParams* out) {
  GPUMUX_REQUIRE_NODE(node, handle, kBatchMemOpNode);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto& operations = std::get<MemoryOpsOperation>(node->operation).operations;
  *out = {nullptr, static_cast<unsigned>(operations.size()), operations.data(), 0};
  return CUDA_SUCCESS;
}
GPUMUX_CU cuGraphBatchMemOpNodeSetParams(CUgraphNode node, const BatchMemOpNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Operation operation;
  if (CUresult error = MemoryOpsOf(*params, &operation); error != CUDA_SUCCESS) return error;
  return Set(node, std::move(operation));
}

GPUMUX_CU cuGraphAddMemAllocNode(NODE, MemAllocNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GPUMUX_REQUIRE_INIT();
  Operation operation;
  if (CUresult error = AllocOf(*params, &operation); error != CUDA_SUCCESS) return error;
  Node* node = nullptr;
  if (CUresult error = AddGraphNode(out, graph, before, nullptr, count, std::move(operation), &node);
      error != CUDA_SUCCESS)
    return error;
  params->address = std::get<AllocOperation>(node->operation).params.address;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuGraphMemAllocNodeGetParams(CUgraphNode handle, MemAllocNodeParams* out) {
  GPUMUX_REQUIRE_NODE(node, handle, kMemAllocNode);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto& alloc = std::get<AllocOperation>(node->operation);
  *out = alloc.params;
  out->access = alloc.access.empty() ? nullptr : alloc.access.data();
  return CUDA_SUCCESS;
}
GPUMUX_CU cuGraphAddMemFreeNode(NODE, CUdeviceptr address) { return ADD((FreeOperation{address, nullptr})); }
GPUMUX_CU cuGraphMemFreeNodeGetParams(CUgraphNode handle, CUdeviceptr* out) {
  GPUMUX_REQUIRE_NODE(node, handle, kMemFreeNode);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = std::get<FreeOperation>(node->operation).address;
  return CUDA_SUCCESS;
}

namespace {
CUresult AddAny(NODE, const EdgeData* edges, GraphNodeParams* params) {
  GPUMUX_REQUIRE_INIT();
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Operation operation;
  if (CUresult error = ReadOperation(*params, &operation); error != CUDA_SUCCESS) return error;
  Node* node = nullptr;
  if (CUresult error = AddGraphNode(out, graph, before, edges, count, std::move(operation), &node);
      error != CUDA_SUCCESS)
    return error;
  if (params->type == kMemAllocNode)
    params->alloc.address = std::get<AllocOperation>(node->operation).params.address;
  return CUDA_SUCCESS;
}
}  // namespace
GPUMUX_CU cuGraphAddNode(NODE, GraphNodeParams* params) {
  return AddAny(out, graph, before, count, nullptr, params);
}
GPUMUX_CU cuGraphAddNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* before, const EdgeData* edges,
                            size_t count, GraphNodeParams* params) {
  return AddAny(out, graph, before, count, edges, params);
}
GPUMUX_CU cuGraphNodeSetParams(CUgraphNode node, GraphNodeParams* params) {
  GPUMUX_REQUIRE_INIT();
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Operation operation;
  if (CUresult error = ReadOperation(*params, &operation); error != CUDA_SUCCESS) return error;
  return Set(node, std::move(operation));
}

}  // namespace gpumux::softgpu
