// SPDX-License-Identifier: Apache-2.0
#include "host.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "ipc/seqpacket.h"

namespace gpumux::test {

using nlohmann::json;

namespace {
constexpr int kReplyMs = 20'000;
}

std::string Host::ActorProgram() { return Sandbox::TestProgram("random_actor"); }

Host::Host(Sandbox& box) : box_(box), path_(box.dir() + "/steps.sock") {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
  listener_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener_, 64) != 0) {
    ADD_FAILURE() << "cannot listen on " << path_;
  }
  box_.SetEnv("RANDOM_PROGRAM_SOCKET", path_);
  box_.SetEnv("LD_LIBRARY_PATH", Sandbox::Program("../lib/gpumux/softgpu"));
  watcher_ = box_.Start({ActorProgram(), "watch"});
  if (const auto watch = Accept()) watch_fd_ = watch->fd;
}

Host::~Host() {
  if (watch_fd_ >= 0) ::close(watch_fd_);
  ::close(listener_);
}

std::optional<Host::Connection> Host::Accept(pid_t pid) {
  pollfd poll{listener_, POLLIN, 0};
  if (::poll(&poll, 1, kReplyMs) != 1) {
    ADD_FAILURE() << "no process connected";
    return std::nullopt;
  }
  Connection connection;
  connection.fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  const std::string hello = Receive(connection.fd);
  if (sscanf(hello.c_str(), "hello %d", &connection.pid) != 1 || (pid != 0 && pid != connection.pid)) {
    ADD_FAILURE() << "a wrong greeting: " << hello;
    return std::nullopt;
  }
  return connection;
}

void Host::Send(int fd, const std::string& line) { (void)::send(fd, line.data(), line.size(), MSG_NOSIGNAL); }

std::string Host::Receive(int fd) {
  pollfd poll{fd, POLLIN, 0};
  if (::poll(&poll, 1, kReplyMs) != 1) return "nothing came";
  char buffer[65536];
  const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
  return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : std::string();
}

std::string Host::Ask(int fd, const std::string& line) {
  Send(fd, line);
  return Receive(fd);
}

int Host::Do(int fd, const std::string& line) {
  const std::string answer = Ask(fd, line);
  int code = -1;
  (void)sscanf(answer.c_str(), "%d", &code);
  return code;
}

std::map<pid_t, uint64_t> Host::Nvml() {
  std::map<pid_t, uint64_t> figures;
  const std::string text = Ask(watch_fd_, "list");
  if (!text.starts_with("list")) ADD_FAILURE() << "NVML does not answer: " << text;
  int skip = 0;
  unsigned pid = 0;
  unsigned long bytes = 0;
  for (const char* at = text.c_str() + strlen("list"); sscanf(at, " %u:%lu%n", &pid, &bytes, &skip) == 2;
       at += skip) {
    figures[static_cast<pid_t>(pid)] = bytes;
  }
  return figures;
}

json Host::Status() {
  const auto fd = ipc::ConnectUnix(box_.runtime_dir() + "/sim/api.sock", SOCK_STREAM);
  const std::string request = "GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  if (!fd || ::send(fd->get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return nullptr;
  std::string answer;
  char buffer[65536];
  for (ssize_t n; (n = ::recv(fd->get(), buffer, sizeof buffer, 0)) > 0;)
    answer.append(buffer, static_cast<size_t>(n));
  const size_t body = answer.find("\r\n\r\n");
  if (body == std::string::npos) return nullptr;
  const json document = json::parse(answer.substr(body + 4), nullptr, false);
  return document.is_object() ? document.value("data", json()) : json();
}

json Host::Tenant(const std::string& name) {
  const json status = Status();
  if (!status.is_object()) return nullptr;
  for (const json& tenant : status["tenants"]) {
    if (tenant["name"] == name) return tenant;
  }
  return nullptr;
}

}  // namespace gpumux::test
