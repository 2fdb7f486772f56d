// SPDX-License-Identifier: Apache-2.0
//
// Memory that no call asks for by size: local memory of kernels, streams, nodes of
// executable graphs.
#include <map>
#include <string>
#include <vector>

#include "commands.h"
#include "driver.h"
#include "steps.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

namespace {

// A kernel k(out) with `bytes` of local memory a thread that it cannot do without.
const char* Image(int bytes) {
  static std::map<int, std::string> images;
  std::string& text = images[bytes];
  const std::string size = std::to_string(bytes), words = std::to_string(bytes / 4);
  text =
      ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u32 at){\n"
      ".local .align 8 .b8 buf[" +
      size +
      "];\n"
      ".reg .u64 a, o, l; .reg .u32 i, v, n; .reg .pred p;\n"
      "ld.param.u64 o, [out]; ld.param.u32 i, [at]; mov.u64 l, buf; mov.u32 n, 0;\n"
      "L: mul.wide.u32 a, n, 4; add.u64 a, a, l; st.local.u32 [a], n; add.u32 n, n, 1;\n"
      "setp.lt.u32 p, n, " +
      words +
      "; @p bra L;\n"
      "mul.wide.u32 a, i, 4; add.u64 a, a, l; ld.local.u32 v, [a]; st.global.u32 [o], v; ret;\n}\n";
  return text.c_str();
}

CUdeviceptr out = 0;
unsigned index = 3;
void* arguments[] = {&out, &index};

CUresult Function(int bytes, CUfunction* f) {
  CUmodule module = nullptr;
  if (CUresult r = api.cuModuleLoadData(&module, Image(bytes))) return r;
  return api.cuModuleGetFunction(f, module, "k");
}

CUresult Launch(CUfunction f) {
  if (CUresult r = api.cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr)) return r;
  return api.cuCtxSynchronize();
}

CUresult LaunchNew(int bytes) {
  CUfunction f = nullptr;
  if (CUresult r = Function(bytes, &f)) return r;
  return Launch(f);
}

CUresult LowerStack() { return api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024); }

CUDA_KERNEL_NODE_PARAMS_v2 NodeOf(CUfunction f) {
  CUDA_KERNEL_NODE_PARAMS_v2 params = {};
  params.func = f;
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = 32;
  params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = arguments;
  return params;
}

// A graph of `count` launches of `f`, one after the other.
CUresult Chain(CUfunction f, int count, CUgraph* graph, CUgraphNode* last) {
  const auto params = NodeOf(f);
  CUresult r = api.cuGraphCreate(graph, 0);
  CUgraphNode before = nullptr;
  for (int i = 0; r == CUDA_SUCCESS && i < count; ++i) {
    r = api.cuGraphAddKernelNode_v2(last, *graph, before ? &before : nullptr, before ? 1 : 0, &params);
    before = *last;
  }
  return r;
}

CUresult MakeStreams(std::vector<CUstream>* streams, int count) {
  for (int i = 0; i < count; ++i) {
    CUstream stream = nullptr;
    if (CUresult r = api.cuStreamCreate(&stream, i & 1)) return r;
    streams->push_back(stream);
  }
  return CUDA_SUCCESS;
}

CUresult EndStreams(std::vector<CUstream>* streams) {
  for (CUstream stream : *streams) {
    if (CUresult r = api.cuStreamDestroy_v2(stream)) return r;
  }
  streams->clear();
  return CUDA_SUCCESS;
}

