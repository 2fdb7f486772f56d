// SPDX-License-Identifier: Apache-2.0
//
// Contexts, and what their limits take. A context is charged by the daemon, so
// its rows leave the process's page alone: what the program is told moves.
#include <string>

#include "rows.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

namespace {

// An H200's, measured (docs/results): 132 SMs x 2048 threads x 1 KiB more.
constexpr int64_t kStack = 132ll * 2048 * 1024;
constexpr int64_t kContext = 543162368;
// In the device's own figure a context costs more than in its process's.
constexpr int64_t kContextCharge = 548995072;

// The context is current after it was made.
void DestroyOut() { MUST(named.cuCtxDestroy_v2(As<CUcontext>(out))); }
void Create() { MUST(named.cuCtxCreate_v2(reinterpret_cast<CUcontext*>(&held), 0, device)); }

void AddLimits(std::vector<Row>* rows) {
  rows->push_back({.hook = "cuCtxSetLimit",
                   .variant = "stack",
                   .takes = kStack,
                   .charges = kStack,
                   .call = [](const Hooked& d) { return d.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048); },
                   .undo = [] { MUST(named.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024)); }});
  rows->push_back({.hook = "cuCtxSetLimit",
                   .variant = "smaller stack",
                   .takes = -kStack,
                   .charges = -kStack,
                   .prepare = [] { MUST(named.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048)); },
                   .call = [](const Hooked& d) { return d.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024); }});
  // Taken when a kernel first needs it, which nothing can refuse: charged when set.
  rows->push_back(
      {.hook = "cuCtxSetLimit",
       .variant = "heap",
       .takes = 0,
       .charges = 16 * static_cast<int64_t>(kMiB),
       .call = [](const Hooked& d) { return d.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 24 * kMiB); },
       .undo = [] { MUST(named.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * kMiB)); }});
}

void AddCreations(std::vector<Row>* rows) {
  auto add = [&](const char* hook, CUresult (*call)(const Hooked&)) {
    rows->push_back({.hook = hook,
                     .takes = kContext,
                     .charges = kContextCharge,
                     .by_daemon = kContextCharge,
                     .call = call,
                     .undo = DestroyOut});
  };
  add("cuCtxCreate", [](const Hooked& d) { return d.cuCtxCreate(Out<CUcontext>(), 0, device); });
  add("cuCtxCreate_v2", [](const Hooked& d) { return d.cuCtxCreate_v2(Out<CUcontext>(), 0, device); });
  add("cuCtxCreate_v3",
      [](const Hooked& d) { return d.cuCtxCreate_v3(Out<CUcontext>(), nullptr, 0, 0, device); });
  add("cuCtxCreate_v4",
      [](const Hooked& d) { return d.cuCtxCreate_v4(Out<CUcontext>(), nullptr, 0, device); });
}

void AddDestructions(std::vector<Row>* rows) {
  auto add = [&](const char* hook, CUresult (*call)(const Hooked&)) {
    rows->push_back({.hook = hook,
                     .takes = -kContext,
                     .charges = -kContextCharge,
                     .by_daemon = -kContextCharge,
                     .prepare = Create,
                     .call = call,
                     .instead = [] { MUST(named.cuCtxDestroy_v2(As<CUcontext>(held))); }});
  };
  add("cuCtxDestroy", [](const Hooked& d) { return d.cuCtxDestroy(As<CUcontext>(held)); });
  add("cuCtxDestroy_v2", [](const Hooked& d) { return d.cuCtxDestroy_v2(As<CUcontext>(held)); });
}

// The table runs in a context of its own, so that the primary one comes and goes.
void Retain() { MUST(named.cuDevicePrimaryCtxRetain(reinterpret_cast<CUcontext*>(&held), device)); }
void Release() { MUST(named.cuDevicePrimaryCtxRelease_v2(device)); }

