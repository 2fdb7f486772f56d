// SPDX-License-Identifier: Apache-2.0
//
// Every family that /metrics has, in the order in which it is served. docs/guide/metrics.md
// lists them with their labels, and a test compares the two.
#pragma once

#include <span>

#include "daemon/metrics_text.h"

namespace gpumux::daemon::series {

inline constexpr auto kGauge = MetricType::kGauge;
inline constexpr auto kCounter = MetricType::kCounter;
inline constexpr auto kHistogram = MetricType::kHistogram;

// The daemon and the machine.
inline constexpr MetricFamily kBuild{"gpumux_build_info", kGauge, "1, with what runs as labels"};
inline constexpr MetricFamily kStart{"gpumux_daemon_start_time_seconds", kGauge,
                                     "When this daemon started, in seconds since 1970"};
inline constexpr MetricFamily kTenants{"gpumux_tenants", kGauge,
                                       "Tenants in each state, waiting requests too"};
inline constexpr MetricFamily kLongestWait{"gpumux_queue_longest_wait_seconds", kGauge,
                                           "How long the one that waits longest has waited in the queue"};
inline constexpr MetricFamily kEnded{"gpumux_tenants_ended_total", kCounter,
                                     "Tenants that have ended, by how"};
inline constexpr MetricFamily kRefusals{"gpumux_memory_refusals_total", kCounter,
                                        "Allocations that were refused, by cause, of all tenants so far"};
inline constexpr MetricFamily kTurns{"gpumux_turns_total", kCounter,
                                     "Turns that ended while others wanted the GPU, of all tenants so far"};
inline constexpr MetricFamily kGateClosed{"gpumux_gate_closed_seconds_total", kCounter,
                                          "How long gates of best-effort tenants were closed, of all so far"};
inline constexpr MetricFamily kGateForced{"gpumux_gate_forced_open_total", kCounter,
                                          "Times that such a gate was opened for its minimum or the longest "
                                          "closure, of all tenants so far"};
inline constexpr MetricFamily kEvents{"gpumux_events_total", kCounter, "Events by kind, suppressed ones too"};
inline constexpr MetricFamily kCompletion{
    "gpumux_tenant_completion_seconds", kHistogram,
    "From the request of a tenant to its end, its wait in the queue included"};
inline constexpr MetricFamily kQueueWait{"gpumux_tenant_queue_wait_seconds", kHistogram,
                                         "How long tenants waited in the queue, seen when they were granted"};
inline constexpr MetricFamily kTurnWait{"gpumux_turn_wait_seconds", kHistogram,
                                        "How long each turn was waited for, seen when it began"};

// GPUs.
inline constexpr MetricFamily kGpu{"gpumux_gpu_info", kGauge, "1, with what the GPU is as labels"};
inline constexpr MetricFamily kGpuLost{"gpumux_gpu_lost", kGauge,
                                       "1: NVML does not answer for it, 0: it does"};
inline constexpr MetricFamily kGpuClosed{"gpumux_gpu_closed", kGauge,
                                         "1: it takes no new tenants, status says why, 0: it does"};
inline constexpr MetricFamily kGpuXids{"gpumux_gpu_xids_total", kCounter,
                                       "Critical errors that the driver reported of it, by number"};
inline constexpr MetricFamily kGpuMode{"gpumux_gpu_mode", kGauge,
                                       "1, with the mode in which its tenants share it as a label"};
inline constexpr MetricFamily kGpuTenants{"gpumux_gpu_tenants", kGauge, "Tenants on it"};
inline constexpr MetricFamily kGpuStrangers{"gpumux_gpu_unmanaged_processes", kGauge,
                                            "Processes on it without a lease"};
inline constexpr MetricFamily kGpuTotal{"gpumux_gpu_memory_total_bytes", kGauge, "Its memory, as NVML says"};
inline constexpr MetricFamily kGpuReserve{"gpumux_gpu_memory_reserve_bytes", kGauge, "Never promised"};
inline constexpr MetricFamily kGpuGuaranteed{"gpumux_gpu_memory_guaranteed_bytes", kGauge,
                                             "Guaranteed to its tenants"};
inline constexpr MetricFamily kGpuUsed{"gpumux_gpu_memory_used_bytes", kGauge, "Used by its tenants"};
inline constexpr MetricFamily kGpuUnmanaged{"gpumux_gpu_memory_unmanaged_bytes", kGauge,
                                            "Held by processes without a lease"};
inline constexpr MetricFamily kGpuUnexplained{"gpumux_gpu_memory_unexplained_bytes", kGauge,
                                              "In use by nobody that NVML lists"};
inline constexpr MetricFamily kGpuDeviceUsed{"gpumux_gpu_memory_device_used_bytes", kGauge,
                                             "In use, as NVML says, the driver's reserve not included"};
inline constexpr MetricFamily kGpuPromisable{"gpumux_gpu_memory_promisable_bytes", kGauge,
                                             "What a new tenant could be guaranteed now"};
inline constexpr MetricFamily kGpuTurnTime{"gpumux_gpu_turn_seconds_total", kCounter,
                                           "Time that tenants had it while they took turns, of all so far"};

// Tenants that live.
inline constexpr MetricFamily kTenant{"gpumux_tenant_info", kGauge,
                                      "1, with whose it is and how it runs as labels"};
inline constexpr MetricFamily kTenantStart{"gpumux_tenant_start_time_seconds", kGauge,
                                           "When it was granted, in seconds since 1970"};
inline constexpr MetricFamily kTenantIdle{"gpumux_tenant_idle_seconds", kGauge,
                                          "How long it has held memory without launching a kernel"};
inline constexpr MetricFamily kEnforced{"gpumux_tenant_memory_enforced", kGauge,
                                        "1: its memory limit is in force, 0: it is not"};
inline constexpr MetricFamily kTenantGuaranteed{"gpumux_tenant_memory_guaranteed_bytes", kGauge,
                                                "Guaranteed to it on this GPU"};
inline constexpr MetricFamily kTenantLimit{"gpumux_tenant_memory_limit_bytes", kGauge,
                                           "The most that it gets on this GPU"};
inline constexpr MetricFamily kTenantUsed{"gpumux_tenant_memory_used_bytes", kGauge,
                                          "Used by it on this GPU, contexts and loaded code included"};
inline constexpr MetricFamily kTenantPeak{"gpumux_tenant_memory_peak_bytes", kGauge,
                                          "The most that it has used on this GPU"};
inline constexpr MetricFamily kTenantAtRisk{
    "gpumux_tenant_memory_at_risk_bytes", kGauge,
    "Guaranteed to it on this GPU, not used yet, and perhaps not there"};
inline constexpr MetricFamily kTenantRefusals{"gpumux_tenant_memory_refusals_total", kCounter,
                                              "Its allocations that were refused, by cause"};
inline constexpr MetricFamily kTenantGpuTime{"gpumux_tenant_gpu_seconds_total", kCounter,
                                             "Time that it had this GPU while it took turns"};
inline constexpr MetricFamily kTenantPart{
    "gpumux_tenant_turn_part_ratio", kGauge,
    "Its part of the time of its most crowded GPU, while those want it that do now"};
inline constexpr MetricFamily kTenantTurns{"gpumux_tenant_turns_total", kCounter,
                                           "Its turns that ended while others wanted the GPU"};
inline constexpr MetricFamily kTenantOverran{
    "gpumux_tenant_turns_overran_total", kCounter,
    "Its turns after which its work did not end within the grace time"};
inline constexpr MetricFamily kTenantUnused{"gpumux_tenant_turns_unused_total", kCounter,
                                            "Its turns that were taken because nothing of it ran"};
inline constexpr MetricFamily kTenantTurnWait{"gpumux_tenant_turn_wait_seconds_total", kCounter,
                                              "How long it waited for those of its turns that have begun"};
inline constexpr MetricFamily kTenantGateClosed{"gpumux_tenant_gate_closed_seconds_total", kCounter,
                                                "How long its gate was closed for latency-critical tenants"};
inline constexpr MetricFamily kTenantGateForced{
    "gpumux_tenant_gate_forced_open_total", kCounter,
    "Times that its gate was opened for its minimum or the longest closure"};

std::span<const MetricFamily* const> All();

}  // namespace gpumux::daemon::series
