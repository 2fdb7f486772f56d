// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/driver_version.h"

#include <atomic>
#include <vector>

#include "sim/gpu_spec_parser.h"
#include "softgpu/client/connection.h"
#include "softgpu/faults.h"
#include "softgpu/names.h"

namespace gpumux::softgpu {

namespace {

std::atomic<int> known{0};

// Only a document can say another version than the recorded one; only the
// server reads documents.
int Ask() {
  const Location location = FindLocation();
  if (location.off || !sim::IsGpuDocumentPath(location.spec)) return kDriverVersion;
  Connection connection;
  std::vector<Description> gpus;
  if (!connection.Open(Role::kNvml) || !connection.Describe(&gpus)) return kDriverVersion;
  return gpus.front().cuda_version;
}

}  // namespace

int CudaVersion() {
  if (const FaultRun* faults = CurrentFaults(); faults != nullptr && faults->script().cuda_version != 0) {
    return faults->script().cuda_version;
  }
  int version = known.load(std::memory_order_relaxed);
  if (version == 0) {
    version = Ask();
    known.store(version, std::memory_order_relaxed);
  }
  return version;
}

void SetCudaVersion(int version) { known.store(version, std::memory_order_relaxed); }

}  // namespace gpumux::softgpu
