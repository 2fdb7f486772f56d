// SPDX-License-Identifier: Apache-2.0
#include "daemon/service_manager.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/log.h"

namespace gpumux::daemon {

namespace {

constexpr int kMostSockets = 32;

std::string TakeVariable(const char* name) {
  const char* value = std::getenv(name);
  std::string text = value ? value : "";
  ::unsetenv(name);
  return text;
}

std::optional<uint64_t> Number(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Our children inherit our environment's text, not the meaning: both protocols
// name the process they are for.
bool IsForUs(const std::string& pid) { return Number(pid) == static_cast<uint64_t>(::getpid()); }

}  // namespace

ServiceManager ServiceManager::FromEnvironment(int listen_fds_start) {
  ServiceManager manager;
  manager.notify_path_ = TakeVariable("NOTIFY_SOCKET");
  const std::string watchdog_pid = TakeVariable("WATCHDOG_PID");
  if (const auto usec = Number(TakeVariable("WATCHDOG_USEC"));
      usec && *usec > 0 && *usec < 1'000'000'000'000 && (watchdog_pid.empty() || IsForUs(watchdog_pid)))
    manager.watchdog_ = std::chrono::microseconds(*usec);
  const bool ours = IsForUs(TakeVariable("LISTEN_PID"));
  const auto count = Number(TakeVariable("LISTEN_FDS"));
  const std::string names = TakeVariable("LISTEN_FDNAMES");
  if (!ours || !count || *count > kMostSockets) return manager;
  size_t at = 0;
  for (int i = 0; i < static_cast<int>(*count); ++i) {
    const size_t end = std::min(names.find(':', at), names.size());
    UniqueFd fd(listen_fds_start + i);
    const int flags = ::fcntl(fd.get(), F_GETFL);
    if (flags < 0) {
      fd.release();  // not open: there is nothing to close
    } else {
      ::fcntl(fd.get(), F_SETFD, FD_CLOEXEC);
      ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK);
      manager.sockets_.emplace(names.substr(at, end - at), std::move(fd));
    }
    at = std::min(end + 1, names.size());
  }
  return manager;
}

Result<UniqueFd> ServiceManager::TakeSocket(const std::string& name, int type) {
  const auto it = sockets_.find(name);
  if (it == sockets_.end()) return UniqueFd();
  UniqueFd fd = std::move(it->second);
  sockets_.erase(it);
  int is_type = 0, listens = 0, domain = 0;
  socklen_t size = sizeof is_type;
  const bool right = ::getsockopt(fd.get(), SOL_SOCKET, SO_TYPE, &is_type, &size) == 0 && is_type == type &&
                     ::getsockopt(fd.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 &&
                     listens == 1 && ::getsockopt(fd.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
                     domain == AF_UNIX;
  if (!right) {
    return Fail(Code::kInvalid,
                fmt::format("the socket '{}' that was passed is no listening Unix socket of type {}", name,
                            type == SOCK_STREAM ? "stream" : "seqpacket"),
                "see gpumuxd.socket and gpumuxd-api.socket");
  }
  return fd;
}

void ServiceManager::Notify(const std::string& state) const {
  if (notify_path_.empty()) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (notify_path_.size() >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, notify_path_.data(), notify_path_.size());
  if (address.sun_path[0] == '@') address.sun_path[0] = 0;
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + notify_path_.size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::sendto(fd.get(), state.data(), state.size(), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&address), length) < 0)
    LogDebug("the service manager does not hear: {}", std::strerror(errno));
}

}  // namespace gpumux::daemon
