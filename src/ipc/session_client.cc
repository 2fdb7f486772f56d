// SPDX-License-Identifier: Apache-2.0
#include "ipc/session_client.h"

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>

#include "ipc/frame.h"

namespace gpumux::ipc {
namespace {

Status SendText(SeqpacketSocket& socket, gpumux_message type, std::string_view json,
                std::span<const int> fds = {}) {
  const auto packet = EncodeText(type, 0, json);
  if (!packet) return tl::unexpected(packet.error());
  return socket.Send(*packet, fds);
}

}  // namespace

Result<SessionClient> SessionClient::Connect(const std::string& path) {
  auto socket = SeqpacketSocket::Connect(path);
  if (!socket) return tl::unexpected(socket.error());
  return SessionClient(std::move(*socket), path);
}

Status SessionClient::SendRequest(std::string_view json) {
  return SendText(socket_, GPUMUX_RUN_REQUEST, json);
}
Status SessionClient::SendResume(std::string_view json, std::span<const int> locks) {
  return SendText(socket_, GPUMUX_RUN_RESUME, json, locks);
}
Status SessionClient::SendStarted(std::string_view json) {
  return SendText(socket_, GPUMUX_RUN_STARTED, json);
}
Status SessionClient::SendEnded(std::string_view json) { return SendText(socket_, GPUMUX_RUN_ENDED, json); }

Result<std::optional<SessionEvent>> SessionClient::Next(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entry{socket_.fd(), POLLIN, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    break;
  }
  auto received = socket_.Receive();
  if (!received) return tl::unexpected(received.error());
  SessionEvent event;
  if (received->what == Received::What::kWouldBlock) return std::nullopt;
  if (received->what == Received::What::kClosed) return event;
  const auto frame = DecodeFrame(received->bytes);
  if (!frame) return tl::unexpected(frame.error());
  switch (frame->type) {
    case GPUMUX_RUN_QUEUED:
      event.type = SessionEvent::Type::kQueued;
      break;
    case GPUMUX_RUN_GRANTED:
      event.type = SessionEvent::Type::kGranted;
      break;
    case GPUMUX_RUN_RESUMED:
      event.type = SessionEvent::Type::kResumed;
      break;
    case GPUMUX_RUN_NOTED:
      event.type = SessionEvent::Type::kNoted;
      break;
    case GPUMUX_RUN_SUMMARY:
      event.type = SessionEvent::Type::kSummary;
      break;
    case GPUMUX_REFUSED: {
      const auto refused = PayloadAs<gpumux_refused>(*frame);
      event.type = SessionEvent::Type::kRefused;
      event.refusal = FieldText(refused.text);
      event.exit_code = refused.exit_code;
      event.reason = refused.reason;
      return event;
    }
    default:
      return Fail(Code::kInvalid,
                  fmt::format("the daemon sent a message of type {} here", static_cast<int>(frame->type)));
  }
  event.json = std::string(frame->Text());
  event.locks = std::move(received->fds);
  return event;
}

}  // namespace gpumux::ipc
