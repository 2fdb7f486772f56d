// SPDX-License-Identifier: Apache-2.0
//
// The software GPU's libnvidia-ml.so.1: devices, memory, processes and
// utilisation, read from the server at each call. What would have to be
// invented (power, temperature, clocks) is answered NOT_SUPPORTED or is absent.
#include "gpumux/abi/nvml/nvml.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "softgpu/client/connection.h"
#include "softgpu/names.h"

// What a nvmlDevice_t points to.
struct gpumux_softgpu_device {
  uint32_t index;
  std::string uuid;
};

namespace gpumux::nvml {

#define GPUMUX_NVML extern "C" __attribute__((visibility("default"))) nvmlReturn_t

namespace {

using softgpu::Answer;
using softgpu::Connection;
using softgpu::Op;
using softgpu::Role;
using Device = gpumux_softgpu_device;

struct State {
  std::mutex mutex;
  unsigned inits = 0;
  Connection connection;
  Device devices[softgpu::kMaxGpus];  // outlive nvmlShutdown, as handles do
  uint32_t count = 0;
};
State& Get() {
  static State* state = new State;
  return *state;
}

nvmlReturn_t Connect(State& state) {
  if (softgpu::FindLocation().off) return NVML_ERROR_DRIVER_NOT_LOADED;
  if (!state.connection.Open(Role::kNvml)) return NVML_ERROR_DRIVER_NOT_LOADED;
  state.count = state.connection.gpus();
  for (uint32_t i = 0; i < state.count; ++i) {
    state.devices[i].index = i;
    state.devices[i].uuid = softgpu::MakeUuid(state.connection.identity(), i).text;
  }
  return NVML_SUCCESS;
}

// With the lock held: initialised, connected (a forked child connects anew),
// and `handle` one of ours.
nvmlReturn_t Check(State& state, nvmlDevice_t handle, Device** device) {
  if (state.inits == 0) return NVML_ERROR_UNINITIALIZED;
  auto* candidate = reinterpret_cast<Device*>(handle);
  if (!std::any_of(state.devices, state.devices + state.count, [&](Device& d) { return &d == candidate; })) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *device = candidate;
  if (state.connection.Usable()) return NVML_SUCCESS;
  return Connect(state) == NVML_SUCCESS ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

nvmlReturn_t Call(nvmlDevice_t handle, Op op, softgpu::Reply* reply) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  Device* device = nullptr;
  if (nvmlReturn_t error = Check(state, handle, &device); error != NVML_SUCCESS) return error;
  auto answer = state.connection.Call(op, device->index);
  if (!answer) {
    // The server was killed: one of its kind takes its place, with no memory.
    if (Connect(state) != NVML_SUCCESS) return NVML_ERROR_GPU_IS_LOST;
    answer = state.connection.Call(op, device->index);
  }
  if (!answer || answer->answer != Answer::kOk) return NVML_ERROR_UNKNOWN;
  *reply = *answer;
  return NVML_SUCCESS;
}

nvmlReturn_t CheckOnly(nvmlDevice_t handle, Device** device) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  return Check(state, handle, device);
}

nvmlReturn_t Copy(std::string_view text, char* out, unsigned length) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (length <= text.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  memcpy(out, text.data(), text.size());
  out[text.size()] = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t Init() {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  if (state.inits == 0 || !state.connection.Usable()) {
    if (nvmlReturn_t error = Connect(state); error != NVML_SUCCESS) return error;
  }
  ++state.inits;
  return NVML_SUCCESS;
}

template <typename Find>
nvmlReturn_t Lookup(nvmlDevice_t* out, nvmlReturn_t otherwise, Find matches) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  if (state.inits == 0) return NVML_ERROR_UNINITIALIZED;
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  for (uint32_t i = 0; i < state.count; ++i) {
    if (!matches(state.devices[i])) continue;
    *out = reinterpret_cast<nvmlDevice_t>(&state.devices[i]);
    return NVML_SUCCESS;
  }
  return otherwise;
}

// Fills entries of any of the layouts; `count` is room on the way in and the
// number of processes on the way out.
template <typename Info>
nvmlReturn_t Processes(nvmlDevice_t handle, unsigned* count, Info* infos) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  Device* device = nullptr;
  if (nvmlReturn_t error = Check(state, handle, &device); error != NVML_SUCCESS) return error;
  if (count == nullptr || (*count > 0 && infos == nullptr)) return NVML_ERROR_INVALID_ARGUMENT;
  const auto list = std::make_unique<softgpu::ProcessList>();
  if (!state.connection.Processes(device->index, list.get())) {
    if (Connect(state) != NVML_SUCCESS || !state.connection.Processes(device->index, list.get())) {
      return NVML_ERROR_GPU_IS_LOST;
    }
  }
  const unsigned room = *count;
  *count = list->count;
  if (list->count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < list->count; ++i) {
    Info info = {};
    info.pid = list->entries[i].pid;
    info.usedGpuMemory = list->entries[i].own_bytes;
    if constexpr (requires { info.gpuInstanceId; }) info.gpuInstanceId = info.computeInstanceId = ~0u;
    infos[i] = info;
  }
  return NVML_SUCCESS;
}

