// SPDX-License-Identifier: Apache-2.0
#include "guard/graph_segments.h"

#include "gpumux/abi/gate.h"
#include "guard/allocations.h"
#include "guard/capturing.h"
#include "guard/current_context.h"
#include "guard/driver.h"
#include "guard/gate.h"
#include "guard/gate_pages.h"
#include "guard/graph_plan.h"
#include "guard/graphs.h"
#include "guard/lock.h"
#include "guard/session.h"

namespace gpumux::guard {

using namespace cuda;

namespace {

constexpr size_t kMostNodes = 1 << 16;
constexpr cuuint64_t kUpload = 2, kDeviceLaunch = 4;  // flags of cuGraphInstantiateWithFlags
constexpr unsigned kNoTiming = 2;                     // of cuEventCreate

// A graph of this process that may be launched in segments.
struct Segmented {
  CUgraph content;   // a copy of what it was made of; null once there is `copy`, or cannot be one
  CUgraphExec copy;  // with waits
  CUcontext made_in;
  cuuint64_t flags;
  uint64_t ns;    // of the graph as it is
  CUevent done;   // of its last launch
  CUstream last;  // where
  bool launched;  // `done` and `last` are true
  bool last_was_copy;
};

constinit Lock g_lock;
constinit KeyMap<Segmented> g_graphs;
constinit uint32_t g_count = 0;  // atomic; for the launch path

uint64_t KeyOf(CUgraphExec exec) { return reinterpret_cast<uint64_t>(exec); }

bool DriverHasAll() {
  const DriverTable& real = Real();
  return real.cuGraphClone && real.cuGraphDestroy && real.cuGraphGetNodes && real.cuGraphNodeGetType &&
         real.cuGraphGetEdges && real.cuGraphKernelNodeGetParams_v2 && real.cuGraphAddBatchMemOpNode &&
         real.cuGraphAddDependencies && real.cuGraphInstantiateWithFlags && real.cuEventCreate &&
         real.cuEventRecord && real.cuStreamWaitEvent;
}

void DropContent(Segmented& graph) {
  if (graph.content) Real().cuGraphDestroy(graph.content);
  graph.content = nullptr;
}

// A node that a copy can have, and what it takes: 0 where nobody knows, or -1 where it has no
// time of its own.
bool MayBeCopied(CUgraphNode node, int64_t* ns) {
  CUgraphNodeType type;
  if (Real().cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return false;
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      CUDA_KERNEL_NODE_PARAMS_v2 kernel = {};
      if (Real().cuGraphKernelNodeGetParams_v2(node, &kernel) != CUDA_SUCCESS) return false;
      const void* what = kernel.func ? static_cast<const void*>(kernel.func) : kernel.kern;
      *ns = static_cast<int64_t>(PredictWorkNs(
          {reinterpret_cast<uint64_t>(what), uint64_t{kernel.gridDimX} * kernel.gridDimY * kernel.gridDimZ,
           uint64_t{kernel.blockDimX} * kernel.blockDimY * kernel.blockDimZ}));
      return true;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_GRAPH:
      *ns = 0;
      return true;
    case CU_GRAPH_NODE_TYPE_HOST:
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      *ns = -1;
      return true;
    default:
      // Memory belongs to one executable graph; what decides on the GPU, or waits for others there, is left
      // alone.
      return false;
  }
}

// The rest of the whole graph's time is that of the nodes that nobody knows.
void Spread(MappedArray<int64_t>& ns, uint64_t total) {
  int64_t known = 0;
  int64_t unknown = 0;
  for (size_t i = 0; i < ns.size(); i++) {
    if (ns[i] > 0) known += ns[i];
    unknown += ns[i] == 0;
  }
  const int64_t rest = static_cast<int64_t>(total) - known;
  const int64_t each = unknown > 0 && rest > unknown ? rest / unknown : 1;
  for (size_t i = 0; i < ns.size(); i++) {
    if (ns[i] == 0) ns[i] = each;
    if (ns[i] < 0) ns[i] = 0;
  }
}

struct Parts {
  MappedArray<void*> nodes;  // CUgraphNode, as the driver lists them
  MappedArray<GraphPlan::Edge> edges;
  MappedArray<int64_t> ns;
  GraphPlan plan;
  CUgraphNode Node(size_t i) { return static_cast<CUgraphNode>(nodes[i]); }
};

// The number of each node, by its handle.
class Numbers {
 public:
  bool Make(const MappedArray<void*>& nodes) {
    size_t cells = 16;
    while (cells < 2 * nodes.size()) cells *= 2;
    if (!handles_.Make(cells) || !numbers_.Make(cells)) return false;
    for (size_t i = 0; i < nodes.size(); i++) {
      size_t at = Cell(nodes[i]);
      while (handles_[at]) at = (at + 1) & (handles_.size() - 1);
      handles_[at] = nodes[i];
      numbers_[at] = static_cast<uint32_t>(i);
    }
    return true;
  }
  // UINT32_MAX: none of them.
  uint32_t Of(void* node) const {
    for (size_t at = Cell(node); handles_[at]; at = (at + 1) & (handles_.size() - 1))
      if (handles_[at] == node) return numbers_[at];
    return UINT32_MAX;
  }

