// SPDX-License-Identifier: Apache-2.0
//
// Graphs: made, cloned, asked about, destroyed; edges; memory of graphs.
#include "softgpu/driver/graph_api.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "softgpu/driver/graph_exec.h"
#include "softgpu/driver/graph_memory.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

GPUMUX_CU cuGraphCreate(CUgraph* out, unsigned flags) {
  GPUMUX_REQUIRE_INIT();
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  GPUMUX_GRAPHS_LOCK();
  *out = Handle(Graphs::Get().Create().get());
  return CUDA_SUCCESS;
}

GPUMUX_CU cuGraphDestroy(CUgraph handle) {
  GPUMUX_REQUIRE_GRAPH(graph, handle);
  if (graph->owned) return CUDA_ERROR_INVALID_VALUE;
  if (graph->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  Graphs::Get().Destroy(graph);
  return CUDA_SUCCESS;
}

GPUMUX_CU cuGraphClone(CUgraph* out, CUgraph handle) {
  GPUMUX_REQUIRE_GRAPH(graph, handle);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (graph->HasMemoryNodes()) return CUDA_ERROR_NOT_SUPPORTED;
  *out = Handle(Graphs::Get().Clone(*graph).get());
  return CUDA_SUCCESS;
}

GPUMUX_CU cuGraphNodeFindInClone(CUgraphNode* out, CUgraphNode original, CUgraph handle) {
  GPUMUX_REQUIRE_GRAPH(clone, handle);
  Node* node = Graphs::Get().FindNode(original);
  if (out == nullptr || node == nullptr || clone->cloned_from != node->graph->id)
    return CUDA_ERROR_INVALID_VALUE;
  for (const auto& candidate : clone->nodes) {
    if (candidate->original != node->id) continue;
    *out = Handle(candidate.get());
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

GPUMUX_CU cuGraphNodeGetType(CUgraphNode handle, int* out) {
  GPUMUX_REQUIRE_NODE(node, handle, -1);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = TypeOf(node->operation);
  return CUDA_SUCCESS;
}

namespace {

// Fills `out` as every query of this family does: without a place for the
// answers their number; with one as many as fit, and nulls in what is left.
CUresult Fill(const std::vector<Node*>& nodes, CUgraphNode* out, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (out == nullptr) {
    *count = nodes.size();
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < *count; ++i) out[i] = i < nodes.size() ? Handle(nodes[i]) : nullptr;
  *count = std::min(*count, nodes.size());
  return CUDA_SUCCESS;
}

}  // namespace

GPUMUX_CU cuGraphGetNodes(CUgraph handle, CUgraphNode* out, size_t* count) {
  GPUMUX_REQUIRE_GRAPH(graph, handle);
  std::vector<Node*> nodes;
  for (const auto& node : graph->nodes) nodes.push_back(node.get());
  return Fill(nodes, out, count);
}

GPUMUX_CU cuGraphGetRootNodes(CUgraph handle, CUgraphNode* out, size_t* count) {
  GPUMUX_REQUIRE_GRAPH(graph, handle);
  std::vector<Node*> nodes;
  for (const auto& node : graph->nodes) {
    if (node->dependencies.empty()) nodes.push_back(node.get());
  }
  return Fill(nodes, out, count);
}

namespace {

constexpr EdgeData kPlainEdge = {};
bool IsPlain(const EdgeData& edge) { return memcmp(&edge, &kPlainEdge, sizeof(edge)) == 0; }

// Without a place for the edges' data only plain edges can be told.
CUresult Edges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, EdgeData* data, size_t* count) {
  GPUMUX_REQUIRE_GRAPH(graph, handle);
  if (count == nullptr || (from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  size_t total = 0;
  for (const auto& node : graph->nodes) {
    for (size_t i = 0; i < node->dependencies.size(); ++i, ++total) {
      if (from == nullptr || total >= *count) continue;
      if (data == nullptr && !IsPlain(node->edges[i])) return static_cast<CUresult>(402);  // lossy query
      from[total] = Handle(node->dependencies[i]);
      to[total] = Handle(node.get());
      if (data != nullptr) data[total] = node->edges[i];
    }
  }
  if (from == nullptr) {
    *count = total;
    return CUDA_SUCCESS;
  }
  for (size_t i = total; i < *count; ++i) from[i] = to[i] = nullptr;
  *count = std::min(*count, total);
  return CUDA_SUCCESS;
}

CUresult Dependencies(CUgraphNode handle, CUgraphNode* out, EdgeData* data, size_t* count) {
  GPUMUX_REQUIRE_NODE(node, handle, -1);
  const size_t room = count != nullptr ? *count : 0;
  if (data != nullptr && out != nullptr) {
    for (size_t i = 0; i < room; ++i) data[i] = i < node->edges.size() ? node->edges[i] : kPlainEdge;
  }
  return Fill(node->dependencies, out, count);
}

CUresult Dependents(CUgraphNode handle, CUgraphNode* out, EdgeData* data, size_t* count) {
  GPUMUX_REQUIRE_NODE(node, handle, -1);
  std::vector<Node*> nodes;
  std::vector<EdgeData> edges;
  for (const auto& other : node->graph->nodes) {
    for (size_t i = 0; i < other->dependencies.size(); ++i) {
      if (other->dependencies[i] != node) continue;
      nodes.push_back(other.get());
      edges.push_back(other->edges[i]);
    }
  }
  const size_t room = count != nullptr ? *count : 0;
  if (data != nullptr && out != nullptr) {
    for (size_t i = 0; i < room; ++i) data[i] = i < edges.size() ? edges[i] : kPlainEdge;
  }
  return Fill(nodes, out, count);
}

CUresult AddEdges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, const EdgeData* data,
                  size_t count) {
  GPUMUX_REQUIRE_GRAPH(graph, handle);
  if (count > 0 && (from == nullptr || to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  // All or none.
  for (size_t i = 0; i < count; ++i) {
    Node* a = Graphs::Get().FindNode(from[i]);
    Node* b = Graphs::Get().FindNode(to[i]);
    if (a == nullptr || b == nullptr || a == b || a->graph != graph || b->graph != graph) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (std::find(b->dependencies.begin(), b->dependencies.end(), a) != b->dependencies.end())
      return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < count; ++i) {
    Node* b = Graphs::Get().FindNode(to[i]);
    b->dependencies.push_back(Graphs::Get().FindNode(from[i]));
    b->edges.push_back(data != nullptr ? data[i] : kPlainEdge);
  }
  return CUDA_SUCCESS;
}

CUresult RemoveEdges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  GPUMUX_REQUIRE_GRAPH(graph, handle);
  if (count > 0 && (from == nullptr || to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  if (graph->HasMemoryNodes()) return CUDA_ERROR_NOT_SUPPORTED;
  for (size_t i = 0; i < count; ++i) {
    Node* a = Graphs::Get().FindNode(from[i]);
    Node* b = Graphs::Get().FindNode(to[i]);
    if (a == nullptr || b == nullptr || b->graph != graph) return CUDA_ERROR_INVALID_VALUE;
    auto it = std::find(b->dependencies.begin(), b->dependencies.end(), a);
    if (it == b->dependencies.end()) return CUDA_ERROR_INVALID_VALUE;
    b->edges.erase(b->edges.begin() + (it - b->dependencies.begin()));
    b->dependencies.erase(it);
  }
  return CUDA_SUCCESS;
}

}  // namespace

GPUMUX_CU cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return Edges(graph, from, to, nullptr, count);
}
GPUMUX_CU cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, EdgeData* data,
                             size_t* count) {
  return Edges(graph, from, to, data, count);
}
GPUMUX_CU cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* out, size_t* count) {
  return Dependencies(node, out, nullptr, count);
}
GPUMUX_CU cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* out, EdgeData* data, size_t* count) {
  return Dependencies(node, out, data, count);
}
GPUMUX_CU cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* out, size_t* count) {
  return Dependents(node, out, nullptr, count);
}
GPUMUX_CU cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* out, EdgeData* data, size_t* count) {
  return Dependents(node, out, data, count);
}
GPUMUX_CU cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                 size_t count) {
  return AddEdges(graph, from, to, nullptr, count);
}
GPUMUX_CU cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                    const EdgeData* data, size_t count) {
  return AddEdges(graph, from, to, data, count);
}
GPUMUX_CU cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                    size_t count) {
  return RemoveEdges(graph, from, to, count);
}
GPUMUX_CU cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                       const EdgeData*, size_t count) {
  return RemoveEdges(graph, from, to, count);
}
GPUMUX_CU cuGraphDestroyNode(CUgraphNode handle) {
  GPUMUX_REQUIRE_NODE(node, handle, -1);
  return Graphs::Get().RemoveNode(node);
}

