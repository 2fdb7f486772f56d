// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "gpumux/abi/nvml/nvml.h"
#include "softgpu/client/connection.h"

// An entry point: the exported name, at namespace scope of gpumux::nvml. What
// has no such definition answers NVML_ERROR_NOT_SUPPORTED (stubs.cc).
#define GPUMUX_NVML extern "C" __attribute__((visibility("default"))) nvmlReturn_t

// What a nvmlDevice_t points to.
struct gpumux_softgpu_device {
  uint32_t index;   // its place in the machine
  uint32_t number;  // NVML's index; others come before it or not, by what is on the bus
  bool found;       // when NVML was initialised
  bool lost;        // off the bus at some moment since then: only a new start of NVML mends it
  std::string uuid;
  gpumux::softgpu::Description description;
};

namespace gpumux::nvml {

using Device = gpumux_softgpu_device;

struct State {
  std::mutex mutex;
  unsigned inits = 0;
  softgpu::Connection connection;
  Device devices[softgpu::kMaxGpus];  // outlive nvmlShutdown, as handles do
  uint32_t count = 0;                 // of the machine
  uint32_t found = 0;                 // on the bus when NVML was initialised
};
State& Get();

// With the lock held, at the start of NVML: which GPUs are on the bus.
void LookAtBus(State& state);

// With the lock held: connects, and learns what there is.
nvmlReturn_t Connect(State& state);
// With the lock held: initialised, connected (a forked child connects anew),
// and `handle` one of ours.
nvmlReturn_t Check(State& state, nvmlDevice_t handle, Device** device);
// The same, taking the lock.
nvmlReturn_t CheckOnly(nvmlDevice_t handle, Device** device);
nvmlReturn_t CheckInitialized();
// One request about `handle`.
nvmlReturn_t Call(nvmlDevice_t handle, softgpu::Op op, softgpu::Reply* reply, uint64_t amount = 0);
// The processes on `handle`.
nvmlReturn_t ListProcesses(nvmlDevice_t handle, softgpu::ProcessList* list);

nvmlReturn_t CopyText(std::string_view text, char* out, unsigned length);

// For entry points that answer numbers which do not change: checks the handle
// and that every pointer is one.
template <typename... Out>
nvmlReturn_t CheckOut(nvmlDevice_t handle, Device** device, Out*... out) {
  if (nvmlReturn_t error = CheckOnly(handle, device); error != NVML_SUCCESS) return error;
  return ((out != nullptr) && ...) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
#define GPUMUX_NVML_DEVICE(name, handle, ...) \
  Device* name = nullptr;                     \
  if (nvmlReturn_t error = CheckOut(handle, &name, __VA_ARGS__); error != NVML_SUCCESS) return error

}  // namespace gpumux::nvml
