// SPDX-License-Identifier: Apache-2.0
#include "ipc/accept.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace gpumux::ipc {

Result<UniqueFd> AcceptFrom(int listener) {
  for (;;) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) return fd;
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return UniqueFd();
    return Fail(Code::kInternal, fmt::format("cannot accept a connection: {}", std::strerror(errno)));
  }
}

}  // namespace gpumux::ipc
