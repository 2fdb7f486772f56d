// SPDX-License-Identifier: Apache-2.0
//
// Plain, pitched and managed memory.
#include "rows.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

namespace {

size_t pitch;
unsigned pitch_v1;

CUdeviceptr pieces[2];

void FreeOut() { MUST(named.cuMemFree_v2(out)); }
void FreeOutV1() { MUST(named.cuMemFree(static_cast<CUdeviceptr_v1>(out))); }

}  // namespace

void AddPlainRows(std::vector<Row>* rows) {
  constexpr int64_t kPage = 2 * kMiB;
  auto add = [&](Row row) { rows->push_back(std::move(row)); };
  add({.hook = "cuMemAlloc_v2",
       .takes = 2 * kPage,
       .charges = 2 * kPage,
       .call = [](const Hooked& d) { return d.cuMemAlloc_v2(Out<CUdeviceptr>(), 3 * kMiB); },
       .undo = FreeOut});
  add({.hook = "cuMemAlloc_v2",
       .variant = "small",
       .takes = kPage,
       .charges = kPage,
       .call = [](const Hooked& d) { return d.cuMemAlloc_v2(Out<CUdeviceptr>(), 1000); },
       .undo = FreeOut});
  // In a slab that is charged already: costs nothing, but the guard learns that
  // only from the driver's answer.
  add({.hook = "cuMemAlloc_v2",
       .variant = "second piece",
       .prepare = [] { MUST(named.cuMemAlloc_v2(&held, 1000)); },
       .call = [](const Hooked& d) { return d.cuMemAlloc_v2(Out<CUdeviceptr>(), 1000); },
       .undo = FreeOut,
       .clean = [] { MUST(named.cuMemFree_v2(held)); }});
  // The only slab has no room left: where there is none for a second, what the
  // driver did has to be undone.
  add({.hook = "cuMemAlloc_v2",
       .variant = "full slab",
       .takes = kPage,
       .charges = kPage,
       .prepare =
           [] {
             for (CUdeviceptr& piece : pieces) MUST(named.cuMemAlloc_v2(&piece, kMiB));
           },
       .call = [](const Hooked& d) { return d.cuMemAlloc_v2(Out<CUdeviceptr>(), kMiB); },
       .undo = FreeOut,
       .clean =
           [] {
             for (CUdeviceptr piece : pieces) MUST(named.cuMemFree_v2(piece));
           }});
  add({.hook = "cuMemAllocPitch_v2",
       .takes = 144 * kPage,
       .charges = 144 * kPage,
       .call =
           [](const Hooked& d) {
             return d.cuMemAllocPitch_v2(Out<CUdeviceptr>(), &pitch, 100'000, 3000, 16);
           },
       .undo = FreeOut});
  add({.hook = "cuMemAllocPitch_v2",
       .variant = "small",
       .takes = kPage,
       .charges = kPage,
       .call = [](const Hooked& d) { return d.cuMemAllocPitch_v2(Out<CUdeviceptr>(), &pitch, 100, 30, 4); },
       .undo = FreeOut});
  // NVML counts managed memory for no process; the guard charges it whole.
  add({.hook = "cuMemAllocManaged",
       .takes = 0,
       .charges = 2 * kPage,
       .call =
           [](const Hooked& d) {
             return d.cuMemAllocManaged(Out<CUdeviceptr>(), 3 * kMiB, CU_MEM_ATTACH_GLOBAL);
           },
       .undo = FreeOut});
  add({.hook = "cuMemFree_v2",
       .takes = -2 * kPage,
       .charges = -2 * kPage,
       .prepare = [] { MUST(named.cuMemAlloc_v2(&held, 3 * kMiB)); },
       .call = [](const Hooked& d) { return d.cuMemFree_v2(held); }});
  add({.hook = "cuMemFree_v2",
       .variant = "small",
       .takes = -kPage,
       .charges = -kPage,
       .prepare = [] { MUST(named.cuMemAlloc_v2(&held, 1000)); },
       .call = [](const Hooked& d) { return d.cuMemFree_v2(held); }});
  // Waits for the stream, and so the pool gives its step back.
  add({.hook = "cuMemFree_v2",
       .variant = "stream-ordered",
       .takes = -16 * kPage,
       .charges = -16 * kPage,
       .prepare = [] { MUST(named.cuMemAllocAsync(&held, 3 * kMiB, nullptr)); },
       .call = [](const Hooked& d) { return d.cuMemFree_v2(held); },
       .clean = [] { MUST(named.cuStreamSynchronize(nullptr)); }});
  // From before CUDA 3.2, with 32-bit sizes and addresses.
  add({.hook = "cuMemAlloc",
       .takes = 2 * kPage,
       .charges = 2 * kPage,
       .call = [](const Hooked& d) { return d.cuMemAlloc(Out<CUdeviceptr_v1>(), 3 * kMiB); },
       .undo = FreeOutV1});
  add({.hook = "cuMemAllocPitch",
       .takes = 144 * kPage,
       .charges = 144 * kPage,
       .call =
           [](const Hooked& d) {
             return d.cuMemAllocPitch(Out<CUdeviceptr_v1>(), &pitch_v1, 100'000, 3000, 16);
           },
       .undo = FreeOutV1});
  add({.hook = "cuMemFree",
       .takes = -2 * kPage,
       .charges = -2 * kPage,
       .prepare =
           [] {
             held = 0;
             named.cuMemAlloc(reinterpret_cast<CUdeviceptr_v1*>(&held), 3 * kMiB);
           },
       .call = [](const Hooked& d) { return d.cuMemFree(static_cast<CUdeviceptr_v1>(held)); }});
}

}  // namespace gpumux::probe
