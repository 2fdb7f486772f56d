// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "daemon/event_loop.h"
#include "ipc/seqpacket.h"

namespace gpumux::daemon {

// HTTP/1.1 on the API's Unix socket. Every connection's peer is known from the
// kernel; sizes, times and the number of connections are bounded.
class ApiServer {
 public:
  struct Request {
    std::string method;
    std::string path;   // without the query, always with a leading '/'
    std::string query;  // without '?'
    std::string body;
    ipc::PeerIdentity peer;
  };
  struct Response {
    int status = 200;
    std::string body;  // JSON
  };

  // Once, now or later, and from the loop's thread.
  using Reply = std::function<void(Response)>;

  ApiServer(EventLoop& loop, std::function<void(const Request&, Reply)> handle);
  ~ApiServer();
  // Errors as UnixListener::Listen.
  Status Listen(const std::string& path, mode_t mode);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpumux::daemon
