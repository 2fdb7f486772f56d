// SPDX-License-Identifier: Apache-2.0
#include "cli/api_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "cli/envelope.h"
#include "ipc/seqpacket.h"

namespace gpumux::cli {
namespace {

namespace http = boost::beast::http;
using Steady = std::chrono::steady_clock;

constexpr size_t kMaxBody = 64u << 20;

Status WaitFor(int fd, short events, Steady::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Steady::now()).count();
    if (left <= 0) return Fail(Code::kUnavailable, "the daemon does not answer");
    pollfd entry{fd, events, 0};
    if (::poll(&entry, 1, static_cast<int>(left)) > 0) return {};
  }
}

Status SendAll(int fd, std::string_view text, Steady::time_point deadline) {
  while (!text.empty()) {
    if (const Status ready = WaitFor(fd, POLLOUT, deadline); !ready) return ready;
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) return Fail(Code::kUnavailable, fmt::format("the daemon hung up: {}", std::strerror(errno)));
    text.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

Code CodeNamed(const std::string& name) {
  for (const Code code : {Code::kInvalid, Code::kNotFound, Code::kDenied, Code::kConflict, Code::kTimeout,
                          Code::kUnavailable, Code::kUnsupported}) {
    if (Name(code) == name) return code;
  }
  return Code::kInternal;
}

tl::unexpected<Error> ErrorOf(unsigned status, const std::string& body) {
  const nlohmann::json json = nlohmann::json::parse(body, nullptr, false);
  const nlohmann::json& error = At(json, "error");
  const std::string message = TextAt(error, "message", 500);
  if (message.empty())
    return Fail(Code::kInternal, fmt::format("the daemon answered with HTTP status {}", status));
  return Fail(CodeNamed(TextAt(error, "code")), message, TextAt(error, "hint", 500));
}

}  // namespace

std::string PathPart(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.';
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

Result<ApiClient> ApiClient::Connect(const Endpoints& endpoints) {
  std::string refused;
  for (const RuntimePaths& paths : endpoints.all) {
    const auto fd = ipc::ConnectUnix(paths.api_socket, SOCK_STREAM);
    if (fd) return ApiClient(paths.api_socket);
    if (fd.error().code == Code::kDenied) refused = fd.error().message;
  }
  if (!refused.empty()) return Fail(Code::kUnavailable, refused, "you may not use this daemon");
  return Fail(Code::kUnavailable, "no gpumux daemon runs", "gpumux run starts one");
}

Result<std::string> ApiClient::Request(const char* method, const std::string& path, const std::string& body,
                                       std::chrono::milliseconds patience) const {
  const auto deadline = Steady::now() + patience;
  const auto fd = ipc::ConnectUnix(socket_, SOCK_STREAM);
  if (!fd) return tl::unexpected(fd.error());
  std::string request = fmt::format("{} {} HTTP/1.1\r\nHost: gpumux\r\nConnection: close\r\n", method, path);
  if (!body.empty())
    request += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  request += "\r\n" + body;
  if (const Status sent = SendAll(fd->get(), request, deadline); !sent) return tl::unexpected(sent.error());

  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxBody);
  parser.eager(true);
  std::string pending;
  boost::beast::error_code error;
  while (!parser.is_done()) {
    if (const Status ready = WaitFor(fd->get(), POLLIN, deadline); !ready)
      return tl::unexpected(ready.error());
    char buffer[16384];
    const ssize_t n = ::recv(fd->get(), buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Fail(Code::kUnavailable, fmt::format("the daemon hung up: {}", std::strerror(errno)));
    if (n == 0) {
      // An end before the first byte would be taken for an empty answer.
      if (!parser.got_some()) return Fail(Code::kUnavailable, "the daemon hung up without an answer");
      parser.put_eof(error);
      if (error || !parser.is_done())
        return Fail(Code::kUnavailable, "the daemon hung up in the middle of its answer");
      break;
    }
    pending.append(buffer, static_cast<size_t>(n));
    const size_t used = parser.put(boost::asio::buffer(pending), error);
    pending.erase(0, used);
    if (error && error != http::error::need_more) {
      return Fail(Code::kInternal, fmt::format("the daemon's answer is not understood: {}", error.message()));
    }
  }
  const unsigned status = parser.get().result_int();
  if (status / 100 != 2) return ErrorOf(status, parser.get().body());
  return parser.get().body();
}

}  // namespace gpumux::cli
