// SPDX-License-Identifier: Apache-2.0
//
// A keeper by itself, and who talks to it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../support/sandbox.h"
#include "base/process.h"
#include "gpumux/abi/keeper.h"
#include "ipc/frame.h"
#include "ipc/seqpacket.h"

namespace gpumux::test {

inline gpumux_keeper_frame MakeFrame(unsigned type, const std::string& group = "",
                                     const std::string& name = "", uint32_t flags = 0,
                                     uint32_t linger_ms = 0) {
  gpumux_keeper_frame frame{};
  frame.magic = GPUMUX_KEEPER_MAGIC;
  frame.version = GPUMUX_KEEPER_VERSION;
  frame.type = static_cast<uint16_t>(type);
  frame.flags = flags;
  frame.linger_ms = linger_ms;
  ipc::SetField(frame.group, group);
  ipc::SetField(frame.name, name);
  return frame;
}

// A peer of the keeper.
class Link {
 public:
  explicit Link(const std::string& path) : socket_(ipc::SeqpacketSocket::Connect(path).value()) {}
  explicit Link(ipc::SeqpacketSocket socket) : socket_(std::move(socket)) {}

  bool Send(const gpumux_keeper_frame& frame, int fd = -1) {
    return fd < 0 ? socket_.Send(std::as_bytes(std::span(&frame, 1))).has_value()
                  : Send(frame, std::vector{fd});
  }
  bool Send(const gpumux_keeper_frame& frame, const std::vector<int>& fds) {
    // By the system call: also more of them than one of ours would send.
    iovec part{const_cast<gpumux_keeper_frame*>(&frame), sizeof frame};
    std::vector<std::byte> control(CMSG_SPACE(fds.size() * sizeof(int)));
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
    }
    return sendmsg(socket_.fd(), &message, MSG_NOSIGNAL) == sizeof frame;
  }
  void Hold(const std::string& group, const std::string& name, int fd) {
    EXPECT_TRUE(Send(MakeFrame(GPUMUX_KEEPER_HOLD, group, name), fd));
  }
  void Watch(const std::string& group, pid_t pid, uint32_t flags = GPUMUX_KEEPER_WATCH) {
    const auto pidfd = OpenPidfd(pid);
    ASSERT_TRUE(pidfd);
    EXPECT_TRUE(
        Send(MakeFrame(GPUMUX_KEEPER_HOLD, group, "process " + std::to_string(pid), flags), pidfd->get()));
  }
  // Group/name of everything that is held, and the descriptor; nullopt: hung up.
  std::optional<std::map<std::string, UniqueFd>> Take() {
    std::map<std::string, UniqueFd> items;
    if (!Send(MakeFrame(GPUMUX_KEEPER_TAKE))) return std::nullopt;
    for (;;) {
      auto received = socket_.Receive();
      gpumux_keeper_frame frame{};
      if (!received || received->bytes.size() != sizeof frame) return std::nullopt;
      std::memcpy(&frame, received->bytes.data(), sizeof frame);
      if (frame.type == GPUMUX_KEEPER_END) return items;
      EXPECT_EQ(frame.type, GPUMUX_KEEPER_ITEM);
      EXPECT_EQ(received->fds.size(), frame.flags == 0 ? 1u : 0u);
      last_item = frame;
      items[ipc::FieldText(frame.group) + "/" + ipc::FieldText(frame.name)] =
          received->fds.empty() ? UniqueFd() : std::move(received->fds[0]);
    }
  }
  size_t Count() {
    const auto items = Take();
    return items ? items->size() : SIZE_MAX;
  }
  bool HungUp() {
    pollfd poll{socket_.fd(), POLLIN, 0};
    if (::poll(&poll, 1, 10000) != 1) return false;
    const auto received = socket_.Receive();
    return !received || received->what == ipc::Received::What::kClosed;
  }
  void Close() { socket_.Close(); }

  gpumux_keeper_frame last_item{};  // of Take

 private:
  ipc::SeqpacketSocket socket_;
};

// A process to be watched.
class Sleeper {
 public:
  Sleeper() : pid_(fork()) {
    if (pid_ == 0) {
      for (;;) pause();
    }
  }
  ~Sleeper() { Kill(); }
  void Kill() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

class Keeper : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = box_.dir() + "/keeper.sock";
    auto listener = ipc::UnixListener::Listen(path_, SOCK_SEQPACKET, 0600);
    ASSERT_TRUE(listener);
    const UniqueFd socket = listener->Release();
    const std::string program = Sandbox::Program("gpumux-keeper");
    const std::string mark = "GPUMUX_RUNTIME_DIR=" + box_.runtime_dir();
    pid_ = fork();
    if (pid_ == 0) {
      const char* const argv[] = {"gpumux-keeper", nullptr};
      const char* const envp[] = {mark.c_str(), nullptr};
      dup2(fcntl(socket.get(), F_DUPFD_CLOEXEC, 10), 3);
      execve(program.c_str(), const_cast<char**>(argv), const_cast<char**>(envp));
      _exit(98);
    }
  }
  // Its exit code; nullopt while it lives.
  std::optional<int> Ended() {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void ExpectItEnds() {
    std::optional<int> code;
    EXPECT_TRUE(WaitUntil("the keeper ends", [&] { return (code = Ended()).has_value(); }));
    EXPECT_EQ(code, 0);
  }
  // A pipe of which the keeper will have the write end alone: its read end tells
  // when that is closed.
  struct Pipe {
    UniqueFd read, write;
  };
  static Pipe MakePipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
  }
  static bool Closed(const Pipe& pipe) {
    pollfd poll{pipe.read.get(), POLLIN, 0};
    return ::poll(&poll, 1, 0) == 1;
  }

  Sandbox box_;
  std::string path_;
  pid_t pid_ = 0;
};

}  // namespace gpumux::test
