// SPDX-License-Identifier: Apache-2.0
//
// Captures, counted: while one is under way no stream may be asked whether it is
// complete, since that would end the capture (gate.h).
#include "guard/driver.h"
#include "guard/gate.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

// Before the driver's call: afterwards would be too late for who looks at that moment.
template <typename Call>
CUresult Begin(Call&& call) {
  CaptureBegins();
  const CUresult r = call();
  if (r != CUDA_SUCCESS) CaptureEnds();
  return r;
}

// A capture that failed has ended too; one that is another thread's to end has not.
CUresult Ended(CUresult r, CUstream stream, CUresult (*query)(CUstream, CUstreamCaptureStatus*)) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const bool goes_on = r != CUDA_SUCCESS && query && query(stream, &status) == CUDA_SUCCESS &&
                       status != CU_STREAM_CAPTURE_STATUS_NONE;
  if (!goes_on) CaptureEnds();
  return r;
}

}  // namespace

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuStreamBeginCapture(CUstream stream) {
  return Begin([&] { return Through(Real().cuStreamBeginCapture, stream); });
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  return Begin([&] { return Through(Real().cuStreamBeginCapture_ptsz, stream); });
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return Begin([&] { return Through(Real().cuStreamBeginCapture_v2, stream, mode); });
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return Begin([&] { return Through(Real().cuStreamBeginCapture_v2_ptsz, stream, mode); });
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
  return Begin([&] {
    return Through(Real().cuStreamBeginCaptureToGraph, stream, graph, dependencies, edges, count, mode);
  });
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                          const CUgraphEdgeData* edges, size_t count,
                                          CUstreamCaptureMode mode) {
  return Begin([&] {
    return Through(Real().cuStreamBeginCaptureToGraph_ptsz, stream, graph, dependencies, edges, count, mode);
  });
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return Ended(Through(Real().cuStreamEndCapture, stream, graph), stream, Real().cuStreamIsCapturing);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return Ended(Through(Real().cuStreamEndCapture_ptsz, stream, graph), stream,
               Real().cuStreamIsCapturing_ptsz);
}

}  // extern "C"
