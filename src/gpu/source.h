// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/result.h"

namespace gpumux::gpu {

// Where this machine's GPUs come from: the installed driver, or the software
// GPU. Chosen once per process; everything that opens a library asks here.
struct GpuSource {
  bool simulated = false;
  std::string spec;           // of the software GPU: "H200", "2xH200"; else empty
  std::string dir;            // where the software GPU's state lives; else empty
  std::string libraries_dir;  // of the stand-in libcuda.so.1 and libnvidia-ml.so.1; else empty
};

// GPUMUX_SOFTGPU decides: a spec, or "off" for the driver and nothing else.
// Unset: the driver, and the software GPU (an H200) only on a machine that has
// no NVIDIA driver at all. A driver that is there and broken is found by
// Nvml::Open and is an error: it is never covered up by a simulation.
// kUnsupported: "off" without a driver. kInvalid: an impossible
// GPUMUX_SOFTGPU_DIR. kDenied: an unsafe runtime folder. kInternal: the software GPU's libraries are missing.
Result<GpuSource> FindGpuSource();

// True if any sign of the NVIDIA driver is there: its control device, its
// /proc directory, or a libnvidia-ml.so.1 that the loader finds.
bool HasNvidiaDriver();

}  // namespace gpumux::gpu
