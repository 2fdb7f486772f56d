// SPDX-License-Identifier: Apache-2.0
#include "softgpu/server/shares.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace gpumux::softgpu {

namespace {
constexpr size_t kMaxShares = 1 << 16;
}

Shares::~Shares() {
  for (const auto& [key, share] : shares_) close(share.file);
}

uint64_t Shares::Add(uint64_t creator, uint32_t gpu, uint64_t bytes, int file, uint64_t identity) {
  if (shares_.size() >= kMaxShares || memory_(gpu).OwnBytes(creator) < bytes) return 0;
  // Not a number that anybody would hit upon (splitmix64).
  uint64_t key = identity + next_++ * 0x9e3779b97f4a7c15;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  key ^= key >> 31;
  if (key == 0 || shares_.contains(key)) return Add(creator, gpu, bytes, file, identity);
  Share share;
  share.gpu = gpu;
  share.file = file;
  share.creator = creator;
  share.bytes = share.taken = bytes;
  shares_.emplace(key, std::move(share));
  return key;
}

Shares::Share* Shares::Find(uint64_t key) {
  auto it = shares_.find(key);
  return it != shares_.end() ? &it->second : nullptr;
}

bool Shares::Any(uint32_t gpu) const {
  return std::any_of(shares_.begin(), shares_.end(),
                     [&](const auto& share) { return share.second.gpu == gpu; });
}

uint64_t Shares::FindExport(uint64_t inode) const {
  auto it = exports_.find(inode);
  return it != exports_.end() ? it->second : 0;
}

void Shares::Attach(uint64_t key, uint64_t client) { ++shares_.at(key).users[client]; }

bool Shares::Detach(uint64_t key, uint64_t client) {
  Share* share = Find(key);
  if (share == nullptr) return false;
  auto user = share->users.find(client);
  if (user == share->users.end()) return false;
  if (--user->second == 0) share->users.erase(user);
  Settle(key);
  return true;
}

bool Shares::Take(uint64_t key, uint64_t client, uint64_t bytes) {
  Share* share = Find(key);
  if (share == nullptr || share->creator != client || !memory_(share->gpu).Take(client, bytes)) return false;
  share->taken += bytes;
  return true;
}

bool Shares::Give(uint64_t key, uint64_t client, uint64_t bytes) {
  Share* share = Find(key);
  if (share == nullptr || share->creator != client || share->taken < bytes ||
      !memory_(share->gpu).Disown(client, bytes)) {
    return false;
  }
  share->taken -= bytes;
  // What was left before comes back into nobody's figure, to be settled as one.
  if (share->charged != 0 && memory_(share->gpu).Disown(share->charged, share->left)) share->charged = 0;
  share->left += bytes;
  Settle(key);
  return true;
}

bool Shares::Release(uint64_t key, uint64_t client) {
  Share* share = Find(key);
  if (share == nullptr || share->creator != client) return false;
  const bool given = Give(key, client, share->taken);
  share = Find(key);
  if (share != nullptr) {
    share->creator = 0;
    Settle(key);
  }
  return given;
}

void Shares::AddExport(uint64_t key, uint64_t inode) {
  shares_.at(key).exports.insert(inode);
  exports_[inode] = key;
  Settle(key);
}

void Shares::RemoveExport(uint64_t inode) {
  const uint64_t key = FindExport(inode);
  exports_.erase(inode);
  if (Share* share = Find(key)) {
    share->exports.erase(inode);
    Settle(key);
  }
}

void Shares::RemoveClient(uint64_t client) {
  std::vector<uint64_t> touched;
  for (auto& [key, share] : shares_) {
    const bool creator = share.creator == client;
    if (!creator && !share.users.contains(client)) continue;
    touched.push_back(key);
    share.users.erase(client);
    sim::DeviceMemory& memory = memory_(share.gpu);
    if (share.charged == client && memory.Disown(client, share.left)) share.charged = 0;
  }
  for (uint64_t key : touched) {
    if (Share* share = Find(key); share != nullptr && share->creator == client) {
      Release(key, client);
    } else {
      Settle(key);
    }
  }
}

void Shares::Settle(uint64_t key) {
  auto it = shares_.find(key);
  if (it == shares_.end()) return;
  Share& share = it->second;
  sim::DeviceMemory& memory = memory_(share.gpu);
  const bool used = !share.users.empty() || !share.exports.empty();
  if (share.left > 0) {
    uint64_t owner = 0;
    if (share.exports.empty() && !share.users.empty()) {
      owner = share.users.contains(share.charged) ? share.charged : share.users.begin()->first;
    }
    if (owner != share.charged || !used) {
      if (share.charged != 0) memory.Disown(share.charged, share.left);
      share.charged = 0;
      if (!used) {
        memory.FreeOwnerless(share.left);
        share.left = 0;
      } else if (owner != 0 && memory.Adopt(owner, share.left)) {
        share.charged = owner;
      }
    }
  }
  if (share.creator == 0 && !used) {
    close(share.file);
    shares_.erase(it);
  }
}

}  // namespace gpumux::softgpu
