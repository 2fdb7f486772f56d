// SPDX-License-Identifier: Apache-2.0
//
// gpumux-keeper: holds descriptors for gpumuxd, so that nothing depends on the
// daemon's life (docs/design/keeper.md; the protocol is in gpumux/abi/keeper.h).
// The C library alone, no allocation, one thread but for those that only close
// (closer.h): what may die with the daemon must not die here.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/kill_point.h"
#include "gpumux/abi/keeper.h"
#include "keeper/held.h"

namespace gpumux::keeper {
namespace {

constexpr int kFirstPeerMs = 10000;  // whoever started us connects at once
constexpr unsigned kMaxPeers = GPUMUX_KEEPER_MAX_PEERS;
constexpr int kFramesAtOnce = 64;

struct Peer {
  int fd = -1;
  uint64_t number = 0;   // in the order of their connections
  bool listing = false;  // a Take is being answered
  unsigned next = 0;     // the item that it is told next
};

HeldItems held;
Peer peers[kMaxPeers];
bool had_peer = false;
uint64_t peers_so_far = 0;

bool AnyPeer() {
  for (const Peer& peer : peers) {
    if (peer.fd >= 0) return true;
  }
  return false;
}

void HangUp(unsigned index) {
  close(peers[index].fd);
  peers[index] = Peer{};
  held.HolderGone(static_cast<int>(index));
}

bool IsOurUser(int fd) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 &&
         (credentials.uid == geteuid() || credentials.uid == 0);
}

void Accept(int listener) {
  for (;;) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && errno == EINTR) continue;
    if (fd < 0) return;
    unsigned slot = 0;
    while (slot < kMaxPeers && peers[slot].fd >= 0) ++slot;
    if (slot == kMaxPeers || !IsOurUser(fd)) {
      close(fd);
      continue;
    }
    peers[slot].fd = fd;
    peers[slot].number = ++peers_so_far;
    had_peer = true;
  }
}

uint64_t NowMs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000;
}

bool IsText(const char* field, bool may_be_empty) {
  return memchr(field, 0, GPUMUX_KEEPER_FIELD) != nullptr && (may_be_empty || *field);
}

// What came with a packet.
struct Fds {
  int fd[GPUMUX_KEEPER_MAX_FDS];
  unsigned count = 0;
};

void Close(const Fds& fds) {
  for (unsigned i = 0; i < fds.count; ++i) close(fds.fd[i]);
}

bool IsSound(const gpumux_keeper_frame& frame, unsigned fds) {
  const bool hold = frame.type == GPUMUX_KEEPER_HOLD, linger_for = frame.type == GPUMUX_KEEPER_LINGER_FOR;
  const bool lingers = linger_for || (frame.flags & GPUMUX_KEEPER_LINGER);
  const bool named = hold || linger_for || frame.type == GPUMUX_KEEPER_RELEASE;
  const uint32_t allowed = hold         ? uint32_t{GPUMUX_KEEPER_WATCH | GPUMUX_KEEPER_LINGER}
                           : linger_for ? uint32_t{GPUMUX_KEEPER_DEAD}
                                        : 0;
  const unsigned most = !hold ? 0 : frame.flags == GPUMUX_KEEPER_LINGER ? GPUMUX_KEEPER_MAX_FDS : 1;
  return frame.magic == GPUMUX_KEEPER_MAGIC && frame.version == GPUMUX_KEEPER_VERSION &&
         IsText(frame.group, !named) && IsText(frame.name, !hold) && (frame.flags & ~allowed) == 0 &&
         frame.linger_ms <= (lingers ? GPUMUX_KEEPER_MAX_LINGER_MS : 0) && fds <= most && (fds > 0) == hold;
}

// False: the peer is to be hung up on; what came is closed then.
bool Handle(unsigned index, const gpumux_keeper_frame& frame, const Fds& fds) {
  if (!IsSound(frame, fds.count)) {
    Close(fds);
    return false;
  }
  switch (frame.type) {
    case GPUMUX_KEEPER_HOLD:
      KillPoint("keeper-holding");
      return held.Hold(frame, fds.fd, fds.count, static_cast<int>(index), NowMs());
    case GPUMUX_KEEPER_RELEASE:
      KillPoint("keeper-releasing");
      held.Release(frame.group, frame.name);
      return true;
    case GPUMUX_KEEPER_LINGER_FOR:
      held.LingerFor(frame.group, frame.linger_ms, frame.flags & GPUMUX_KEEPER_DEAD, NowMs());
      return true;
    case GPUMUX_KEEPER_FORGET_OTHERS:
      KillPoint("keeper-forgetting");
      held.ReleaseAllBut(static_cast<int>(index));
      return true;
    case GPUMUX_KEEPER_TAKE:
      KillPoint("keeper-taken");
      peers[index].listing = true;
      peers[index].next = 0;
      return true;
    default:
      return false;
  }
}

// False: hung up, or to be. `more`: something was there.
bool Receive(unsigned index, bool* more) {
  gpumux_keeper_frame frame{};
  iovec part{&frame, sizeof frame};
  Fds fds;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fds.fd)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t size = recvmsg(peers[index].fd, &message, MSG_CMSG_CLOEXEC);
  *more = size > 0 || (size < 0 && errno == ECONNRESET);
  // ECONNRESET: it died with answers unread; what it sent before comes next.
  if (size < 0) return errno == EAGAIN || errno == EINTR || errno == ECONNRESET;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    fds.count = static_cast<unsigned>((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(fds.fd, CMSG_DATA(header), fds.count * sizeof(int));
  }
  // MSG_TRUNC: `size` is what was written, not what was sent.
  if (size != sizeof frame || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    Close(fds);
    return false;
  }
  return Handle(index, frame, fds);
}

