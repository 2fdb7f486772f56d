// SPDX-License-Identifier: Apache-2.0
//
// Instances of graphs: made, launched, updated, destroyed.
#include <cstring>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/graph_api.h"
#include "softgpu/driver/graph_exec.h"
#include "softgpu/driver/streams.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

CUresult Instantiate(CUgraphExec* out, CUgraph handle, uint64_t flags) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GPUMUX_GRAPHS_LOCK();
  const auto graph = Graphs::Get().FindShared(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphExec* exec = nullptr;
  if (CUresult error = GraphExecs::Get().Instantiate(graph, flags, context, &exec); error != CUDA_SUCCESS)
    return error;
  *out = reinterpret_cast<CUgraphExec>(exec);
  return CUDA_SUCCESS;
}

// With a log that has nothing to say.
CUresult InstantiateLogged(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log,
                           size_t bytes) {
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && bytes > 0) *log = 0;
  return Instantiate(out, graph, 0);
}

std::shared_ptr<GraphExec> Find(CUgraphExec handle) {
  GPUMUX_GRAPHS_LOCK();
  return GraphExecs::Get().Find(handle);
}

CUresult Upload(CUgraphExec handle, CUstream stream_handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  const auto exec = Find(handle);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GPUMUX_REQUIRE_STREAM(stream, context, stream_handle);
  if (auto captured = Captures::Forbid(stream)) return *captured;
  return GraphExecs::Upload(exec);
}

CUresult InstantiateWith(CUgraphExec* out, CUgraph graph, InstantiateParams* params, bool per_thread) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  params->error_node = nullptr;
  params->result = kInstantiateError;
  CUresult result = Instantiate(out, graph, params->flags);
  if (result == CUDA_SUCCESS && (params->flags & kUploadAtOnce) != 0) {
    result = Upload(*out, per_thread ? PerThread(params->upload_stream) : params->upload_stream);
    if (result != CUDA_SUCCESS) {
      GPUMUX_GRAPHS_LOCK();
      GraphExecs::Get().Destroy(*out);
    }
  }
  if (result == CUDA_SUCCESS) params->result = kInstantiated;
  return result;
}

CUresult LaunchExec(CUgraphExec handle, CUstream stream_handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  const auto exec = Find(handle);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GPUMUX_REQUIRE_STREAM(stream, context, stream_handle);
  if (auto captured = Captures::Forbid(stream)) return *captured;
  return GraphExecs::Launch(exec, stream);
}

// Declares the instance and the node of it, or returns.
#define REQUIRE_EXEC_NODE(exec, handle, node, node_handle) \
  GPUMUX_REQUIRE_NODE(node, node_handle, -1);              \
  const auto exec = GraphExecs::Get().Find(handle);        \
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE

CUresult Set(CUgraphExec handle, CUgraphNode node_handle, Operation operation) {
  REQUIRE_EXEC_NODE(exec, handle, node, node_handle);
  return GraphExecs::Get().SetOperation(*exec, node, std::move(operation));
}

CUresult SetAny(CUgraphExec exec, CUgraphNode node, const GraphNodeParams& params) {
  GPUMUX_REQUIRE_INIT();
  Operation operation;
  if (CUresult error = ReadOperation(params, &operation); error != CUDA_SUCCESS) return error;
  return Set(exec, node, std::move(operation));
}

CUresult SetKernel(CUgraphExec exec, CUgraphNode node, const KernelNodeParams* params, size_t bytes) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphNodeParams any = {};
  any.type = kKernelNode;
  memcpy(&any.kernel, params, bytes);
  return SetAny(exec, node, any);
}

}  // namespace

