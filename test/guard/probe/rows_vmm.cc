// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory management: handles, mappings, imports.
#include <unistd.h>

#include "rows.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

namespace {

constexpr int64_t kSize = 6 * kMiB;
CUdeviceptr addresses;
int descriptor = -1;

CUmemAllocationProp Shareable() {
  CUmemAllocationProp prop = DeviceProp();
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}
void Create() {
  const CUmemAllocationProp prop = DeviceProp();
  MUST(named.cuMemCreate(&held, kSize, &prop, 0));
}
void Reserve() { MUST(api.cuMemAddressReserve(&addresses, kSize, 0, 0, 0)); }
void FreeAddresses() { MUST(api.cuMemAddressFree(addresses, kSize)); }
void CreateAndMap() {
  Create();
  Reserve();
  MUST(named.cuMemMap(addresses, kSize, 0, held, 0));
}
void UnmapAndFree() {
  MUST(named.cuMemUnmap(addresses, kSize));
  FreeAddresses();
}

}  // namespace

void AddVirtualMemoryRows(std::vector<Row>* rows) {
  auto add = [&](Row row) { rows->push_back(std::move(row)); };
  add({.hook = "cuMemCreate",
       .takes = kSize,
       .charges = kSize,
       .call =
           [](const Hooked& d) {
             const CUmemAllocationProp prop = DeviceProp();
             return d.cuMemCreate(Out<CUmemGenericAllocationHandle>(), kSize, &prop, 0);
           },
       .undo = [] { MUST(named.cuMemRelease(out)); }});
  // Not on the device, so not charged; what the driver says to it is the driver's.
  add({.hook = "cuMemCreate",
       .variant = "host",
       .call =
           [](const Hooked& d) {
             CUmemAllocationProp prop = DeviceProp();
             prop.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
             return d.cuMemCreate(Out<CUmemGenericAllocationHandle>(), kSize, &prop, 0);
           },
       .undo = [] { MUST(named.cuMemRelease(out)); }});
  add({.hook = "cuMemCreate",
       .variant = "host NUMA",
       .call =
           [](const Hooked& d) {
             CUmemAllocationProp prop = DeviceProp();
             prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
             return d.cuMemCreate(Out<CUmemGenericAllocationHandle>(), kSize, &prop, 0);
           },
       .undo = [] { MUST(named.cuMemRelease(out)); }});
  add({.hook = "cuMemRelease",
       .takes = -kSize,
       .charges = -kSize,
       .prepare = Create,
       .call = [](const Hooked& d) { return d.cuMemRelease(held); }});
  add({.hook = "cuMemRelease",
       .variant = "mapped",
       .prepare = CreateAndMap,
       .call = [](const Hooked& d) { return d.cuMemRelease(held); },
       .clean = UnmapAndFree});
  add({.hook = "cuMemMap",
       .prepare =
           [] {
             Create();
             Reserve();
           },
       .call = [](const Hooked& d) { return d.cuMemMap(addresses, kSize, 0, held, 0); },
       .undo = [] { MUST(named.cuMemUnmap(addresses, kSize)); },
       .clean =
           [] {
             FreeAddresses();
             MUST(named.cuMemRelease(held));
           }});
  add({.hook = "cuMemUnmap",
       .takes = -kSize,
       .charges = -kSize,
       .prepare =
           [] {
             CreateAndMap();
             MUST(named.cuMemRelease(held));
           },
       .call = [](const Hooked& d) { return d.cuMemUnmap(addresses, kSize); },
       .clean = FreeAddresses});
  add({.hook = "cuMemRetainAllocationHandle",
       .prepare = CreateAndMap,
       .call =
           [](const Hooked& d) {
             return d.cuMemRetainAllocationHandle(Out<CUmemGenericAllocationHandle>(),
                                                  reinterpret_cast<void*>(addresses));
           },
       .undo = [] { MUST(named.cuMemRelease(out)); },
       .clean =
           [] {
             UnmapAndFree();
             MUST(named.cuMemRelease(held));
           }});
  add({.hook = "cuMemImportFromShareableHandle",
       .prepare =
           [] {
             const CUmemAllocationProp prop = Shareable();
             MUST(named.cuMemCreate(&held, kSize, &prop, 0));
             MUST(api.cuMemExportToShareableHandle(&descriptor, held,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
           },
       .call =
           [](const Hooked& d) {
             return d.cuMemImportFromShareableHandle(
                 Out<CUmemGenericAllocationHandle>(),
                 reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
           },
       .undo = [] { MUST(named.cuMemRelease(out)); },
       .clean =
           [] {
             close(descriptor);
             MUST(named.cuMemRelease(held));
           }});
}

}  // namespace gpumux::probe
