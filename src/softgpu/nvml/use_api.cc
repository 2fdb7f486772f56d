// SPDX-License-Identifier: Apache-2.0
//
// What is used: memory, time, processes. Read from the server at each call.
#include <algorithm>
#include <bit>
#include <chrono>
#include <memory>
#include <new>

#include "softgpu/nvml/mig.h"
#include "softgpu/nvml/state.h"

namespace gpumux::nvml {

using softgpu::Op;

namespace {

// Over which the server measures use.
constexpr unsigned kSamplingPeriodUs = 1'000'000;

unsigned Percent(uint64_t ppm) { return static_cast<unsigned>((ppm + 5000) / 10000); }

// GPUs that share the host's memory have no figures of their own.
nvmlReturn_t Memory(nvmlDevice_t handle, softgpu::Reply* reply) {
  Device* device = nullptr;
  if (nvmlReturn_t error = CheckOnly(handle, &device); error != NVML_SUCCESS) return error;
  if ((device->description.flags & softgpu::kFlagUnified) != 0) return NVML_ERROR_NOT_SUPPORTED;
  if (!MayReadAll(handle)) return NVML_ERROR_NO_PERMISSION;
  return Call(handle, Op::kMemory, reply);
}

// MPS clients are compute processes as well: nvidia-smi shows them as M+C.
enum class Which { kAll, kMpsClients };

// Fills entries of any of the layouts; `count` is room on the way in and the
// number of processes on the way out.
template <typename Info>
nvmlReturn_t Processes(nvmlDevice_t handle, unsigned* count, Info* infos, Which which = Which::kAll) {
  Device* device = nullptr;
  if (nvmlReturn_t error = CheckOnly(handle, &device); error != NVML_SUCCESS) return error;
  if (count == nullptr || (*count > 0 && infos == nullptr)) return NVML_ERROR_INVALID_ARGUMENT;
  if (!MayReadAll(handle)) return NVML_ERROR_NO_PERMISSION;
  const std::unique_ptr<softgpu::ProcessList> list(new (std::nothrow) softgpu::ProcessList);
  if (!list) return NVML_ERROR_MEMORY;
  if (nvmlReturn_t error = ListProcesses(handle, list.get()); error != NVML_SUCCESS) return error;
  const unsigned room = *count;
  if (which == Which::kMpsClients) {
    const auto* end =
        std::remove_if(list->entries, list->entries + list->count,
                       [](const softgpu::ProcessEntry& entry) { return entry.mps_client == 0; });
    list->count = static_cast<uint32_t>(end - list->entries);
  }
  *count = list->count;
  if (list->count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < list->count; ++i) {
    Info info = {};
    info.pid = list->entries[i].pid;
    info.usedGpuMemory = list->entries[i].own_bytes;
    if constexpr (requires { info.gpuInstanceId; }) {
      info.gpuInstanceId = list->entries[i].gpu_instance;
      info.computeInstanceId = list->entries[i].compute_instance;
    }
    infos[i] = info;
  }
  return NVML_SUCCESS;
}

// Processes that ran something in the last second. There is one sample, of now:
// it is newer than any that the caller has seen.
template <typename Sample>
nvmlReturn_t Samples(nvmlDevice_t handle, Sample* samples, unsigned* count) {
  Device* device = nullptr;
  if (nvmlReturn_t error = CheckGpu(handle, &device); error != NVML_SUCCESS) return error;
  if (MigOn(handle)) return NVML_ERROR_NOT_SUPPORTED;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const std::unique_ptr<softgpu::ProcessList> list(new (std::nothrow) softgpu::ProcessList);
  if (!list) return NVML_ERROR_MEMORY;
  if (nvmlReturn_t error = ListProcesses(handle, list.get()); error != NVML_SUCCESS) return error;
  auto* end = std::remove_if(list->entries, list->entries + list->count,
                             [](const softgpu::ProcessEntry& entry) { return entry.busy_ppm == 0; });
  const auto found = static_cast<unsigned>(end - list->entries);
  const unsigned room = samples != nullptr ? *count : 0;
  // Asked for the room alone, NVML says how many processes there could be.
  *count = samples != nullptr ? found : std::max(list->count, 1u);
  if (samples == nullptr || found > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  if (found == 0) return NVML_ERROR_NOT_FOUND;
  const auto now = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  for (unsigned i = 0; i < found; ++i) {
    samples[i] = {};
    samples[i].pid = list->entries[i].pid;
    samples[i].timeStamp = static_cast<unsigned long long>(now.count());
    samples[i].smUtil = Percent(list->entries[i].busy_ppm);
  }
  return NVML_SUCCESS;
}

nvmlReturn_t NoProcesses(nvmlDevice_t handle, unsigned* count) {
  GPUMUX_NVML_ANY_DEVICE(device, handle, count);
  *count = 0;
  return NVML_SUCCESS;
}

// Engines that nothing here ever uses.
nvmlReturn_t NoUse(nvmlDevice_t handle, unsigned* percent, unsigned* period_us) {
  GPUMUX_NVML_DEVICE(device, handle, percent, period_us);
  if (MigOn(handle)) return NVML_ERROR_NOT_SUPPORTED;
  *percent = 0;
  *period_us = kSamplingPeriodUs;
  return NVML_SUCCESS;
}

}  // namespace

GPUMUX_NVML nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t* memory) {
  if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  softgpu::Reply reply;
  if (nvmlReturn_t error = Memory(handle, &reply); error != NVML_SUCCESS) return error;
  memory->total = reply.values[0];
  memory->used = reply.values[1] + reply.values[3];
  memory->free = memory->total - memory->used;
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t* memory) {
  if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (memory->version != kMemoryV2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  softgpu::Reply reply;
  if (nvmlReturn_t error = Memory(handle, &reply); error != NVML_SUCCESS) return error;
  memory->total = reply.values[0];
  memory->reserved = reply.values[1];
  memory->used = reply.values[3];
  memory->free = memory->total - memory->reserved - memory->used;
  return NVML_SUCCESS;
}
// Large enough for all of the memory, and nothing is mapped through it.
GPUMUX_NVML nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t handle, nvmlBAR1Memory_t* bar1) {
  GPUMUX_NVML_DEVICE(device, handle, bar1);
  if ((device->description.flags & softgpu::kFlagUnified) != 0) return NVML_ERROR_NOT_SUPPORTED;
  bar1->bar1Total = bar1->bar1Free = std::bit_ceil(device->description.total);
  bar1->bar1Used = 0;
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
#define GPUMUX_NO_PROCESSES(name) \
  GPUMUX_NVML name(nvmlDevice_t handle, unsigned* count, void*) { return NoProcesses(handle, count); }
GPUMUX_NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
GPUMUX_NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
GPUMUX_NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
GPUMUX_NVML nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t handle, unsigned* count,
                                                    nvmlProcessInfo_v1_t* infos) {
  return Processes(handle, count, infos, Which::kMpsClients);
}
GPUMUX_NVML nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned* count,
                                                       nvmlProcessInfo_v2_t* infos) {
  return Processes(handle, count, infos, Which::kMpsClients);
}
GPUMUX_NVML nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned* count,
                                                       nvmlProcessInfo_v2_t* infos) {
  return Processes(handle, count, infos, Which::kMpsClients);
}

