// SPDX-License-Identifier: Apache-2.0
#include "ipc/seqpacket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "ipc/accept.h"
#include "ipc/frame.h"

namespace gpumux::ipc {
namespace {

constexpr int kBacklog = 128;

Result<sockaddr_un> Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Fail(Code::kInvalid,
                fmt::format("the socket path {} has {} bytes; {} are possible", path, path.size(),
                            sizeof address.sun_path - 1),
                "set GPUMUX_RUNTIME_DIR to a shorter path");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

}  // namespace

Result<PeerIdentity> PeerOf(int fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return Fail(Code::kInternal, fmt::format("cannot tell who the peer is: {}", std::strerror(errno)));
  }
  return PeerIdentity{credentials.pid, credentials.uid, credentials.gid};
}

Result<UniqueFd> ConnectUnix(const std::string& path, int type) {
  const auto address = Address(path);
  if (!address) return tl::unexpected(address.error());
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!fd) return Fail(Code::kInternal, fmt::format("cannot make a socket: {}", std::strerror(errno)));
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    if (errno == EINTR) continue;
    Code code = Code::kUnavailable;
    if (errno == ENOENT) code = Code::kNotFound;
    if (errno == EACCES || errno == EPERM) code = Code::kDenied;
    if (errno == EAGAIN) code = Code::kTimeout;
    return Fail(code, fmt::format("cannot connect to {}: {}", path, std::strerror(errno)));
  }
  return fd;
}

Result<SeqpacketSocket> SeqpacketSocket::Connect(const std::string& path) {
  auto fd = ConnectUnix(path, SOCK_SEQPACKET);
  if (!fd) return tl::unexpected(fd.error());
  return SeqpacketSocket(std::move(*fd));
}

Result<SeqpacketSocket> SeqpacketSocket::ConnectAtOnce(const std::string& path) {
  auto fd = ConnectUnix(path, SOCK_SEQPACKET | SOCK_NONBLOCK);
  if (!fd) return tl::unexpected(fd.error());
  return SeqpacketSocket(std::move(*fd));
}

Status SeqpacketSocket::SetNonBlocking() {
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return Fail(Code::kInternal, fmt::format("cannot make a socket non-blocking: {}", std::strerror(errno)));
  }
  return {};
}

Status SeqpacketSocket::Send(std::span<const std::byte> packet, std::span<const int> fds) {
  if (fds.size() > GPUMUX_MAX_FDS) return Fail(Code::kInvalid, "too many descriptors for one packet");
  iovec part{const_cast<std::byte*>(packet.data()), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * GPUMUX_MAX_FDS)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  while (::sendmsg(fd_.get(), &message, MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    // ETOOMANYREFS: the user has as many descriptors on their way as one may have open.
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ETOOMANYREFS)
      return Fail(Code::kTimeout, "the peer does not read");
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) {
      return Fail(Code::kUnavailable, "the peer has hung up");
    }
    return Fail(Code::kInternal, fmt::format("cannot send: {}", std::strerror(errno)));
  }
  return {};
}

Result<Received> SeqpacketSocket::Receive() {
  Received received;
  received.bytes.resize(kMaxPacketBytes);
  iovec part{received.bytes.data(), received.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * GPUMUX_MAX_FDS)];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t length;
  do {
    length = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
  } while (length < 0 && errno == EINTR);
  if (length < 0) {
    received.bytes.clear();
    if (errno == EAGAIN || errno == EWOULDBLOCK) return received;
    if (errno == ECONNRESET || errno == EPIPE) {
      received.what = Received::What::kClosed;
      return received;
    }
    return Fail(Code::kInternal, fmt::format("cannot receive: {}", std::strerror(errno)));
  }
  // Descriptors first, so that they are owned (and closed) whatever follows.
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      received.fds.emplace_back(fd);
    }
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) return Fail(Code::kInvalid, "a packet that is too large");
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return Fail(Code::kInvalid, "a packet with more descriptors than fit or than this process may open");
  }
  // An empty packet cannot be told from the end; no message is empty.
  received.what = length == 0 ? Received::What::kClosed : Received::What::kPacket;
  received.bytes.resize(static_cast<size_t>(length));
  return received;
}

UnixListener::UnixListener(UnixListener&& other) noexcept
    : fd_(std::move(other.fd_)),
      path_(std::exchange(other.path_, {})),
      device_(other.device_),
      inode_(other.inode_) {}

UnixListener& UnixListener::operator=(UnixListener&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  return *this;
}

UnixListener::~UnixListener() {
  if (!path_.empty() && InPlace()) ::unlink(path_.c_str());
}

bool UnixListener::InPlace() const {
  // One that was adopted: its file is who made it's to look after.
  if (path_.empty()) return fd_.valid();
  struct stat info{};
  return ::lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
}

Result<UnixListener> UnixListener::Listen(const std::string& path, int type, mode_t mode) {
  const auto address = Address(path);
  if (!address) return tl::unexpected(address.error());
  struct stat info{};
  if (::lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode))
      return Fail(Code::kConflict, fmt::format("{} exists and is not a socket", path));
    // Full: one that stands still listens all the same.
    const auto other = ConnectUnix(path, type | SOCK_NONBLOCK);
    if (other || other.error().code != Code::kUnavailable) {
      return Fail(Code::kConflict, fmt::format("somebody listens on {} already", path));
    }
    ::unlink(path.c_str());
  }
  UnixListener listener;
  listener.fd_.reset(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.fd_)
    return Fail(Code::kInternal, fmt::format("cannot make a socket: {}", std::strerror(errno)));
  // Nobody can connect between bind and listen, so the mode is in force in time.
  if (::bind(listener.fd_.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    return Fail(errno == EADDRINUSE ? Code::kConflict : Code::kUnavailable,
                fmt::format("cannot make the socket {}: {}", path, std::strerror(errno)));
  }
  listener.path_ = path;
  if (::lstat(path.c_str(), &info) == 0) {
    listener.device_ = info.st_dev;
    listener.inode_ = info.st_ino;
  }
  if (::chmod(path.c_str(), mode) != 0 || ::listen(listener.fd_.get(), kBacklog) != 0) {
    return Fail(Code::kUnavailable, fmt::format("cannot listen on {}: {}", path, std::strerror(errno)));
  }
  return listener;
}

UnixListener UnixListener::Adopt(UniqueFd fd) {
  UnixListener listener;
  listener.fd_ = std::move(fd);
  return listener;
}

UniqueFd UnixListener::Release() {
  path_.clear();
  return std::move(fd_);
}

Result<UniqueFd> UnixListener::Accept() { return AcceptFrom(fd_.get()); }

}  // namespace gpumux::ipc