 private:
  size_t Cell(const void* node) const {
    return (reinterpret_cast<uintptr_t>(node) * 0x9e3779b97f4a7c15u >> 20) & (handles_.size() - 1);
  }
  MappedArray<void*> handles_;
  MappedArray<uint32_t> numbers_;
};

bool ReadEdges(CUgraph graph, Parts& parts) {
  size_t count = 0;
  // Fails where an edge says more than that one node is after another.
  if (Real().cuGraphGetEdges(graph, nullptr, nullptr, &count) != CUDA_SUCCESS) return false;
  if (count == 0) return true;
  MappedArray<void*> from, to;
  Numbers numbers;
  if (!from.Make(count) || !to.Make(count) || !parts.edges.Make(count) || !numbers.Make(parts.nodes))
    return false;
  size_t got = count;
  if (Real().cuGraphGetEdges(graph, reinterpret_cast<CUgraphNode*>(from.data()),
                             reinterpret_cast<CUgraphNode*>(to.data()), &got) != CUDA_SUCCESS ||
      got != count) {
    return false;
  }
  for (size_t i = 0; i < count; i++) parts.edges[i] = {numbers.Of(from[i]), numbers.Of(to[i])};
  return true;
}

bool Plan(CUgraph graph, uint64_t total_ns, Parts& parts) {
  size_t count = 0;
  if (Real().cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count < 2 || count > kMostNodes)
    return false;
  if (!parts.nodes.Make(count) || !parts.ns.Make(count)) return false;
  size_t got = count;
  if (Real().cuGraphGetNodes(graph, reinterpret_cast<CUgraphNode*>(parts.nodes.data()), &got) !=
          CUDA_SUCCESS ||
      got != count) {
    return false;
  }
  for (size_t i = 0; i < count; i++)
    if (!MayBeCopied(parts.Node(i), &parts.ns[i])) return false;
  Spread(parts.ns, total_ns);
  return ReadEdges(graph, parts) &&
         parts.plan.Make(count, parts.edges.data(), parts.edges.size(), parts.ns.data(),
                         static_cast<int64_t>(GateBudgetNs())) &&
         parts.plan.parts() > 1;
}

// Between each part and the next a node that waits at the gate.
bool AddWaits(CUgraph graph, CUdeviceptr page, Parts& parts) {
  const size_t count = parts.nodes.size();
  MappedArray<uint32_t> picked;
  MappedArray<void*> ends, begins, cuts;
  if (!picked.Make(count) || !ends.Make(count) || !begins.Make(count) || !cuts.Make(count)) return false;
  CUstreamBatchMemOpParams wait = {};
  wait.waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_64, page + offsetof(gpumux_gate_page, closed), 0,
                    CU_STREAM_WAIT_VALUE_EQ, 0};
  const CUDA_BATCH_MEM_OP_NODE_PARAMS params = {CurrentContext(), 1, &wait, 0};
  for (uint32_t part = 0; part + 1 < parts.plan.parts(); part++) {
    const size_t before = parts.plan.Ends(part, picked.data());
    for (size_t i = 0; i < before; i++) ends[i] = parts.nodes[picked[i]];
    CUgraphNode cut;
    if (Real().cuGraphAddBatchMemOpNode(&cut, graph, reinterpret_cast<CUgraphNode*>(ends.data()), before,
                                        &params) != CUDA_SUCCESS) {
      return false;
    }
    const size_t after = parts.plan.Begins(part + 1, picked.data());
    for (size_t i = 0; i < after; i++) {
      begins[i] = parts.nodes[picked[i]];
      cuts[i] = cut;
    }
    if (Real().cuGraphAddDependencies(graph, reinterpret_cast<CUgraphNode*>(cuts.data()),
                                      reinterpret_cast<CUgraphNode*>(begins.data()), after) != CUDA_SUCCESS) {
      return false;
    }
  }
  return true;
}

// Under the lock. Once: afterwards there is a copy, or there will be none.
void MakeCopy(Segmented& graph, uint64_t total_ns) {
  Parts parts;
  const CUdeviceptr page = GateAddress();
  if (page != 0 && Plan(graph.content, total_ns, parts) && AddWaits(graph.content, page, parts) &&
      InstantiateOwn(&graph.copy, graph.content, graph.flags & ~kUpload) == CUDA_SUCCESS) {
    graph.made_in = CurrentContext();
    graph.ns = total_ns;
  } else {
    graph.copy = nullptr;
  }
  DropContent(graph);
}

// Under the lock.
void DropCopy(Segmented& graph) {
  if (graph.copy) DestroyOwn(graph.copy);
  graph.copy = nullptr;
}

// The stream for the driver's own entry points, which take the null stream for the legacy one.
CUstream NameOf(CUstream stream, bool per_thread) {
  return stream || !per_thread ? stream : kPerThreadStream;
}
bool IsDefault(CUstream stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

}  // namespace

void RememberGraph(CUgraphExec exec, CUgraph graph, cuuint64_t flags) {
  // What the GPU itself launches is not launched here.
  if (!OwnGate() || IsOwner() || (flags & kDeviceLaunch) || !DriverHasAll()) return;
  Segmented known = {};
  known.flags = flags;
  // The program may destroy its own at once. Refused where a graph cannot be there twice.
  if (Real().cuGraphClone(&known.content, graph) != CUDA_SUCCESS) return;
  Held held(g_lock);
  if (!g_graphs.Insert(KeyOf(exec), known)) return DropContent(known);
  __atomic_store_n(&g_count, static_cast<uint32_t>(g_graphs.size()), __ATOMIC_RELAXED);
}

void GraphChanges(CUgraphExec exec) {
  if (__atomic_load_n(&g_count, __ATOMIC_RELAXED) == 0) return;
  Held held(g_lock);
  Segmented* graph = g_graphs.Find(KeyOf(exec));
  if (!graph) return;
  DropContent(*graph);
  DropCopy(*graph);
}

void GraphGone(CUgraphExec exec) {
  if (__atomic_load_n(&g_count, __ATOMIC_RELAXED) == 0) return;
  Held held(g_lock);
  Segmented graph = {};
  if (!g_graphs.Erase(KeyOf(exec), &graph)) return;
  __atomic_store_n(&g_count, static_cast<uint32_t>(g_graphs.size()), __ATOMIC_RELAXED);
  DropContent(graph);
  DropCopy(graph);
  if (graph.done && Real().cuEventDestroy_v2) Real().cuEventDestroy_v2(graph.done);
}

void DropGraphCopies(CUcontext gone) {
  if (__atomic_load_n(&g_count, __ATOMIC_RELAXED) == 0) return;
  Held held(g_lock);
  g_graphs.EraseIf([gone](uint64_t, Segmented& graph) {
    if (gone && graph.made_in == gone) graph.copy = nullptr;  // it went with it
    DropContent(graph);
    DropCopy(graph);
    // The event is still needed where the copy may be running.
    return gone && graph.made_in == gone;
  });
  __atomic_store_n(&g_count, static_cast<uint32_t>(g_graphs.size()), __ATOMIC_RELAXED);
}

GraphLaunch::GraphLaunch(CUgraphExec exec, uint32_t word, CUstream stream, bool per_thread)
    : asked_(exec), exec_(exec), stream_(NameOf(stream, per_thread)) {
  if (__atomic_load_n(&g_count, __ATOMIC_RELAXED) == 0 || IsCapturing(stream, per_thread)) return;
  Held held(g_lock);
  Segmented* graph = g_graphs.Find(KeyOf(exec));
  if (!graph) return;
  // What a turn's end waits for is told between segments of streams, and not inside graphs.
  const bool wanted = (word & GPUMUX_LAUNCH_GATED) && !(word & GPUMUX_LAUNCH_TURNS);
  if (wanted && graph->content) {
    const uint64_t total = PredictWorkNs({.function = KeyOf(exec)});
    if (total >= 2 * GateBudgetNs()) MakeCopy(*graph, total);
  }
  if (!graph->content && !graph->copy && !graph->last_was_copy) return;
  const bool copy = wanted && graph->copy;
  const bool same_stream = stream_ == graph->last && !IsDefault(stream_);
  if (graph->launched && copy != graph->last_was_copy && !same_stream)
    Real().cuStreamWaitEvent(stream_, graph->done, 0);
  graph->last_was_copy = copy;
  if (copy) {
    exec_ = graph->copy;
    ns_ = graph->ns;
  }
  tells_ = true;
}

GraphLaunch::~GraphLaunch() {
  if (!tells_) return;
  Held held(g_lock);
  Segmented* graph = g_graphs.Find(KeyOf(asked_));
  if (!graph) return;
  if (!graph->done && Real().cuEventCreate(&graph->done, kNoTiming) != CUDA_SUCCESS) graph->done = nullptr;
  graph->launched = graph->done && Real().cuEventRecord(graph->done, stream_) == CUDA_SUCCESS;
  graph->last = stream_;
}

void ForgetGraphSegments() {
  g_lock.Reset();
  g_graphs.Forget();
  g_count = 0;
}

}  // namespace gpumux::guard
