// SPDX-License-Identifier: Apache-2.0
//
// Green contexts, and contexts with several users. What is current between the
// steps is an ordinary context, so that the primary one need not be there.
#include <string>
#include <vector>

#include "commands.h"
#include "driver.h"
#include "steps.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

namespace {

struct Resource {  // CUdevResource
  uint64_t words[18];
};
constexpr int kSms = 1;
constexpr unsigned kDefaultStream = 1;

CUcontext plain = nullptr;  // the ordinary one

template <typename... P>
CUresult Call(const char* name, P... p) {
  return Find<CUresult (*)(P...)>(name)(p...);
}

CUresult Create(CUgreenCtx* green, Resource* sms) {
  CUdevResourceDesc desc = nullptr;
  if (CUresult r = Call("cuDevResourceGenerateDesc", &desc, sms, 1u)) return r;
  return Call("cuGreenCtxCreate", green, desc, device, kDefaultStream);
}

// The first 32 SMs, or what is left of them.
CUresult Make(CUgreenCtx* green, bool rest) {
  Resource all = {}, part = {}, remaining = {};
  unsigned groups = 1;
  if (CUresult r = Call("cuDeviceGetDevResource", device, &all, kSms)) return r;
  if (CUresult r = Call("cuDevSmResourceSplitByCount", &part, &groups, static_cast<const Resource*>(&all),
                        &remaining, 0u, 32u)) {
    return r;
  }
  return Create(green, rest ? &remaining : &part);
}

CUresult Destroy(CUgreenCtx green) { return Call("cuGreenCtxDestroy", green); }

// Runs `f` with the green context current, and leaves the ordinary one.
template <typename F>
CUresult Within(CUgreenCtx green, F&& f) {
  CUcontext view = nullptr, current = nullptr;
  if (CUresult r = Call("cuCtxFromGreenCtx", &view, green)) return r;
  if (CUresult r = api.cuCtxSetCurrent(view)) return r;
  if (CUresult r = Call("cuCtxGetCurrent", &current)) return r;
  const CUresult r = current == view ? f() : CUDA_ERROR_UNKNOWN;
  const CUresult back = api.cuCtxSetCurrent(plain);
  return r == CUDA_SUCCESS ? back : r;
}

CUresult Streams(CUgreenCtx green, std::vector<CUstream>* streams) {
  for (int i = 0; i < 20; ++i) {
    CUstream stream = nullptr;
    const CUresult r =
        i < 10 ? Call("cuGreenCtxStreamCreate", &stream, green, 1u, 0)
               : Within(green, [&] { return api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING); });
    if (r != CUDA_SUCCESS) return r;
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

CUresult MakeArray(size_t width) {
  CUarray array = nullptr;
  constexpr int kFloat = 0x20;
  const CUDA_ARRAY_DESCRIPTOR desc = {width, 1024, kFloat, 1};
  return api.cuArrayCreate_v2(&array, &desc);
}

CUresult LoadVariable(const char* bytes) {
  const std::string image =
      ".version 8.0\n.target sm_80\n.address_size 64\n.visible .global .align 4 .b8 v[" + std::string(bytes) +
      "];\n.visible .entry k(){ ret; }\n";
  CUmodule module = nullptr;
  return api.cuModuleLoadData(&module, image.c_str());
}

void Fill(std::vector<CUdeviceptr>* filled) {
  for (uint64_t bytes : {1024 * kMiB, 64 * kMiB, 2 * kMiB}) {
    CUdeviceptr p = 0;
    while (api.cuMemAlloc_v2(&p, bytes) == CUDA_SUCCESS) filled->push_back(p);
  }
}

void AddLife(std::vector<Step>* s) {
  static CUgreenCtx green = nullptr;
  s->push_back({"context for a green one", [] { return Make(&green, false); }});
  s->push_back({"context ends with the green one", [] { return Destroy(green); }});
  s->push_back({"context never made", [] {
                  CUgreenCtx none = nullptr;
                  return Call("cuGreenCtxCreate", &none, static_cast<CUdevResourceDesc>(nullptr), device, 0u);
                }});
}

void AddGreen(std::vector<Step>* s) {
  static CUgreenCtx green = nullptr, rest = nullptr;
  static std::vector<CUstream> streams;
  static std::vector<CUdeviceptr> filled;
  auto add = [s](std::string name, std::function<CUresult()> f) {
    s->push_back({std::move(name), std::move(f)});
  };
  auto within = [add](std::string name, std::function<CUresult()> f) {
    add(std::move(name), [f] { return Within(green, f); });
  };
  add("context of the device", [] { return api.cuDevicePrimaryCtxRetain(&primary, device); });
  add("green 32", [] { return Make(&green, false); });
  add("green rest", [] { return Make(&rest, true); });
  within("plain in green", [] {
    CUdeviceptr p = 0;
    return api.cuMemAlloc_v2(&p, 3 * kMiB);
  });
  within("piece in green", [] {
    CUdeviceptr p = 0;
    return api.cuMemAlloc_v2(&p, 4);
  });
  within("array in green", [] { return MakeArray(1024); });
  within("small array in green", [] { return MakeArray(16); });
  within("variable in green", [] { return LoadVariable("3000000"); });
  within("stack in green", [] { return api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096); });
  within("heap in green", [] { return api.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * kMiB); });
  add("streams in green", [] { return Streams(green, &streams); });
  add("streams destroyed", [] { return EndStreams(&streams); });
  add("full", [] {
    Fill(&filled);
    return CUDA_SUCCESS;
  });
  // No room is asked for what the driver has kept.
  add("streams again", [] { return Streams(green, &streams); });
  add("streams destroyed again", [] { return EndStreams(&streams); });
  add("green over", [] {
    CUgreenCtx none = nullptr;
    return Make(&none, false);
  });
  within("plain over in green", [] {
    CUdeviceptr p = 0;
    return api.cuMemAlloc_v2(&p, 2 * kMiB);
  });
  add("emptied", [] {
    for (CUdeviceptr p : filled) {
      if (CUresult r = api.cuMemFree_v2(p)) return r;
    }
    return CUDA_SUCCESS;
  });
  add("green destroyed", [] { return Destroy(green); });
  add("green 32 again", [] { return Make(&green, false); });
  add("released, but kept by green ones", [] { return Call("cuDevicePrimaryCtxRelease_v2", device); });
  add("reset while green ones live", [] { return api.cuDevicePrimaryCtxReset_v2(device); });
  add("context ends with the last green one", [] {
    if (CUresult r = Destroy(rest)) return r;
    return Destroy(green);
  });
}

