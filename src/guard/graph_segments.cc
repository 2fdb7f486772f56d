// SPDX-License-Identifier: Apache-2.0
#include "guard/graph_segments.h"

#include "gpumux/abi/gate.h"
#include "guard/allocations.h"
#include "guard/capturing.h"
#include "guard/current_context.h"
#include "guard/driver.h"
#include "guard/gate.h"
#include "guard/gate_pages.h"
#include "guard/gate_threads.h"
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
  CUcontext context;  // where it was made
  cuuint64_t flags;
  CUgraph content;    // a copy of what it was made of; null once there is `copy`, or cannot be one
  CUgraphExec copy;   // with waits
  CUgraphExec dying;  // one that was dropped while somebody launched it
  uint32_t users;     // launches of a copy that have not returned
  uint32_t short_launches;
  bool making;    // a copy is being made
  bool watched;   // counted in g_graph_copies: there is, or was, a copy
  uint64_t ns;    // of the graph as it is
  CUevent done;   // of its last launch since it is watched
  bool launched;  // `done` was recorded
  bool last_was_copy;
};
constexpr uint32_t kShortLaunches = 64;  // of a graph that is not worth a copy

}  // namespace

constinit uint32_t g_graph_copies = 0;

namespace {

constinit Lock g_lock;
constinit KeyMap<Segmented> g_graphs;
constinit uint32_t g_count = 0;  // atomic; for the launch path

uint64_t KeyOf(CUgraphExec exec) { return reinterpret_cast<uint64_t>(exec); }

bool DriverHasAll() {
  const DriverTable& real = Real();
  return real.cuGraphClone && real.cuGraphDestroy && real.cuGraphGetNodes && real.cuGraphNodeGetType &&
         real.cuGraphGetEdges && real.cuGraphKernelNodeGetParams_v2 && real.cuGraphAddBatchMemOpNode &&
         real.cuGraphAddDependencies && real.cuGraphInstantiateWithFlags && real.cuEventCreate &&
         real.cuEventRecord && real.cuStreamWaitEvent && real.cuStreamGetCtx;
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
         parts.plan.cuts() > 0;
}

// At each cut a node that waits at the gate: after all that the node there comes after, and before it.
bool AddWaits(CUgraph graph, CUdeviceptr page, Parts& parts) {
  const size_t count = parts.nodes.size();
  MappedArray<uint32_t> picked;
  MappedArray<void*> before;
  if (!picked.Make(count) || !before.Make(count)) return false;
  CUstreamBatchMemOpParams wait = {};
  wait.waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_64, page + offsetof(gpumux_gate_page, closed), 0,
                    CU_STREAM_WAIT_VALUE_EQ, 0};
  const CUDA_BATCH_MEM_OP_NODE_PARAMS params = {CurrentContext(), 1, &wait, 0};
  for (size_t at = 0; at < parts.plan.cuts(); at++) {
    const size_t ends = parts.plan.Before(at, parts.edges.data(), parts.edges.size(), picked.data());
    for (size_t i = 0; i < ends; i++) before[i] = parts.nodes[picked[i]];
    CUgraphNode cut;
    const CUgraphNode node = parts.Node(parts.plan.NodeAt(at));
    if (Real().cuGraphAddBatchMemOpNode(&cut, graph, reinterpret_cast<CUgraphNode*>(before.data()), ends,
                                        &params) != CUDA_SUCCESS ||
        Real().cuGraphAddDependencies(graph, &cut, &node, 1) != CUDA_SUCCESS) {
      return false;
    }
  }
  return true;
}