// With protected memory, which nothing here has.
GPUMUX_NVML nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t handle, nvmlProcessDetailList_t* list) {
  GPUMUX_NVML_ANY_DEVICE(device, handle, list);
  if (list->version != kProcessDetailListV1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (list->mode > 2) return NVML_ERROR_INVALID_ARGUMENT;
  if (list->mode == 1) return NoProcesses(handle, &list->numProcArrayEntries);
  return Processes(handle, &list->numProcArrayEntries, list->procArray,
                   list->mode == 2 ? Which::kMpsClients : Which::kAll);
}

GPUMUX_NVML nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t* samples,
                                            unsigned* count, unsigned long long) {
  return Samples(handle, samples, count);
}
GPUMUX_NVML nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t handle, nvmlProcessesUtilizationInfo_t* info) {
  GPUMUX_NVML_DEVICE(device, handle, info);
  if (info->version != kProcessesUtilizationV1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return Samples(handle, info->procUtilArray, &info->processSamplesCount);
}

GPUMUX_NVML nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t* rates) {
  GPUMUX_NVML_DEVICE(device, handle, rates);
  softgpu::Reply reply;
  if (nvmlReturn_t error = Call(handle, Op::kUtilization, &reply); error != NVML_SUCCESS) return error;
  if (reply.values[2] != 0) return NVML_ERROR_NOT_SUPPORTED;  // with MIG on
  rates->gpu = Percent(reply.values[0]);
  rates->memory = 0;  // kernels here move no data through the memory controller
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetEncoderUtilization(nvmlDevice_t handle, unsigned* percent, unsigned* period) {
  return NoUse(handle, percent, period);
}
GPUMUX_NVML nvmlDeviceGetDecoderUtilization(nvmlDevice_t handle, unsigned* percent, unsigned* period) {
  return NoUse(handle, percent, period);
}
GPUMUX_NVML nvmlDeviceGetJpgUtilization(nvmlDevice_t handle, unsigned* percent, unsigned* period) {
  return NoUse(handle, percent, period);
}
GPUMUX_NVML nvmlDeviceGetOfaUtilization(nvmlDevice_t handle, unsigned* percent, unsigned* period) {
  return NoUse(handle, percent, period);
}

// The highest clocks are data; what they are now nobody here says.
GPUMUX_NVML nvmlDeviceGetMaxClockInfo(nvmlDevice_t handle, unsigned type, unsigned* mhz) {
  GPUMUX_NVML_DEVICE(device, handle, mhz);
  switch (type) {
    case 0:  // graphics
    case 1:  // SM
      *mhz = static_cast<unsigned>(device->description.clock_mhz);
      return NVML_SUCCESS;
    case 2:  // memory
      *mhz = static_cast<unsigned>(device->description.memory_clock_mhz);
      return NVML_SUCCESS;
    case 3:  // video
      return NVML_ERROR_NOT_SUPPORTED;
    default:
      return NVML_ERROR_INVALID_ARGUMENT;
  }
}

// Each field has a result of its own.
GPUMUX_NVML nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t* values) {
  GPUMUX_NVML_DEVICE(device, handle, values);
  if (count <= 0) return NVML_ERROR_INVALID_ARGUMENT;
  for (int i = 0; i < count; ++i) {
    values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    values[i].value.ullVal = 0;
  }
  return NVML_SUCCESS;
}

}  // namespace gpumux::nvml
