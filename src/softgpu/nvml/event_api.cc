// SPDX-License-Identifier: Apache-2.0
//
// Event sets. Of a software GPU's critical errors (Xid) there is one: 31, for each program whose kernel
// had an illegal address.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "softgpu/nvml/state.h"

// What a nvmlEventSet_t points to.
struct gpumux_softgpu_event_set {
  unsigned waiting = 0;
  bool freed = false;
  std::condition_variable changed;
  std::map<gpumux::nvml::nvmlDevice_t, uint64_t> told;  // of the faults of a GPU that it watches
};

namespace gpumux::nvml {

namespace {

using EventSet = gpumux_softgpu_event_set;
constexpr unsigned long long kMmuFault = 31;
// The server tells nobody by itself.
constexpr auto kLookEach = std::chrono::milliseconds(10);

struct Sets {
  std::mutex mutex;
  std::set<EventSet*> alive;
};
Sets& All() {
  static Sets* sets = new Sets;
  return *sets;
}

nvmlReturn_t CountFaults(nvmlDevice_t device, uint64_t* faults) {
  softgpu::Reply reply;
  const nvmlReturn_t error = Call(device, softgpu::Op::kFaults, &reply);
  *faults = reply.values[0];
  return error;
}

// The next one that the set was not told of. NVML_ERROR_TIMEOUT: there is none.
nvmlReturn_t Next(EventSet& set, nvmlEventData_t* data) {
  for (auto& [device, told] : set.told) {
    uint64_t faults = 0;
    if (nvmlReturn_t error = CountFaults(device, &faults); error != NVML_SUCCESS) return error;
    told = std::min(told, faults);  // a server that was started again counts anew
    if (told == faults) continue;
    ++told;
    *data = {device, kEventTypeXidCriticalError, kMmuFault, ~0U, ~0U};
    return NVML_SUCCESS;
  }
  return NVML_ERROR_TIMEOUT;
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
  nvmlReturn_t result = NVML_ERROR_TIMEOUT;
  for (;;) {
    result = set->freed ? NVML_ERROR_INVALID_ARGUMENT : Next(*set, data);
    const auto now = std::chrono::steady_clock::now();
    if (result != NVML_ERROR_TIMEOUT || now >= deadline) break;
    set->changed.wait_until(lock, std::min(deadline, now + kLookEach));
  }
  if (--set->waiting == 0 && set->freed) delete set;
  return result;
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
  *types = kEventTypeXidCriticalError;
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set) {
  GPUMUX_NVML_DEVICE(device, handle, set);
  Sets& sets = All();
  std::lock_guard lock(sets.mutex);
  auto* watching = reinterpret_cast<EventSet*>(set);
  if (!sets.alive.contains(watching)) return NVML_ERROR_INVALID_ARGUMENT;
  if ((types & ~kEventTypeXidCriticalError) != 0) return NVML_ERROR_NOT_SUPPORTED;
  uint64_t faults = 0;
  if (nvmlReturn_t error = CountFaults(handle, &faults); error != NVML_SUCCESS) return error;
  if ((types & kEventTypeXidCriticalError) != 0) watching->told.try_emplace(handle, faults);
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t* data, unsigned timeout_ms) {
  return Wait(set, data, timeout_ms);
}
GPUMUX_NVML nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data, unsigned timeout_ms) {
  return Wait(set, data, timeout_ms);
}

}  // namespace gpumux::nvml
