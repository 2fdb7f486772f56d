// SPDX-License-Identifier: Apache-2.0
#include "sim/device_memory.h"

#include <algorithm>

#include "sim/slab_layout.h"

namespace gpumux::sim {

uint64_t DeviceMemory::OwnBytes(Process process) const {
  auto it = accounts_.find(process);
  if (it == accounts_.end()) return 0;
  return it->second.contexts * spec_.context_own + it->second.taken;
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

bool DeviceMemory::AddContext(Process process) {
  const bool first = !accounts_[process].had_context;
  const uint64_t bytes = spec_.context_device + (first ? spec_.first_context_device : 0);
  if (!MakeRoom(bytes)) return false;
  Account& account = accounts_[process];
  account.had_context = true;
  ++account.contexts;
  used_ += bytes;
  return true;
}

bool DeviceMemory::RemoveContext(Process process) {
  auto it = accounts_.find(process);
  if (it == accounts_.end() || it->second.contexts == 0) return false;
  --it->second.contexts;
  used_ -= spec_.context_device;
  return true;
}

bool DeviceMemory::Take(Process process, uint64_t bytes) {
  if (!MakeRoom(bytes)) return false;
  accounts_[process].taken += bytes;
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

bool DeviceMemory::TouchManaged(Process process, uint64_t bytes) {
  {
    const Account& account = accounts_[process];
    const uint64_t from_device = bytes > account.managed_cache ? bytes - account.managed_cache : 0;
    if (!MakeRoom(from_device)) return false;
  }
  Account& account = accounts_[process];
  if (!account.managed_started) {
    account.managed_started = true;
    // Kept only while there is room for it: the first program to need it gets it.
    if (MakeRoom(bytes + spec_.managed_cache)) {
      account.managed_cache += spec_.managed_cache;
      used_ += spec_.managed_cache + bytes;
      account.managed += bytes;
      return true;
    }
  }
  const uint64_t cached = std::min(bytes, account.managed_cache);
  account.managed_cache -= cached;
  account.managed += bytes;
  used_ += bytes - cached;
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
  used_ -= account.contexts * spec_.context_device + account.taken + account.managed + account.managed_cache;
  if (account.had_context) used_ -= spec_.first_context_device;
  accounts_.erase(it);
}

}  // namespace gpumux::sim
