// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "daemon/event_loop.h"
#include "daemon/fair_turns.h"
#include "ipc/seqpacket.h"

namespace gpumux::daemon {

// HTTP/1.1 on the API's Unix socket. Every connection's peer is known from the
// kernel; sizes, times and the number of connections are bounded, and a user who
// is not the daemon's is answered so many requests a second.
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

  ApiServer(EventLoop& loop, FairTurns& turns, const Clock& clock,
            std::function<void(const Request&, Reply)> handle);
  ~ApiServer();
  // Also again, when the socket is not `Listening` any more: somebody removed it.
  void Listen(ipc::UnixListener listener);
  bool Listening() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpumux::daemon
