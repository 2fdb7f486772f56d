// SPDX-License-Identifier: Apache-2.0
//
// Messages with a file descriptor, for both sides of the socket.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace gpumux::softgpu {

// `descriptor` -1: none goes along.
inline bool SendWithDescriptor(int fd, const void* data, size_t size, int descriptor, int flags) {
  iovec part = {const_cast<void*>(data), size};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof(descriptor));
  }
  ssize_t n;
  do {
    n = sendmsg(fd, &message, MSG_NOSIGNAL | flags);
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(size);
}

// What arrived, in full length even if it did not fit; -1 with errno. The first
// descriptor of a message becomes ours, any other is closed.
inline ssize_t ReceiveWithDescriptor(int fd, void* data, size_t size, int* descriptor, int flags) {
  *descriptor = -1;
  iovec part = {data, size};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  constexpr size_t kMost = 8;
  alignas(cmsghdr) char control[CMSG_SPACE(kMost * sizeof(int))];
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t n;
  do {
    n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | flags);
  } while (n < 0 && errno == EINTR && (flags & MSG_DONTWAIT) == 0);
  if (n < 0) return n;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int one = -1;
      memcpy(&one, CMSG_DATA(header) + i * sizeof(int), sizeof(one));
      if (*descriptor < 0) {
        *descriptor = one;
      } else {
        close(one);
      }
    }
  }
  return n;
}

}  // namespace gpumux::softgpu
