// SPDX-License-Identifier: Apache-2.0
#include "ipc/tcp_listener.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace gpumux::ipc {

namespace {

constexpr int kBacklog = 64;

socklen_t Fill(const LoopbackAddress& address, sockaddr_storage& out) {
  if (address.IsV6()) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(out);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(address.port);
    ::inet_pton(AF_INET6, address.host.c_str(), &v6.sin6_addr);
    return sizeof v6;
  }
  auto& v4 = reinterpret_cast<sockaddr_in&>(out);
  v4.sin_family = AF_INET;
  v4.sin_port = htons(address.port);
  ::inet_pton(AF_INET, address.host.c_str(), &v4.sin_addr);
  return sizeof v4;
}

}  // namespace

Result<TcpListener> TcpListener::Listen(const LoopbackAddress& address) {
  sockaddr_storage where{};
  const socklen_t size = Fill(address, where);
  TcpListener listener;
  listener.fd_.reset(::socket(where.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.fd_)
    return Fail(Code::kUnavailable, fmt::format("cannot make a TCP socket: {}", std::strerror(errno)));
  // Connections of a daemon before this one, that the kernel still remembers, are no reason to wait.
  const int yes = 1;
  (void)::setsockopt(listener.fd_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(listener.fd_.get(), reinterpret_cast<const sockaddr*>(&where), size) != 0 ||
      ::listen(listener.fd_.get(), kBacklog) != 0) {
    return Fail(errno == EADDRINUSE ? Code::kConflict : Code::kUnavailable,
                fmt::format("cannot listen on {}: {}", address.ToString(), std::strerror(errno)));
  }
  return listener;
}

}  // namespace gpumux::ipc
