// SPDX-License-Identifier: Apache-2.0
//
// Stream capture.
#include "softgpu/driver/api.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/error_codes.h"
#include "softgpu/driver/graph_api.h"
#include "softgpu/driver/streams.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

CUresult Begin(CUstream handle, int mode) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  return Captures::Get().Begin(stream, mode, nullptr, {});
}

CUresult BeginInto(CUstream handle, CUgraph graph_handle, const CUgraphNode* after, size_t count, int mode) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  GPUMUX_REQUIRE_GRAPH(graph, graph_handle);
  if (after == nullptr && count > 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    Node* node = Graphs::Get().FindNode(after[i]);
    if (node == nullptr || node->graph != graph) return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<CUgraphNode> nodes;
  if (count > 0) nodes.assign(after, after + count);
  return Captures::Get().Begin(stream, mode, graph, nodes);
}

CUresult End(CUstream handle, CUgraph* out) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  return Captures::Get().End(stream, out);
}

// What any version of the query wants to know; each pointer may be null but the
// first.
struct Info {
  CUstreamCaptureStatus* status;
  cuuint64_t* id = nullptr;
  CUgraph* graph = nullptr;
  const CUgraphNode** nodes = nullptr;
  const EdgeData** edges = nullptr;
  size_t* count = nullptr;
};

CUresult Query(CUstream handle, const Info& info) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  if (info.status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *info.status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!Captures::Any()) return CUDA_SUCCESS;
  // The legacy stream cannot be asked while a stream that it waits for is
  // being captured; the question does no harm.
  GPUMUX_GRAPHS_LOCK();
  if (stream->legacy) {
    return Captures::Get().BlocksLegacy(stream) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
  }
  const auto capture = Captures::Get().Of(stream);
  if (capture == nullptr) return CUDA_SUCCESS;
  *info.status =
      capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (capture->invalidated) return CUDA_SUCCESS;
  auto& leaves = capture->leaves[stream];
  capture->edges.resize(leaves.size());
  if (info.id != nullptr) *info.id = capture->id;
  if (info.graph != nullptr) *info.graph = Handle(capture->graph);
  if (info.nodes != nullptr) *info.nodes = leaves.data();
  if (info.edges != nullptr) *info.edges = capture->edges.data();
  if (info.count != nullptr) *info.count = leaves.size();
  return CUDA_SUCCESS;
}

CUresult Update(CUstream handle, const CUgraphNode* nodes, size_t count, unsigned flags) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  constexpr unsigned kReplace = 1;
  if ((nodes == nullptr && count > 0) || flags > kReplace) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> list;
  if (count > 0) list.assign(nodes, nodes + count);
  return Captures::Get().UpdateDependencies(stream, list, flags == kReplace);
}

}  // namespace

GPUMUX_CU cuStreamBeginCapture(CUstream stream) { return Begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); }
GPUMUX_CU cuStreamBeginCapture_ptsz(CUstream stream) {
  return Begin(PerThread(stream), CU_STREAM_CAPTURE_MODE_GLOBAL);
}
GPUMUX_CU cuStreamBeginCapture_v2(CUstream stream, int mode) { return Begin(stream, mode); }
GPUMUX_CU cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) { return Begin(PerThread(stream), mode); }
GPUMUX_CU cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* after,
                                      const EdgeData*, size_t count, int mode) {
  return BeginInto(stream, graph, after, count, mode);
}
GPUMUX_CU cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode* after,
                                           const EdgeData*, size_t count, int mode) {
  return BeginInto(PerThread(stream), graph, after, count, mode);
}
GPUMUX_CU cuStreamEndCapture(CUstream stream, CUgraph* out) { return End(stream, out); }
GPUMUX_CU cuStreamEndCapture_ptsz(CUstream stream, CUgraph* out) { return End(PerThread(stream), out); }

GPUMUX_CU cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return Query(stream, {status});
}
GPUMUX_CU cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus* status) {
  return Query(PerThread(stream), {status});
}
GPUMUX_CU cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return Query(stream, {status, id});
}
GPUMUX_CU cuStreamGetCaptureInfo_ptsz(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return Query(PerThread(stream), {status, id});
}
GPUMUX_CU cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                    CUgraph* graph, const CUgraphNode** nodes, size_t* count) {
  return Query(stream, {status, id, graph, nodes, nullptr, count});
}
GPUMUX_CU cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                         CUgraph* graph, const CUgraphNode** nodes, size_t* count) {
  return Query(PerThread(stream), {status, id, graph, nodes, nullptr, count});
}
GPUMUX_CU cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                    CUgraph* graph, const CUgraphNode** nodes, const EdgeData** edges,
                                    size_t* count) {
  return Query(stream, {status, id, graph, nodes, edges, count});
}
GPUMUX_CU cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                         CUgraph* graph, const CUgraphNode** nodes, const EdgeData** edges,
                                         size_t* count) {
  return Query(PerThread(stream), {status, id, graph, nodes, edges, count});
}

GPUMUX_CU cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* nodes, size_t count,
                                            unsigned flags) {
  return Update(stream, nodes, count, flags);
}
GPUMUX_CU cuStreamUpdateCaptureDependencies_ptsz(CUstream stream, CUgraphNode* nodes, size_t count,
                                                 unsigned flags) {
  return Update(PerThread(stream), nodes, count, flags);
}
GPUMUX_CU cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* nodes, const EdgeData*,
                                               size_t count, unsigned flags) {
  return Update(stream, nodes, count, flags);
}
GPUMUX_CU cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream stream, CUgraphNode* nodes, const EdgeData*,
                                                    size_t count, unsigned flags) {
  return Update(PerThread(stream), nodes, count, flags);
}

GPUMUX_CU cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  GPUMUX_REQUIRE_INIT();
  if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *mode = Captures::ExchangeThreadMode(*mode);
  return CUDA_SUCCESS;
}

}  // namespace gpumux::softgpu