GPUMUX_CU cuGraphInstantiate(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log,
                             size_t bytes) {
  return InstantiateLogged(out, graph, error_node, log, bytes);
}
GPUMUX_CU cuGraphInstantiate_v2(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log,
                                size_t bytes) {
  return InstantiateLogged(out, graph, error_node, log, bytes);
}
GPUMUX_CU cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  return Instantiate(out, graph, flags);
}
GPUMUX_CU cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph, InstantiateParams* params) {
  return InstantiateWith(out, graph, params, false);
}
GPUMUX_CU cuGraphInstantiateWithParams_ptsz(CUgraphExec* out, CUgraph graph, InstantiateParams* params) {
  return InstantiateWith(out, graph, params, true);
}
GPUMUX_CU cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  GPUMUX_REQUIRE_INIT();
  const auto exec = Find(handle);
  if (exec == nullptr || flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // An upload is done with; what is left says how it is launched.
  *flags = exec->flags & ~static_cast<unsigned>(kUploadAtOnce);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuGraphUpload(CUgraphExec exec, CUstream stream) { return Upload(exec, stream); }
GPUMUX_CU cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) { return Upload(exec, PerThread(stream)); }
GPUMUX_CU cuGraphLaunch(CUgraphExec exec, CUstream stream) { return LaunchExec(exec, stream); }
GPUMUX_CU cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  return LaunchExec(exec, PerThread(stream));
}
GPUMUX_CU cuGraphExecDestroy(CUgraphExec exec) {
  GPUMUX_REQUIRE_INIT();
  GPUMUX_REQUIRE_NO_CAPTURE();
  GPUMUX_GRAPHS_LOCK();
  return GraphExecs::Get().Destroy(exec);
}

GPUMUX_CU cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const KernelNodeParams* params) {
  return SetKernel(exec, node, params, kKernelNodeParamsV1);
}
GPUMUX_CU cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                            const KernelNodeParams* params) {
  return SetKernel(exec, node, params, sizeof(*params));
}
GPUMUX_CU cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const Copy3D* copy, CUcontext) {
  return copy != nullptr ? Set(exec, node, CopyOperation{*copy}) : CUDA_ERROR_INVALID_VALUE;
}
GPUMUX_CU cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const MemsetNodeParams* params,
                                         CUcontext) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FillOperation operation;
  memcpy(&operation.fill, params, kMemsetNodeParamsV1);
  return Set(exec, node, operation);
}
GPUMUX_CU cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const HostNodeParams* params) {
  return params != nullptr ? Set(exec, node, HostOperation{*params}) : CUDA_ERROR_INVALID_VALUE;
}
GPUMUX_CU cuGraphExecChildGraphNodeSetParams(CUgraphExec handle, CUgraphNode node_handle, CUgraph child) {
  REQUIRE_EXEC_NODE(exec, handle, node, node_handle);
  Graph* graph = Graphs::Get().Find(child);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return GraphExecs::Get().SetChild(*exec, node, *graph);
}
GPUMUX_CU cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return Set(exec, node, EventRecordOperation{event});
}
GPUMUX_CU cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return Set(exec, node, EventWaitOperation{event});
}
GPUMUX_CU cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                             const BatchMemOpNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphNodeParams any = {};
  any.type = kBatchMemOpNode;
  any.mem_op = *params;
  return SetAny(exec, node, any);
}
GPUMUX_CU cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, GraphNodeParams* params) {
  return params != nullptr ? SetAny(exec, node, *params) : CUDA_ERROR_INVALID_VALUE;
}

namespace {
bool CanBeDisabled(const Operation& operation) {
  const int type = TypeOf(operation);
  return type == kKernelNode || type == kMemcpyNode || type == kMemsetNode;
}
}  // namespace
GPUMUX_CU cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node_handle, unsigned enabled) {
  REQUIRE_EXEC_NODE(exec, handle, node, node_handle);
  GraphExec::Step* step = GraphExecs::Get().FindStep(*exec, node);
  if (step == nullptr || !CanBeDisabled(step->operation)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard launching(exec->launching);
  step->enabled = enabled != 0;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node_handle, unsigned* enabled) {
  REQUIRE_EXEC_NODE(exec, handle, node, node_handle);
  const GraphExec::Step* step = GraphExecs::Get().FindStep(*exec, node);
  if (enabled == nullptr || step == nullptr || !CanBeDisabled(step->operation))
    return CUDA_ERROR_INVALID_VALUE;
  *enabled = step->enabled ? 1 : 0;
  return CUDA_SUCCESS;
}

GPUMUX_CU cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph_handle, ExecUpdateResult* result) {
  GPUMUX_REQUIRE_GRAPH(graph, graph_handle);
  const auto exec = GraphExecs::Get().Find(handle);
  if (exec == nullptr || result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return GraphExecs::Get().Update(*exec, *graph, result);
}
GPUMUX_CU cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node, int* update) {
  if (update == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ExecUpdateResult result = {};
  const CUresult error = cuGraphExecUpdate_v2(exec, graph, &result);
  *update = result.result;
  if (error_node != nullptr) *error_node = result.error_node;
  return error;
}

}  // namespace gpumux::softgpu
