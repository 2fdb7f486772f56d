// SPDX-License-Identifier: Apache-2.0
//
// Memory nodes of graphs. A node takes nothing; the device gives the memory when
// the executable graph is uploaded or launched first, in the steps of a pool,
// and keeps it until it is trimmed. So the launch is what may be refused, as the
// driver itself does it on a full device. Graphs without such nodes cost one
// load (launch_hooks.cc).
#include <string.h>

#include "guard/allocations.h"
#include "guard/credit.h"
#include "guard/driver.h"
#include "guard/driver_objects.h"
#include "guard/graph_content.h"
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

bool ReadReserved(CUdevice device, uint64_t* bytes) {
  cuuint64_t value = 0;
  if (!Real().cuDeviceGetGraphMemAttribute ||
      Real().cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value) !=
          CUDA_SUCCESS) {
    return false;
  }
  *bytes = value;
  return true;
}

void RememberNeed(CUgraphExec exec, const GraphContent& content) {
  const Need need = {content.memory_bytes, SlotOfDevice(content.device), content.device};
  if (need.bytes == 0 || need.slot == kNoDevice) return;
  Held held(g_lock);
  if (g_needs.Insert(reinterpret_cast<uint64_t>(exec), need)) {
    __atomic_store_n(&g_graphs_with_memory, static_cast<uint32_t>(g_needs.size()), __ATOMIC_RELAXED);
  }
}

template <typename Call>
CUresult Instantiate(CUgraphExec* exec, CUgraph graph, Call&& call) {
  if (!exec || !InForce()) return call();
  const GraphContent content = ReadGraph(graph);
  StackGrowth stack;
  ObjectsCall objects;
  if (!BeginStackGrowth(content.local_bytes, &stack)) return CUDA_ERROR_OUT_OF_MEMORY;
  const bool room = BeginObjects(Objects::kGraphNodes, content.nodes, &objects);
  const CUresult r = room ? call() : CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t grown = EndStackGrowth(stack, room ? r : CUDA_ERROR_UNKNOWN);
  if (room) EndObjects(Objects::kGraphNodes, content.nodes, objects, r == CUDA_SUCCESS, grown);
  if (r != CUDA_SUCCESS) return r;
  RememberNeed(*exec, content);
  Held held(g_exec_lock);
  g_execs.Insert(reinterpret_cast<uint64_t>(*exec),
                 Exec{reinterpret_cast<CUcontext>(objects.context), content.nodes});
  return r;
}

// An executable graph gets a kernel that needs `local_bytes` a thread.
template <typename Call>
CUresult ChangeKernel(CUfunction func, CUkernel kern, Call&& call) {
  if (!InForce()) return call();
  return WithStack(LocalBytesOfKernel(func, kern), call);
}

// ... or the nodes of another graph.
template <typename Call>
CUresult ChangeNodes(CUgraph graph, Call&& call) {
  if (!InForce()) return call();
  const GraphContent content = ReadGraph(graph);
  return WithStack(content.local_bytes, call);
}

// Under g_lock. The device's graph memory is `now`; `reserved` bytes of credit
// were taken for its growth.
void SettleGraphs(int slot, uint64_t now, uint64_t reserved) {
  Settle(slot, g_charged[slot], now, reserved);
  g_charged[slot] = now;
}

}  // namespace

CUresult RunGraph(CUgraphExec exec, CUresult (*call)(CUgraphExec, CUstream), CUstream stream) {
  if (!InForce()) return Through(call, exec, stream);
  g_lock.Acquire();
  Need* found = g_needs.Find(reinterpret_cast<uint64_t>(exec));
  if (!found) {
    g_lock.Release();
    return Through(call, exec, stream);
  }
  const Need need = *found;
  if (need.slot == kNotOurs) {
    g_lock.Release();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  uint64_t now = g_charged[need.slot];
  if (ReadReserved(need.device, &now)) SettleGraphs(need.slot, now, 0);
  bool device_full = false;
  const bool reserved = TryReserve(need.slot, need.bytes, &device_full);
  // Without room to grow it may still run in what is reserved already, as it
  // does from its second launch on.
  if (!reserved && now < need.bytes) {
    CountRefused(need.slot, need.bytes, device_full);
    g_lock.Release();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult r = Through(call, exec, stream);
  ReadReserved(need.device, &now);
  SettleGraphs(need.slot, now, reserved ? need.bytes : 0);
  if (r == CUDA_ERROR_OUT_OF_MEMORY) CountDeviceFull(need.slot, need.bytes);
  g_lock.Release();
  return r;
}

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
  return Instantiate(exec, graph,
                     [&] { return Through(Real().cuGraphInstantiate, exec, graph, error_node, log, bytes); });
}

CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log,
                               size_t bytes) {
  return Instantiate(exec, graph, [&] {
    return Through(Real().cuGraphInstantiate_v2, exec, graph, error_node, log, bytes);
  });
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return Instantiate(exec, graph,
                     [&] { return Through(Real().cuGraphInstantiateWithFlags, exec, graph, flags); });
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return Instantiate(exec, graph,
                     [&] { return Through(Real().cuGraphInstantiateWithParams, exec, graph, params); });
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return Instantiate(exec, graph,
                     [&] { return Through(Real().cuGraphInstantiateWithParams_ptsz, exec, graph, params); });
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
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

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return ChangeKernel(params ? params->func : nullptr, nullptr,
                      [&] { return Through(Real().cuGraphExecKernelNodeSetParams, exec, node, params); });
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  return ChangeKernel(params ? params->func : nullptr, params ? params->kern : nullptr,
                      [&] { return Through(Real().cuGraphExecKernelNodeSetParams_v2, exec, node, params); });
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* params) {
  CUDA_KERNEL_NODE_PARAMS_v2 kernel = {};
  // The parameters of the kind follow four words after the kind.
  if (params && *reinterpret_cast<const int*>(params) == CU_GRAPH_NODE_TYPE_KERNEL) {
    memcpy(&kernel, reinterpret_cast<const char*>(params) + 4 * sizeof(int), sizeof(kernel));
  }
  return ChangeKernel(kernel.func, kernel.kern,
                      [&] { return Through(Real().cuGraphExecNodeSetParams, exec, node, params); });
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node,
                           CUgraphExecUpdateResult* result) {
  return ChangeNodes(graph,
                     [&] { return Through(Real().cuGraphExecUpdate, exec, graph, error_node, result); });
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* result) {
  return ChangeNodes(graph, [&] { return Through(Real().cuGraphExecUpdate_v2, exec, graph, result); });
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
  return ChangeNodes(child,
                     [&] { return Through(Real().cuGraphExecChildGraphNodeSetParams, exec, node, child); });
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
