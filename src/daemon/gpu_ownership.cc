// SPDX-License-Identifier: Apache-2.0
#include "daemon/gpu_ownership.h"

#include <fmt/format.h>
#include <poll.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "daemon/user_name.h"
#include "ipc/seqpacket.h"

namespace gpumux::daemon {

namespace {

// How long an owner may take to greet. Only asked when a GPU is found taken.
constexpr int kGreetingMs = 100;
constexpr int kMaxGreetingsAtOnce = 16;

struct Address {
  sockaddr_un address{};
  socklen_t length = 0;
};

Address AbstractAddress(const std::string& name) {
  Address result;
  result.address.sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), sizeof(result.address.sun_path) - 1);
  std::memcpy(result.address.sun_path + 1, name.data(), size);
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return result;
}

}  // namespace

std::string OwnershipName(const gpu::GpuSource& source, const gpu::Uuid& uuid) {
  std::string name = "gpumux-gpu-" + uuid.ToString();
  if (!source.simulated) return name;
  // A software GPU is another one in every state directory, with whatever UUID.
  std::error_code error;
  const std::string dir = std::filesystem::weakly_canonical(source.dir, error).string();
  uint64_t hash = 14695981039346656037u;
  for (const unsigned char c : dir) hash = (hash ^ c) * 1099511628211u;
  return fmt::format("{}-sim-{:016x}", name, hash);
}

Result<GpuClaim> ClaimGpu(const std::string& name, const std::optional<GpuOwner>& known) {
  const Address at = AbstractAddress(name);
  // The holder may go away between our bind and our connect: then bind again.
  for (int attempt = 0; attempt < 3; ++attempt) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return Fail(Code::kInternal, fmt::format("cannot make a socket: {}", std::strerror(errno)));
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) == 0) {
      if (::listen(fd.get(), 64) != 0)
        return Fail(Code::kInternal, fmt::format("cannot listen: {}", std::strerror(errno)));
      return GpuClaim{std::move(fd), std::nullopt};
    }
    if (errno != EADDRINUSE)
      return Fail(Code::kInternal, fmt::format("cannot claim a GPU: {}", std::strerror(errno)));
    if (known && !known->answers) return GpuClaim{{}, known};
    UniqueFd asking(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!asking) return Fail(Code::kInternal, fmt::format("cannot make a socket: {}", std::strerror(errno)));
    if (::connect(asking.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) != 0) {
      if (errno == EAGAIN)
        return GpuClaim{{}, GpuOwner{static_cast<uid_t>(-1), 0, false}};  // its queue is full
      continue;
    }
    const auto peer = ipc::PeerOf(asking.get());
    if (!peer) return tl::unexpected(peer.error());
    GpuOwner owner{peer->uid, peer->pid, false};
    pollfd poll{asking.get(), POLLIN, 0};
    if (::poll(&poll, 1, kGreetingMs) == 1) {
      char text[1024];
      const ssize_t size = ::recv(asking.get(), text, sizeof text, 0);
      owner.answers = size > 0 && std::string_view(text, size).find("\"gpumux\"") != std::string_view::npos;
    }
    return GpuClaim{{}, owner};
  }
  return Fail(Code::kInternal, "the owner of a GPU comes and goes");
}

bool IsClaimOf(int socket, const std::string& name) {
  const Address expected = AbstractAddress(name);
  sockaddr_un address{};
  socklen_t length = sizeof address;
  int listens = 0;
  socklen_t size = sizeof listens;
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
         length == expected.length && std::memcmp(&address, &expected.address, length) == 0 &&
         ::getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens == 1;
}

void GreetClaimants(int socket, const std::string& api_path) {
  const std::string line =
      nlohmann::json{{"gpumux", "owner"}, {"uid", ::getuid()}, {"pid", ::getpid()}, {"api", api_path}}
          .dump() +
      "\n";
  for (int i = 0; i < kMaxGreetingsAtOnce; ++i) {
    UniqueFd peer(::accept4(socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!peer) return;
    (void)::send(peer.get(), line.data(), line.size(), MSG_NOSIGNAL);
  }
}

Error DescribeOwner(const gpu::Index& gpu_index, const GpuOwner& owner) {
  if (owner.uid == static_cast<uid_t>(-1)) {
    return {Code::kDenied,
            fmt::format("GPU {} is managed by another gpumuxd that does not answer", gpu_index.Label()),
            "ask an administrator for a daemon for the machine: systemctl enable --now gpumuxd"};
  }
  if (!owner.answers) {
    return {Code::kDenied,
            fmt::format(
                "GPU {} still has tenants of an earlier gpumuxd of user {} (pid {}), which does not answer",
                gpu_index.Label(), UserName(owner.uid), owner.pid),
            "wait until they have ended, or stop them"};
  }
  return {Code::kDenied,
          fmt::format("GPU {} is managed by the gpumuxd of user {} (pid {})", gpu_index.Label(),
                      UserName(owner.uid), owner.pid),
          "ask an administrator for a daemon for the machine: systemctl enable --now gpumuxd"};
}

}  // namespace gpumux::daemon
