// SPDX-License-Identifier: Apache-2.0
//
// What the guard exports for programs that know of it (gpumux/gpumux.h).
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpumux/abi/program.h"
#include "guard/gate.h"
#include "guard/own_part.h"
#include "guard/reclaim.h"
#include "guard/session.h"
#include "guard/told.h"

#define GPUMUX_EXPORT extern "C" __attribute__((visibility("default")))

namespace gpumux::guard {

namespace {

// The program's errno is its own.
class KeepErrno {
 public:
  KeepErrno() : saved_(errno) {}
  ~KeepErrno() { errno = saved_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  int saved_;
};

// Before cuInit the driver numbers no devices: then the variable that it will
// number them by says it, if it lists whole UUIDs, as `run` writes it.
int SlotByVariable(int device) {
  const char* at = getenv("CUDA_VISIBLE_DEVICES");
  for (int i = 0; at && i < device; i++) {
    at = strchr(at, ',');
    if (at) at++;
  }
  uint8_t uuid[16];
  return at && ParseUuid(at, uuid) ? SlotOfUuid(uuid) : kNoDevice;
}

// Attaches. GPUMUX_SUCCESS: `*slot` is the tenant's GPU that `device` is.
int FindSlot(int device, int* slot) {
  Attach();
  if (!InForce()) return GPUMUX_ERROR_NOT_A_TENANT;
  if (device < 0) return GPUMUX_ERROR_INVALID_DEVICE;
  const bool numbered = VisibleDevices() > 0;
  *slot = numbered ? SlotOfDevice(device) : SlotByVariable(device);
  if (*slot >= 0) return GPUMUX_SUCCESS;
  return numbered || *slot == kNotOurs ? GPUMUX_ERROR_INVALID_DEVICE : GPUMUX_ERROR_NOT_READY;
}

}  // namespace

}  // namespace gpumux::guard

using namespace gpumux::guard;

GPUMUX_EXPORT int gpumux_memory_info_v1(int device, gpumux_memory* memory) {
  const KeepErrno keep;
  if (!memory || memory->size < sizeof(gpumux_memory)) return GPUMUX_ERROR_INVALID_VALUE;
  int slot;
  const int found = FindSlot(device, &slot);
  if (found != GPUMUX_SUCCESS) return found;
  const MemoryAnswer told = ToldMemory(slot);
  const gpumux_process_gpu* g = Counters(slot);
  memory->reserved = 0;
  memory->total_bytes = told.total;
  memory->free_bytes = told.free;
  memory->used_bytes = told.used;
  memory->peak_bytes = __atomic_load_n(&g->peak_bytes, __ATOMIC_RELAXED) +
                       __atomic_load_n(&g->overhead_bytes, __ATOMIC_RELAXED);
  memory->guaranteed_bytes = __atomic_load_n(&Limits()->gpus[slot].guaranteed_bytes, __ATOMIC_RELAXED);
  return GPUMUX_SUCCESS;
}

GPUMUX_EXPORT int gpumux_set_memory_fraction_v1(double fraction, int device) {
  const KeepErrno keep;
  if (!(fraction >= 0 && fraction <= 1)) return GPUMUX_ERROR_INVALID_VALUE;
  int slot;
  const int found = FindSlot(device, &slot);
  if (found == GPUMUX_SUCCESS) SetPart(slot, fraction);
  return found;
}

GPUMUX_EXPORT int gpumux_reclaim_wait_v1(gpumux_reclaim* wanted, int timeout_ms) {
  const KeepErrno keep;
  if (!wanted || wanted->size < sizeof(gpumux_reclaim)) return GPUMUX_ERROR_INVALID_VALUE;
  Attach();
  if (!InForce()) return GPUMUX_ERROR_NOT_A_TENANT;
  wanted->reserved = 0;
  return WaitForReclaim(wanted, timeout_ms);
}

GPUMUX_EXPORT int gpumux_reclaim_done_v1(const gpumux_reclaim* wanted) {
  const KeepErrno keep;
  if (!wanted || wanted->size < sizeof(gpumux_reclaim)) return GPUMUX_ERROR_INVALID_VALUE;
  if (!InForce()) return GPUMUX_ERROR_NOT_A_TENANT;
  return ReclaimDone(wanted->id);
}

GPUMUX_EXPORT int gpumux_reclaim_stop_v1(void) {
  const KeepErrno keep;
  if (!InForce()) return GPUMUX_ERROR_NOT_A_TENANT;
  return StopReclaim();
}

GPUMUX_EXPORT int gpumux_latency_critical_v1(int on) {
  const KeepErrno keep;
  Attach();
  if (!InForce()) return GPUMUX_ERROR_NOT_A_TENANT;
  MarkLatencyCritical(on != 0);
  return GateHint(on != 0) ? GPUMUX_SUCCESS : GPUMUX_ERROR_NOT_IN_EFFECT;
}
