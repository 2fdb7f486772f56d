// SPDX-License-Identifier: Apache-2.0
//
// Event sets. A software GPU can be asked for critical errors (Xid), and has
// none: who waits waits until the timeout.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>

#include "softgpu/nvml/state.h"

// What a nvmlEventSet_t points to.
struct gpumux_softgpu_event_set {
  unsigned waiting = 0;
  bool freed = false;
  std::condition_variable changed;
};

namespace gpumux::nvml {

namespace {

using EventSet = gpumux_softgpu_event_set;
constexpr unsigned long long kXidCriticalError = 8;

struct Sets {
  std::mutex mutex;
  std::set<EventSet*> alive;
};
Sets& All() {
  static Sets* sets = new Sets;
  return *sets;
}

nvmlReturn_t Wait(nvmlEventSet_t handle, nvmlEventData_t* data, unsigned timeout_ms) {
  if (nvmlReturn_t error = CheckInitialized(); error != NVML_SUCCESS) return error;
  if (data == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  Sets& sets = All();
  std::unique_lock lock(sets.mutex);
  auto* set = reinterpret_cast<EventSet*>(handle);
  if (!sets.alive.contains(set)) return NVML_ERROR_INVALID_ARGUMENT;
  ++set->waiting;
  const bool freed = set->changed.wait_until(lock, deadline, [&] { return set->freed; });
  if (--set->waiting == 0 && freed) delete set;
  return freed ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_TIMEOUT;
}

}  // namespace

GPUMUX_NVML nvmlEventSetCreate(nvmlEventSet_t* out) {
  if (nvmlReturn_t error = CheckInitialized(); error != NVML_SUCCESS) return error;
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  Sets& sets = All();
  std::lock_guard lock(sets.mutex);
  auto* set = new EventSet;
  sets.alive.insert(set);
  *out = reinterpret_cast<nvmlEventSet_t>(set);
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlEventSetFree(nvmlEventSet_t handle) {
  if (nvmlReturn_t error = CheckInitialized(); error != NVML_SUCCESS) return error;
  Sets& sets = All();
  std::lock_guard lock(sets.mutex);
  auto* set = reinterpret_cast<EventSet*>(handle);
  if (sets.alive.erase(set) == 0) return NVML_ERROR_INVALID_ARGUMENT;
  if (set->waiting == 0) {
    delete set;
  } else {
    // The last one who waits deletes it.
    set->freed = true;
    set->changed.notify_all();
  }
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long* types) {
  GPUMUX_NVML_DEVICE(device, handle, types);
  *types = kXidCriticalError;
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set) {
  GPUMUX_NVML_DEVICE(device, handle, set);
  Sets& sets = All();
  std::lock_guard lock(sets.mutex);
  if (!sets.alive.contains(reinterpret_cast<EventSet*>(set))) return NVML_ERROR_INVALID_ARGUMENT;
  return (types & ~kXidCriticalError) == 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

GPUMUX_NVML nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t* data, unsigned timeout_ms) {
  return Wait(set, data, timeout_ms);
}
GPUMUX_NVML nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data, unsigned timeout_ms) {
  return Wait(set, data, timeout_ms);
}

}  // namespace gpumux::nvml
