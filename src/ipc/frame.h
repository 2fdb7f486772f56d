// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/result.h"
#include "gpumux/abi/session.h"

namespace gpumux::ipc {

inline constexpr size_t kMaxPacketBytes = sizeof(gpumux_frame) + GPUMUX_MAX_PAYLOAD;

// A checked view of a packet; lives as long as the packet's bytes.
struct Frame {
  gpumux_message type{};
  uint32_t request_id = 0;
  std::span<const std::byte> payload;

  // The payload of a JSON message.
  std::string_view Text() const { return {reinterpret_cast<const char*>(payload.data()), payload.size()}; }
};

// Checks everything that the header says: magic, version, known type, length
// equal to the packet's, and for messages with a struct the struct's size; JSON
// messages have 1 to GPUMUX_MAX_PAYLOAD bytes, which are not looked at.
// kUnsupported: another version (the header is otherwise sound); kInvalid: all else.
Result<Frame> DecodeFrame(std::span<const std::byte> packet);

// A copy of the payload, which DecodeFrame found to have T's size.
template <typename T>
T PayloadAs(const Frame& frame) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value{};
  if (frame.payload.size() == sizeof(T)) std::memcpy(&value, frame.payload.data(), sizeof(T));
  return value;
}

// The text in a fixed field of a peer's struct, up to its NUL or its end.
template <size_t N>
std::string FieldText(const char (&field)[N]) {
  return std::string(field, ::strnlen(field, N));
}

// Fills such a field; what does not fit is cut, and a NUL always follows.
template <size_t N>
void SetField(char (&field)[N], std::string_view text) {
  const size_t length = text.size() < N ? text.size() : N - 1;
  std::memcpy(field, text.data(), length);
  std::memset(field + length, 0, N - length);
}

// A packet. kInvalid when the payload is larger than GPUMUX_MAX_PAYLOAD.
Result<std::vector<std::byte>> EncodeFrame(gpumux_message type, uint32_t request_id,
                                           std::span<const std::byte> payload);
Result<std::vector<std::byte>> EncodeText(gpumux_message type, uint32_t request_id, std::string_view json);

template <typename T>
std::vector<std::byte> EncodeStruct(gpumux_message type, uint32_t request_id, const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= GPUMUX_MAX_PAYLOAD);
  return *EncodeFrame(type, request_id, std::as_bytes(std::span(&value, 1)));
}

}  // namespace gpumux::ipc
