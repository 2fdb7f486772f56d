// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include "gpumux/abi/cuda/driver.h"

namespace gpumux::guard {

// A tenant of mode mps (docs/design/mps.md). Without that mode they do nothing.

// Before a context is made: false if the program is to have none, since it would
// run outside MPS and its tenant is strict.
bool MayRunUnderMps(int slot, cuda::CUdevice device);
// What the driver says of the limits, into the process page; once the first
// context is there.
void ReadBackMps(int slot, cuda::CUdevice device, cuda::CUcontext context);

// Waits where a server takes no client: all its places are taken, or it recovers
// from a fault. Used without g_contexts_lock.
class ClientPlace {
 public:
  explicit ClientPlace(int slot);
  // False: no attempt now. `Again` says whether one may come.
  bool MayTry();
  // After an attempt, with what came of it, or instead of one: true, when some time
  // has passed, if another shall be made.
  bool Again(cuda::CUresult r);

 private:
  void Ask(uint32_t driver_error);

  bool applies_;
  bool tried_ = false;
  int slot_;
  uint32_t answer_ = 0;  // enum gpumux_mps_place; 0: nobody answers
  uint64_t answered_ns_ = 0;
  uint64_t bounded_since_ns_ = 0;  // of a wait that does not last for ever; 0: none
};

// `attempt` is cuInit, or makes a context on `slot`.
template <typename Attempt>
cuda::CUresult AsMpsClient(int slot, Attempt&& attempt) {
  constexpr auto kNoPlace = static_cast<cuda::CUresult>(808);  // CUDA_ERROR_MPS_MAX_CLIENTS_REACHED
  ClientPlace place(slot);
  for (;;) {
    const cuda::CUresult r = place.MayTry() ? attempt() : kNoPlace;
    if (!place.Again(r)) return r;
  }
}
// The same for cuInit, which failed with `r` the first time.
bool MayBeReadyLater(cuda::CUresult r);

}  // namespace gpumux::guard
