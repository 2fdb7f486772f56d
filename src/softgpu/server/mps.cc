// SPDX-License-Identifier: Apache-2.0
#include "softgpu/server/mps.h"

namespace gpumux::softgpu {

MpsServers::Server* MpsServers::Find(uint64_t server) {
  auto it = servers_.find(server);
  return it != servers_.end() ? &it->second : nullptr;
}

uint64_t MpsServers::ServerOf(uint64_t client) const {
  auto it = server_of_.find(client);
  return it != server_of_.end() ? it->second : 0;
}

std::vector<uint64_t> MpsServers::Remove(uint64_t server) {
  auto it = servers_.find(server);
  if (it == servers_.end()) return {};
  std::vector<uint64_t> clients(it->second.clients.begin(), it->second.clients.end());
  servers_.erase(it);
  for (uint64_t client : clients) server_of_.erase(client);
  return clients;
}

void MpsServers::Join(uint64_t client, uint64_t server) {
  servers_.at(server).clients.insert(client);
  server_of_[client] = server;
}

bool MpsServers::Leave(uint64_t client) {
  Server* server = Find(ServerOf(client));
  if (server == nullptr) return false;
  server_of_.erase(client);
  server->clients.erase(client);
  if (server->failed.erase(client) == 0 || !server->failed.empty()) return false;
  server->state = MpsState::kActive;
  return true;
}

std::vector<uint64_t> MpsServers::Fault(uint64_t client, uint32_t gpu,
                                        const std::function<uint64_t(uint64_t)>& gpus_of) {
  Server* server = Find(ServerOf(client));
  if (server == nullptr) return {};
  uint64_t gpus = 1ULL << gpu | gpus_of(client);
  std::set<uint64_t> fallen{client};
  for (bool more = true; more;) {
    more = false;
    for (uint64_t other : server->clients) {
      if ((gpus_of(other) & gpus) == 0 || !fallen.insert(other).second) continue;
      gpus |= gpus_of(other);
      more = true;
    }
  }
  server->state = MpsState::kFault;
  server->failed.insert(fallen.begin(), fallen.end());
  return {fallen.begin(), fallen.end()};
}

}  // namespace gpumux::softgpu
