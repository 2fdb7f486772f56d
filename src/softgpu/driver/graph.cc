// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/graph.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "softgpu/driver/context.h"
#include "softgpu/driver/engine.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

int TypeOf(const Operation& operation) {
  constexpr int kTypes[] = {kKernelNode,   kMemcpyNode,  kMemsetNode,    kHostNode,
                            kGraphNode,    kEmptyNode,   kEventWaitNode, kEventRecordNode,
                            kMemAllocNode, kMemFreeNode, kBatchMemOpNode};
  static_assert(std::size(kTypes) == std::variant_size_v<Operation>);
  return kTypes[operation.index()];
}

Graph::~Graph() {
  Graphs& graphs = Graphs::Get();
  for (const auto& node : nodes) graphs.nodes_.erase(node.get());
  for (const auto& [object, count] : user_objects) graphs.ReleaseUserObject(object, count);
}

bool Graph::HasMemoryNodes() const {
  return std::any_of(nodes.begin(), nodes.end(), [](const auto& node) {
    if (const auto* child = std::get_if<ChildOperation>(&node->operation))
      return child->graph->HasMemoryNodes();
    const int type = TypeOf(node->operation);
    return type == kMemAllocNode || type == kMemFreeNode;
  });
}

bool Graph::Order(std::vector<Node*>* out) const {
  std::map<const Node*, size_t> missing;
  std::map<const Node*, std::vector<Node*>> dependents;
  std::map<uint64_t, Node*> ready;
  for (const auto& node : nodes) {
    missing[node.get()] = node->dependencies.size();
    for (Node* dependency : node->dependencies) dependents[dependency].push_back(node.get());
    if (node->dependencies.empty()) ready.emplace(node->id, node.get());
  }
  while (!ready.empty()) {
    Node* node = ready.begin()->second;
    ready.erase(ready.begin());
    out->push_back(node);
    for (Node* dependent : dependents[node]) {
      if (--missing[dependent] == 0) ready.emplace(dependent->id, dependent);
    }
  }
  return out->size() == nodes.size();
}

bool Graph::DependsOn(const Node* node, const Node* other) const {
  std::set<const Node*> seen;
  std::vector<const Node*> next{node};
  while (!next.empty()) {
    const Node* at = next.back();
    next.pop_back();
    for (const Node* dependency : at->dependencies) {
      if (dependency == other) return true;
      if (seen.insert(dependency).second) next.push_back(dependency);
    }
  }
  return false;
}

Graphs& Graphs::Get() {
  static Graphs* graphs = new Graphs;
  return *graphs;
}

std::shared_ptr<Graph> Graphs::Create() {
  auto graph = std::make_shared<Graph>();
  graph->id = next_id_++;
  graphs_.emplace(graph.get(), graph);
  return graph;
}

Graph* Graphs::Find(CUgraph handle) { return FindShared(handle).get(); }

std::shared_ptr<Graph> Graphs::FindShared(CUgraph handle) {
  auto it = graphs_.find(handle);
  return it != graphs_.end() ? it->second : nullptr;
}

Node* Graphs::FindNode(CUgraphNode handle) {
  return nodes_.contains(handle) ? reinterpret_cast<Node*>(handle) : nullptr;
}

void Graphs::Destroy(Graph* graph) {
  // Children cannot be reached any more, though an instance may still need them.
  for (const auto& node : graph->nodes) {
    if (auto* child = std::get_if<ChildOperation>(&node->operation)) Destroy(child->graph.get());
  }
  graphs_.erase(graph);
}