nvmlReturn_t NoProcesses(nvmlDevice_t handle, unsigned* count) {
  Device* device = nullptr;
  if (nvmlReturn_t error = CheckOnly(handle, &device); error != NVML_SUCCESS) return error;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

}  // namespace

GPUMUX_NVML nvmlInit() { return Init(); }
GPUMUX_NVML nvmlInit_v2() { return Init(); }
GPUMUX_NVML nvmlInitWithFlags(unsigned) { return Init(); }

GPUMUX_NVML nvmlShutdown() {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  if (state.inits == 0) return NVML_ERROR_UNINITIALIZED;
  if (--state.inits == 0) state.connection.Close();
  return NVML_SUCCESS;
}

extern "C" __attribute__((visibility("default"))) const char* nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS:
      return "Success";
    case NVML_ERROR_UNINITIALIZED:
      return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
      return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
      return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST:
      return "GPU is lost";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
      return "Argument version mismatch";
    default:
      return "Unknown Error";
  }
}

GPUMUX_NVML nvmlSystemGetDriverVersion(char* out, unsigned length) {
  return Copy(softgpu::kSystemDriverVersion, out, length);
}
GPUMUX_NVML nvmlSystemGetNVMLVersion(char* out, unsigned length) {
  return Copy("13.580.159.04", out, length);
}
GPUMUX_NVML nvmlSystemGetCudaDriverVersion(int* version) {
  if (version == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *version = 13000;
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return nvmlSystemGetCudaDriverVersion(version);
}

GPUMUX_NVML nvmlDeviceGetCount_v2(unsigned* count) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  if (state.inits == 0) return NVML_ERROR_UNINITIALIZED;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = state.count;
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

GPUMUX_NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* out) {
  return Lookup(out, NVML_ERROR_INVALID_ARGUMENT, [=](const Device& d) { return d.index == index; });
}
GPUMUX_NVML nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t* out) {
  return nvmlDeviceGetHandleByIndex_v2(index, out);
}
GPUMUX_NVML nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* out) {
  if (uuid == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return Lookup(out, NVML_ERROR_NOT_FOUND, [=](const Device& d) { return d.uuid == uuid; });
}
GPUMUX_NVML nvmlDeviceGetHandleByPciBusId_v2(const char* text, nvmlDevice_t* out) {
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  if (text == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
    domain = 0;
    if (sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2) return NVML_ERROR_INVALID_ARGUMENT;
  }
  return Lookup(out, NVML_ERROR_NOT_FOUND,
                [=](const Device& d) { return domain == 0 && slot == 0 && bus == softgpu::PciBus(d.index); });
}
GPUMUX_NVML nvmlDeviceGetHandleByPciBusId(const char* text, nvmlDevice_t* out) {
  return nvmlDeviceGetHandleByPciBusId_v2(text, out);
}

GPUMUX_NVML nvmlDeviceGetName(nvmlDevice_t handle, char* out, unsigned length) {
  Device* device = nullptr;
  if (nvmlReturn_t error = CheckOnly(handle, &device); error != NVML_SUCCESS) return error;
  return Copy(softgpu::kDeviceName, out, length);
}
GPUMUX_NVML nvmlDeviceGetUUID(nvmlDevice_t handle, char* out, unsigned length) {
  Device* device = nullptr;
  if (nvmlReturn_t error = CheckOnly(handle, &device); error != NVML_SUCCESS) return error;
  return Copy(device->uuid, out, length);
}
GPUMUX_NVML nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned* index) {
  Device* device = nullptr;
  if (nvmlReturn_t error = CheckOnly(handle, &device); error != NVML_SUCCESS) return error;
  if (index == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *index = device->index;
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned* minor) {
  return nvmlDeviceGetIndex(handle, minor);
}

GPUMUX_NVML nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t* pci) {
  Device* device = nullptr;
  if (nvmlReturn_t error = CheckOnly(handle, &device); error != NVML_SUCCESS) return error;
  if (pci == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *pci = {};
  pci->bus = softgpu::PciBus(device->index);
  pci->pciDeviceId = 0x233510de;
  pci->pciSubSystemId = 0x18be10de;
  snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "0000:%02X:00.0", pci->bus & 0xff);
  snprintf(pci->busId, sizeof(pci->busId), "00000000:%02X:00.0", pci->bus & 0xff);
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, nvmlPciInfo_t* pci) {
  return nvmlDeviceGetPciInfo_v3(handle, pci);
}