void AddUsers(std::vector<Step>* s) {
  static CUcontext context = nullptr;
  auto add = [s](std::string name, std::function<CUresult()> f) {
    s->push_back({std::move(name), std::move(f)});
  };
  add("context with two users", [] {
    CUcontext attached = nullptr;
    CUdeviceptr p = 0;
    if (CUresult r = api.cuCtxCreate_v2(&context, 0, device)) return r;
    if (CUresult r = Call("cuCtxAttach", &attached, 0u)) return r;
    return attached == context ? api.cuMemAlloc_v2(&p, 10 * kMiB) : CUDA_ERROR_UNKNOWN;
  });
  add("detached", [] { return Call("cuCtxDetach", context); });
  add("lives", [] {
    CUdeviceptr p = 0;
    return api.cuMemAlloc_v2(&p, 10 * kMiB);
  });
  add("context detached by the last", [] {
    const CUresult r = Call("cuCtxDetach", context);
    return r == CUDA_SUCCESS ? api.cuCtxSetCurrent(plain) : r;
  });
}

void Begin() {
  Initialise();
  Check(api.cuCtxCreate_v2(&plain, 0, device), "cuCtxCreate");
}

}  // namespace

int Green() {
  Begin();
  std::vector<Step> s;
  AddLife(&s);
  AddGreen(&s);
  AddUsers(&s);
  return Steps(s);
}

int GreenOver() {
  Begin();
  std::vector<Step> s;
  s.push_back({"context over", [] {
                 CUgreenCtx green = nullptr;
                 return Make(&green, false);
               }});
  return Steps(s);
}

}  // namespace gpumux::probe
