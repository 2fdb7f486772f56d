// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include "gpumux/abi/pages.h"
#include "guard/credit.h"
#include "guard/driver.h"
#include "guard/driver_objects.h"
#include "guard/lock.h"
#include "guard/rounding.h"

namespace gpumux::guard {

// Objects of up to 1 MiB whose address the driver does not tell (small arrays,
// small variables of modules). They share slabs of 2 MiB, and whether one more
// slab was taken shows in the device's free memory alone. A neighbour's call at
// the same moment may hide that or feign it: then the daemon finds the 2 MiB as
// overhead, or they come back with the last such object.
//
// Thread-safe.
class SmallObjects {
 public:
  // `create` is the driver's call.
  template <typename Create>
  cuda::CUresult Add(int slot, Create&& create) {
    if (!Reserve(slot, kSlabBytes)) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
    Held held(lock_);
    const uint64_t before = DeviceFree();
    const cuda::CUresult r = create();
    if (r != cuda::CUDA_SUCCESS) {
      Cancel(slot, kSlabBytes);
      if (r == cuda::CUDA_ERROR_OUT_OF_MEMORY) CountDeviceFull(slot, kSlabBytes);
      return r;
    }
    objects_[slot]++;
    const uint64_t after = DeviceFree();
    // Where the driver did not say, a slab; it comes back with the last object.
    if (before == 0 || after == 0 || before >= after + kSlabBytes) {
      slabs_[slot]++;
      Commit(slot, kSlabBytes);
    } else {
      Cancel(slot, kSlabBytes);
    }
    return r;
  }

  template <typename Destroy>
  cuda::CUresult Remove(int slot, Destroy&& destroy) {
    Held held(lock_);
    const uint64_t before = DeviceFree();
    const cuda::CUresult r = destroy();
    if (r != cuda::CUDA_SUCCESS) return r;
    const bool given_back = before != 0 && DeviceFree() >= before + kSlabBytes;
    if (objects_[slot] > 0) objects_[slot]--;
    const uint64_t back = objects_[slot] == 0 ? slabs_[slot] : (given_back && slabs_[slot] > 0 ? 1 : 0);
    slabs_[slot] -= back;
    if (back) Release(slot, back * kSlabBytes);
    return r;
  }

  // `objects` ended with their context, all at once. Returns the bytes that
  // were charged for slabs which are gone now.
  uint64_t Drop(int slot, uint64_t objects) {
    Held held(lock_);
    objects_[slot] -= objects < objects_[slot] ? objects : objects_[slot];
    const uint64_t back = objects_[slot] == 0 ? slabs_[slot] : 0;
    slabs_[slot] -= back;
    return back * kSlabBytes;
  }

  void Forget() {
    lock_.Reset();
    for (auto& n : objects_) n = 0;
    for (auto& n : slabs_) n = 0;
  }

 private:
  Lock lock_;
  uint64_t objects_[GPUMUX_MAX_GPUS] = {};
  uint64_t slabs_[GPUMUX_MAX_GPUS] = {};
};

// One for the process: arrays and variables share the same slabs.
extern constinit SmallObjects g_small_objects;

}  // namespace gpumux::guard
