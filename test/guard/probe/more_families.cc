// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>
#include <vector>

#include "commands.h"
#include "driver.h"
#include "steps.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

// Arrays, modules, limits and memory nodes of graphs.
int MoreFamilies(uint64_t over) {
  StartUp();
  static CUarray array[2] = {};
  static CUmipmappedArray mipmap = nullptr;
  static CUmodule module[2] = {};
  static CUgraph graph = nullptr;
  static CUgraphExec exec = nullptr;
  static CUgraphNode node = nullptr;
  static CUDA_MEM_ALLOC_NODE_PARAMS alloc = {};
  static CUdeviceptr p = 0;
  static CUstream stream = nullptr;
  Check(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  constexpr int kFloat = 0x20;
  std::vector<Step> s;
  auto add = [&](std::string name, std::function<CUresult()> f) {
    s.push_back({std::move(name), std::move(f)});
  };

  const struct {
    const char* name;
    CUDA_ARRAY3D_DESCRIPTOR d;
  } shapes[] = {
      {"1D", {65536, 0, 0, kFloat, 4, 0}},       {"2D", {1000, 1000, 0, kFloat, 4, 0}},
      {"2D odd", {1025, 1025, 0, kFloat, 4, 0}}, {"2D bytes", {4096, 4096, 0, 1, 1, 0}},
      {"3D", {129, 129, 129, kFloat, 4, 0}},     {"layered", {512, 512, 7, kFloat, 1, 1}},
      {"cube map", {512, 512, 6, kFloat, 1, 4}}, {"cube maps", {512, 512, 12, kFloat, 1, 5}},
      {"surface", {2048, 2048, 0, 0x10, 2, 2}},  {"layered rows", {1000, 0, 100, kFloat, 1, 1}},
  };
  for (const auto& shape : shapes) {
    add(std::string("array ") + shape.name, [d = shape.d] { return api.cuArray3DCreate_v2(&array[0], &d); });
    add(std::string("array destroyed ") + shape.name, [] { return api.cuArrayDestroy(array[0]); });
  }
  const CUDA_ARRAY_DESCRIPTOR small = {10, 10, kFloat, 1};
  add("small array", [small] { return api.cuArrayCreate_v2(&array[0], &small); });
  add("small array again", [small] { return api.cuArrayCreate_v2(&array[1], &small); });
  add("small array destroyed", [] { return api.cuArrayDestroy(array[1]); });
  add("small array last", [] { return api.cuArrayDestroy(array[0]); });
  const CUDA_ARRAY_DESCRIPTOR wide = {65536, 32768 / 2, kFloat, static_cast<unsigned>(over >> 32 ? 4 : 2)};
  add("array over", [wide] { return api.cuArrayCreate_v2(&array[0], &wide); });
  const CUDA_ARRAY3D_DESCRIPTOR deep = {1024, 1024, over / (1024 * 1024 * 4), kFloat, 1, 0};
  add("array 3D over", [deep] { return api.cuArray3DCreate_v2(&array[0], &deep); });
  const CUDA_ARRAY3D_DESCRIPTOR levels = {1024, 1024, 0, kFloat, 1, 0};
  for (unsigned n : {1u, 5u, 11u}) {
    add("mipmap " + std::to_string(n),
        [levels, n] { return api.cuMipmappedArrayCreate(&mipmap, &levels, n); });
    add("mipmap destroyed " + std::to_string(n), [] { return api.cuMipmappedArrayDestroy(mipmap); });
  }
  add("mipmap over", [deep] { return api.cuMipmappedArrayCreate(&mipmap, &deep, 1); });

  static std::map<uint64_t, std::string> images;
  auto image = [](uint64_t bytes) {
    auto& text = images[bytes];
    text = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .global .align 16 .b8 big[" +
           std::to_string(bytes) + "];\n.visible .entry k() { ret; }\n";
    return text.c_str();
  };
  add("module 50 MiB", [=] { return api.cuModuleLoadData(&module[0], image(50 * kMiB)); });
  add("module unloaded", [] { return api.cuModuleUnload(module[0]); });
  add("module 3 MB", [=] { return api.cuModuleLoadData(&module[0], image(3'000'000)); });
  add("module 3 MB unloaded", [] { return api.cuModuleUnload(module[0]); });
  add("module over", [=] { return api.cuModuleLoadData(&module[0], image(over)); });

  add("stack 2 KiB", [] { return api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048); });
  add("stack 8 KiB", [] { return api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 8192); });
  add("stack 1 KiB", [] { return api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024); });
  add("stack over", [] { return api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 65536); });

  add("graph node", [] {
    alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    alloc.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    alloc.bytesize = 40 * kMiB;
    if (CUresult r = api.cuGraphCreate(&graph, 0)) return r;
    return api.cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &alloc);
  });
  add("graph instantiated", [] { return api.cuGraphInstantiateWithFlags(&exec, graph, 0); });
  add("graph launched", [] {
    if (CUresult r = api.cuGraphLaunch(exec, stream)) return r;
    return api.cuStreamSynchronize(stream);
  });
  add("graph freed", [] {
    if (CUresult r = api.cuMemFreeAsync(alloc.dptr, stream)) return r;
    return api.cuStreamSynchronize(stream);
  });
  add("graph launched again", [] {
    if (CUresult r = api.cuGraphLaunch(exec, stream)) return r;
    return api.cuStreamSynchronize(stream);
  });
  add("graph freed again", [] {
    if (CUresult r = api.cuMemFreeAsync(alloc.dptr, stream)) return r;
    return api.cuStreamSynchronize(stream);
  });
  add("graph trimmed", [] { return api.cuDeviceGraphMemTrim(device); });
  add("graph destroyed", [] {
    if (CUresult r = api.cuGraphExecDestroy(exec)) return r;
    return api.cuGraphDestroy(graph);
  });
  add("graph over", [over] {
    alloc.bytesize = over;
    CUresult r = api.cuGraphCreate(&graph, 0);
    if (r == CUDA_SUCCESS) r = api.cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &alloc);
    if (r == CUDA_SUCCESS) r = api.cuGraphInstantiateWithFlags(&exec, graph, 0);
    return r == CUDA_SUCCESS ? api.cuGraphLaunch(exec, stream) : CUDA_ERROR_UNKNOWN;
  });
  add("capture over", [over] {
    CUresult r = api.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    if (r == CUDA_SUCCESS) r = api.cuMemAllocAsync(&p, over, stream);
    const CUresult end = api.cuStreamEndCapture(stream, &graph);
    if (r == CUDA_SUCCESS) r = end;
    if (r == CUDA_SUCCESS) r = api.cuGraphInstantiateWithFlags(&exec, graph, 0);
    return r == CUDA_SUCCESS ? api.cuGraphLaunch(exec, stream) : CUDA_ERROR_UNKNOWN;
  });
  return Steps(s);
}

}  // namespace gpumux::probe
