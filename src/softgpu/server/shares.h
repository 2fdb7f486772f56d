// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "sim/device_memory.h"

namespace gpumux::softgpu {

// Memory that several processes use, as a file that each of them maps. Its
// bytes are charged to the process that took them; once that is done with them
// (or has ended) they live on as long as another process or an open descriptor
// that was exported uses them: while such a descriptor is open in no process's
// figure, else in that of a process that uses them. As measured on an H200.
class Shares {
 public:
  // `memory` gives the memory of a GPU.
  explicit Shares(std::function<sim::DeviceMemory&(uint32_t)> memory) : memory_(std::move(memory)) {}
  ~Shares();

  struct Share {
    uint32_t gpu = 0;
    int file = -1;
    uint64_t creator = 0;  // 0: done with it
    uint64_t bytes = 0;    // as it was shared
    uint64_t taken = 0;    // in the creator's figure
    uint64_t left = 0;     // what the creator has left behind
    uint64_t charged = 0;  // whose figure has that; 0: nobody's
    std::map<uint64_t, uint64_t> users;
    std::set<uint64_t> exports;  // inodes of open descriptors
  };

  // Takes the file over. 0: refused.
  uint64_t Add(uint64_t creator, uint32_t gpu, uint64_t bytes, int file, uint64_t identity);
  Share* Find(uint64_t key);
  uint64_t FindExport(uint64_t inode) const;

  void Attach(uint64_t key, uint64_t client);
  bool Detach(uint64_t key, uint64_t client);
  bool Take(uint64_t key, uint64_t client, uint64_t bytes);
  bool Give(uint64_t key, uint64_t client, uint64_t bytes);
  bool Release(uint64_t key, uint64_t client);
  void AddExport(uint64_t key, uint64_t inode);
  void RemoveExport(uint64_t inode);
  // Whether memory of this GPU or compute instance is shared.
  bool Any(uint32_t gpu) const;
  // Before the memory forgets the process.
  void RemoveClient(uint64_t client);

 private:
  void Settle(uint64_t key);

  std::function<sim::DeviceMemory&(uint32_t)> memory_;
  std::map<uint64_t, Share> shares_;
  std::map<uint64_t, uint64_t> exports_;  // inode -> key
  uint64_t next_ = 1;
};

}  // namespace gpumux::softgpu
