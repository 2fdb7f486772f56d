// SPDX-License-Identifier: Apache-2.0
#include "ipc/frame.h"

#include <fmt/format.h>

namespace gpumux::ipc {
namespace {

enum class Kind { kUnknown, kStruct, kText };
struct Shape {
  Kind kind = Kind::kUnknown;
  size_t bytes = 0;
};

Shape ShapeOf(uint16_t type) {
  switch (type) {
    case GPUMUX_GUARD_HELLO:
      return {Kind::kStruct, sizeof(gpumux_guard_hello)};
    case GPUMUX_GUARD_WELCOME:
      return {Kind::kStruct, sizeof(gpumux_guard_welcome)};
    case GPUMUX_REFUSED:
      return {Kind::kStruct, sizeof(gpumux_refused)};
    case GPUMUX_CREDIT_REQUEST:
      return {Kind::kStruct, sizeof(gpumux_credit_request)};
    case GPUMUX_CREDIT_REPLY:
      return {Kind::kStruct, sizeof(gpumux_credit_reply)};
    case GPUMUX_MEMORY_INFO_REQUEST:
      return {Kind::kStruct, sizeof(gpumux_memory_info_request)};
    case GPUMUX_MEMORY_INFO:
      return {Kind::kStruct, sizeof(gpumux_memory_info)};
    case GPUMUX_CONTEXT_REQUEST:
      return {Kind::kStruct, sizeof(gpumux_context_request)};
    case GPUMUX_CONTEXT_REPLY:
      return {Kind::kStruct, sizeof(gpumux_context_reply)};
    case GPUMUX_CONTEXT_NOTICE:
      return {Kind::kStruct, sizeof(gpumux_context_notice)};
    case GPUMUX_PROCESS_LIST_REQUEST:
      return {Kind::kStruct, sizeof(gpumux_process_list_request)};
    case GPUMUX_PROCESS_LIST:
      return {Kind::kStruct, sizeof(gpumux_process_list)};
    case GPUMUX_HOLD_DESCRIPTORS:
      return {Kind::kStruct, sizeof(gpumux_hold_descriptors)};
    case GPUMUX_MPS_PLACE_REQUEST:
      return {Kind::kStruct, sizeof(gpumux_mps_place_request)};
    case GPUMUX_MPS_PLACE_REPLY:
      return {Kind::kStruct, sizeof(gpumux_mps_place_reply)};
    case GPUMUX_GATE_REQUEST:
      return {Kind::kStruct, sizeof(gpumux_gate_request)};
    case GPUMUX_GATE_REPLY:
      return {Kind::kStruct, sizeof(gpumux_gate_reply)};
    case GPUMUX_RECLAIM_LISTEN:
      return {Kind::kStruct, sizeof(gpumux_reclaim_listen)};
    case GPUMUX_RECLAIM_LISTENING:
      return {Kind::kStruct, sizeof(gpumux_reclaim_listening)};
    case GPUMUX_RECLAIM_REQUEST:
      return {Kind::kStruct, sizeof(gpumux_reclaim_request)};
    case GPUMUX_RECLAIM_DONE:
      return {Kind::kStruct, sizeof(gpumux_reclaim_done)};
    case GPUMUX_RUN_REQUEST:
    case GPUMUX_RUN_QUEUED:
    case GPUMUX_RUN_GRANTED:
    case GPUMUX_RUN_STARTED:
    case GPUMUX_RUN_ENDED:
    case GPUMUX_RUN_SUMMARY:
    case GPUMUX_RUN_RESUME:
    case GPUMUX_RUN_RESUMED:
    case GPUMUX_RUN_NOTED:
      return {Kind::kText, 0};
    default:
      return {};
  }
}

}  // namespace

Result<Frame> DecodeFrame(std::span<const std::byte> packet) {
  gpumux_frame header;
  if (packet.size() < sizeof header) {
    return Fail(Code::kInvalid, fmt::format("a packet of {} bytes has no header", packet.size()));
  }
  std::memcpy(&header, packet.data(), sizeof header);
  if (header.magic != GPUMUX_SESSION_MAGIC)
    return Fail(Code::kInvalid, "a packet that is not of this protocol");
  if (header.payload_bytes != packet.size() - sizeof header || header.payload_bytes > GPUMUX_MAX_PAYLOAD) {
    return Fail(Code::kInvalid, fmt::format("a frame that announces {} bytes and has {}",
                                            header.payload_bytes, packet.size() - sizeof header));
  }
  if (header.version != GPUMUX_SESSION_VERSION) {
    return Fail(Code::kUnsupported, fmt::format("a frame of protocol version {}; this is version {}",
                                                header.version, GPUMUX_SESSION_VERSION));
  }
  const Shape shape = ShapeOf(header.type);
  if (shape.kind == Kind::kUnknown)
    return Fail(Code::kInvalid, fmt::format("a frame of unknown type {}", header.type));
  if (shape.kind == Kind::kStruct ? header.payload_bytes != shape.bytes : header.payload_bytes == 0) {
    return Fail(Code::kInvalid,
                fmt::format("a frame of type {} with {} bytes", header.type, header.payload_bytes));
  }
  return Frame{.type = static_cast<gpumux_message>(header.type),
               .request_id = header.request_id,
               .payload = packet.subspan(sizeof header)};
}

Result<std::vector<std::byte>> EncodeFrame(gpumux_message type, uint32_t request_id,
                                           std::span<const std::byte> payload) {
  if (payload.size() > GPUMUX_MAX_PAYLOAD) {
    return Fail(Code::kInvalid,
                fmt::format("a message of {} bytes is larger than {}", payload.size(), GPUMUX_MAX_PAYLOAD));
  }
  const gpumux_frame header{.magic = GPUMUX_SESSION_MAGIC,
                            .version = GPUMUX_SESSION_VERSION,
                            .type = static_cast<uint16_t>(type),
                            .payload_bytes = static_cast<uint32_t>(payload.size()),
                            .request_id = request_id};
  std::vector<std::byte> packet(sizeof header + payload.size());
  std::memcpy(packet.data(), &header, sizeof header);
  if (!payload.empty()) std::memcpy(packet.data() + sizeof header, payload.data(), payload.size());
  return packet;
}

Result<std::vector<std::byte>> EncodeText(gpumux_message type, uint32_t request_id, std::string_view json) {
  return EncodeFrame(type, request_id, std::as_bytes(std::span(json.data(), json.size())));
}

}  // namespace gpumux::ipc
