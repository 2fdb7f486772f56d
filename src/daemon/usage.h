// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/ledger.h"
#include "daemon/machine.h"
#include "daemon/tenants.h"

namespace gpumux::daemon {

// What a tenant has on one of its GPUs right now, from the ledger and the
// pages of its processes.
struct Usage {
  uint64_t used_bytes = 0;         // committed or under way, and overheads as found
  uint64_t free_credit_bytes = 0;  // granted, and nobody's call
  uint64_t uncommitted_bytes = 0;  // granted to calls under way, contexts too; what the dead held
  uint64_t overhead_bytes = 0;     // as found
  // Charged ahead of what was found: code that is loaded lazily, contexts about
  // to be. used + free credit + allowance is what the ledger holds of the tenant.
  uint64_t allowance_bytes = 0;
  uint64_t peak_bytes = 0;
};

Usage Measure(const Tenant& tenant, unsigned slot, const GpuState& gpu);

// Keeps the highest use. Called at every reading, and before what a process has
// shrinks: a short program may live between two readings.
void NotePeak(Tenant& tenant, unsigned slot, const GpuState& gpu);

// Keeps the mean use, likewise: of all its GPUs together.
void NoteUse(Tenant& tenant, const Machine& machine, Time now);

// Refusals and launches of all its processes, the dead included.
Refusals CountRefusals(const Tenant& tenant, const Machine& machine);
uint64_t CountLaunches(const Tenant& tenant);

// The process goes on with another program (exec), or without a context: all
// that was granted to it returns.
void ForgetProgram(Tenant& tenant, Member& member, unsigned slot, GpuState& gpu);

// Takes the free credit of every process of the tenant back into the ledger.
// Returns how much it was.
uint64_t RecallCredit(Tenant& tenant, unsigned slot, GpuState& gpu);

// The other tenants' free credit beyond their guarantees.
uint64_t RecallBurst(Tenants& tenants, size_t gpu_index, GpuState& gpu);

// Its memory limit holds: nullopt: no process of it uses CUDA now.
std::optional<bool> MemoryEnforced(const Tenant& tenant);

std::optional<unsigned> SlotOf(const Tenant& tenant, size_t gpu_index);

}  // namespace gpumux::daemon
