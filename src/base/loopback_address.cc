// SPDX-License-Identifier: Apache-2.0
#include "base/loopback_address.h"

#include <arpa/inet.h>

#include <charconv>

namespace gpumux {

namespace {

constexpr uint32_t kLoopbackNet = 127;

bool IsLoopback(const std::string& host) {
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == kLoopbackNet;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

// "a:1" or "[a]:1" in two; no port: the second is empty.
std::pair<std::string, std::string_view> Split(std::string_view text) {
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return {};
    const std::string_view rest = text.substr(end + 1);
    if (!rest.empty() && rest[0] != ':') return {};
    return {std::string(text.substr(1, end - 1)), rest.substr(rest.empty() ? 0 : 1)};
  }
  const size_t colon = std::min(text.find(':'), text.size());
  return {std::string(text.substr(0, colon)), text.substr(std::min(colon + 1, text.size()))};
}

}  // namespace

std::string LoopbackAddress::ToString() const {
  return (IsV6() ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<LoopbackAddress> ParseLoopbackAddress(std::string_view text) {
  auto [host, port] = Split(text);
  constexpr const char* kHint = "write for example 127.0.0.1:9835 or [::1]:9835";
  LoopbackAddress address{.host = std::move(host), .port = 0};
  const auto parsed = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (port.empty() || parsed.ec != std::errc() || parsed.ptr != port.data() + port.size() ||
      address.port == 0)
    return Fail(Code::kInvalid, "there is no port from 1 to 65535 in it", kHint);
  // In brackets is what has colons, and nothing else.
  if (!IsLoopback(address.host) || address.IsV6() != text.starts_with('['))
    return Fail(Code::kInvalid, "it is no loopback address: others than this machine could connect", kHint);
  return address;
}

bool IsLoopbackHost(std::string_view text) {
  const std::string host = Split(text).first;
  return host == "localhost" || IsLoopback(host);
}

}  // namespace gpumux
