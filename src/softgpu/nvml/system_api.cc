// SPDX-License-Identifier: Apache-2.0
//
// The library's life, and what is true of the machine as a whole.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "softgpu/faults.h"
#include "softgpu/nvml/state.h"

namespace gpumux::nvml {

namespace {

nvmlReturn_t Init() {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  if (state.inits == 0 || !state.connection.Usable()) {
    if (nvmlReturn_t error = Connect(state); error != NVML_SUCCESS) return error;
  }
  if (state.inits == 0) LookAtBus(state);
  ++state.inits;
  return NVML_SUCCESS;
}

// What every GPU of the machine says alike.
nvmlReturn_t Any(softgpu::Description* description) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  if (state.inits == 0) return NVML_ERROR_UNINITIALIZED;
  *description = state.devices[0].description;
  const softgpu::FaultRun* faults = softgpu::CurrentFaults();
  if (faults != nullptr && faults->script().cuda_version != 0) {
    const softgpu::FaultScript& script = faults->script();
    snprintf(description->driver_version, sizeof(description->driver_version), "%s",
             script.driver_version.c_str());
    description->cuda_version = script.cuda_version;
  }
  return NVML_SUCCESS;
}

nvmlReturn_t None(unsigned* count) {
  if (nvmlReturn_t error = CheckInitialized(); error != NVML_SUCCESS) return error;
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
  switch (static_cast<int>(result)) {
#define GPUMUX_NVML_RESULT(name, value, text) \
  case value:                                 \
    return text;
#include "softgpu/nvml/results.inc"
#undef GPUMUX_NVML_RESULT
    default:
      return "Unknown Error";
  }
}

GPUMUX_NVML nvmlSystemGetDriverVersion(char* out, unsigned length) {
  softgpu::Description description;
  if (nvmlReturn_t error = Any(&description); error != NVML_SUCCESS) return error;
  return CopyText(description.driver_version, out, length);
}
GPUMUX_NVML nvmlSystemGetNVMLVersion(char* out, unsigned length) {
  softgpu::Description description;
  if (nvmlReturn_t error = Any(&description); error != NVML_SUCCESS) return error;
  // As NVML's own: the CUDA major version in front of the driver's.
  return CopyText(std::to_string(description.cuda_version / 1000) + "." + description.driver_version, out,
                  length);
}
GPUMUX_NVML nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (version == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  softgpu::Description description;
  if (nvmlReturn_t error = Any(&description); error != NVML_SUCCESS) return error;
  *version = description.cuda_version;
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlSystemGetCudaDriverVersion(int* version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}

GPUMUX_NVML nvmlSystemGetProcessName(unsigned pid, char* out, unsigned length) {
  if (nvmlReturn_t error = CheckInitialized(); error != NVML_SUCCESS) return error;
  if (out == nullptr || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
  const int fd = open(("/proc/" + std::to_string(pid) + "/cmdline").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NVML_ERROR_NOT_FOUND;
  char text[1024];
  const ssize_t n = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (n <= 0) return NVML_ERROR_NOT_FOUND;
  text[n] = 0;  // and the first argument ends in a zero of its own
  std::string name(text);
  if (name.size() >= length) name.resize(length - 1);
  return CopyText(name, out, length);
}

GPUMUX_NVML nvmlUnitGetCount(unsigned* count) { return None(count); }
GPUMUX_NVML nvmlGetExcludedDeviceCount(unsigned* count) { return None(count); }

}  // namespace gpumux::nvml