void AddPrimary(std::vector<Row>* rows) {
  rows->push_back(
      {.hook = "cuDevicePrimaryCtxRetain",
       .takes = kContext,
       .charges = kContextCharge,
       .by_daemon = kContextCharge,
       .call = [](const Hooked& d) { return d.cuDevicePrimaryCtxRetain(Out<CUcontext>(), device); },
       .undo = Release});
  rows->push_back(
      {.hook = "cuDevicePrimaryCtxRetain",
       .variant = "again",
       .prepare = Retain,
       .call = [](const Hooked& d) { return d.cuDevicePrimaryCtxRetain(Out<CUcontext>(), device); },
       .undo = Release,
       .clean = Release});
  auto add = [&](const char* hook, CUresult (*call)(const Hooked&)) {
    rows->push_back({.hook = hook,
                     .takes = -kContext,
                     .charges = -kContextCharge,
                     .by_daemon = -kContextCharge,
                     .prepare = Retain,
                     .call = call});
  };
  add("cuDevicePrimaryCtxRelease", [](const Hooked& d) { return d.cuDevicePrimaryCtxRelease(device); });
  add("cuDevicePrimaryCtxRelease_v2", [](const Hooked& d) { return d.cuDevicePrimaryCtxRelease_v2(device); });
  add("cuDevicePrimaryCtxReset", [](const Hooked& d) { return d.cuDevicePrimaryCtxReset(device); });
  add("cuDevicePrimaryCtxReset_v2", [](const Hooked& d) { return d.cuDevicePrimaryCtxReset_v2(device); });
}

// --- contexts that end with memory of every family in them

CUcontext full;
constexpr int64_t kInside = 4 * kMiB + 2 * kMiB + 16 * kMiB + 50 * kMiB + kStack;

void Fill(CUcontext context) {
  static const std::string kImage =
      ".version 7.8\n.target sm_80\n.address_size 64\n.visible .global .align 16 .b8 big[52428800];\n"
      ".visible .entry k() { ret; }\n";
  const CUDA_ARRAY_DESCRIPTOR flat = {1000, 1000, 0x20, 4};
  CUdeviceptr p = 0;
  CUarray array = nullptr;
  CUmodule module = nullptr;
  MUST(api.cuCtxSetCurrent(context));
  MUST(named.cuMemAlloc_v2(&p, 3 * kMiB));
  MUST(named.cuMemAlloc_v2(&p, 1000));
  MUST(named.cuArrayCreate_v2(&array, &flat));
  MUST(named.cuModuleLoadData(&module, kImage.c_str()));
  MUST(named.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
}
void RetainFull() {
  MUST(named.cuDevicePrimaryCtxRetain(&full, device));
  Fill(full);
}
void CreateFull() {
  MUST(named.cuCtxCreate_v2(&full, 0, device));
  Fill(full);
}

void AddFull(std::vector<Row>* rows) {
  auto add = [&](const char* hook, void (*prepare)(), CUresult (*call)(const Hooked&)) {
    rows->push_back({.hook = hook,
                     .variant = "full",
                     .takes = -kContext - kInside,
                     .charges = -kContextCharge - kInside,
                     .by_daemon = -kContextCharge,
                     .prepare = prepare,
                     .call = call});
  };
  add("cuCtxDestroy_v2", CreateFull, [](const Hooked& d) { return d.cuCtxDestroy_v2(full); });
  add("cuDevicePrimaryCtxRelease_v2", RetainFull,
      [](const Hooked& d) { return d.cuDevicePrimaryCtxRelease_v2(device); });
  add("cuDevicePrimaryCtxReset_v2", RetainFull,
      [](const Hooked& d) { return d.cuDevicePrimaryCtxReset_v2(device); });
}

CUcontext Held() { return As<CUcontext>(held); }
void Attach() {
  CUcontext same = nullptr;
  MUST(api.cuCtxSetCurrent(Held()));
  MUST(named.cuCtxAttach(&same, 0));
}
void Detach() {
  MUST(api.cuCtxSetCurrent(Held()));
  MUST(named.cuCtxDetach(Held()));
}

void AddAttached(std::vector<Row>* rows) {
  rows->push_back({.hook = "cuCtxAttach",
                   .prepare = Create,
                   .context = Held,
                   .call = [](const Hooked& d) { return d.cuCtxAttach(Out<CUcontext>(), 0); },
                   .undo = Detach,
                   .clean = Detach});
  rows->push_back({.hook = "cuCtxDetach",
                   .takes = -kContext,
                   .charges = -kContextCharge,
                   .by_daemon = -kContextCharge,
                   .prepare = Create,
                   .context = Held,
                   .call = [](const Hooked& d) { return d.cuCtxDetach(Held()); }});
  rows->push_back({.hook = "cuCtxDetach",
                   .variant = "attached",
                   .prepare =
                       [] {
                         Create();
                         Attach();
                       },
                   .context = Held,
                   .call = [](const Hooked& d) { return d.cuCtxDetach(Held()); },
                   .clean = Detach});
}

}  // namespace

void AddContextRows(std::vector<Row>* rows) {
  AddAttached(rows);
  AddFull(rows);
  AddPrimary(rows);
  AddLimits(rows);
  AddCreations(rows);
  AddDestructions(rows);
}

}  // namespace gpumux::probe
