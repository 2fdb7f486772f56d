// SPDX-License-Identifier: Apache-2.0
#include "softgpu/nvml/state.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "softgpu/faults.h"

namespace gpumux::nvml {

using softgpu::Answer;

State& Get() {
  static State* state = new State;
  return *state;
}

nvmlReturn_t Connect(State& state) {
  if (softgpu::FindLocation().off) return NVML_ERROR_DRIVER_NOT_LOADED;
  if (!state.connection.Open(softgpu::Role::kNvml)) return NVML_ERROR_DRIVER_NOT_LOADED;
  std::vector<softgpu::Description> gpus;
  if (!state.connection.Describe(&gpus) || gpus.empty()) return NVML_ERROR_DRIVER_NOT_LOADED;
  state.count = static_cast<uint32_t>(gpus.size());
  for (uint32_t i = 0; i < state.count; ++i) {
    state.devices[i].index = i;
    state.devices[i].uuid = softgpu::UuidOf(gpus[i].uuid).text;
    state.devices[i].description = gpus[i];
  }
  return NVML_SUCCESS;
}

namespace {

bool IsOff(const Device& device) {
  const softgpu::FaultRun* faults = softgpu::CurrentFaults();
  return faults != nullptr && faults->IsOff(device.index);
}

}  // namespace

void LookAtBus(State& state) {
  state.found = 0;
  for (uint32_t i = 0; i < state.count; ++i) {
    Device& device = state.devices[i];
    device.lost = false;
    device.found = !IsOff(device);
    if (device.found) device.number = state.found++;
  }
}

nvmlReturn_t Check(State& state, nvmlDevice_t handle, Device** device) {
  if (state.inits == 0) return NVML_ERROR_UNINITIALIZED;
  auto* candidate = reinterpret_cast<Device*>(handle);
  if (!std::any_of(state.devices, state.devices + state.count, [&](Device& d) { return &d == candidate; })) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *device = candidate;
  candidate->lost |= !candidate->found || IsOff(*candidate);
  if (candidate->lost) return NVML_ERROR_GPU_IS_LOST;
  if (state.connection.Usable()) return NVML_SUCCESS;
  return Connect(state) == NVML_SUCCESS ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

nvmlReturn_t CheckOnly(nvmlDevice_t handle, Device** device) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  return Check(state, handle, device);
}

nvmlReturn_t CheckInitialized() {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  return state.inits > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t Call(nvmlDevice_t handle, softgpu::Op op, softgpu::Reply* reply, uint64_t amount) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  Device* device = nullptr;
  if (nvmlReturn_t error = Check(state, handle, &device); error != NVML_SUCCESS) return error;
  auto answer = state.connection.Call(op, device->index, amount);
  if (!answer) {
    // The server was killed: one of its kind takes its place, with no memory.
    if (Connect(state) != NVML_SUCCESS) return NVML_ERROR_GPU_IS_LOST;
    answer = state.connection.Call(op, device->index, amount);
  }
  if (!answer) return NVML_ERROR_UNKNOWN;
  *reply = *answer;
  switch (answer->answer) {
    case Answer::kOk:
      return NVML_SUCCESS;
    case Answer::kRefused:
      return NVML_ERROR_NO_PERMISSION;
    case Answer::kInvalid:
      return NVML_ERROR_INVALID_ARGUMENT;
    default:
      return NVML_ERROR_UNKNOWN;
  }
}

nvmlReturn_t ListProcesses(nvmlDevice_t handle, softgpu::ProcessList* list) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  Device* device = nullptr;
  if (nvmlReturn_t error = Check(state, handle, &device); error != NVML_SUCCESS) return error;
  if (state.connection.Processes(device->index, list)) return NVML_SUCCESS;
  return Connect(state) == NVML_SUCCESS && state.connection.Processes(device->index, list)
             ? NVML_SUCCESS
             : NVML_ERROR_GPU_IS_LOST;
}

nvmlReturn_t CopyText(std::string_view text, char* out, unsigned length) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (length <= text.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  memcpy(out, text.data(), text.size());
  out[text.size()] = 0;
  return NVML_SUCCESS;
}

}  // namespace gpumux::nvml
