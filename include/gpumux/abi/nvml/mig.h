// SPDX-License-Identifier: Apache-2.0
//
// What NVML's calls about MIG take and fill: our own declarations, beside those
// of nvml.h. Structures with `version` want their version word in it; the
// others tell their layout by the entry point's name.
#ifndef GPUMUX_ABI_NVML_MIG_H_
#define GPUMUX_ABI_NVML_MIG_H_

#include <stddef.h>

#include "gpumux/abi/nvml/nvml.h"

namespace gpumux::nvml {

using nvmlGpuInstance_t = struct nvmlGpuInstance_st*;
using nvmlComputeInstance_t = struct nvmlComputeInstance_st*;

inline constexpr unsigned kMigDisable = 0;
inline constexpr unsigned kMigEnable = 1;
// Of nvmlGpuInstanceGetComputeInstanceProfileInfo: everything but SMs is shared.
inline constexpr unsigned kComputeEnginesShared = 0;

struct nvmlGpuInstancePlacement_t {  // in memory slices
  unsigned start, size;
};

struct nvmlGpuInstanceProfileInfo_t {
  unsigned id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
  unsigned copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
  unsigned long long memorySizeMB;
};
struct nvmlGpuInstanceProfileInfo_v2_t {
  unsigned version;
  unsigned id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
  unsigned copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
  unsigned long long memorySizeMB;
  char name[96];
};
struct nvmlGpuInstanceProfileInfo_v3_t {
  unsigned version;
  unsigned id, sliceCount, instanceCount, multiprocessorCount;
  unsigned copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
  unsigned long long memorySizeMB;
  char name[96];
  unsigned capabilities;  // 1: peer-to-peer, 2: graphics
};
inline constexpr unsigned kGpuInstanceProfileV2 = sizeof(nvmlGpuInstanceProfileInfo_v2_t) | (2u << 24);
inline constexpr unsigned kGpuInstanceProfileV3 = sizeof(nvmlGpuInstanceProfileInfo_v3_t) | (3u << 24);

struct nvmlGpuInstanceInfo_t {
  nvmlDevice_t device;
  unsigned id, profileId;
  nvmlGpuInstancePlacement_t placement;
};

struct nvmlComputeInstancePlacement_t {  // in compute slices of the GPU instance
  unsigned start, size;
};

struct nvmlComputeInstanceProfileInfo_t {
  unsigned id, sliceCount, instanceCount, multiprocessorCount;
  unsigned sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
};
struct nvmlComputeInstanceProfileInfo_v2_t {
  unsigned version;
  unsigned id, sliceCount, instanceCount, multiprocessorCount;
  unsigned sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
  char name[96];
};
struct nvmlComputeInstanceProfileInfo_v3_t {
  unsigned version;
  unsigned id, sliceCount, instanceCount, multiprocessorCount;
  unsigned sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
  char name[96];
  unsigned capabilities;
};
inline constexpr unsigned kComputeInstanceProfileV2 =
    sizeof(nvmlComputeInstanceProfileInfo_v2_t) | (2u << 24);
inline constexpr unsigned kComputeInstanceProfileV3 =
    sizeof(nvmlComputeInstanceProfileInfo_v3_t) | (3u << 24);

struct nvmlComputeInstanceInfo_t {  // nvmlComputeInstanceGetInfo_v2
  nvmlDevice_t device;
  nvmlGpuInstance_t gpuInstance;
  unsigned id, profileId;
  nvmlComputeInstancePlacement_t placement;
};

struct nvmlDeviceAttributes_t {  // nvmlDeviceGetAttributes_v2
  unsigned multiprocessorCount;
  unsigned sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
  unsigned gpuInstanceSliceCount, computeInstanceSliceCount;
  unsigned long long memorySizeMB;
};

static_assert(sizeof(nvmlGpuInstancePlacement_t) == 8);
static_assert(sizeof(nvmlGpuInstanceProfileInfo_t) == 48);
static_assert(sizeof(nvmlGpuInstanceProfileInfo_v2_t) == 152);
static_assert(offsetof(nvmlGpuInstanceProfileInfo_v2_t, memorySizeMB) == 48);
static_assert(sizeof(nvmlGpuInstanceProfileInfo_v3_t) == 152);
static_assert(offsetof(nvmlGpuInstanceProfileInfo_v3_t, memorySizeMB) == 40);
static_assert(offsetof(nvmlGpuInstanceProfileInfo_v3_t, capabilities) == 144);
static_assert(sizeof(nvmlGpuInstanceInfo_t) == 24);
static_assert(sizeof(nvmlComputeInstanceProfileInfo_t) == 36);
static_assert(sizeof(nvmlComputeInstanceProfileInfo_v2_t) == 136);
static_assert(sizeof(nvmlComputeInstanceProfileInfo_v3_t) == 140);
static_assert(sizeof(nvmlComputeInstanceInfo_t) == 32);
static_assert(sizeof(nvmlDeviceAttributes_t) == 40);

}  // namespace gpumux::nvml

#endif  // GPUMUX_ABI_NVML_MIG_H_
