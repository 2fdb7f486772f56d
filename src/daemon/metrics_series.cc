// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics_series.h"

namespace gpumux::daemon::series {

std::span<const MetricFamily* const> All() {
  static constexpr const MetricFamily* kAll[] = {&kBuild,           &kStart,
                                                 &kTenants,         &kLongestWait,
                                                 &kEnded,           &kRefusals,
                                                 &kTurns,           &kGateClosed,
                                                 &kGateForced,      &kEvents,
                                                 &kCompletion,      &kQueueWait,
                                                 &kTurnWait,        &kGpu,
                                                 &kGpuLost,         &kGpuClosed,
                                                 &kGpuXids,         &kGpuMode,
                                                 &kGpuTenants,      &kGpuStrangers,
                                                 &kGpuTotal,        &kGpuReserve,
                                                 &kGpuGuaranteed,   &kGpuUsed,
                                                 &kGpuUnmanaged,    &kGpuUnexplained,
                                                 &kGpuDeviceUsed,   &kGpuPromisable,
                                                 &kGpuTurnTime,     &kTenant,
                                                 &kTenantStart,     &kTenantIdle,
                                                 &kEnforced,        &kTenantGuaranteed,
                                                 &kTenantLimit,     &kTenantUsed,
                                                 &kTenantPeak,      &kTenantAtRisk,
                                                 &kTenantRefusals,  &kTenantGpuTime,
                                                 &kTenantPart,      &kTenantTurns,
                                                 &kTenantOverran,   &kTenantUnused,
                                                 &kTenantTurnWait,  &kTenantGateClosed,
                                                 &kTenantGateForced};
  return kAll;
}

}  // namespace gpumux::daemon::series
