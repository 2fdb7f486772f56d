// SPDX-License-Identifier: Apache-2.0
#include "service_player.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

namespace gpumux::test {

std::vector<int> UnitCapabilities() {
  const std::map<std::string, int> known = {{"CAP_KILL", CAP_KILL},
                                            {"CAP_SYS_PTRACE", CAP_SYS_PTRACE},
                                            {"CAP_DAC_READ_SEARCH", CAP_DAC_READ_SEARCH}};
  std::vector<int> capabilities;
  std::ifstream unit(GPUMUX_SOURCE_DIR "/packaging/systemd/gpumuxd.service");
  for (std::string line; std::getline(unit, line);) {
    constexpr std::string_view kKey = "CapabilityBoundingSet=";
    if (!line.starts_with(kKey)) continue;
    std::istringstream words(line.substr(kKey.size()));
    for (std::string word; words >> word;) {
      const auto it = known.find(word);
      if (it == known.end())
        ADD_FAILURE() << "not known here: " << word;
      else
        capabilities.push_back(it->second);
    }
  }
  EXPECT_FALSE(capabilities.empty());
  return capabilities;
}

ServicePlayer::ServicePlayer(std::string dir) : dir_(std::move(dir)) {
  EXPECT_EQ(::mkdir(dir_.c_str(), 0755), 0);
  EXPECT_EQ(::chmod(dir_.c_str(), 0755), 0);
  notify_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = dir_ + ".notify";
  std::memcpy(address.sun_path, path.data(), path.size());
  EXPECT_EQ(::bind(notify_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  env_["NOTIFY_SOCKET"] = path;
}

ServicePlayer::~ServicePlayer() {
  if (pid_ > 0) {
    Kill(SIGKILL);
    Wait();
  }
}

void ServicePlayer::OpenSockets(mode_t mode, int session_type, int api_type) {
  session_ = ipc::UnixListener::Listen(session(), session_type, mode).value();
  api_ = ipc::UnixListener::Listen(api(), api_type, mode).value();
}

void ServicePlayer::Start(const std::string& gpumuxd, std::vector<std::string> arguments) {
  const std::vector<int> keep = UnitCapabilities();
  arguments.insert(arguments.begin(), {gpumuxd, "--system", "--foreground", "--runtime-dir", dir_});
  pid_ = ::fork();
  if (pid_ != 0) return;
  if (session_.fd() >= 0) {
    // In an order of names that is not ours, and under another's numbers first.
    ::dup2(::fcntl(api_.fd(), F_DUPFD_CLOEXEC, 20), 3);
    ::dup2(::fcntl(session_.fd(), F_DUPFD_CLOEXEC, 20), 4);
    env_["LISTEN_FDS"] = "2";
    env_["LISTEN_FDNAMES"] = "api:session";
    if (!env_.contains("LISTEN_PID")) env_["LISTEN_PID"] = std::to_string(::getpid());
  }
  const int log = ::open((dir_ + ".log").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
  ::dup2(log, 1);
  ::dup2(log, 2);
  ::umask(0077);
  for (int capability = 0; capability <= CAP_LAST_CAP; ++capability) {
    if (std::find(keep.begin(), keep.end(), capability) == keep.end()) ::prctl(PR_CAPBSET_DROP, capability);
  }
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  std::vector<std::string> environment;
  for (const auto& [key, value] : env_) environment.push_back(key + "=" + value);
  std::vector<char*> argv, envp;
  for (auto& each : arguments) argv.push_back(each.data());
  for (auto& each : environment) envp.push_back(each.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  ::execve(argv[0], argv.data(), envp.data());
  ::_exit(98);
}

void ServicePlayer::Kill(int signal) const { ::kill(pid_, signal); }

int ServicePlayer::Wait() {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::optional<std::string> ServicePlayer::Hear(const std::string& prefix, std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    pollfd poll{notify_.get(), POLLIN, 0};
    if (left <= 0 || ::poll(&poll, 1, static_cast<int>(left)) == 0) return std::nullopt;
    char text[4096];
    const ssize_t size = ::recv(notify_.get(), text, sizeof text, 0);
    if (size > 0 && std::string_view(text, size).starts_with(prefix)) return std::string(text, size);
  }
}

void ServicePlayer::Forget() {
  char text[4096];
  while (::recv(notify_.get(), text, sizeof text, MSG_DONTWAIT) >= 0) {
  }
}

std::string ServicePlayer::Log() const {
  std::ifstream file(dir_ + ".log");
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace gpumux::test
