// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "gpumux/abi/nvml/nvml.h"
#include "softgpu/client/connection.h"

// An entry point: the exported name, at namespace scope of gpumux::nvml. What
// has no such definition answers NVML_ERROR_NOT_SUPPORTED (stubs.cc).
#define GPUMUX_NVML extern "C" __attribute__((visibility("default"))) nvmlReturn_t

// What a nvmlDevice_t points to: a GPU, or a MIG device.
struct gpumux_softgpu_device {
  uint32_t index;   // its place in the machine, of a MIG device that of its GPU
  uint32_t place;   // what requests to the server call it: of a GPU the same
  uint32_t number;  // NVML's index; others come before it or not, by what is on the bus
  bool found;       // when NVML was initialised
  bool lost;        // off the bus at some moment since then: only a new start of NVML mends it
  std::string uuid;
  gpumux::softgpu::Description description;

  bool is_mig() const { return place >= gpumux::softgpu::kFirstPlace; }
};

namespace gpumux::nvml {

using Device = gpumux_softgpu_device;

struct State {
  std::mutex mutex;
  unsigned inits = 0;
  softgpu::Connection connection;
  Device devices[softgpu::kMaxGpus];                        // outlive nvmlShutdown, as handles do
  uint32_t count = 0;                                       // of the machine
  uint32_t found = 0;                                       // on the bus when NVML was initialised
  std::map<uint32_t, std::unique_ptr<Device>> mig_devices;  // by place; those that were asked for
};
State& Get();

// With the lock held, at the start of NVML: which GPUs are on the bus.
void LookAtBus(State& state);

// With the lock held: connects, and learns what there is.
nvmlReturn_t Connect(State& state);
// With the lock held: initialised, connected (a forked child connects anew),
// and `handle` one of ours. A MIG device that is no more is none.
nvmlReturn_t Check(State& state, nvmlDevice_t handle, Device** device);
// The same, taking the lock.
nvmlReturn_t CheckOnly(nvmlDevice_t handle, Device** device);
// For what a MIG device does not answer.
nvmlReturn_t CheckGpu(nvmlDevice_t handle, Device** device);
nvmlReturn_t CheckInitialized();
// One request about `handle`.
nvmlReturn_t Call(nvmlDevice_t handle, softgpu::Op op, softgpu::Reply* reply, uint64_t amount = 0,
                  uint64_t key = 0);
// The figures of a whole GPU with MIG on, or what is changed there, are not everybody's.
bool MayLook(State& state);
// The processes on `handle`.
nvmlReturn_t ListProcesses(nvmlDevice_t handle, softgpu::ProcessList* list);

nvmlReturn_t CopyText(std::string_view text, char* out, unsigned length);

// For entry points that answer numbers which do not change: checks the handle
// and that every pointer is one.
template <typename... Out>
nvmlReturn_t CheckOut(nvmlReturn_t checked, Out*... out) {
  if (checked != NVML_SUCCESS) return checked;
  return ((out != nullptr) && ...) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
#define GPUMUX_NVML_DEVICE(name, handle, ...) \
  Device* name = nullptr;                     \
  if (nvmlReturn_t error = CheckOut(CheckGpu(handle, &name), __VA_ARGS__); error != NVML_SUCCESS) return error
// Of a GPU or a MIG device.
#define GPUMUX_NVML_ANY_DEVICE(name, handle, ...)                                                  \
  Device* name = nullptr;                                                                          \
  if (nvmlReturn_t error = CheckOut(CheckOnly(handle, &name), __VA_ARGS__); error != NVML_SUCCESS) \
  return error

}  // namespace gpumux::nvml