GPUMUX_NVML nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t* memory) {
  if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  softgpu::Reply reply;
  if (nvmlReturn_t error = Call(handle, Op::kMemory, &reply); error != NVML_SUCCESS) return error;
  memory->total = reply.values[0];
  memory->used = reply.values[1] + reply.values[3];
  memory->free = memory->total - memory->used;
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t* memory) {
  if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (memory->version != kMemoryV2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  softgpu::Reply reply;
  if (nvmlReturn_t error = Call(handle, Op::kMemory, &reply); error != NVML_SUCCESS) return error;
  memory->total = reply.values[0];
  memory->reserved = reply.values[1];
  memory->used = reply.values[3];
  memory->free = memory->total - memory->reserved - memory->used;
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned* count,
                                                 nvmlProcessInfo_v1_t* infos) {
  return Processes(handle, count, infos);
}
GPUMUX_NVML nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned* count,
                                                    nvmlProcessInfo_v2_t* infos) {
  return Processes(handle, count, infos);
}
GPUMUX_NVML nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned* count,
                                                    nvmlProcessInfo_v2_t* infos) {
  return Processes(handle, count, infos);
}
GPUMUX_NVML nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t handle, unsigned* count,
                                                  nvmlProcessInfo_v1_t*) {
  return NoProcesses(handle, count);
}
GPUMUX_NVML nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t handle, unsigned* count,
                                                     nvmlProcessInfo_v2_t*) {
  return NoProcesses(handle, count);
}
GPUMUX_NVML nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle, unsigned* count,
                                                     nvmlProcessInfo_v2_t*) {
  return NoProcesses(handle, count);
}
GPUMUX_NVML nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned* count,
                                                       nvmlProcessInfo_v2_t*) {
  return NoProcesses(handle, count);
}

GPUMUX_NVML nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t* rates) {
  if (rates == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  softgpu::Reply reply;
  if (nvmlReturn_t error = Call(handle, Op::kUtilization, &reply); error != NVML_SUCCESS) return error;
  rates->gpu = static_cast<unsigned>((reply.values[0] + 5000) / 10000);
  rates->memory = 0;  // kernels here move no data through the memory controller
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetComputeMode(nvmlDevice_t handle, nvmlComputeMode_t* mode) {
  Device* device = nullptr;
  if (nvmlReturn_t error = CheckOnly(handle, &device); error != NVML_SUCCESS) return error;
  if (mode == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *mode = NVML_COMPUTEMODE_DEFAULT;
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetPersistenceMode(nvmlDevice_t handle, int* mode) {
  Device* device = nullptr;
  if (nvmlReturn_t error = CheckOnly(handle, &device); error != NVML_SUCCESS) return error;
  if (mode == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *mode = 1;
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned* current, unsigned* pending) {
  Device* device = nullptr;
  if (nvmlReturn_t error = CheckOnly(handle, &device); error != NVML_SUCCESS) return error;
  if (current == nullptr || pending == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *current = *pending = 0;
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int* major, int* minor) {
  Device* device = nullptr;
  if (nvmlReturn_t error = CheckOnly(handle, &device); error != NVML_SUCCESS) return error;
  if (major == nullptr || minor == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *major = 9;
  *minor = 0;
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetPowerUsage(nvmlDevice_t, unsigned*) { return NVML_ERROR_NOT_SUPPORTED; }
GPUMUX_NVML nvmlDeviceGetTemperature(nvmlDevice_t, int, unsigned*) { return NVML_ERROR_NOT_SUPPORTED; }

}  // namespace gpumux::nvml
