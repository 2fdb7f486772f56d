// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace gpumux::ipc {

// Who is at the other end, as the kernel recorded it when the peer connected;
// the pid is in our own pid namespace, 0 if the peer is outside of it.
struct PeerIdentity {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

// kInternal when the descriptor is no Unix socket.
Result<PeerIdentity> PeerOf(int fd);

// What one receive gave.
struct Received {
  enum class What { kPacket, kClosed, kWouldBlock } what = What::kWouldBlock;
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;  // close-on-exec
};

// A connected SOCK_SEQPACKET socket. One thread at a time.
class SeqpacketSocket {
 public:
  SeqpacketSocket() = default;
  explicit SeqpacketSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  // Blocking. kNotFound: no such socket; kUnavailable: nobody listens, or the
  // daemon's queue is full; kDenied: no right to connect.
  static Result<SeqpacketSocket> Connect(const std::string& path);
  // Non-blocking, now and later. kTimeout: so many wait to be accepted that it would block.
  static Result<SeqpacketSocket> ConnectAtOnce(const std::string& path);

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  void Close() { fd_.reset(); }
  Status SetNonBlocking();

  // The whole packet or nothing. kTimeout: the peer does not read (only on a
  // non-blocking socket); kUnavailable: the peer is gone. Never raises SIGPIPE.
  Status Send(std::span<const std::byte> packet, std::span<const int> fds = {});

  // kInvalid: a packet above kMaxPacketBytes or with more than GPUMUX_MAX_FDS
  // descriptors. Nothing of it is kept, its descriptors are closed, and the
  // connection should be ended.
  Result<Received> Receive();

 private:
  UniqueFd fd_;
};

// A Unix socket that accepts. The file, if it still is its own, is removed at the
// end of its life.
class UnixListener {
 public:
  // `type` is SOCK_SEQPACKET or SOCK_STREAM. Replaces a socket that nobody
  // listens on any more; kConflict when somebody does; kInvalid when `path` is
  // longer than an address may be (107 bytes). Non-blocking, close-on-exec.
  static Result<UnixListener> Listen(const std::string& path, int type, mode_t mode);

  // A socket that listens already; its file is somebody else's.
  static UnixListener Adopt(UniqueFd fd);

  UnixListener() = default;
  UnixListener(UnixListener&& other) noexcept;
  UnixListener& operator=(UnixListener&& other) noexcept;
  ~UnixListener();

  int fd() const { return fd_.get(); }
  // The socket alone, for a process that goes on listening: the file stays.
  UniqueFd Release();
  // The file is there, and still this socket's: who connects comes here.
  bool InPlace() const;
  // A non-blocking, close-on-exec socket; an invalid one when nobody waits.
  // kInternal, e.g. when the process has no descriptor left.
  Result<UniqueFd> Accept();

 private:
  UniqueFd fd_;
  std::string path_;
  dev_t device_ = 0;  // of the file
  ino_t inode_ = 0;
};

// Connects a socket of `type`; errors as SeqpacketSocket::Connect.
Result<UniqueFd> ConnectUnix(const std::string& path, int type);

}  // namespace gpumux::ipc