GPUMUX_CU cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned) {
  GPUMUX_REQUIRE_GRAPH(graph, handle);
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FILE* file = fopen(path, "we");
  if (file == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  static constexpr const char* kNames[] = {"KERNEL",    "MEMCPY",     "MEMSET",       "HOST",       "GRAPH",
                                           "EMPTY",     "WAIT_EVENT", "EVENT_RECORD", "SIGNAL",     "WAIT",
                                           "MEM_ALLOC", "MEM_FREE",   "MEM_OP",       "CONDITIONAL"};
  fprintf(file, "digraph graph_%llu {\n", static_cast<unsigned long long>(graph->id));
  for (const auto& node : graph->nodes) {
    const auto id = static_cast<unsigned long long>(node->id);
    fprintf(file, "  node_%llu [label=\"%s\"];\n", id, kNames[TypeOf(node->operation)]);
    for (const Node* dependency : node->dependencies) {
      fprintf(file, "  node_%llu -> node_%llu;\n", static_cast<unsigned long long>(dependency->id), id);
    }
  }
  fprintf(file, "}\n");
  fclose(file);
  return CUDA_SUCCESS;
}

// --- objects of the program that graphs keep alive

namespace {
constexpr unsigned kNoDestructorSync = 1, kMove = 1;
}

GPUMUX_CU cuUserObjectCreate(void** out, void* pointer, HostFunction destroy, unsigned references,
                             unsigned flags) {
  GPUMUX_REQUIRE_INIT();
  if (out == nullptr || destroy == nullptr || references == 0 || flags != kNoDestructorSync)
    return CUDA_ERROR_INVALID_VALUE;
  GPUMUX_GRAPHS_LOCK();
  *out = Graphs::Get().CreateUserObject(pointer, destroy, references);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuUserObjectRetain(void* handle, unsigned count) {
  GPUMUX_REQUIRE_INIT();
  GPUMUX_GRAPHS_LOCK();
  UserObject* object = Graphs::Get().FindUserObject(handle);
  if (object == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  object->references += count;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuUserObjectRelease(void* handle, unsigned count) {
  GPUMUX_REQUIRE_INIT();
  GPUMUX_GRAPHS_LOCK();
  UserObject* object = Graphs::Get().FindUserObject(handle);
  if (object == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  Graphs::Get().ReleaseUserObject(object, count);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuGraphRetainUserObject(CUgraph handle, void* object_handle, unsigned count, unsigned flags) {
  GPUMUX_REQUIRE_GRAPH(graph, handle);
  UserObject* object = Graphs::Get().FindUserObject(object_handle);
  if (object == nullptr || count == 0 || (flags & ~kMove) != 0) return CUDA_ERROR_INVALID_VALUE;
  graph->user_objects[object] += count;
  if ((flags & kMove) == 0) object->references += count;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuGraphReleaseUserObject(CUgraph handle, void* object_handle, unsigned count) {
  GPUMUX_REQUIRE_GRAPH(graph, handle);
  UserObject* object = Graphs::Get().FindUserObject(object_handle);
  auto it = object != nullptr ? graph->user_objects.find(object) : graph->user_objects.end();
  if (it == graph->user_objects.end() || count == 0 || count > it->second) return CUDA_ERROR_INVALID_VALUE;
  it->second -= count;
  if (it->second == 0) graph->user_objects.erase(it);
  Graphs::Get().ReleaseUserObject(object, count);
  return CUDA_SUCCESS;
}

// --- memory of graphs

#define REQUIRE_DEVICE(name, ordinal)               \
  GPUMUX_REQUIRE_INIT();                            \
  Device* name = Driver::Get().FindDevice(ordinal); \
  if (name == nullptr) return CUDA_ERROR_INVALID_DEVICE

GPUMUX_CU cuDeviceGraphMemTrim(CUdevice ordinal) {
  REQUIRE_DEVICE(device, ordinal);
  GraphMemory::Get().Trim(device);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuDeviceGetGraphMemAttribute(CUdevice ordinal, int attribute, void* value) {
  REQUIRE_DEVICE(device, ordinal);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return GraphMemory::Get().GetAttribute(device, attribute, static_cast<uint64_t*>(value));
}
GPUMUX_CU cuDeviceSetGraphMemAttribute(CUdevice ordinal, int attribute, void* value) {
  REQUIRE_DEVICE(device, ordinal);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return GraphMemory::Get().SetAttribute(device, attribute, *static_cast<const uint64_t*>(value));
}

}  // namespace gpumux::softgpu
