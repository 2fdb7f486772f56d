// SPDX-License-Identifier: Apache-2.0
#include "softgpu/nvml/state.h"

#include <fcntl.h>
#include <unistd.h>

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
    state.devices[i].index = state.devices[i].place = i;
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
  const bool mig = std::any_of(state.mig_devices.begin(), state.mig_devices.end(),
                               [&](const auto& d) { return d.second.get() == candidate; });
  if (!mig &&
      !std::any_of(state.devices, state.devices + state.count, [&](Device& d) { return &d == candidate; })) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *device = candidate;
  Device& gpu = state.devices[candidate->index];
  gpu.lost |= !gpu.found || IsOff(gpu);
  if (gpu.lost) return NVML_ERROR_GPU_IS_LOST;
  if (!state.connection.Usable() && Connect(state) != NVML_SUCCESS) return NVML_ERROR_GPU_IS_LOST;
  softgpu::Description now;
  return !mig || state.connection.Describe(candidate->place, &now) ? NVML_SUCCESS
                                                                   : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t CheckOnly(nvmlDevice_t handle, Device** device) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  return Check(state, handle, device);
}

nvmlReturn_t CheckGpu(nvmlDevice_t handle, Device** device) {
  const nvmlReturn_t error = CheckOnly(handle, device);
  return error == NVML_SUCCESS && (*device)->is_mig() ? NVML_ERROR_NOT_SUPPORTED : error;
}

nvmlReturn_t CheckInitialized() {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  return state.inits > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

namespace {

// What this process may do about MIG is shown by a file that it can read, as to the driver.
int OpenCapability(const State& state, const char* file) {
  return open((state.connection.dir() + "/" + file).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

std::optional<softgpu::Reply> Ask(State& state, const softgpu::Request& request) {
  if (request.op < softgpu::Op::kMigState) return state.connection.Call(request, -1, nullptr);
  int capability = OpenCapability(state, softgpu::kMigConfigFile);
  if (capability < 0) capability = OpenCapability(state, softgpu::kMigMonitorFile);
  const auto reply = state.connection.Call(request, capability, nullptr);
  if (capability >= 0) close(capability);
  return reply;
}

}  // namespace

bool MayLook(State& state) {
  softgpu::Request request;
  request.op = softgpu::Op::kMigRights;
  const auto reply = Ask(state, request);
  return reply && (reply->values[0] & softgpu::kMigMayLook) != 0;
}

nvmlReturn_t Call(nvmlDevice_t handle, softgpu::Op op, softgpu::Reply* reply, uint64_t amount, uint64_t key) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  Device* device = nullptr;
  if (nvmlReturn_t error = Check(state, handle, &device); error != NVML_SUCCESS) return error;
  const softgpu::Request request{.op = op, .gpu = device->place, .amount = amount, .key = key};
  auto answer = Ask(state, request);
  if (!answer) {
    // The server was killed: one of its kind takes its place, with no memory.
    if (Connect(state) != NVML_SUCCESS) return NVML_ERROR_GPU_IS_LOST;
    answer = Ask(state, request);
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
    case Answer::kFailed:
      return static_cast<nvmlReturn_t>(answer->values[0]);
    default:
      return NVML_ERROR_UNKNOWN;
  }
}

nvmlReturn_t ListProcesses(nvmlDevice_t handle, softgpu::ProcessList* list) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  Device* device = nullptr;
  if (nvmlReturn_t error = Check(state, handle, &device); error != NVML_SUCCESS) return error;
  if (state.connection.Processes(device->place, list)) return NVML_SUCCESS;
  return Connect(state) == NVML_SUCCESS && state.connection.Processes(device->place, list)
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
