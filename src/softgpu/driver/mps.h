// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gpumux/abi/cuda/driver.h"
#include "softgpu/client/connection.h"

namespace gpumux::softgpu {

struct Device;

// What the control daemon of MPS has to say to a program that begins to use CUDA.
struct MpsServerOffer {
  cuda::CUresult error = cuda::CUDA_SUCCESS;
  uint64_t server = 0;  // 0: no daemon: the program uses the GPU itself, and nobody says so
  std::vector<uint32_t> gpus;
  std::vector<uint64_t> limits;  // of memory, of each
  double percent = 100;
  bool below_normal = false;
  // To the daemon. Until it is closed the server counts on one client more, and
  // so does not end between the offer and the client's arrival.
  int socket = -1;
};
// Waits as long as the daemon does: for the server, and for another user's to end.
MpsServerOffer AskForMps(const Connection& connection);

// Takes the offer up: makes the process a client, with the lower of what the server and the
// program's own variables say, and `devices` what it sees through MPS.
cuda::CUresult JoinMps(Connection& connection, const MpsServerOffer& offer,
                       const std::vector<std::unique_ptr<Device>>& devices);

}  // namespace gpumux::softgpu
