// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpumux {

// Where only programs of this machine can connect: "127.0.0.1:9835" or "[::1]:9835".
struct LoopbackAddress {
  std::string host;  // without brackets
  uint16_t port = 0;

  bool IsV6() const { return host.find(':') != std::string::npos; }
  std::string ToString() const;
};

// kInvalid: another address, a name, or no port.
Result<LoopbackAddress> ParseLoopbackAddress(std::string_view text);

// The Host of a request means this machine: its port may be any. A web page that has
// its own name lead here says another.
bool IsLoopbackHost(std::string_view host);

}  // namespace gpumux
