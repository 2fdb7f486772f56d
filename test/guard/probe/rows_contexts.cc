// SPDX-License-Identifier: Apache-2.0
//
// Contexts, and what their limits take. A context is charged by the daemon, so
// its rows leave the process's page alone: what the program is told moves.
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
                     .by_daemon = true,
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
                     .by_daemon = true,
                     .prepare = Create,
                     .call = call,
                     .instead = [] { MUST(named.cuCtxDestroy_v2(As<CUcontext>(held))); }});
  };
  add("cuCtxDestroy", [](const Hooked& d) { return d.cuCtxDestroy(As<CUcontext>(held)); });
  add("cuCtxDestroy_v2", [](const Hooked& d) { return d.cuCtxDestroy_v2(As<CUcontext>(held)); });
  add("cuCtxDetach", [](const Hooked& d) { return d.cuCtxDetach(As<CUcontext>(held)); });
}

// The table runs in a context of its own, so that the primary one comes and goes.
void Retain() { MUST(named.cuDevicePrimaryCtxRetain(reinterpret_cast<CUcontext*>(&held), device)); }
void Release() { MUST(named.cuDevicePrimaryCtxRelease_v2(device)); }

void AddPrimary(std::vector<Row>* rows) {
  rows->push_back(
      {.hook = "cuDevicePrimaryCtxRetain",
       .takes = kContext,
       .charges = kContextCharge,
       .by_daemon = true,
       .call = [](const Hooked& d) { return d.cuDevicePrimaryCtxRetain(Out<CUcontext>(), device); },
       .undo = Release});
  rows->push_back(
      {.hook = "cuDevicePrimaryCtxRetain",
       .variant = "again",
       .by_daemon = true,
       .prepare = Retain,
       .call = [](const Hooked& d) { return d.cuDevicePrimaryCtxRetain(Out<CUcontext>(), device); },
       .undo = Release,
       .clean = Release});
  auto add = [&](const char* hook, CUresult (*call)(const Hooked&)) {
    rows->push_back({.hook = hook,
                     .takes = -kContext,
                     .charges = -kContextCharge,
                     .by_daemon = true,
                     .prepare = Retain,
                     .call = call});
  };
  add("cuDevicePrimaryCtxRelease", [](const Hooked& d) { return d.cuDevicePrimaryCtxRelease(device); });
  add("cuDevicePrimaryCtxRelease_v2", [](const Hooked& d) { return d.cuDevicePrimaryCtxRelease_v2(device); });
  add("cuDevicePrimaryCtxReset", [](const Hooked& d) { return d.cuDevicePrimaryCtxReset(device); });
  add("cuDevicePrimaryCtxReset_v2", [](const Hooked& d) { return d.cuDevicePrimaryCtxReset_v2(device); });
}

}  // namespace

void AddContextRows(std::vector<Row>* rows) {
  AddPrimary(rows);
  AddLimits(rows);
  AddCreations(rows);
  AddDestructions(rows);
}

}  // namespace gpumux::probe
