// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "ipc/seqpacket.h"

namespace gpumux::ipc {

// What the daemon says to `run`. `json` is as it came (not yet parsed).
struct SessionEvent {
  enum class Type { kQueued, kGranted, kRefused, kSummary, kResumed, kNoted, kClosed };
  Type type = Type::kClosed;
  std::string json;
  std::vector<UniqueFd> locks;  // with kGranted: one a GPU
  std::string refusal;          // with kRefused
  int exit_code = 0;            // with kRefused
  uint32_t reason = 0;          // with kRefused: enum gpumux_reason
};

// `run`'s end of a session (see gpumux/abi/session.h). One thread. Closing it
// while the request waits cancels the request.
class SessionClient {
 public:
  // Errors as SeqpacketSocket::Connect.
  static Result<SessionClient> Connect(const std::string& path);

  // For poll(): readable when Next has something.
  int fd() const { return socket_.fd(); }

  const std::string& path() const { return path_; }

  Status SendRequest(std::string_view json);
  // To a daemon that took over; answered by kResumed or kRefused.
  Status SendResume(std::string_view json, std::span<const int> locks);
  Status SendStarted(std::string_view json);
  Status SendEnded(std::string_view json);

  // The next event; nullopt when none came within `timeout`. kClosed when the
  // daemon hung up; kInvalid when what came is not of this protocol.
  Result<std::optional<SessionEvent>> Next(std::chrono::milliseconds timeout);

 private:
  SessionClient(SeqpacketSocket socket, std::string path)
      : socket_(std::move(socket)), path_(std::move(path)) {}
  SeqpacketSocket socket_;
  std::string path_;
};

}  // namespace gpumux::ipc
