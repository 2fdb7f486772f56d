// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "softgpu/protocol.h"

namespace gpumux::softgpu {

// Which processes are clients of which MPS server, and who falls with whom. No
// I/O. Processes have the numbers that the server gives its clients.
//
// A client whose kernel goes wrong, or that ends with kernels on the GPU, takes
// along every client on its GPUs and on theirs (measured: error 700; that it
// goes on over shared GPUs is documented). The server takes no client until all
// of these have gone. What a client had on its way to the GPU runs on, and
// nobody is hurt, as long as another process has copies of each descriptor of
// it that stands for /dev/nvidia*: measured, of all of them together. That all
// are needed, and that kernels which run longer than the copies are held hurt
// the others after all, is assumed.
class MpsServers {
 public:
  struct Server {
    uid_t uid = 0;
    bool every_user = false;
    MpsState state = MpsState::kInitializing;
    std::set<uint64_t> clients;
    std::set<uint64_t> failed;  // that have to go before it is active again
    uint64_t watch = 0;         // token of the connection that hears events
  };

  Server* Find(uint64_t server);
  // 0: not a client.
  uint64_t ServerOf(uint64_t client) const;

  void Add(uint64_t server, uid_t uid) { servers_[server].uid = uid; }
  // Its clients, which are none any more.
  std::vector<uint64_t> Remove(uint64_t server);
  void Join(uint64_t client, uint64_t server);
  // True: the server has recovered by that.
  bool Leave(uint64_t client);
  // What a fault of `client` on `gpu` takes along, itself too if it still is a
  // client; `gpus_of` gives the GPUs (bits) on which a process has a context.
  std::vector<uint64_t> Fault(uint64_t client, uint32_t gpu,
                              const std::function<uint64_t(uint64_t)>& gpus_of);

 private:
  std::map<uint64_t, Server> servers_;
  std::map<uint64_t, uint64_t> server_of_;
};

}  // namespace gpumux::softgpu
