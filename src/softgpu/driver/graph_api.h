// SPDX-License-Identifier: Apache-2.0
//
// What the graph entry points share.
#pragma once

#include <mutex>

#include "softgpu/driver/api.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/graph.h"

// Locks the graphs for the rest of the entry point.
#define GPUMUX_GRAPHS_LOCK() std::lock_guard graphs_lock(::gpumux::softgpu::Graphs::Get().mutex())

// Locks the graphs and declares `name`, the graph, or returns.
#define GPUMUX_REQUIRE_GRAPH(name, handle)                                        \
  GPUMUX_REQUIRE_INIT();                                                          \
  GPUMUX_GRAPHS_LOCK();                                                           \
  ::gpumux::softgpu::Graph* name = ::gpumux::softgpu::Graphs::Get().Find(handle); \
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE

// The same for a node; with a type other than -1, one of that type.
#define GPUMUX_REQUIRE_NODE(name, handle, wanted)                                    \
  GPUMUX_REQUIRE_INIT();                                                             \
  GPUMUX_GRAPHS_LOCK();                                                              \
  ::gpumux::softgpu::Node* name = ::gpumux::softgpu::Graphs::Get().FindNode(handle); \
  if (name == nullptr || ((wanted) >= 0 && TypeOf(name->operation) != (wanted)))     \
  return CUDA_ERROR_INVALID_VALUE

namespace gpumux::softgpu {

// Adds a node with dependencies as a program hands them over.
cuda::CUresult AddGraphNode(cuda::CUgraphNode* out, cuda::CUgraph graph,
                            const cuda::CUgraphNode* dependencies, const EdgeData* edges, size_t count,
                            Operation operation, Node** made = nullptr);

// An operation of what a program hands over; the context is the current one
// where the program names none.
cuda::CUresult ReadOperation(const GraphNodeParams& params, Operation* out);

}  // namespace gpumux::softgpu
