// SPDX-License-Identifier: Apache-2.0
#include "sim/device_memory.h"

#include <algorithm>

#include "sim/slab_layout.h"

namespace gpumux::sim {

DeviceMemory::Account& DeviceMemory::Of(Process process) {
  auto [it, added] = accounts_.try_emplace(process);
  if (added) {
    it->second.context_own = spec_.context_own;
    it->second.context_device = spec_.context_device;
  }
  return it->second;
}

void DeviceMemory::SetTerms(Process process, uint64_t context_own, uint64_t context_device, uint64_t limit) {
  Account& account = Of(process);
  account.context_own = context_own;
  account.context_device = context_device;
  account.limit = limit;
}

uint64_t DeviceMemory::FreeFor(Process process) const {
  auto it = accounts_.find(process);
  if (it == accounts_.end() || it->second.limit == 0) return free();
  const Account& account = it->second;
  return account.Counted() < account.limit ? std::min(free(), account.limit - account.Counted()) : 0;
}

uint64_t DeviceMemory::OwnBytes(Process process) const {
  auto it = accounts_.find(process);
  if (it == accounts_.end()) return 0;
  return it->second.contexts * it->second.context_own + it->second.taken;
}

bool DeviceMemory::Listed(Process process) const {
  auto it = accounts_.find(process);
  return it != accounts_.end() && it->second.contexts > 0;
}

bool DeviceMemory::MakeRoom(uint64_t bytes) {
  const uint64_t capacity = spec_.usable - spec_.headroom;
  if (bytes > capacity) return false;
  if (used_ <= capacity - bytes) return true;
  uint64_t reclaimable = 0;
  for (const auto& [process, account] : accounts_) reclaimable += account.managed_cache;
  // Caches give whole pages.
  uint64_t missing = RoundUp(used_ - (capacity - bytes), kPageBytes);
  if (missing > reclaimable) return false;
  for (auto& [process, account] : accounts_) {
    const uint64_t part = std::min(missing, account.managed_cache);
    account.managed_cache -= part;
    used_ -= part;
    missing -= part;
  }
  return true;
}

void DeviceMemory::AddProcess(Process process) {
  if (!Of(process).initialised && initialised_++ == 0) used_ += spec_.opened_device;
  Of(process).initialised = true;
}

bool DeviceMemory::AddContext(Process process) {
  Account& account = Of(process);
  if (!account.Within(account.context_own) || !MakeRoom(account.context_device)) return false;
  ++account.contexts;
  used_ += account.context_device;
  return true;
}

bool DeviceMemory::RemoveContext(Process process) {
  auto it = accounts_.find(process);
  if (it == accounts_.end() || it->second.contexts == 0) return false;
  --it->second.contexts;
  used_ -= it->second.context_device;
  return true;
}

bool DeviceMemory::Take(Process process, uint64_t bytes) {
  Account& account = Of(process);
  if (!account.Within(bytes) || !MakeRoom(bytes)) return false;
  account.taken += bytes;
  used_ += bytes;
  return true;
}

bool DeviceMemory::Give(Process process, uint64_t bytes) {
  auto it = accounts_.find(process);
  if (it == accounts_.end() || it->second.taken < bytes) return false;
  it->second.taken -= bytes;
  used_ -= bytes;
  return true;
}

bool DeviceMemory::Disown(Process process, uint64_t bytes) {
  auto it = accounts_.find(process);
  if (it == accounts_.end() || it->second.taken < bytes) return false;
  it->second.taken -= bytes;
  ownerless_ += bytes;
  return true;
}

bool DeviceMemory::Adopt(Process process, uint64_t bytes) {
  if (ownerless_ < bytes) return false;
  ownerless_ -= bytes;
  Of(process).taken += bytes;
  return true;
}

bool DeviceMemory::FreeOwnerless(uint64_t bytes) {
  if (ownerless_ < bytes) return false;
  ownerless_ -= bytes;
  used_ -= bytes;
  return true;
}

bool DeviceMemory::TouchManaged(Process process, uint64_t bytes) {
  Account& account = Of(process);
  const uint64_t cached = std::min(bytes, account.managed_cache);
  const uint64_t missing = bytes - cached;
  // Whole batches while there is room for them, else what is needed.
  const uint64_t batch = RoundUp(missing, spec_.managed_batch);
  const uint64_t taken = MakeRoom(batch) ? batch : missing;
  if (!MakeRoom(taken)) return false;
  // Making room may have emptied this process's own cache.
  if (account.managed_cache < cached) return TouchManaged(process, bytes);
  account.managed_cache += taken - missing - cached;
  account.managed += bytes;
  used_ += taken;
  return true;
}

bool DeviceMemory::ReserveManaged(Process process, uint64_t bytes) {
  Account& account = Of(process);
  if (!account.Within(bytes)) return false;
  account.reserved_managed += bytes;
  return true;
}

bool DeviceMemory::ReleaseManaged(Process process, uint64_t bytes) {
  auto it = accounts_.find(process);
  if (it == accounts_.end() || it->second.reserved_managed < bytes) return false;
  it->second.reserved_managed -= bytes;
  return true;
}

bool DeviceMemory::FreeManaged(Process process, uint64_t bytes) {
  auto it = accounts_.find(process);
  if (it == accounts_.end() || it->second.managed < bytes) return false;
  it->second.managed -= bytes;
  used_ -= bytes;
  return true;
}

void DeviceMemory::RemoveProcess(Process process) {
  auto it = accounts_.find(process);
  if (it == accounts_.end()) return;
  const Account& account = it->second;
  used_ -=
      account.contexts * account.context_device + account.taken + account.managed + account.managed_cache;
  if (account.initialised && --initialised_ == 0) used_ -= spec_.opened_device;
  accounts_.erase(it);
}

}  // namespace gpumux::sim
