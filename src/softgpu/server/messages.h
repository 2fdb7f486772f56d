// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <ctime>

namespace gpumux::softgpu {

// No GPU here has more: what one request may move, before the model is asked.
inline constexpr uint64_t kMaxAmount = 1ULL << 46;

inline std::chrono::nanoseconds Now() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return std::chrono::seconds(ts.tv_sec) + std::chrono::nanoseconds(ts.tv_nsec);
}

// Whole, or not at all when the peer does not read.
template <typename T>
bool SendOne(int fd, const T& message) {
  return send(fd, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(message);
}

}  // namespace gpumux::softgpu