void AddLocalMemory(std::vector<Step>* s) {
  static CUfunction small = nullptr, large = nullptr;
  static CUstream stream = nullptr;
  static CUgraph graph = nullptr;
  static CUgraphExec exec = nullptr;
  static CUgraphNode node = nullptr;
  auto add = [s](std::string name, std::function<CUresult()> f) {
    s->push_back({std::move(name), std::move(f)});
  };
  for (int bytes : {512, 1024, 1040, 1104, 3000, 16384, 4096}) {
    add("launch " + std::to_string(bytes), [bytes] { return LaunchNew(bytes); });
  }
  add("launch of a library's kernel", [] {
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    CUresult r = api.cuLibraryLoadData(&library, Image(20000), nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (r == CUDA_SUCCESS) r = api.cuLibraryGetKernel(&kernel, library, "k");
    return r == CUDA_SUCCESS ? Launch(reinterpret_cast<CUfunction>(kernel)) : r;
  });
  add("launch over", [] { return LaunchNew(65536); });
  add("launch small after", [] { return LaunchNew(1024); });
  add("stack lowered", LowerStack);
  add("launch cooperative", [] {
    CUfunction f = nullptr;
    CUresult r = Function(2048, &f);
    if (r == CUDA_SUCCESS) r = api.cuLaunchCooperativeKernel(f, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments);
    return r == CUDA_SUCCESS ? api.cuCtxSynchronize() : r;
  });
  add("stack lowered again", LowerStack);
  add("captured", [] {
    CUresult r = Function(8192, &large);
    if (r == CUDA_SUCCESS) r = api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (r == CUDA_SUCCESS) r = api.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (r == CUDA_SUCCESS) r = api.cuLaunchKernel(large, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr);
    const CUresult end = api.cuStreamEndCapture(stream, &graph);
    return r == CUDA_SUCCESS ? end : r;
  });
  add("instantiated", [] { return api.cuGraphInstantiateWithFlags(&exec, graph, 0); });
  add("graph launched", [] {
    if (CUresult r = api.cuGraphLaunch(exec, stream)) return r;
    return api.cuStreamSynchronize(stream);
  });
  add("graph destroyed", [] {
    if (CUresult r = api.cuGraphExecDestroy(exec)) return r;
    return api.cuGraphDestroy(graph);
  });
  add("stack lowered after the graph", LowerStack);
  add("graph of a small kernel", [] {
    CUresult r = Function(256, &small);
    if (r == CUDA_SUCCESS) r = Chain(small, 1, &graph, &node);
    return r == CUDA_SUCCESS ? api.cuGraphInstantiateWithFlags(&exec, graph, 0) : r;
  });
  add("it gets a large one", [] {
    const auto params = NodeOf(large);
    return api.cuGraphExecKernelNodeSetParams_v2(exec, node, &params);
  });
  add("it gets one over", [] {
    CUfunction over = nullptr;
    if (CUresult r = Function(65536, &over)) return r;
    const auto params = NodeOf(over);
    return api.cuGraphExecKernelNodeSetParams_v2(exec, node, &params);
  });
  add("stack lowered after that", LowerStack);
  add("graph over", [] {
    CUfunction over = nullptr;
    CUgraphExec never = nullptr;
    CUresult r = Function(65536, &over);
    if (r == CUDA_SUCCESS) r = Chain(over, 1, &graph, &node);
    return r == CUDA_SUCCESS ? api.cuGraphInstantiateWithFlags(&never, graph, 0) : r;
  });
}

void AddObjects(std::vector<Step>* s) {
  static std::vector<CUstream> streams;
  static CUfunction small = nullptr;
  static CUgraph graph = nullptr;
  static CUgraphExec exec = nullptr;
  static CUgraphNode node = nullptr;
  static CUcontext context = nullptr;
  auto add = [s](std::string name, std::function<CUresult()> f) {
    s->push_back({std::move(name), std::move(f)});
  };
  add("39 streams", [] { return MakeStreams(&streams, 39); });
  add("1000 streams", [] { return MakeStreams(&streams, 1000); });
  add("streams destroyed", [] { return EndStreams(&streams); });
  add("as many again", [] { return MakeStreams(&streams, 1039); });
  add("and destroyed again", [] { return EndStreams(&streams); });
  add("graph of 10000", [] {
    CUresult r = Function(128, &small);
    if (r == CUDA_SUCCESS) r = Chain(small, 10000, &graph, &node);
    return r == CUDA_SUCCESS ? api.cuGraphInstantiateWithFlags(&exec, graph, 0) : r;
  });
  add("graph of 10000 destroyed", [] { return api.cuGraphExecDestroy(exec); });
  add("graph of 10000 again", [] { return api.cuGraphInstantiateWithFlags(&exec, graph, 0); });
  add("context with all of it", [] {
    CUresult r = api.cuCtxCreate_v2(&context, 0, device);
    if (r == CUDA_SUCCESS) r = MakeStreams(&streams, 100);
    if (r == CUDA_SUCCESS) r = api.cuMemAlloc_v2(&out, 4);
    return r == CUDA_SUCCESS ? LaunchNew(4096) : r;
  });
  add("context destroyed", [] {
    const CUresult r = api.cuCtxDestroy_v2(context);
    return r == CUDA_SUCCESS ? api.cuCtxSetCurrent(primary) : r;
  });
}

}  // namespace

int Growth() {
  StartUp();
  Check(api.cuMemAlloc_v2(&out, 4), "cuMemAlloc");
  std::vector<Step> s;
  AddLocalMemory(&s);
  AddObjects(&s);
  return Steps(s);
}

}  // namespace gpumux::probe
