// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered memory, pools, and the calls in which a pool gives back.
#include <unistd.h>

#include "rows.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

namespace {

constexpr int64_t kStep = 32 * kMiB;  // in which a pool grows
CUmemoryPool pool;
CUevent event;
int descriptor = -1;

void Synchronise() { MUST(named.cuStreamSynchronize(nullptr)); }

void FreeOut() {
  MUST(named.cuMemFreeAsync(out, nullptr));
  Synchronise();
}
void MakePool() {
  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  MUST(named.cuMemPoolCreate(&pool, &props));
}
void DestroyPool() { MUST(named.cuMemPoolDestroy(pool)); }
// A pool that keeps one step although nothing is allocated from it.
void MakeHoardingPool() {
  MakePool();
  cuuint64_t keep = ~0ull;
  MUST(named.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
  MUST(named.cuMemAllocFromPoolAsync(&held, 5 * kMiB, pool, nullptr));
  MUST(named.cuMemFreeAsync(held, nullptr));
  Synchronise();
}
// The device's pool has a step that the next synchronise gives back.
void FreeBeforeSynchronise() {
  MUST(named.cuMemAllocAsync(&held, 5 * kMiB, nullptr));
  MUST(named.cuMemFreeAsync(held, nullptr));
}

// 10 MiB, a hole of 10 MiB, 10 MiB, and 2 MiB to the step's end.
CUdeviceptr around[2];
void MakeHole() {
  for (CUdeviceptr* p : {&around[0], &held, &around[1]}) MUST(named.cuMemAllocAsync(p, 10 * kMiB, nullptr));
  MUST(named.cuMemFreeAsync(held, nullptr));
  Synchronise();
}
void EndHole() {
  for (CUdeviceptr p : around) MUST(named.cuMemFreeAsync(p, nullptr));
  Synchronise();
}

void AddAllocations(std::vector<Row>* rows) {
  auto add = [&](Row row) { rows->push_back(std::move(row)); };
  add({.hook = "cuMemAllocAsync",
       .takes = kStep,
       .charges = kStep,
       .call = [](const Hooked& d) { return d.cuMemAllocAsync(Out<CUdeviceptr>(), 5 * kMiB, nullptr); },
       .undo = FreeOut});
  add({.hook = "cuMemAllocAsync_ptsz",
       .takes = kStep,
       .charges = kStep,
       .call = [](const Hooked& d) { return d.cuMemAllocAsync_ptsz(Out<CUdeviceptr>(), 5 * kMiB, nullptr); },
       .undo = FreeOut});
  // Fits into what the pool reserves: takes nothing more.
  add({.hook = "cuMemAllocAsync",
       .variant = "inside",
       .prepare = [] { MUST(named.cuMemAllocAsync(&held, 5 * kMiB, nullptr)); },
       .call = [](const Hooked& d) { return d.cuMemAllocAsync(Out<CUdeviceptr>(), 5 * kMiB, nullptr); },
       .undo = FreeOut,
       .clean =
           [] {
             MUST(named.cuMemFreeAsync(held, nullptr));
             Synchronise();
           }});
  // By bytes it fits into what the pool has, but not in one piece. So where there
  // is no room to grow, what the driver did has to be undone.
  add({.hook = "cuMemAllocAsync",
       .variant = "in pieces",
       .takes = kStep,
       .charges = kStep,
       .prepare = MakeHole,
       .call = [](const Hooked& d) { return d.cuMemAllocAsync(Out<CUdeviceptr>(), 11 * kMiB, nullptr); },
       .undo = FreeOut,
       .clean = EndHole});
  add({.hook = "cuMemAllocFromPoolAsync",
       .takes = kStep,
       .charges = kStep,
       .prepare = MakePool,
       .call =
           [](const Hooked& d) {
             return d.cuMemAllocFromPoolAsync(Out<CUdeviceptr>(), 5 * kMiB, pool, nullptr);
           },
       .undo = FreeOut,
       .clean = DestroyPool});
  add({.hook = "cuMemAllocFromPoolAsync_ptsz",
       .takes = kStep,
       .charges = kStep,
       .prepare = MakePool,
       .call =
           [](const Hooked& d) {
             return d.cuMemAllocFromPoolAsync_ptsz(Out<CUdeviceptr>(), 5 * kMiB, pool, nullptr);
           },
       .undo = FreeOut,
       .clean = DestroyPool});
}

void AddFrees(std::vector<Row>* rows) {
  auto add = [&](Row row) { rows->push_back(std::move(row)); };
  add({.hook = "cuMemFreeAsync",
       .prepare = [] { MUST(named.cuMemAllocAsync(&held, 5 * kMiB, nullptr)); },
       .call = [](const Hooked& d) { return d.cuMemFreeAsync(held, nullptr); },
       .clean = Synchronise});
  add({.hook = "cuMemFreeAsync_ptsz",
       .prepare = [] { MUST(named.cuMemAllocAsync(&held, 5 * kMiB, nullptr)); },
       .call = [](const Hooked& d) { return d.cuMemFreeAsync_ptsz(held, nullptr); },
       .clean = Synchronise});
  // The device has it until the next synchronising call.
  add({.hook = "cuMemFreeAsync",
       .variant = "plain",
       .prepare = [] { MUST(named.cuMemAlloc_v2(&held, 3 * kMiB)); },
       .call = [](const Hooked& d) { return d.cuMemFreeAsync(held, nullptr); },
       .undo = Synchronise});
  add({.hook = "cuMemFreeAsync_ptsz",
       .variant = "small",
       .prepare = [] { MUST(named.cuMemAlloc_v2(&held, 1000)); },
       .call = [](const Hooked& d) { return d.cuMemFreeAsync_ptsz(held, nullptr); },
       .undo = Synchronise});
}

void AddPools(std::vector<Row>* rows) {
  auto add = [&](Row row) { rows->push_back(std::move(row)); };
  add({.hook = "cuMemPoolCreate",
       .call =
           [](const Hooked& d) {
             CUmemPoolProps props = {};
             props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
             props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
             return d.cuMemPoolCreate(Out<CUmemoryPool>(), &props);
           },
       .undo = [] { MUST(named.cuMemPoolDestroy(As<CUmemoryPool>(out))); }});
  add({.hook = "cuMemPoolDestroy",
       .takes = -kStep,
       .charges = -kStep,
       .prepare = MakeHoardingPool,
       .call = [](const Hooked& d) { return d.cuMemPoolDestroy(pool); }});
  add({.hook = "cuMemPoolTrimTo",
       .takes = -kStep,
       .charges = -kStep,
       .prepare = MakeHoardingPool,
       .call = [](const Hooked& d) { return d.cuMemPoolTrimTo(pool, 0); },
       .clean = DestroyPool});
  add({.hook = "cuMemPoolSetAttribute",
       .prepare = MakeHoardingPool,
       .call =
           [](const Hooked& d) {
             cuuint64_t keep = 0;
             return d.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
           },
       .clean =
           [] {
             Synchronise();
             DestroyPool();
           }});
  // Its memory is its owner's, here the same process.
  add({.hook = "cuMemPoolImportFromShareableHandle",
       .prepare =
           [] {
             CUmemPoolProps props = {};
             props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
             props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
             props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
             MUST(named.cuMemPoolCreate(&pool, &props));
             MUST(api.cuMemPoolExportToShareableHandle(&descriptor, pool,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
           },
       .call =
           [](const Hooked& d) {
             return d.cuMemPoolImportFromShareableHandle(
                 Out<CUmemoryPool>(), reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
           },
       .undo = [] { MUST(named.cuMemPoolDestroy(As<CUmemoryPool>(out))); },
       .clean =
           [] {
             close(descriptor);
             DestroyPool();
           }});
}

void AddSynchronising(std::vector<Row>* rows) {
  auto add = [&](const char* hook, CUresult (*call)(const Hooked&)) {
    rows->push_back({.hook = hook,
                     .takes = -kStep,
                     .charges = -kStep,
                     .prepare = FreeBeforeSynchronise,
                     .call = call,
                     .clean = Synchronise});
  };
  add("cuStreamSynchronize", [](const Hooked& d) { return d.cuStreamSynchronize(nullptr); });
  add("cuStreamSynchronize_ptsz", [](const Hooked& d) { return d.cuStreamSynchronize_ptsz(nullptr); });
  add("cuCtxSynchronize", [](const Hooked& d) { return d.cuCtxSynchronize(); });
  add("cuCtxSynchronize_v2", [](const Hooked& d) { return d.cuCtxSynchronize_v2(primary); });
  rows->push_back({.hook = "cuEventSynchronize",
                   .takes = -kStep,
                   .charges = -kStep,
                   .prepare =
                       [] {
                         MUST(api.cuEventCreate(&event, 0));
                         FreeBeforeSynchronise();
                         MUST(api.cuEventRecord(event, nullptr));
                       },
                   .call = [](const Hooked& d) { return d.cuEventSynchronize(event); },
                   .clean =
                       [] {
                         Synchronise();
                         MUST(api.cuEventDestroy_v2(event));
                       }});
}

}  // namespace

void AddStreamRows(std::vector<Row>* rows) {
  AddAllocations(rows);
  AddFrees(rows);
  AddPools(rows);
  AddSynchronising(rows);
}

}  // namespace gpumux::probe
