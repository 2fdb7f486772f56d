// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "base/result.h"
#include "cli/endpoints.h"

namespace gpumux::cli {

// Requests to the daemon's API: HTTP on a Unix socket, one connection each.
// Bodies are JSON text as the daemon wrote it.
class ApiClient {
 public:
  // Finds a daemon that accepts. kUnavailable: none runs (`hint` says how to start one).
  static Result<ApiClient> Connect(const Endpoints& endpoints);
  // Whoever listens at one socket.
  static ApiClient At(std::string socket) { return ApiClient(std::move(socket)); }

  // The body of a successful answer. A refusal of the daemon comes back as its
  // own error (code, message, hint); kUnavailable: nobody listens, it hung up, or said
  // nothing for as long as `patience`; kInternal: it answered something else than HTTP and JSON.
  Result<std::string> Get(const std::string& path,
                          std::chrono::milliseconds patience = std::chrono::seconds(10)) const {
    return Request("GET", path, "", patience);
  }
  Result<std::string> Post(const std::string& path, const std::string& json,
                           std::chrono::milliseconds patience = std::chrono::seconds(10)) const {
    return Request("POST", path, json, patience);
  }

  const std::string& socket() const { return socket_; }

 private:
  explicit ApiClient(std::string socket) : socket_(std::move(socket)) {}
  Result<std::string> Request(const char* method, const std::string& path, const std::string& body,
                              std::chrono::milliseconds patience) const;
  std::string socket_;
};

// A part of a path, with everything but letters, digits, '-', '_' and '.' escaped.
std::string PathPart(const std::string& text);

}  // namespace gpumux::cli
