// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "softgpu/driver/graph_memory.h"
#include "softgpu/driver/operation.h"

namespace gpumux::softgpu {

struct Graph;
struct Capture;

struct Node {
  Graph* graph = nullptr;
  uint64_t id = 0;  // unique in the process
  Operation operation;
  std::vector<Node*> dependencies;   // without duplicates, in the order they were added
  std::vector<EdgeData> edges;       // one a dependency
  uint64_t original = 0;             // in a clone: the id of the node it was made from
  std::vector<char> attributes[18];  // kernel node attributes that were set, by id
  // What GetParams hands out pointers into.
  std::vector<void*> argument_pointers;
};

// A reference-counted object of the program that graphs keep alive.
struct UserObject {
  void* pointer = nullptr;
  HostFunction destroy = nullptr;
  uint64_t references = 0;
};

struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;  // in the order they were added
  std::shared_ptr<GraphArena> arena;         // of its memory nodes
  bool owned = false;                        // a child of a node: cannot be destroyed alone
  uint64_t cloned_from = 0;
  uint64_t id = 0;
  Capture* capture = nullptr;  // that writes into it
  bool instantiated = false;   // with memory nodes: the one instance that may exist lives
  std::unordered_map<UserObject*, uint64_t> user_objects;
  ~Graph();

  bool HasMemoryNodes() const;
  // Nodes in an order in which each comes after what it depends on, by age where
  // there is a choice; false: there is a cycle.
  bool Order(std::vector<Node*>* out) const;
  bool DependsOn(const Node* node, const Node* other) const;
};

// All graphs and nodes of this process. Its mutex guards them, instances and
// captures; it is taken before the engine's and the memory's.
class Graphs {
 public:
  static Graphs& Get();
  std::recursive_mutex& mutex() { return mutex_; }

  // Everything below: with the mutex held.
  std::shared_ptr<Graph> Create();
  Graph* Find(cuda::CUgraph handle);
  std::shared_ptr<Graph> FindShared(cuda::CUgraph handle);
  Node* FindNode(cuda::CUgraphNode handle);
  void Destroy(Graph* graph);
  void AddOwned(const std::shared_ptr<Graph>& graph);  // a child

  // Checks the operation, gives memory nodes their address.
  cuda::CUresult AddNode(Graph* graph, const std::vector<Node*>& dependencies, Operation operation,
                         Node** out);
  cuda::CUresult RemoveNode(Node* node);
  std::shared_ptr<Graph> Clone(const Graph& graph);
  // Whether another operation may take the place of the node's.
  cuda::CUresult SetOperation(Node* node, Operation operation);
  static cuda::CUresult Check(const Operation& operation);

  UserObject* CreateUserObject(void* pointer, HostFunction destroy, uint64_t references);
  UserObject* FindUserObject(void* handle);
  void ReleaseUserObject(UserObject* object, uint64_t count);

 private:
  std::recursive_mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<Graph>> graphs_;
  std::unordered_set<const void*> nodes_;
  std::unordered_map<const void*, std::unique_ptr<UserObject>> user_objects_;
  uint64_t next_id_ = 1;
  friend struct Graph;
};

inline cuda::CUgraph Handle(Graph* graph) { return reinterpret_cast<cuda::CUgraph>(graph); }
inline cuda::CUgraphNode Handle(Node* node) { return reinterpret_cast<cuda::CUgraphNode>(node); }

}  // namespace gpumux::softgpu
