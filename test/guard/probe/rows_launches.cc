// SPDX-License-Identifier: Apache-2.0
//
// What the device takes without being asked for a size: local memory of a kernel
// that needs more than a context includes, streams.
#include "rows.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

namespace {

// An H200's, measured (docs/results): 132 SMs x 2048 threads x 1 KiB more.
constexpr int64_t kStack = 132ll * 2048 * 1024;
constexpr int64_t kPage = 2 * kMiB;

struct Kernels {
  CUfunction small = nullptr, large = nullptr;  // the large one needs 2 KiB a thread
};
const Kernels& Get() {
  static const Kernels kernels = [] {
    constexpr char kImage[] =
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry small() { ret; }\n"
        ".visible .entry large() {\n.local .align 8 .b8 buffer[2048];\nret;\n}\n";
    Kernels k;
    CUmodule module = nullptr;
    MUST(named.cuModuleLoadData(&module, kImage));
    MUST(api.cuModuleGetFunction(&k.small, module, "small"));
    MUST(api.cuModuleGetFunction(&k.large, module, "large"));
    return k;
  }();
  return kernels;
}
void Load() { Get(); }

CUlaunchConfig OneWarp() {
  CUlaunchConfig config = {};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 32;
  config.blockDimY = config.blockDimZ = 1;
  return config;
}
const CUlaunchConfig kOneWarp = OneWarp();

// The driver keeps the stacks until the limit is set, or the context ends.
void LowerStack() {
  MUST(named.cuStreamSynchronize(nullptr));
  MUST(named.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
}

void AddLaunches(std::vector<Row>* rows) {
  auto add = [&](const char* hook, CUresult (*call)(const Hooked&)) {
    rows->push_back({.hook = hook,
                     .takes = kStack,
                     .charges = kStack,
                     .prepare = Load,
                     .call = call,
                     .undo = LowerStack});
  };
  add("cuLaunchKernel", [](const Hooked& d) {
    return d.cuLaunchKernel(Get().large, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr);
  });
  add("cuLaunchKernel_ptsz", [](const Hooked& d) {
    return d.cuLaunchKernel_ptsz(Get().large, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr);
  });
  add("cuLaunchKernelEx",
      [](const Hooked& d) { return d.cuLaunchKernelEx(&kOneWarp, Get().large, nullptr, nullptr); });
  add("cuLaunchKernelEx_ptsz",
      [](const Hooked& d) { return d.cuLaunchKernelEx_ptsz(&kOneWarp, Get().large, nullptr, nullptr); });
  add("cuLaunchCooperativeKernel", [](const Hooked& d) {
    return d.cuLaunchCooperativeKernel(Get().large, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr);
  });
  add("cuLaunchCooperativeKernel_ptsz", [](const Hooked& d) {
    return d.cuLaunchCooperativeKernel_ptsz(Get().large, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr);
  });
  add("cuLaunch", [](const Hooked& d) { return d.cuLaunch(Get().large); });
  add("cuLaunchGrid", [](const Hooked& d) { return d.cuLaunchGrid(Get().large, 1, 1); });
  add("cuLaunchGridAsync", [](const Hooked& d) { return d.cuLaunchGridAsync(Get().large, 1, 1, nullptr); });
  rows->push_back(
      {.hook = "cuLaunchKernel", .variant = "small", .prepare = Load, .call = [](const Hooked& d) {
         return d.cuLaunchKernel(Get().small, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr);
       }});
}

// Streams are charged until their context ends, by the most that were there at
// once: each row has a context of its own, in which one stream was made.
CUcontext fresh;
CUstream second;

void Fresh() {
  CUstream first = nullptr;
  MUST(named.cuCtxCreate_v2(&fresh, 0, device));
  MUST(named.cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
}
void FreshWithSecond() {
  Fresh();
  MUST(named.cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
}
void EndFresh() { MUST(named.cuCtxDestroy_v2(fresh)); }
CUcontext TheFresh() { return fresh; }

void AddStreams(std::vector<Row>* rows) {
  auto create = [&](const char* hook, CUresult (*call)(const Hooked&)) {
    rows->push_back({.hook = hook,
                     .takes = kPage,
                     .charges = kPage,
                     .needs = 2 * kPage,
                     .prepare = Fresh,
                     .context = TheFresh,
                     .call = call,
                     .clean = EndFresh});
  };
  create("cuStreamCreate",
         [](const Hooked& d) { return d.cuStreamCreate(Out<CUstream>(), CU_STREAM_NON_BLOCKING); });
  create("cuStreamCreateWithPriority", [](const Hooked& d) {
    return d.cuStreamCreateWithPriority(Out<CUstream>(), CU_STREAM_NON_BLOCKING, 0);
  });
  auto destroy = [&](const char* hook, CUresult (*call)(const Hooked&)) {
    rows->push_back(
        {.hook = hook, .prepare = FreshWithSecond, .context = TheFresh, .call = call, .clean = EndFresh});
  };
  destroy("cuStreamDestroy", [](const Hooked& d) { return d.cuStreamDestroy(second); });
  destroy("cuStreamDestroy_v2", [](const Hooked& d) { return d.cuStreamDestroy_v2(second); });
}

// An executable graph with a small kernel is given a large one.
CUgraph graph, other;
CUgraphNode node;
CUgraphExec exec;

CUDA_KERNEL_NODE_PARAMS_v2 NodeOf(CUfunction f) {
  CUDA_KERNEL_NODE_PARAMS_v2 params = {};
  params.func = f;
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = 32;
  params.blockDimY = params.blockDimZ = 1;
  return params;
}
void MakeGraph(CUgraph* made, CUfunction f, CUgraphNode* first) {
  const auto params = NodeOf(f);
  MUST(api.cuGraphCreate(made, 0));
  MUST(api.cuGraphAddKernelNode_v2(first, *made, nullptr, 0, &params));
}
void MakeExec() {
  CUgraphNode ignored;
  MakeGraph(&graph, Get().small, &node);
  MakeGraph(&other, Get().large, &ignored);
  MUST(named.cuGraphInstantiateWithFlags(&exec, graph, 0));
}
void DestroyAll() {
  MUST(named.cuGraphExecDestroy(exec));
  MUST(api.cuGraphDestroy(graph));
  MUST(api.cuGraphDestroy(other));
}
void MakeNested() {
  CUgraphNode ignored;
  CUgraph inner = nullptr;
  MakeGraph(&inner, Get().small, &ignored);
  MakeGraph(&other, Get().large, &ignored);
  MUST(api.cuGraphCreate(&graph, 0));
  MUST(api.cuGraphAddChildGraphNode(&node, graph, nullptr, 0, inner));
  MUST(api.cuGraphDestroy(inner));
  MUST(named.cuGraphInstantiateWithFlags(&exec, graph, 0));
}
// As CUDA's header has them; the guard knows no more of them than their names.
struct UpdateInfo {
  int result;
  CUgraphNode node, from;
};
struct NodeParams {
  int type = 0;  // a kernel
  int reserved0[3] = {};
  CUDA_KERNEL_NODE_PARAMS_v2 kernel = {};
  char rest[256 - 16 - sizeof(CUDA_KERNEL_NODE_PARAMS_v2)] = {};
};

void AddUpdates(std::vector<Row>* rows) {
  auto add = [&](const char* hook, void (*prepare)(), CUresult (*call)(const Hooked&)) {
    rows->push_back({.hook = hook,
                     .takes = kStack,
                     .charges = kStack,
                     .prepare = prepare,
                     .call = call,
                     .undo = LowerStack,
                     .clean = DestroyAll});
  };
  add("cuGraphExecKernelNodeSetParams", MakeExec, [](const Hooked& d) {
    const auto all = NodeOf(Get().large);
    CUDA_KERNEL_NODE_PARAMS_v1 params;
    __builtin_memcpy(&params, &all, sizeof params);
    return d.cuGraphExecKernelNodeSetParams(exec, node, &params);
  });
  add("cuGraphExecKernelNodeSetParams_v2", MakeExec, [](const Hooked& d) {
    const auto params = NodeOf(Get().large);
    return d.cuGraphExecKernelNodeSetParams_v2(exec, node, &params);
  });
  add("cuGraphExecNodeSetParams", MakeExec, [](const Hooked& d) {
    NodeParams params;
    params.kernel = NodeOf(Get().large);
    return d.cuGraphExecNodeSetParams(exec, node, reinterpret_cast<CUgraphNodeParams*>(&params));
  });
  add("cuGraphExecUpdate", MakeExec, [](const Hooked& d) {
    CUgraphNode error = nullptr;
    int result = 0;
    return d.cuGraphExecUpdate(exec, other, &error, reinterpret_cast<CUgraphExecUpdateResult*>(&result));
  });
  add("cuGraphExecUpdate_v2", MakeExec, [](const Hooked& d) {
    UpdateInfo info = {};
    return d.cuGraphExecUpdate_v2(exec, other, reinterpret_cast<CUgraphExecUpdateResultInfo*>(&info));
  });
  add("cuGraphExecChildGraphNodeSetParams", MakeNested,
      [](const Hooked& d) { return d.cuGraphExecChildGraphNodeSetParams(exec, node, other); });
}

}  // namespace

void AddLaunchRows(std::vector<Row>* rows) {
  AddLaunches(rows);
  AddStreams(rows);
  AddUpdates(rows);
}

}  // namespace gpumux::probe
