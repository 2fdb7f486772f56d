// SPDX-License-Identifier: Apache-2.0
//
// Executable graphs: what they take, and what changes them. Memory nodes: a node takes nothing; the device
// gives the memory when the executable graph is uploaded or launched first, in the steps of a pool, and keeps
// it until it is trimmed. So the launch is what may be refused, as the driver itself does it on a full
// device. Graphs without such nodes cost one load (launch_hooks.cc).
#include <string.h>

#include "guard/allocations.h"
#include "guard/credit.h"
#include "guard/current_context.h"
#include "guard/driver.h"
#include "guard/driver_objects.h"
#include "guard/gate.h"
#include "guard/graph_content.h"
#include "guard/graph_segments.h"
#include "guard/graphs.h"
#include "guard/local_memory.h"
#include "guard/lock.h"
#include "guard/rounding.h"
#include "guard/session.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

constinit uint32_t g_graphs_with_memory = 0;

namespace {

// What an executable graph takes when it is made or run.
struct Need {
  uint64_t bytes;  // of its memory nodes, at most
  int slot;
  CUdevice device;
  uint64_t ran;  // g_generation at its last launch: it has its memory still
};

struct Exec {
  CUcontext context;
  uint64_t nodes;
};

constinit Lock g_lock;  // held across the driver's call, so that two growths are told apart
constinit KeyMap<Need> g_needs;
constinit Lock g_exec_lock;
constinit KeyMap<Exec> g_execs;
constinit uint64_t g_charged[GPUMUX_MAX_GPUS] = {};
// Ends when memory of graphs was given back, or went from one graph to another.
constinit uint64_t g_generation = 1;

bool ReadMemory(CUdevice device, CUgraphMem_attribute what, uint64_t* bytes) {
  cuuint64_t value = 0;
  if (!Real().cuDeviceGetGraphMemAttribute ||
      Real().cuDeviceGetGraphMemAttribute(device, what, &value) != CUDA_SUCCESS) {
    return false;
  }
  *bytes = value;
  return true;
}

bool ReadReserved(CUdevice device, uint64_t* bytes) {
  return ReadMemory(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes);
}

// Under g_lock. May the graph run without growing? It has what it ran in before,
// or takes what no graph uses now.
bool MayFitInside(const Need& need, uint64_t reserved) {
  if (need.ran == g_generation) return true;
  uint64_t used = 0;
  if (!ReadMemory(need.device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used)) return false;
  if (reserved < used || reserved - used < need.bytes) return false;
  g_generation++;  // whose it was has to ask anew
  return true;
}

// What the driver did not tell is charged when it shows in the pool.
Need NeedOf(const GraphContent& content) {
  CUdevice device = content.device;
  if (content.memory_bytes == 0 && !content.known) CurrentDevice(&device);
  return {content.memory_bytes, SlotOfDevice(device), device, 0};
}

void RememberNeed(CUgraphExec exec, const GraphContent& content, bool has_memory) {
  Need need = NeedOf(content);
  if ((need.bytes == 0 && content.known) || need.slot == kNoDevice) return;
  Held held(g_lock);
  if (has_memory) need.ran = g_generation;
  if (g_needs.Insert(reinterpret_cast<uint64_t>(exec), need)) {
    __atomic_store_n(&g_graphs_with_memory, static_cast<uint32_t>(g_needs.size()), __ATOMIC_RELAXED);
  }
}

// Under g_lock. The device's graph memory is `now`; `reserved` bytes of credit
// were taken for its growth.
void SettleGraphs(int slot, uint64_t now, uint64_t reserved) {
  if (now < g_charged[slot]) g_generation++;
  Settle(slot, g_charged[slot], now, reserved);
  g_charged[slot] = now;
}

// Under g_lock: makes room for `need`. Without room to grow a graph may still run
// in what is reserved already, as it does from its second launch on.
bool BeginMemory(const Need& need, uint64_t* reserved) {
  uint64_t now = g_charged[need.slot];
  if (ReadReserved(need.device, &now)) SettleGraphs(need.slot, now, 0);
  // Nobody is asked to give something back for a growth that it can do without.
  const bool fits = MayFitInside(need, now);
  Refusal refusal;
  if (need.bytes && TryReserve(need.slot, need.bytes, &refusal, /*reclaim=*/!fits)) {
    *reserved = need.bytes;
  } else if (need.bytes && !fits) {
    CountRefused(need.slot, need.bytes, refusal);
    return false;
  }
  return true;
}

// Under g_lock: `r` is the driver's answer. Where the driver does not say, the pool
// grew as far as it may. Returns by how much it grew.
uint64_t EndMemory(const Need& need, uint64_t reserved, CUresult r) {
  const uint64_t before = g_charged[need.slot];
  uint64_t now = before + (r == CUDA_SUCCESS ? reserved : 0);
  ReadReserved(need.device, &now);
  SettleGraphs(need.slot, now, reserved);
  if (r == CUDA_ERROR_OUT_OF_MEMORY) CountDeviceFull(need.slot, need.bytes);
  return now > before ? now - before : 0;
}

// `call` with room for `content`'s memory nodes, which it takes at once.
template <typename Call>
CUresult WithMemory(const GraphContent& content, uint64_t* grown, Call&& call) {
  const Need need = NeedOf(content);
  if (need.slot == kNoDevice) return call();
  if (need.slot == kNotOurs) return CUDA_ERROR_OUT_OF_MEMORY;
  Held held(g_lock);
  uint64_t reserved = 0;
  if (!BeginMemory(need, &reserved)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult r = call();
  *grown += EndMemory(need, reserved, r);
  return r;
}

CUresult Destroy(CUgraphExec exec) {
  const CUresult r = Through(Real().cuGraphExecDestroy, exec);
  if (r != CUDA_SUCCESS || !InForce()) return r;
  {
    Held held(g_lock);
    g_needs.Erase(reinterpret_cast<uint64_t>(exec), nullptr);
    __atomic_store_n(&g_graphs_with_memory, static_cast<uint32_t>(g_needs.size()), __ATOMIC_RELAXED);
  }
  Exec gone = {nullptr, 0};
  {
    Held held(g_exec_lock);
    g_execs.Erase(reinterpret_cast<uint64_t>(exec), &gone);
  }
  RemoveObjects(Objects::kGraphNodes, gone.nodes, gone.context);
  return r;
}

// `uploads`: the graph is uploaded in the same call, and takes its memory.
template <typename Call>
CUresult Instantiate(CUgraphExec* exec, CUgraph graph, bool uploads, Call&& call) {
  if (!exec || !InForce() || !CurrentContext()) return call();
  const GraphContent content = ReadGraph(graph);
  StackGrowth stack;
  ObjectsCall objects;
  if (!BeginStackGrowth(content.local_bytes, &stack)) return CUDA_ERROR_OUT_OF_MEMORY;
  const bool room = BeginObjects(Objects::kGraphNodes, content.nodes, &objects);
  uint64_t grown = 0;
  CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
  if (room && uploads && (content.memory_bytes || !content.known)) {
    r = WithMemory(content, &grown, call);
  } else if (room) {
    r = call();
  }
  grown += EndStackGrowth(stack, room ? r : CUDA_ERROR_UNKNOWN);
  if (room) EndObjects(Objects::kGraphNodes, content.nodes, objects, r == CUDA_SUCCESS, grown);
  if (r != CUDA_SUCCESS) return r;
  RememberNeed(*exec, content, uploads);
  Held held(g_exec_lock);
  g_execs.Insert(reinterpret_cast<uint64_t>(*exec), Exec{CurrentContext(), content.nodes});
  return r;
}

// The same for the program, whose graph may be launched in segments.
template <typename Call>
CUresult InstantiateFor(CUgraphExec* exec, CUgraph graph, cuuint64_t flags, bool uploads, Call&& call) {
  const CUresult r = Instantiate(exec, graph, uploads, call);
  if (r == CUDA_SUCCESS && exec) RememberGraph(*exec, graph, flags);
  return r;
}

cuuint64_t FlagsOf(const CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  cuuint64_t flags = 0;  // the first member
  if (params) memcpy(&flags, params, sizeof flags);
  return flags;
}
constexpr cuuint64_t kUpload = 2;

// An executable graph is changed in the context in which it was made, be it
// current or not: made current for the time of the call if none is.
class InContextOf {
 public:
  explicit InContextOf(CUgraphExec graph) {
    if (CurrentContext() || !Real().cuCtxPushCurrent_v2 || !Real().cuCtxPopCurrent_v2) return;
    Exec known = {nullptr, 0};
    {
      Held held(g_exec_lock);
      if (const Exec* found = g_execs.Find(reinterpret_cast<uint64_t>(graph))) known = *found;
    }
    pushed_ = known.context && Real().cuCtxPushCurrent_v2(known.context) == CUDA_SUCCESS;
  }
  ~InContextOf() {
    CUcontext popped;
    if (pushed_) Real().cuCtxPopCurrent_v2(&popped);
  }
  InContextOf(const InContextOf&) = delete;
  InContextOf& operator=(const InContextOf&) = delete;

 private:
  bool pushed_ = false;
};

// `call` gives an executable graph kernels that need `local_bytes()` a thread. The
// driver is asked in the graph's context, and called in the program's own.
template <typename LocalBytes, typename Call>
CUresult ChangeGraph(CUgraphExec exec, LocalBytes&& local_bytes, Call&& call) {
  StackGrowth growth;
  {
    const InContextOf in(exec);
    if (!BeginStackGrowth(local_bytes(), &growth)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult r = call();
  const InContextOf in(exec);
  EndStackGrowth(growth, r);
  return r;
}

// A kernel is looked up in the current context; without one the driver refuses.
template <typename Call>
CUresult ChangeKernel(CUgraphExec exec, CUfunction func, CUkernel kern, Call&& call) {
  GraphChanges(exec);
  if (!InForce() || !CurrentContext()) return call();
  return ChangeGraph(exec, [&] { return LocalBytesOfKernel(func, kern); }, call);
}

template <typename Call>
CUresult ChangeNodes(CUgraphExec exec, CUgraph graph, Call&& call) {
  GraphChanges(exec);
  if (!InForce()) return call();
  return ChangeGraph(exec, [&] { return ReadGraph(graph).local_bytes; }, call);
}

}  // namespace

CUresult RunGraph(CUgraphExec exec, CUresult (*call)(CUgraphExec, CUstream), CUstream stream) {
  // Streams that every context has, in no context: the driver will say so.
  const bool nowhere = reinterpret_cast<uintptr_t>(stream) <= 2 && !CurrentContext();
  if (!InForce() || nowhere) return Through(call, exec, stream);
  g_lock.Acquire();
  Need* found = g_needs.Find(reinterpret_cast<uint64_t>(exec));
  if (!found) {
    g_lock.Release();
    return Through(call, exec, stream);
  }
  const Need need = *found;
  uint64_t reserved = 0;
  CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
  if (need.slot != kNotOurs && BeginMemory(need, &reserved)) {
    r = Through(call, exec, stream);
    EndMemory(need, reserved, r);
    if (r == CUDA_SUCCESS) found->ran = g_generation;
  }
  g_lock.Release();
  return r;
}

// It has the kernels of one that the program has made: no more local memory, and no memory nodes.
CUresult InstantiateOwn(CUgraphExec* exec, CUgraph graph, cuuint64_t flags) {
  size_t nodes = 0;
  ObjectsCall objects;
  if (Real().cuGraphGetNodes(graph, nullptr, &nodes) != CUDA_SUCCESS ||
      !BeginOwnObjects(Objects::kGraphNodes, nodes, &objects)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult r = Through(Real().cuGraphInstantiateWithFlags, exec, graph, flags);
  EndObjects(Objects::kGraphNodes, nodes, objects, r == CUDA_SUCCESS);
  if (r != CUDA_SUCCESS) return r;
  Held held(g_exec_lock);
  g_execs.Insert(reinterpret_cast<uint64_t>(*exec), Exec{CurrentContext(), nodes});
  return r;
}

void DestroyOwn(CUgraphExec exec) { Destroy(exec); }

void ForgetGraphs() {
  g_lock.Reset();
  g_needs.Forget();
  g_exec_lock.Reset();
  g_execs.Forget();
  g_graphs_with_memory = 0;
  for (auto& bytes : g_charged) bytes = 0;
}

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log,
                            size_t bytes) {
  return InstantiateFor(exec, graph, 0, false, [&] {
    return Through(Real().cuGraphInstantiate, exec, graph, error_node, log, bytes);
  });
}

CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log,
                               size_t bytes) {
  return InstantiateFor(exec, graph, 0, false, [&] {
    return Through(Real().cuGraphInstantiate_v2, exec, graph, error_node, log, bytes);
  });
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return InstantiateFor(exec, graph, flags, false,
                        [&] { return Through(Real().cuGraphInstantiateWithFlags, exec, graph, flags); });
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return InstantiateFor(exec, graph, FlagsOf(params), (FlagsOf(params) & kUpload) != 0,
                        [&] { return Through(Real().cuGraphInstantiateWithParams, exec, graph, params); });
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return InstantiateFor(exec, graph, FlagsOf(params), (FlagsOf(params) & kUpload) != 0, [&] {
    return Through(Real().cuGraphInstantiateWithParams_ptsz, exec, graph, params);
  });
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  ForgetGraphWork(exec);
  GraphGone(exec);
  return Destroy(exec);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return ChangeKernel(exec, params ? params->func : nullptr, nullptr,
                      [&] { return Through(Real().cuGraphExecKernelNodeSetParams, exec, node, params); });
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  return ChangeKernel(exec, params ? params->func : nullptr, params ? params->kern : nullptr,
                      [&] { return Through(Real().cuGraphExecKernelNodeSetParams_v2, exec, node, params); });
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* params) {
  CUDA_KERNEL_NODE_PARAMS_v2 kernel = {};
  // The parameters of the kind follow four words after the kind.
  if (params && *reinterpret_cast<const int*>(params) == CU_GRAPH_NODE_TYPE_KERNEL) {
    memcpy(&kernel, reinterpret_cast<const char*>(params) + 4 * sizeof(int), sizeof(kernel));
  }
  return ChangeKernel(exec, kernel.func, kernel.kern,
                      [&] { return Through(Real().cuGraphExecNodeSetParams, exec, node, params); });
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node,
                           CUgraphExecUpdateResult* result) {
  return ChangeNodes(exec, graph,
                     [&] { return Through(Real().cuGraphExecUpdate, exec, graph, error_node, result); });
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* result) {
  return ChangeNodes(exec, graph, [&] { return Through(Real().cuGraphExecUpdate_v2, exec, graph, result); });
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
  return ChangeNodes(exec, child,
                     [&] { return Through(Real().cuGraphExecChildGraphNodeSetParams, exec, node, child); });
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* params,
                                        CUcontext ctx) {
  GraphChanges(exec);
  return Through(Real().cuGraphExecMemcpyNodeSetParams, exec, node, params, ctx);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS* params, CUcontext ctx) {
  GraphChanges(exec);
  return Through(Real().cuGraphExecMemsetNodeSetParams, exec, node, params, ctx);
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                      const CUDA_HOST_NODE_PARAMS* params) {
  GraphChanges(exec);
  return Through(Real().cuGraphExecHostNodeSetParams, exec, node, params);
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  GraphChanges(exec);
  return Through(Real().cuGraphExecEventRecordNodeSetEvent, exec, node, event);
}

CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  GraphChanges(exec);
  return Through(Real().cuGraphExecEventWaitNodeSetEvent, exec, node, event);
}

CUresult cuGraphExecExternalSemaphoresSignalNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                          const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS* params) {
  GraphChanges(exec);
  return Through(Real().cuGraphExecExternalSemaphoresSignalNodeSetParams, exec, node, params);
}

CUresult cuGraphExecExternalSemaphoresWaitNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                        const CUDA_EXT_SEM_WAIT_NODE_PARAMS* params) {
  GraphChanges(exec);
  return Through(Real().cuGraphExecExternalSemaphoresWaitNodeSetParams, exec, node, params);
}

CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  GraphChanges(exec);
  return Through(Real().cuGraphExecBatchMemOpNodeSetParams, exec, node, params);
}

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned enabled) {
  GraphChanges(exec);
  return Through(Real().cuGraphNodeSetEnabled, exec, node, enabled);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
  return RunGraph(exec, Real().cuGraphUpload, stream);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  return RunGraph(exec, Real().cuGraphUpload_ptsz, stream);
}

CUresult cuDeviceGraphMemTrim(CUdevice dev) {
  const CUresult r = Through(Real().cuDeviceGraphMemTrim, dev);
  if (!InForce()) return r;
  const int slot = SlotOfDevice(dev);
  if (slot < 0) return r;
  Held held(g_lock);
  uint64_t now = 0;
  if (g_charged[slot] && ReadReserved(dev, &now)) SettleGraphs(slot, now, 0);
  return r;
}

}  // extern "C"