// Calls of ours have nothing to do with what any thread captures.
class OutsideCaptures {
 public:
  OutsideCaptures() {
    if (Real().cuThreadExchangeStreamCaptureMode) Real().cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~OutsideCaptures() {
    if (Real().cuThreadExchangeStreamCaptureMode) Real().cuThreadExchangeStreamCaptureMode(&mode_);
  }
  OutsideCaptures(const OutsideCaptures&) = delete;
  OutsideCaptures& operator=(const OutsideCaptures&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// Without the lock: the driver may take its time. Null: there can be none.
CUgraphExec MakeCopy(CUgraph content, cuuint64_t flags, uint64_t total_ns) {
  const OutsideCaptures outside;
  Parts parts;
  CUgraphExec copy = nullptr;
  const CUdeviceptr page = GateAddress();
  if (page == 0 || !Plan(content, total_ns, parts) || !AddWaits(content, page, parts) ||
      InstantiateOwn(&copy, content, flags & ~kUpload) != CUDA_SUCCESS) {
    return nullptr;
  }
  return copy;
}

// What is to be destroyed once the lock is given back: nobody waits for the driver under it.
struct Garbage {
  CUgraph content = nullptr;
  CUgraphExec copies[2] = {};
  CUevent event = nullptr;

  ~Garbage() {
    if (content) Real().cuGraphDestroy(content);
    for (const CUgraphExec copy : copies)
      if (copy) DestroyOwn(copy);
    if (event && Real().cuEventDestroy_v2) Real().cuEventDestroy_v2(event);
  }
};

// Under the lock.
void DropCopy(Segmented& graph, Garbage& garbage) {
  graph.making = false;  // what comes of it is not wanted
  garbage.content = graph.content;
  graph.content = nullptr;
  if (graph.users > 0 && graph.copy) {
    graph.dying = graph.copy;
  } else {
    garbage.copies[0] = graph.copy;
  }
  graph.copy = nullptr;
}

// The same, and it is no entry any more.
void DropAll(Segmented& graph, Garbage& garbage) {
  garbage.content = graph.content;
  garbage.copies[0] = graph.copy;
  garbage.copies[1] = graph.dying;
  garbage.event = graph.done;
  if (graph.watched) __atomic_sub_fetch(&g_graph_copies, 1, __ATOMIC_RELAXED);
}

void SetCount() { __atomic_store_n(&g_count, static_cast<uint32_t>(g_graphs.size()), __ATOMIC_RELAXED); }
bool AnyGraph() { return __atomic_load_n(&g_count, __ATOMIC_RELAXED) != 0; }

// The stream for the driver's own entry points, which take the null stream for the legacy one.
CUstream NameOf(CUstream stream, bool per_thread) {
  return stream || !per_thread ? stream : kPerThreadStream;
}

CUcontext ContextOf(CUstream stream) {
  CUcontext context = nullptr;
  if (reinterpret_cast<uintptr_t>(stream) <= 2) return CurrentContext();
  return Real().cuStreamGetCtx(stream, &context) == CUDA_SUCCESS ? context : nullptr;
}

}  // namespace

void RememberGraph(CUgraphExec exec, CUgraph graph, cuuint64_t flags) {
  // What the GPU itself launches is not launched here.
  if (!OwnGate() || IsOwner() || (flags & kDeviceLaunch) || !DriverHasAll()) return;
  Segmented known = {};
  known.flags = flags;
  known.context = CurrentContext();
  // The program may destroy its own at once. Refused where a graph cannot be there twice.
  if (Real().cuGraphClone(&known.content, graph) != CUDA_SUCCESS) return;
  Garbage garbage, not_kept;
  Held held(g_lock);
  // One that is gone, and nobody said so.
  Segmented before = {};
  if (g_graphs.Erase(KeyOf(exec), &before)) {
    // Its event and its copy may be somebody else's by now.
    garbage.content = before.content;
    if (before.watched) __atomic_sub_fetch(&g_graph_copies, 1, __ATOMIC_RELAXED);
  }
  if (!g_graphs.Insert(KeyOf(exec), known)) not_kept.content = known.content;
  SetCount();
}

void GraphChanges(CUgraphExec exec) {
  if (!AnyGraph()) return;
  Garbage garbage;
  Held held(g_lock);
  if (Segmented* graph = g_graphs.Find(KeyOf(exec))) DropCopy(*graph, garbage);
}

void GraphGone(CUgraphExec exec) {
  if (!AnyGraph()) return;
  Garbage garbage;
  Held held(g_lock);
  Segmented graph = {};
  if (!g_graphs.Erase(KeyOf(exec), &graph)) return;
  DropAll(graph, garbage);
  SetCount();
}

void DropGraphCopies() {
  for (bool more = AnyGraph(); more;) {
    // One at a time, each destroyed outside of the lock.
    Garbage garbage;
    Held held(g_lock);
    more = false;
    g_graphs.EraseIf([&](uint64_t, Segmented& graph) {
      if (more || (!graph.content && !graph.copy && !graph.making)) return false;
      DropCopy(graph, garbage);
      more = true;
      return false;
    });
  }
}

void ForgetGraphsOf(CUcontext gone) {
  if (!AnyGraph()) return;
  for (bool more = true; more;) {
    Garbage garbage;
    Held held(g_lock);
    more = false;
    g_graphs.EraseIf([&](uint64_t, Segmented& graph) {
      if (more || graph.context != gone) return false;
      // Its copy and its event went with the context; what they are called may be others' by now.
      garbage.content = graph.content;
      if (graph.watched) __atomic_sub_fetch(&g_graph_copies, 1, __ATOMIC_RELAXED);
      return more = true;
    });
    SetCount();
  }
}

GraphLaunch::GraphLaunch(CUgraphExec exec, uint32_t word, CUstream stream, bool per_thread)
    : asked_(exec), stream_(NameOf(stream, per_thread)) {
  if (!AnyGraph() || IsCapturing(stream, per_thread)) return;
  const uint64_t budget = GateBudgetNs();
  // What a turn's end waits for is told between segments of streams, and not inside graphs. Where nobody
  // opens a gate nothing is to wait at it.
  const bool wanted =
      (word & GPUMUX_LAUNCH_GATED) && !(word & GPUMUX_LAUNCH_TURNS) && budget > 0 && OpenerRuns();
  const uint64_t total = wanted ? PredictWorkNs({.function = KeyOf(exec)}) : 0;
  CUgraph content = nullptr;
  cuuint64_t flags = 0;
  {
    Garbage garbage;
    Held held(g_lock);
    Segmented* graph = g_graphs.Find(KeyOf(exec));
    if (!graph) return;
    if (graph->content && total > 0 && total < 2 * budget && ++graph->short_launches >= kShortLaunches) {
      garbage.content = graph->content;
      graph->content = nullptr;
    }
    if (graph->content && total >= 2 * budget && !graph->making && graph->context == CurrentContext()) {
      content = graph->content;
      flags = graph->flags;
      graph->content = nullptr;
      graph->making = true;
    }
    known_ = graph->watched;
    wants_copy_ = wanted && graph->copy && !content;
    if (wants_copy_) ns_ = graph->ns;
  }
  if (!content) return;
  const CUgraphExec copy = MakeCopy(content, flags, total);
  CUevent done = nullptr;
  if (copy && Real().cuEventCreate(&done, kNoTiming) != CUDA_SUCCESS) done = nullptr;
  Garbage garbage;
  garbage.content = content;
  Held held(g_lock);
  Segmented* graph = g_graphs.Find(KeyOf(exec));
  const bool wants = graph && graph->making && done;
  if (graph) graph->making = false;
  if (!wants) {
    garbage.copies[0] = copy;
    garbage.event = done;
    return;
  }
  graph->copy = copy;
  graph->done = done;
  graph->ns = total;
  graph->watched = true;
  __atomic_add_fetch(&g_graph_copies, 1, __ATOMIC_RELAXED);
  // This launch is the graph's own: all that went before come before it, and after it an event is recorded.
  // From the next one on the copy can be ordered after it.
  known_ = true;
}

CUgraphExec GraphLaunch::Choose() {
  if (!known_) return asked_;
  CUevent wait = nullptr;
  CUgraphExec chosen = asked_;
  const CUcontext context = ContextOf(stream_);
  {
    Held held(g_lock);
    Segmented* graph = g_graphs.Find(KeyOf(asked_));
    if (!graph) return asked_;
    // Events are recorded where the graph was made.
    const bool here = context != nullptr && context == graph->context;
    if (wants_copy_ && graph->copy && graph->launched && here) {
      chosen = used_ = graph->copy;
      graph->users++;
    }
    if (graph->launched && (used_ != nullptr) != graph->last_was_copy) wait = graph->done;
    graph->last_was_copy = used_ != nullptr;
    if (here) tells_ = graph->done;
    // Until it is recorded: nothing comes after what is not known.
    if (!tells_) graph->launched = false;
  }
  if (wait) Real().cuStreamWaitEvent(stream_, wait, 0);
  return chosen;
}

GraphLaunch::~GraphLaunch() {
  if (!used_ && !tells_) return;
  const bool told = tells_ && Real().cuEventRecord(tells_, stream_) == CUDA_SUCCESS;
  Garbage garbage;
  Held held(g_lock);
  Segmented* graph = g_graphs.Find(KeyOf(asked_));
  if (!graph) return;
  if (tells_ == graph->done) graph->launched = told;
  if (!used_ || --graph->users > 0) return;
  garbage.copies[0] = graph->dying;
  graph->dying = nullptr;
}

void ForgetGraphSegments() {
  g_lock.Reset();
  g_graphs.Forget();
  g_count = 0;
  g_graph_copies = 0;
}

}  // namespace gpumux::guard