// Everything that a dead daemon sent is still there to be read: before it
// counts as gone. True: there may be more to be read.
bool Serve(unsigned index) {
  bool more = true;
  for (int i = 0; i < kFramesAtOnce && more && !peers[index].listing; ++i) {
    if (Receive(index, &more)) continue;
    HangUp(index);
    return false;
  }
  return more && !peers[index].listing;
}

bool Send(int socket, const gpumux_keeper_frame& frame, int fd) {
  iovec part{const_cast<gpumux_keeper_frame*>(&frame), sizeof frame};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof frame;
}

// Goes on when the peer has read.
void List(unsigned index) {
  Peer& peer = peers[index];
  while (peer.listing) {
    gpumux_keeper_frame frame{};
    frame.magic = GPUMUX_KEEPER_MAGIC;
    frame.version = GPUMUX_KEEPER_VERSION;
    frame.type = GPUMUX_KEEPER_END;
    int fd = -1;
    if (peer.next < held.count()) {
      const Held& item = held.at(peer.next);
      frame.type = GPUMUX_KEEPER_ITEM;
      if (item.watched) frame.flags |= GPUMUX_KEEPER_WATCH;
      if (item.lingers) frame.flags |= GPUMUX_KEEPER_LINGER;
      if (item.dead) frame.flags |= GPUMUX_KEEPER_DEAD;
      frame.linger_ms = item.LeftMs(NowMs());
      memcpy(frame.group, item.group, sizeof frame.group);
      memcpy(frame.name, item.name, sizeof frame.name);
      fd = item.watched || item.lingers ? -1 : item.fds[0];
    }
    if (!Send(peer.fd, frame, fd)) {
      if (errno == EINTR) continue;
      // Too many descriptors on their way count as a full queue: it goes on when some have arrived.
      if (errno != EAGAIN && errno != ETOOMANYREFS) HangUp(index);
      return;
    }
    KillPoint("keeper-giving");
    if (frame.type == GPUMUX_KEEPER_END) peer.listing = false;
    ++peer.next;
  }
}

// A daemon that lost patience with us and connects again says what supersedes what it had
// said before: nothing of a later connection is read while an earlier one has more.
void ServePeers(const pollfd* polls) {
  unsigned order[kMaxPeers];
  for (unsigned i = 0; i < kMaxPeers; ++i) {
    unsigned at = i;
    for (; at > 0 && peers[order[at - 1]].number > peers[i].number; --at) order[at] = order[at - 1];
    order[at] = i;
  }
  for (const unsigned i : order) {
    if (peers[i].fd < 0 || peers[i].fd != polls[i].fd || polls[i].revents == 0) continue;
    if (peers[i].listing) {
      List(i);
    } else if (Serve(i)) {
      return;
    }
  }
}

// Waits, and does what there is to do. False: nothing is left to be here for.
bool Turn(int listener) {
  static pollfd polls[1 + kMaxPeers + GPUMUX_KEEPER_MAX_ITEMS];
  static unsigned item_of[GPUMUX_KEEPER_MAX_ITEMS];
  polls[0] = {listener, POLLIN, 0};
  for (unsigned i = 0; i < kMaxPeers; ++i)
    polls[1 + i] = {peers[i].fd, static_cast<short>(peers[i].listing ? POLLOUT : POLLIN), 0};
  unsigned watched = 0;
  for (unsigned i = 0; i < held.count(); ++i) {
    if (!held.at(i).watched) continue;
    polls[1 + kMaxPeers + watched] = {held.at(i).fds[0], POLLIN, 0};
    item_of[watched++] = i;
  }
  const int ready = poll(polls, 1 + kMaxPeers + watched, had_peer ? held.NextMs(NowMs()) : kFirstPeerMs);
  if (ready < 0) return errno == EINTR;
  if (ready == 0 && !had_peer) return false;
  // Downwards: Died() moves the last item.
  for (unsigned i = watched; i-- > 0;) {
    if (polls[1 + kMaxPeers + i].revents != 0) held.Died(item_of[i], NowMs());
  }
  held.LetGo(NowMs());
  // A new daemon before the old one's hang-up: nothing is let go in between.
  if (polls[0].revents != 0) Accept(listener);
  ServePeers(polls + 1);
  if (AnyPeer() || !had_peer) return true;
  held.ReleaseUnwatched();
  if (held.count() > 0) return true;
  Accept(listener);
  return AnyPeer();
}

bool IsListener(int fd) {
  int type = 0, listens = 0;
  socklen_t size = sizeof type;
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET) return false;
  size = sizeof listens;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens == 1;
}

int Main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    puts(GPUMUX_VERSION);
    return 0;
  }
  const int listener = GPUMUX_KEEPER_LISTEN_FD;
  if (argc != 1 || !IsListener(listener)) {
    fputs("gpumux-keeper: is started by gpumuxd or systemd, with its socket as descriptor 3\n", stderr);
    return 2;
  }
  const int flags = fcntl(listener, F_GETFL);
  if (flags < 0 || fcntl(listener, F_SETFL, flags | O_NONBLOCK) != 0) return 1;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
  }
  KillPoint("keeper-started");
  while (Turn(listener)) {
  }
  return 0;
}

}  // namespace
}  // namespace gpumux::keeper

int main(int argc, char** argv) { return gpumux::keeper::Main(argc, argv); }
