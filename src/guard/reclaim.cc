// SPDX-License-Identifier: Apache-2.0
#include "guard/reclaim.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "gpumux/abi/program.h"
#include "gpumux/abi/session.h"
#include "guard/lock.h"
#include "guard/session.h"
#include "guard/wire.h"

namespace gpumux::guard {

namespace {

// Between attempts to reach a daemon, in pieces after each of which a stop is noticed.
constexpr int64_t kRetryMs = 1000;
constexpr int64_t kPieceMs = 100;

struct Listener {
  Lock lock;
  int fd;
  uint64_t inode;  // to notice that the program closed our descriptor and reused its number
  bool waiting;
  bool stop;  // until a wait has seen it: who is between two waits must not miss it
};
constinit Listener l = {};

int64_t NowMs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<int64_t>(t.tv_sec) * 1000 + t.tv_nsec / 1'000'000;
}

// Under the lock, or in the child of a fork.
bool IsOurs() { return l.fd > 0 && InodeOf(l.fd) == l.inode; }
void Close() {
  if (IsOurs()) close(l.fd);
  l.fd = 0;
}

bool Stopped() {
  Held held(l.lock);
  return l.stop;
}

// Says that this process can be asked. A new daemon knows it only after its guard
// has said hello there, which any request brings about.
bool Listen() {
  MemoryAnswer any;
  if (!RequestMemoryInfo(0, &any)) return false;
  const int fd = Connect();
  if (fd < 0) return false;
  const gpumux_reclaim_listen listen = {};
  char answer[sizeof(gpumux_refused)];
  uint32_t bytes = 0;
  if (!Send(fd, GPUMUX_RECLAIM_LISTEN, 1, &listen, sizeof listen) ||
      Receive(fd, 1, answer, sizeof answer, &bytes, nullptr, 0, nullptr) != GPUMUX_RECLAIM_LISTENING) {
    close(fd);
    return false;
  }
  Held held(l.lock);
  l.fd = fd;
  l.inode = InodeOf(fd);
  return true;
}

enum class Came { kQuestion, kNothing, kHungUp };

Came Read(gpumux_reclaim* wanted) {
  struct {
    gpumux_frame frame;
    gpumux_reclaim_request request;
  } packet = {};
  ssize_t n;
  {
    Held held(l.lock);
    if (!IsOurs()) return Came::kHungUp;
    n = recv(l.fd, &packet, sizeof packet, MSG_DONTWAIT);
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return Came::kNothing;
  if (n != static_cast<ssize_t>(sizeof packet) || packet.frame.magic != GPUMUX_SESSION_MAGIC ||
      packet.frame.version != GPUMUX_SESSION_VERSION || packet.frame.type != GPUMUX_RECLAIM_REQUEST ||
      packet.frame.payload_bytes != sizeof packet.request) {
    return Came::kHungUp;
  }
  wanted->id = packet.frame.request_id;
  wanted->device = DeviceOfSlot(static_cast<int>(packet.request.gpu_slot));
  wanted->wanted_bytes = packet.request.wanted_bytes;
  return Came::kQuestion;
}

// Until something is there to be read, at most `ms` (negative: for ever).
void WaitReadable(int64_t ms) {
  pollfd poll_fd = {0, POLLIN, 0};
  {
    Held held(l.lock);
    if (!IsOurs()) return;
    poll_fd.fd = l.fd;
  }
  poll(&poll_fd, 1, ms > 1'000'000 ? 1'000'000 : static_cast<int>(ms));
}

int Wait(gpumux_reclaim* wanted, int timeout_ms) {
  const int64_t deadline = timeout_ms < 0 ? INT64_MAX : NowMs() + timeout_ms;
  int64_t next_attempt = 0;
  for (;;) {
    if (Stopped()) return GPUMUX_ERROR_CANCELLED;
    switch (Read(wanted)) {
      case Came::kQuestion:
        return GPUMUX_SUCCESS;
      case Came::kNothing:
        if (NowMs() >= deadline) return GPUMUX_ERROR_TIMEOUT;
        WaitReadable(timeout_ms < 0 ? -1 : deadline - NowMs());
        break;
      case Came::kHungUp: {
        {
          Held held(l.lock);
          Close();
        }
        const int64_t now = NowMs();
        if (now >= deadline) return GPUMUX_ERROR_TIMEOUT;
        if (now >= next_attempt) {
          next_attempt = now + kRetryMs;
          if (Listen()) break;
        }
        const int64_t left = deadline - now < kPieceMs ? deadline - now : kPieceMs;
        poll(nullptr, 0, static_cast<int>(left));
        break;
      }
    }
  }
}

}  // namespace

int WaitForReclaim(gpumux_reclaim* wanted, int timeout_ms) {
  {
    Held held(l.lock);
    if (l.waiting) return GPUMUX_ERROR_BUSY;
    l.waiting = true;
  }
  const int result = Wait(wanted, timeout_ms);
  Held held(l.lock);
  l.waiting = false;
  if (result == GPUMUX_ERROR_CANCELLED) {
    l.stop = false;
    Close();
  }
  return result;
}

int ReclaimDone(uint32_t id) {
  const gpumux_reclaim_done done = {};
  Held held(l.lock);
  // A daemon that is gone has no question open; the next one asks anew.
  if (IsOurs() && !Send(l.fd, GPUMUX_RECLAIM_DONE, id, &done, sizeof done)) Close();
  return GPUMUX_SUCCESS;
}

int StopReclaim() {
  Held held(l.lock);
  l.stop = true;
  if (!IsOurs()) return GPUMUX_SUCCESS;
  if (l.waiting) {
    shutdown(l.fd, SHUT_RDWR);  // wakes who waits, and who closes it then
  } else {
    Close();
  }
  return GPUMUX_SUCCESS;
}

void ForgetReclaim() {
  l.lock.Reset();
  Close();
  l.waiting = false;
  l.stop = false;
}

}  // namespace gpumux::guard
