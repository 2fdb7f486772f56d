// SPDX-License-Identifier: Apache-2.0
#include "guard/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "gpumux/abi/session.h"

namespace gpumux::guard {

namespace {

// The daemon keeps a request back for up to 3 s, until its siblings' calls are
// settled or other programs have made room; well beyond that it hangs.
constexpr int kReplyTimeoutSeconds = 5;
// Programs close the descriptors they know (3 to some small number) when they
// become a daemon; a high number survives most of that.
constexpr int kLowestDescriptor = 500;

}  // namespace

uint64_t InodeOf(int fd) {
  // fstat() has a symbol version above the glibc floor. The layout of what the
  // system call fills is the kernel's stat: st_dev, then st_ino, on x86-64.
  uint64_t raw[32] = {};
  if (syscall(SYS_fstat, fd, raw) != 0) return 0;
  return raw[1];
}

bool Send(int fd, uint16_t type, uint32_t id, const void* payload, uint32_t bytes, const int* fds,
          size_t fd_count) {
  gpumux_frame frame = {GPUMUX_SESSION_MAGIC, GPUMUX_SESSION_VERSION, type, bytes, id};
  iovec parts[2] = {{&frame, sizeof frame}, {const_cast<void*>(payload), bytes}};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * GPUMUX_MAX_FDS)] = {};
  if (fd_count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
    memcpy(CMSG_DATA(c), fds, sizeof(int) * fd_count);
  }
  ssize_t n;
  do {
    n = sendmsg(fd, &message, MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(sizeof frame + bytes);
}

uint16_t Receive(int fd, uint32_t id, void* payload, uint32_t capacity, uint32_t* payload_bytes, int* fds,
                 int max_fds, int* fd_count) {
  for (int tries = 0; tries < 64; tries++) {
    gpumux_frame frame = {};
    iovec parts[2] = {{&frame, sizeof frame}, {payload, capacity}};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * GPUMUX_MAX_FDS)];
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t n;
    do {
      n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    int received[GPUMUX_MAX_FDS];
    int count = 0;
    if (n >= 0) {
      for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        count = static_cast<int>((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(received, CMSG_DATA(c), sizeof(int) * static_cast<size_t>(count));
      }
    }
    const bool whole = n >= static_cast<ssize_t>(sizeof frame) && frame.magic == GPUMUX_SESSION_MAGIC &&
                       frame.version == GPUMUX_SESSION_VERSION &&
                       frame.payload_bytes == static_cast<uint32_t>(n) - sizeof frame &&
                       !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
    const bool wanted = whole && frame.request_id == id;
    for (int i = 0; i < count; i++) {
      if (wanted && fds && i < max_fds) {
        fds[i] = received[i];
      } else {
        close(received[i]);
      }
    }
    if (fd_count) *fd_count = wanted && fds ? (count < max_fds ? count : max_fds) : 0;
    if (!whole) return 0;
    if (!wanted) continue;
    *payload_bytes = frame.payload_bytes;
    return frame.type;
  }
  return 0;
}

int MoveUp(int fd) {
  const int high = fcntl(fd, F_DUPFD_CLOEXEC, kLowestDescriptor);
  if (high < 0) return fd;
  close(fd);
  return high;
}

int Connect() {
  const char* path = getenv(GPUMUX_ENV_SESSION);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (!path || strlen(path) >= sizeof address.sun_path) return -1;
  memcpy(address.sun_path, path, strlen(path) + 1);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  timeval timeout = {kReplyTimeoutSeconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  int r;
  do {
    r = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
  } while (r < 0 && errno == EINTR);
  if (r < 0) {
    close(fd);
    return -1;
  }
  return MoveUp(fd);
}

}  // namespace gpumux::guard
