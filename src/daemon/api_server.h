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
#include "ipc/tcp_listener.h"

namespace gpumux::daemon {

// HTTP/1.1 on one socket. A Unix socket's peers are known from the kernel; those of
// TCP are not, and are all one user who is not the daemon's. Sizes, times and the
// number of connections are bounded, and such a user is answered so many requests a second.
class ApiServer {
 public:
  // Of every peer on TCP: no user has it.
  static constexpr uid_t kUnknownUser = static_cast<uid_t>(-1);

  struct Request {
    std::string method;
    std::string path;   // without the query, always with a leading '/'
    std::string query;  // without '?'
    std::string body;
    std::string host;  // that the peer says it means; may be anything
    ipc::PeerIdentity peer;
  };
  struct Response {
    int status = 200;
    std::string body;
    const char* content_type = "application/json";
  };

  // Once, now or later, and from the loop's thread.
  using Reply = std::function<void(Response)>;

  ApiServer(EventLoop& loop, FairTurns& turns, const Clock& clock,
            std::function<void(const Request&, Reply)> handle);
  ~ApiServer();
  // Also again, when the socket is not `Listening` any more: somebody removed it.
  void Listen(ipc::UnixListener listener);
  void Listen(ipc::TcpListener listener);
  bool Listening() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpumux::daemon
