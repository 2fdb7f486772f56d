// SPDX-License-Identifier: Apache-2.0
//
// Graphs that run for long hold a latency-critical neighbour up from one end to the other,
// since a gate is waited for before they begin. So, of such a graph, a copy with waits
// inside is launched in its place (docs/design/gate.md, "Graphs").
#pragma once

#include <stdint.h>

#include "gpumux/abi/cuda/driver.h"

namespace gpumux::guard {

// `exec` was made of `graph`, with the flags of cuGraphInstantiateWithFlags.
void RememberGraph(cuda::CUgraphExec exec, cuda::CUgraph graph, cuda::cuuint64_t flags);
// The program changes what it does: the copy does not.
void GraphChanges(cuda::CUgraphExec exec);
// Before the driver destroys it.
void GraphGone(cuda::CUgraphExec exec);
// The gate's address is another from now on.
void DropGraphCopies();
// Its graphs are nobody's any more.
void ForgetGraphsOf(cuda::CUcontext gone);

// Graphs of which there is, or was, a copy: each launch of one is looked at, so that the two never run at
// once.
extern constinit uint32_t g_graph_copies;
inline bool GraphsHaveCopies() { return __atomic_load_n(&g_graph_copies, __ATOMIC_RELAXED) != 0; }

// One launch of a graph of a gated process.
class GraphLaunch {
 public:
  GraphLaunch(cuda::CUgraphExec exec, uint32_t word, cuda::CUstream stream, bool per_thread);
  ~GraphLaunch();
  GraphLaunch(const GraphLaunch&) = delete;
  GraphLaunch& operator=(const GraphLaunch&) = delete;

  // 0, or what it is known to take: it is not to be measured, since it may be held inside.
  uint64_t ns() const { return ns_; }
  // What to launch, once the gate was put before it. Where the copy comes after the graph itself, or the
  // other way round, the stream waits for that launch: the driver orders the launches of one graph alone.
  cuda::CUgraphExec Choose();

 private:
  cuda::CUgraphExec asked_;
  cuda::CUstream stream_;
  uint64_t ns_ = 0;
  bool known_ = false;  // it is one that may have a copy
  bool wants_copy_ = false;
  cuda::CUgraphExec used_ = nullptr;  // the copy, held
  cuda::CUevent tells_ = nullptr;     // recorded after the launch
};

// In the child of a fork.
void ForgetGraphSegments();

}  // namespace gpumux::guard