CUresult Graphs::Check(const Operation& operation) {
  Context* context = CurrentOrNull();
  if (const auto* kernel = std::get_if<KernelOperation>(&operation)) return CheckKernel(context, *kernel);
  if (const auto* copy = std::get_if<CopyOperation>(&operation)) return CheckCopy(*copy);
  if (const auto* fill = std::get_if<FillOperation>(&operation)) return CheckFill(*fill);
  if (const auto* ops = std::get_if<MemoryOpsOperation>(&operation)) return CheckMemoryOps(*ops);
  if (const auto* host = std::get_if<HostOperation>(&operation)) {
    return host->host.function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  const CUevent* event = nullptr;
  if (const auto* wait = std::get_if<EventWaitOperation>(&operation)) event = &wait->event;
  if (const auto* record = std::get_if<EventRecordOperation>(&operation)) event = &record->event;
  if (event != nullptr && Engine::Get().FindEvent(*event) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult Graphs::AddNode(Graph* graph, const std::vector<Node*>& dependencies, Operation operation,
                         Node** out) {
  for (size_t i = 0; i < dependencies.size(); ++i) {
    if (dependencies[i] == nullptr || dependencies[i]->graph != graph) return CUDA_ERROR_INVALID_VALUE;
    if (std::find(dependencies.begin(), dependencies.begin() + static_cast<ptrdiff_t>(i), dependencies[i]) !=
        dependencies.begin() + static_cast<ptrdiff_t>(i)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (CUresult error = Check(operation); error != CUDA_SUCCESS) return error;
  auto node = std::make_unique<Node>();
  node->graph = graph;
  node->id = next_id_++;
  node->dependencies = dependencies;
  node->edges.resize(dependencies.size());
  // Whether `id` names a node that the new one comes after.
  const auto before = [&](uint64_t id) {
    return std::any_of(graph->nodes.begin(), graph->nodes.end(), [&](const auto& other) {
      return other->id == id && graph->DependsOn(node.get(), other.get());
    });
  };
  if (auto* alloc = std::get_if<AllocOperation>(&operation)) {
    Device* device = Driver::Get().FindDevice(alloc->params.pool.location.id);
    if (alloc->params.pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE || device == nullptr ||
        alloc->params.pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || graph->owned) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (graph->arena == nullptr) graph->arena = GraphMemory::Get().CreateArena(device);
    if (graph->arena->device != device) return CUDA_ERROR_NOT_SUPPORTED;
    if (CUresult error = GraphMemory::Get().Place(
            graph->arena, alloc->params.bytes,
            [&](const GraphPiece& piece) { return piece.freed_by != 0 && before(piece.freed_by); },
            &alloc->piece);
        error != CUDA_SUCCESS) {
      return error;
    }
    alloc->piece->allocated_by = node->id;
    alloc->params.address = alloc->piece->address;
    alloc->params.access = nullptr;
  }
  if (auto* free = std::get_if<FreeOperation>(&operation)) {
    free->piece = GraphMemory::Get().FindPiece(free->address);
    // Of its own graph: after the node that makes it, and once. Of another
    // graph: whatever a launch of that has left.
    const auto& piece = free->piece;
    if (piece == nullptr || graph->owned) return CUDA_ERROR_INVALID_VALUE;
    if (piece->arena == graph->arena) {
      if (piece->freed_by != 0 || !before(piece->allocated_by)) return CUDA_ERROR_INVALID_VALUE;
      piece->freed_by = node->id;
    }
  }
  node->operation = std::move(operation);
  *out = node.get();
  nodes_.insert(node.get());
  graph->nodes.push_back(std::move(node));
  return CUDA_SUCCESS;
}

CUresult Graphs::RemoveNode(Node* node) {
  Graph* graph = node->graph;
  if (graph->HasMemoryNodes()) return CUDA_ERROR_NOT_SUPPORTED;
  for (const auto& other : graph->nodes) {
    for (size_t i = 0; i < other->dependencies.size();) {
      if (other->dependencies[i] != node) {
        ++i;
        continue;
      }
      other->dependencies.erase(other->dependencies.begin() + static_cast<ptrdiff_t>(i));
      other->edges.erase(other->edges.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  if (auto* child = std::get_if<ChildOperation>(&node->operation)) Destroy(child->graph.get());
  nodes_.erase(node);
  std::erase_if(graph->nodes, [&](const auto& owned) { return owned.get() == node; });
  return CUDA_SUCCESS;
}

std::shared_ptr<Graph> Graphs::Clone(const Graph& graph) {
  auto clone = Create();
  clone->cloned_from = graph.id;
  std::map<const Node*, Node*> made;
  for (const auto& node : graph.nodes) {
    auto copy = std::make_unique<Node>();
    copy->graph = clone.get();
    copy->id = next_id_++;
    copy->original = node->id;
    copy->operation = node->operation;
    copy->edges = node->edges;
    for (size_t i = 0; i < std::size(copy->attributes); ++i) copy->attributes[i] = node->attributes[i];
    if (auto* child = std::get_if<ChildOperation>(&copy->operation)) {
      child->graph = Clone(*child->graph);
      child->graph->owned = true;
    }
    made.emplace(node.get(), copy.get());
    nodes_.insert(copy.get());
    clone->nodes.push_back(std::move(copy));
  }
  for (const auto& node : graph.nodes) {
    for (Node* dependency : node->dependencies) made[node.get()]->dependencies.push_back(made[dependency]);
  }
  for (const auto& [object, count] : graph.user_objects) {
    object->references += count;
    clone->user_objects[object] += count;
  }
  return clone;
}

CUresult Graphs::SetOperation(Node* node, Operation operation) {
  if (operation.index() != node->operation.index()) return CUDA_ERROR_INVALID_VALUE;
  const int type = TypeOf(operation);
  if (type == kMemAllocNode || type == kMemFreeNode || type == kGraphNode) return CUDA_ERROR_NOT_SUPPORTED;
  if (CUresult error = Check(operation); error != CUDA_SUCCESS) return error;
  node->operation = std::move(operation);
  return CUDA_SUCCESS;
}

UserObject* Graphs::CreateUserObject(void* pointer, HostFunction destroy, uint64_t references) {
  auto object = std::make_unique<UserObject>();
  object->pointer = pointer;
  object->destroy = destroy;
  object->references = references;
  UserObject* raw = object.get();
  user_objects_.emplace(raw, std::move(object));
  return raw;
}

UserObject* Graphs::FindUserObject(void* handle) {
  auto it = user_objects_.find(handle);
  return it != user_objects_.end() ? it->second.get() : nullptr;
}

void Graphs::ReleaseUserObject(UserObject* object, uint64_t count) {
  object->references -= std::min(object->references, count);
  if (object->references > 0) return;
  const UserObject last = *object;
  user_objects_.erase(object);
  last.destroy(last.pointer);
}

}  // namespace gpumux::softgpu
