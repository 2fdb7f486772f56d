// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "daemon/machine.h"
#include "daemon/tenant.h"

namespace gpumux::daemon {

// Processors and memory nodes near these GPUs (indices into Machine), for `run`,
// which binds its program: {"near_cpus":"0-31","near_memory_nodes":"0","near_by":"NVML"}.
nlohmann::ordered_json NearJson(const std::vector<size_t>& gpus, const Machine& machine);

// `cpu_affinity` of a tenant's JSON: what it asked for, what is near, and where its
// program may run now, as the kernel says.
nlohmann::ordered_json CpuAffinityJson(const Tenant& tenant, const Machine& machine);

}  // namespace gpumux::daemon
