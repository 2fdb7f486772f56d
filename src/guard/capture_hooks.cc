// SPDX-License-Identifier: Apache-2.0
//
// Captures, counted: while one is under way no stream may be asked whether it is
// complete, since that would end the capture (gate.h).
#include "guard/capturing.h"
#include "guard/driver.h"
#include "guard/gate.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

// Before the driver's call: afterwards would be too late for who looks at that moment.
template <typename Call>
CUresult Begin(CUstream stream, bool per_thread, Call&& call) {
  CaptureBegins(stream, per_thread);
  const CUresult r = call();
  if (r != CUDA_SUCCESS) CaptureEnds(stream, per_thread);
  return r;
}

// A capture that failed ends too; one that is another thread's to end does not, and in a stream without
// one nothing does.
template <typename Call>
CUresult End(CUstream stream, bool per_thread, Call&& call) {
  const bool captured = IsCapturing(stream, per_thread);
  const CUresult r = call();
  if (captured && (r == CUDA_SUCCESS || !IsCapturing(stream, per_thread))) CaptureEnds(stream, per_thread);
  return r;
}

}  // namespace

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuStreamBeginCapture(CUstream stream) {
  return Begin(stream, false, [&] { return Through(Real().cuStreamBeginCapture, stream); });
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  return Begin(stream, true, [&] { return Through(Real().cuStreamBeginCapture_ptsz, stream); });
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return Begin(stream, false, [&] { return Through(Real().cuStreamBeginCapture_v2, stream, mode); });
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return Begin(stream, true, [&] { return Through(Real().cuStreamBeginCapture_v2_ptsz, stream, mode); });
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
  return Begin(stream, false, [&] {
    return Through(Real().cuStreamBeginCaptureToGraph, stream, graph, dependencies, edges, count, mode);
  });
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                          const CUgraphEdgeData* edges, size_t count,
                                          CUstreamCaptureMode mode) {
  return Begin(stream, true, [&] {
    return Through(Real().cuStreamBeginCaptureToGraph_ptsz, stream, graph, dependencies, edges, count, mode);
  });
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return End(stream, false, [&] { return Through(Real().cuStreamEndCapture, stream, graph); });
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return End(stream, true, [&] { return Through(Real().cuStreamEndCapture_ptsz, stream, graph); });
}

}  // extern "C"
