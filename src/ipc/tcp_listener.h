// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/loopback_address.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace gpumux::ipc {

// A TCP socket that accepts, on a loopback address.
class TcpListener {
 public:
  // kConflict: somebody listens there; kUnavailable: this machine or the service
  // manager does not allow it. Non-blocking, close-on-exec.
  static Result<TcpListener> Listen(const LoopbackAddress& address);

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }

 private:
  UniqueFd fd_;
};

}  // namespace gpumux::ipc
