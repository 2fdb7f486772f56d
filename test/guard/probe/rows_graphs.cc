// SPDX-License-Identifier: Apache-2.0
//
// Graphs with a memory node of 40 MiB: the device gives two steps of 32 MiB when
// the graph is uploaded or launched first.
#include "rows.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

namespace {

constexpr int64_t kSteps = 64 * kMiB;
CUgraph graph;
CUgraphExec exec;
CUDA_MEM_ALLOC_NODE_PARAMS node;

// As CUDA's header has them; the guard knows no more of them than their names.
struct InstantiateParams {
  cuuint64_t flags;
  CUstream upload_stream;
  CUgraphNode error_node;
  int result;
};
constexpr cuuint64_t kUploadAtOnce = 2;
CUDA_MEM_ALLOC_NODE_PARAMS FortyMiB() {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  params.bytesize = 40 * kMiB;
  return params;
}
void Destroy() { MUST(api.cuGraphDestroy(graph)); }
void Make() {
  MUST(api.cuGraphCreate(&graph, 0));
  CUgraphNode made;
  node = FortyMiB();
  MUST(api.cuGraphAddMemAllocNode(&made, graph, nullptr, 0, &node));
}
void MakeExec() {
  Make();
  MUST(named.cuGraphInstantiateWithFlags(&exec, graph, 0));
}
// What was launched has to be freed before the memory can be trimmed.
void Trim() { MUST(named.cuDeviceGraphMemTrim(device)); }
void FreeAndTrim() {
  MUST(named.cuMemFreeAsync(node.dptr, nullptr));
  MUST(named.cuStreamSynchronize(nullptr));
  Trim();
}
void DestroyExec() {
  MUST(named.cuGraphExecDestroy(exec));
  Destroy();
}
void DestroyOut() { MUST(named.cuGraphExecDestroy(As<CUgraphExec>(out))); }

void AddInstances(std::vector<Row>* rows) {
  auto add = [&](const char* hook, CUresult (*call)(const Hooked&)) {
    rows->push_back({.hook = hook, .prepare = Make, .call = call, .undo = DestroyOut, .clean = Destroy});
  };
  add("cuGraphInstantiate",
      [](const Hooked& d) { return d.cuGraphInstantiate(Out<CUgraphExec>(), graph, nullptr, nullptr, 0); });
  add("cuGraphInstantiate_v2", [](const Hooked& d) {
    return d.cuGraphInstantiate_v2(Out<CUgraphExec>(), graph, nullptr, nullptr, 0);
  });
  add("cuGraphInstantiateWithFlags",
      [](const Hooked& d) { return d.cuGraphInstantiateWithFlags(Out<CUgraphExec>(), graph, 0); });
  add("cuGraphInstantiateWithParams", [](const Hooked& d) {
    InstantiateParams params = {};
    return d.cuGraphInstantiateWithParams(Out<CUgraphExec>(), graph,
                                          reinterpret_cast<CUDA_GRAPH_INSTANTIATE_PARAMS*>(&params));
  });
  add("cuGraphInstantiateWithParams_ptsz", [](const Hooked& d) {
    InstantiateParams params = {};
    return d.cuGraphInstantiateWithParams_ptsz(Out<CUgraphExec>(), graph,
                                               reinterpret_cast<CUDA_GRAPH_INSTANTIATE_PARAMS*>(&params));
  });
  // Uploads as well, and so takes the memory.
  auto upload = [&](const char* hook, CUresult (*call)(const Hooked&)) {
    rows->push_back({.hook = hook,
                     .variant = "upload",
                     .takes = kSteps,
                     .charges = kSteps,
                     .prepare = Make,
                     .call = call,
                     .undo =
                         [] {
                           DestroyOut();
                           Trim();
                         },
                     .clean = Destroy});
  };
  upload("cuGraphInstantiateWithParams", [](const Hooked& d) {
    InstantiateParams params = {kUploadAtOnce, nullptr, nullptr, 0};
    return d.cuGraphInstantiateWithParams(Out<CUgraphExec>(), graph,
                                          reinterpret_cast<CUDA_GRAPH_INSTANTIATE_PARAMS*>(&params));
  });
  upload("cuGraphInstantiateWithParams_ptsz", [](const Hooked& d) {
    InstantiateParams params = {kUploadAtOnce, nullptr, nullptr, 0};
    return d.cuGraphInstantiateWithParams_ptsz(Out<CUgraphExec>(), graph,
                                               reinterpret_cast<CUDA_GRAPH_INSTANTIATE_PARAMS*>(&params));
  });
}

void AddRuns(std::vector<Row>* rows) {
  auto add = [&](const char* hook, CUresult (*call)(const Hooked&), void (*undo)()) {
    rows->push_back({.hook = hook,
                     .takes = kSteps,
                     .charges = kSteps,
                     .prepare = MakeExec,
                     .call = call,
                     .undo = undo,
                     .clean = DestroyExec});
  };
  add("cuGraphUpload", [](const Hooked& d) { return d.cuGraphUpload(exec, nullptr); }, Trim);
  add("cuGraphUpload_ptsz", [](const Hooked& d) { return d.cuGraphUpload_ptsz(exec, nullptr); }, Trim);
  add("cuGraphLaunch", [](const Hooked& d) { return d.cuGraphLaunch(exec, nullptr); }, FreeAndTrim);
  add("cuGraphLaunch_ptsz", [](const Hooked& d) { return d.cuGraphLaunch_ptsz(exec, nullptr); }, FreeAndTrim);
}

}  // namespace

void AddGraphRows(std::vector<Row>* rows) {
  AddInstances(rows);
  AddRuns(rows);
  rows->push_back({.hook = "cuGraphExecDestroy",
                   .prepare = MakeExec,
                   .call = [](const Hooked& d) { return d.cuGraphExecDestroy(exec); },
                   .clean = Destroy});
  rows->push_back({.hook = "cuDeviceGraphMemTrim",
                   .takes = -kSteps,
                   .charges = -kSteps,
                   .prepare =
                       [] {
                         MakeExec();
                         MUST(named.cuGraphUpload(exec, nullptr));
                         DestroyExec();
                       },
                   .call = [](const Hooked& d) { return d.cuDeviceGraphMemTrim(device); }});
}

}  // namespace gpumux::probe
