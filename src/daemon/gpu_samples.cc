// SPDX-License-Identifier: Apache-2.0
#include "daemon/gpu_samples.h"

#include "daemon/usage.h"

namespace gpumux::daemon {

std::vector<history::GpuSample> SampleGpus(const Machine& machine, const Tenants& tenants,
                                           const Clock& clock) {
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(clock.WallTime().time_since_epoch());
  std::vector<history::GpuSample> samples;
  for (const auto& gpu : machine.gpus()) {
    // Another daemon owns its ledger, and keeps its history.
    if (gpu->other_owner) continue;
    const core::GpuSnapshot snapshot = gpu->Snapshot();
    history::GpuSample sample{.at_ms = now.count(),
                              .gpu = gpu->device.uuid.ToString(),
                              .mode = gpu->mode ? std::string(core::Name(*gpu->mode)) : "",
                              .tenants = static_cast<uint32_t>(snapshot.tenants),
                              .guaranteed_bytes = snapshot.guaranteed_bytes,
                              .used_bytes = 0,
                              .promisable_bytes = snapshot.Closed() ? 0 : snapshot.promisable_bytes};
    for (const auto& [id, tenant] : tenants.live()) {
      for (unsigned slot = 0; slot < tenant->gpus.size(); ++slot) {
        if (machine.gpus()[tenant->gpus[slot]] == gpu)
          sample.used_bytes += Measure(*tenant, slot, *gpu).used_bytes;
      }
    }
    if (!gpu->lost && gpu->last_reading) {
      sample.device_used_bytes = gpu->device_used_bytes;
      sample.unmanaged_bytes = snapshot.unmanaged_bytes;
      sample.unexplained_bytes = snapshot.unexplained_bytes;
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace gpumux::daemon
