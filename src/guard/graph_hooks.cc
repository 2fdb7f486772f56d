// SPDX-License-Identifier: Apache-2.0
//
// Memory nodes of graphs. A node takes nothing; the device gives the memory when
// the executable graph is uploaded or launched first, in the steps of a pool,
// and keeps it until it is trimmed. So the launch is what may be refused, as the
// driver itself does it on a full device. Graphs without such nodes cost one
// load (launch_hooks.cc).
#include "guard/allocations.h"
#include "guard/credit.h"
#include "guard/driver.h"
#include "guard/graphs.h"
#include "guard/lock.h"
#include "guard/rounding.h"
#include "guard/session.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

constinit uint32_t g_graphs_with_memory = 0;

namespace {

struct Need {
  uint64_t bytes;  // at most
  int slot;
  CUdevice device;
};

constinit Lock g_lock;  // held across the driver's call, so that two growths are told apart
constinit KeyMap<Need> g_needs;
constinit uint64_t g_charged[GPUMUX_MAX_GPUS] = {};
// Whether the process ever made a memory node: else no graph is looked into.
constinit bool g_seen = false;

constexpr int kDeepestNesting = 8;
constexpr size_t kMostNodes = 1 << 16;

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

// The memory nodes of a graph and of the graphs in it, each rounded as the pool
// grows; all on the device of the first.
void AddUp(CUgraph graph, Need* need, int depth) {
  size_t count = 0;
  if (depth > kDeepestNesting || !Real().cuGraphGetNodes || !Real().cuGraphNodeGetType ||
      Real().cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0 || count > kMostNodes) {
    return;
  }
  const size_t bytes = count * sizeof(CUgraphNode);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  auto* nodes = static_cast<CUgraphNode*>(memory);
  if (Real().cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS) {
    for (size_t i = 0; i < count; i++) {
      CUgraphNodeType type;
      if (Real().cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS) continue;
      CUDA_MEM_ALLOC_NODE_PARAMS params = {};
      CUgraph child = nullptr;
      if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && Real().cuGraphMemAllocNodeGetParams &&
          Real().cuGraphMemAllocNodeGetParams(nodes[i], &params) == CUDA_SUCCESS &&
          params.bytesize < kAbsurdBytes) {
        need->bytes += RoundUp(params.bytesize, kPoolGrowthBytes);
        need->device = params.poolProps.location.id;
      } else if (type == CU_GRAPH_NODE_TYPE_GRAPH && Real().cuGraphChildGraphNodeGetGraph &&
                 Real().cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS) {
        AddUp(child, need, depth + 1);
      }
    }
  }
  munmap(memory, bytes);
}

template <typename Call>
CUresult Instantiate(CUgraphExec* exec, CUgraph graph, Call&& call) {
  const CUresult r = call();
  if (r != CUDA_SUCCESS || !exec || !InForce() || !__atomic_load_n(&g_seen, __ATOMIC_RELAXED)) return r;
  Need need = {0, 0, 0};
  AddUp(graph, &need, 0);
  if (need.bytes == 0) return r;
  need.slot = SlotOfDevice(need.device);
  if (need.slot == kNoDevice) return r;
  Held held(g_lock);
  if (g_needs.Insert(reinterpret_cast<uint64_t>(*exec), need)) {
    __atomic_store_n(&g_graphs_with_memory, static_cast<uint32_t>(g_needs.size()), __ATOMIC_RELAXED);
  }
  return r;
}

// Under g_lock. The device's graph memory is `now`; `reserved` bytes of credit
// were taken for its growth.
void Settle(int slot, uint64_t now, uint64_t reserved) {
  const uint64_t before = g_charged[slot];
  const uint64_t grown = now > before ? now - before : 0;
  const uint64_t covered = grown < reserved ? grown : reserved;
  if (covered) Commit(slot, covered);
  if (reserved > covered) Cancel(slot, reserved - covered);
  if (grown > covered) ForceCommit(slot, grown - covered);
  if (now < before) Release(slot, before - now);
  g_charged[slot] = now;
}

}  // namespace

void SawMemoryNode() { __atomic_store_n(&g_seen, true, __ATOMIC_RELAXED); }

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
  if (ReadReserved(need.device, &now)) Settle(need.slot, now, 0);
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
  Settle(need.slot, now, reserved ? need.bytes : 0);
  if (r == CUDA_ERROR_OUT_OF_MEMORY) CountDeviceFull(need.slot, need.bytes);
  g_lock.Release();
  return r;
}

void ForgetGraphs() {
  g_lock.Reset();
  g_needs.Forget();
  g_graphs_with_memory = 0;
  for (auto& bytes : g_charged) bytes = 0;
}

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  SawMemoryNode();
  return Through(Real().cuGraphAddMemAllocNode, node, graph, dependencies, count, params);
}

CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                        CUgraphNodeParams* params) {
  if (params && *reinterpret_cast<const int*>(params) == CU_GRAPH_NODE_TYPE_MEM_ALLOC) SawMemoryNode();
  return Through(Real().cuGraphAddNode, node, graph, dependencies, count, params);
}

CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                           const CUgraphEdgeData* edges, size_t count, CUgraphNodeParams* params) {
  if (params && *reinterpret_cast<const int*>(params) == CU_GRAPH_NODE_TYPE_MEM_ALLOC) SawMemoryNode();
  return Through(Real().cuGraphAddNode_v2, node, graph, dependencies, edges, count, params);
}

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
  if (r == CUDA_SUCCESS && __atomic_load_n(&g_graphs_with_memory, __ATOMIC_RELAXED) != 0) {
    Held held(g_lock);
    g_needs.Erase(reinterpret_cast<uint64_t>(exec), nullptr);
    __atomic_store_n(&g_graphs_with_memory, static_cast<uint32_t>(g_needs.size()), __ATOMIC_RELAXED);
  }
  return r;
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
  if (g_charged[slot] && ReadReserved(dev, &now)) Settle(slot, now, 0);
  return r;
}

}  // extern "C"
