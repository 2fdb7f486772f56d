// SPDX-License-Identifier: Apache-2.0
//
// Our own declarations of what gpumux uses of NVML (libnvidia-ml.so.1): layouts
// of the binary interface on 64-bit Linux. Names are NVML's, in namespace
// gpumux::nvml. The process-list structures come in several versions; the entry
// point's suffix says which one it fills.
#ifndef GPUMUX_ABI_NVML_NVML_H_
#define GPUMUX_ABI_NVML_NVML_H_

#include <stddef.h>
#include <stdint.h>

namespace gpumux::nvml {

using nvmlDevice_t = struct nvmlDevice_st*;

enum nvmlReturn_t : int {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NO_PERMISSION = 4,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_TIMEOUT = 10,
  NVML_ERROR_LIBRARY_NOT_FOUND = 12,
  NVML_ERROR_FUNCTION_NOT_FOUND = 13,
  NVML_ERROR_GPU_IS_LOST = 15,
  NVML_ERROR_RESET_REQUIRED = 16,
  NVML_ERROR_IN_USE = 19,
  NVML_ERROR_MEMORY = 20,
  NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
  NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
  NVML_ERROR_INVALID_STATE = 29,
  NVML_ERROR_UNKNOWN = 999,
};

struct nvmlMemory_t {  // v1: `used` includes what v2 calls reserved
  unsigned long long total, free, used;
};

struct nvmlMemory_v2_t {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
inline constexpr unsigned kMemoryV2 = sizeof(nvmlMemory_v2_t) | (2u << 24);

struct nvmlProcessInfo_v1_t {  // nvmlDeviceGetComputeRunningProcesses
  unsigned pid;
  unsigned long long usedGpuMemory;
};

struct nvmlProcessInfo_v2_t {  // _v2 and _v3
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId;
  unsigned computeInstanceId;
};
using nvmlProcessInfo_t = nvmlProcessInfo_v2_t;
// What some drivers of R535 fill under the same names, before the field moved
// to nvmlDeviceGetRunningProcessDetailList.
struct nvmlProcessDetail_v1_t {
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId;
  unsigned computeInstanceId;
  unsigned long long usedGpuCcProtectedMemory;
};
struct nvmlProcessDetailList_v1_t {
  unsigned version;
  unsigned mode;  // 0 compute, 1 graphics, 2 MPS
  unsigned numProcArrayEntries;
  nvmlProcessDetail_v1_t* procArray;
};
using nvmlProcessDetailList_t = nvmlProcessDetailList_v1_t;
inline constexpr unsigned kProcessDetailListV1 = sizeof(nvmlProcessDetailList_v1_t) | (1u << 24);

// `usedGpuMemory` when the driver does not know it.
inline constexpr unsigned long long kValueNotAvailable = ~0ULL;

struct nvmlBAR1Memory_t {
  unsigned long long bar1Total, bar1Free, bar1Used;
};

struct nvmlProcessUtilizationSample_t {
  unsigned pid;
  unsigned long long timeStamp;                // microseconds since 1970
  unsigned smUtil, memUtil, encUtil, decUtil;  // percent
};

struct nvmlProcessUtilizationInfo_v1_t {
  unsigned long long timeStamp;
  unsigned pid;
  unsigned smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
};
struct nvmlProcessesUtilizationInfo_v1_t {
  unsigned version;
  unsigned processSamplesCount;
  unsigned long long lastSeenTimeStamp;
  nvmlProcessUtilizationInfo_v1_t* procUtilArray;
};
using nvmlProcessesUtilizationInfo_t = nvmlProcessesUtilizationInfo_v1_t;
inline constexpr unsigned kProcessesUtilizationV1 = sizeof(nvmlProcessesUtilizationInfo_v1_t) | (1u << 24);

struct nvmlEncoderSessionInfo_t {
  unsigned sessionId, pid;
  unsigned vgpuInstance, codecType, hResolution, vResolution, averageFps, averageLatency;
};
struct nvmlFBCSessionInfo_t {
  unsigned sessionId, pid;
  unsigned vgpuInstance, displayOrdinal, sessionType, sessionFlags;
  unsigned hMaxResolution, vMaxResolution, hResolution, vResolution, averageFPS, averageLatency;
};

struct nvmlAccountingStats_t {
  unsigned gpuUtilization, memoryUtilization;
  unsigned long long maxMemoryUsage, time, startTime;
  unsigned isRunning;
  unsigned reserved[5];
};

struct nvmlUtilization_t {
  unsigned gpu, memory;  // percent
};

struct nvmlPciInfo_t {
  char busIdLegacy[16];
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
};

struct nvmlPciInfoExt_v1_t {
  unsigned version;
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
  char busId[32];
};
inline constexpr unsigned kPciInfoExtV1 = sizeof(nvmlPciInfoExt_v1_t) | (1u << 24);

using nvmlEventSet_t = struct nvmlEventSet_st*;

struct nvmlEventData_t {
  nvmlDevice_t device;
  unsigned long long eventType, eventData;
  unsigned gpuInstanceId, computeInstanceId;
};
inline constexpr unsigned long long kEventTypeXidCriticalError = 0x8;

union nvmlValue_t {
  double dVal;
  unsigned long long ullVal;
};

struct nvmlFieldValue_t {
  unsigned fieldId, scopeId;
  long long timestamp, latencyUsec;
  unsigned valueType;
  nvmlReturn_t nvmlReturn;
  nvmlValue_t value;
};

enum nvmlComputeMode_t : int {
  NVML_COMPUTEMODE_DEFAULT = 0,
  NVML_COMPUTEMODE_PROHIBITED = 2,
  NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3,
};

static_assert(sizeof(nvmlMemory_t) == 24);
static_assert(sizeof(nvmlMemory_v2_t) == 40);
static_assert(sizeof(nvmlProcessInfo_v1_t) == 16);
static_assert(sizeof(nvmlProcessInfo_v2_t) == 24);
static_assert(sizeof(nvmlProcessDetail_v1_t) == 32);
static_assert(sizeof(nvmlProcessDetailList_v1_t) == 24);
static_assert(sizeof(nvmlProcessUtilizationInfo_v1_t) == 40);
static_assert(sizeof(nvmlProcessesUtilizationInfo_v1_t) == 24);
static_assert(sizeof(nvmlEncoderSessionInfo_t) == 32);
static_assert(sizeof(nvmlFBCSessionInfo_t) == 48);
static_assert(sizeof(nvmlAccountingStats_t) == 56);
static_assert(sizeof(nvmlPciInfo_t) == 68);
static_assert(sizeof(nvmlPciInfoExt_v1_t) == 64);
static_assert(sizeof(nvmlProcessUtilizationSample_t) == 32);
static_assert(sizeof(nvmlEventData_t) == 32);
static_assert(sizeof(nvmlFieldValue_t) == 40);

}  // namespace gpumux::nvml

#endif  // GPUMUX_ABI_NVML_NVML_H_
