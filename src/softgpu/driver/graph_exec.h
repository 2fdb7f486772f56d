// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "softgpu/driver/graph.h"

namespace gpumux::softgpu {

// A graph that can be launched: its nodes flattened, children in the place of
// their nodes, each after what it depends on.
struct GraphExec {
  struct Step {
    uint64_t node = 0;  // the id of the node it was made from
    Operation operation;
    std::vector<size_t> after;  // earlier steps
    bool enabled = true;
  };
  std::vector<Step> steps;
  unsigned flags = 0;
  Context* context = nullptr;
  std::weak_ptr<Graph> graph;         // it was made from
  std::shared_ptr<GraphArena> arena;  // of the graph's memory nodes
  std::mutex launching;               // guards what follows
  WorkPtr last;                       // the end of the latest launch: launches follow one another
};

// All instances of this process; guarded by the graphs' mutex.
class GraphExecs {
 public:
  static GraphExecs& Get();

  cuda::CUresult Instantiate(const std::shared_ptr<Graph>& graph, uint64_t flags, Context* context,
                             GraphExec** out);
  std::shared_ptr<GraphExec> Find(cuda::CUgraphExec handle);
  cuda::CUresult Destroy(cuda::CUgraphExec handle);

  // What the steps of the node do from now on.
  cuda::CUresult SetOperation(GraphExec& exec, Node* node, Operation operation);
  cuda::CUresult SetChild(GraphExec& exec, Node* node, const Graph& child);
  cuda::CUresult Update(GraphExec& exec, const Graph& graph, ExecUpdateResult* result);
  GraphExec::Step* FindStep(GraphExec& exec, const Node* node);

  // Without the graphs' mutex: a launch may wait.
  static cuda::CUresult Launch(const std::shared_ptr<GraphExec>& exec, Stream* stream);
  static cuda::CUresult Upload(const std::shared_ptr<GraphExec>& exec);

 private:
  std::unordered_map<const void*, std::shared_ptr<GraphExec>> execs_;
};

}  // namespace gpumux::softgpu
