// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "softgpu/protocol.h"
#include "softgpu/uuid.h"

namespace gpumux::softgpu {

// Which software GPU the environment names (GPUMUX_SOFTGPU, GPUMUX_SOFTGPU_DIR).
struct Location {
  std::string spec;
  std::string dir;
  bool off = false;
  bool foreign = false;  // the default directory belongs to somebody else
};
Location FindLocation();

// A control connection to the server of one directory. Opening it starts the
// server if none runs. Safe to call from several threads, one request at a time.
// After a fork the child's copy is useless and says so (`Usable`).
class Connection {
 public:
  Connection() = default;
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // False when there is no server and none could be started.
  bool Open(Role role);
  // The second connection of a process that uses CUDA, or of an MPS server, to
  // the same server whatever the environment says by now; -1 on failure.
  int OpenWork() { return OpenSecond(Role::kWork); }
  int OpenWatch() { return OpenSecond(Role::kMpsWatch); }

  bool Usable() const;
  uint32_t gpus() const { return hello_.gpus; }
  // The server's number of this process.
  uint64_t client() const { return hello_.client; }
  // Of the directory.
  uint64_t identity() const { return hello_.identity; }
  const std::string& dir() const { return dir_; }

  // Nothing when the server is gone.
  std::optional<Reply> Call(Op op, uint32_t gpu, uint64_t amount = 0);
  // The same about a share: a descriptor may go with the request, one may come
  // with the answer (-1: none).
  std::optional<Reply> Call(const Request& request, int send, int* receive);
  bool Processes(uint32_t gpu, ProcessList* list);
  bool MpsClients(uint64_t mps_server, MpsClientList* list);
  // Each GPU of the server, whole or not at all.
  bool Describe(std::vector<Description>* gpus);
  // One GPU, or compute instance by its place; false when there is none (any more).
  bool Describe(uint32_t place, Description* description);
  bool Mig(uint32_t gpu, MigState* state);
  bool MigProfiles(uint32_t gpu, MigProfileList* list);

  void Close();

 private:
  int OpenSecond(Role role);
  // With the lock held.
  bool DescribeLocked(uint32_t place, Description* description);
  template <typename Message>
  bool Ask(Op op, uint32_t gpu, Message* message);

  std::mutex mutex_;
  int fd_ = -1;
  int pid_ = 0;
  HelloReply hello_;
  std::string dir_;
};

}  // namespace gpumux::softgpu
