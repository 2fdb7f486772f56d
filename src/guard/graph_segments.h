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
// The gate's address is another from now on, or a context is gone (null: none).
void DropGraphCopies(cuda::CUcontext gone);

// One launch of a graph of a gated process. If the copy is launched where the graph was before, or
// the other way round, the stream first waits for that launch: the driver orders the launches of one graph.
class GraphLaunch {
 public:
  GraphLaunch(cuda::CUgraphExec exec, uint32_t word, cuda::CUstream stream, bool per_thread);
  ~GraphLaunch();
  GraphLaunch(const GraphLaunch&) = delete;
  GraphLaunch& operator=(const GraphLaunch&) = delete;

  // What to launch.
  cuda::CUgraphExec exec() const { return exec_; }
  // 0, or what it is known to take: it is not to be measured, since it may be held inside.
  uint64_t ns() const { return ns_; }

 private:
  cuda::CUgraphExec asked_, exec_;
  cuda::CUstream stream_;
  uint64_t ns_ = 0;
  bool tells_ = false;  // its end is recorded
};

// In the child of a fork.
void ForgetGraphSegments();

}  // namespace gpumux::guard
