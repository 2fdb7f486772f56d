// SPDX-License-Identifier: Apache-2.0
//
// What the control daemon of MPS says with programs (libcuda.so.1) and with the
// control program, over a Unix socket of type SOCK_SEQPACKET in its pipe
// directory, and with its server, over a socket pair. All from one build.
#pragma once

#include <cstddef>
#include <cstdint>

#include "softgpu/protocol.h"

namespace gpumux::softgpu::mps {

inline constexpr uint32_t kControlMagic = 0x5350'4d53;
inline constexpr uint32_t kControlVersion = 1;
// In the pipe directory, named as with a real driver.
inline constexpr char kControlSocket[] = "control";
inline constexpr char kControlLock[] = "control_lock";
inline constexpr char kPidFile[] = "nvidia-cuda-mps-control.pid";
// Only here: which software GPU (identity, in hexadecimal) it is. Without it nobody
// connects: the socket may be a real driver's.
inline constexpr char kMarkFile[] = "software-gpu";

enum class ControlOp : uint32_t {
  kClient = 1,   // -> an Offer, when a server is ready; until then it waits
  kCommand = 2,  // with the command's text -> a CommandReply with text
};
struct ControlRequest {
  uint32_t magic = kControlMagic;
  uint32_t version = kControlVersion;
  ControlOp op = ControlOp::kClient;
  uint32_t pad = 0;
};
inline constexpr size_t kMaxCommand = 1024;

struct Offer {
  uint32_t magic = kControlMagic;
  int32_t error = 0;    // the driver's code; 0: a server
  uint64_t server = 0;  // the software GPU's number of it
  double percent = 100;
  uint32_t below_normal = 0;
  uint32_t gpus = 0;  // that the server has, in its order
  uint32_t gpu[kMaxGpus] = {};
  uint64_t limit[kMaxGpus] = {};  // of memory, by the same index; 0: none
};

// Text follows in the same packet; one command has as many as it takes.
struct CommandReply {
  uint32_t magic = kControlMagic;
  uint32_t last = 1;  // 0: more to come
};
inline constexpr size_t kMaxReplyText = 16384;

// Daemon -> server, before anything else: what its clients get, for its log, and
// whether it takes every user's.
struct ServerOrders {
  uint32_t every_user = 0;
  uint32_t below_normal = 0;
  double percent = 100;
  char limits[2048] = {};  // as in the variable; what does not fit is left out
};
// Server -> daemon: once, when it is ready, or why it is not.
struct ServerReady {
  int32_t error = 0;  // the driver's code
  uint32_t gpus = 0;
  uint64_t number = 0;
  uint32_t gpu[kMaxGpus] = {};
};
// ...and an MpsEvent with each change. Descriptors that the daemon gives it:
inline constexpr int kServerSocket = 3, kServerLog = 4;

}  // namespace gpumux::softgpu::mps
