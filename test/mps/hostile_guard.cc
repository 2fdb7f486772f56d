// SPDX-License-Identifier: Apache-2.0
//
// hostile_guard SESSION DIR: a program of a tenant of mode mps that says it is a guard
// and sends descriptors as none does. Prints a line for each case: whether the
// daemon hung up. At the end it sends what a guard may, in many rounds, says "sound",
// and sends it again whenever it is called, until it is killed.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "daemon/testing/peers.h"

namespace gpumux::test {
namespace {

using daemon::GuardPeer;

std::string session;

GuardPeer Hello() {
  GuardPeer guard = GuardPeer::Hello(session, getenv("GPUMUX_TENANT"));
  if (!guard.welcome) {
    puts("refused as a guard");
    exit(1);
  }
  return guard;
}

// By the system call: also more than one of ours would send.
bool Send(GuardPeer& guard, gpumux_hold_descriptors message, const std::vector<int>& fds) {
  const auto packet = *ipc::EncodeFrame(GPUMUX_HOLD_DESCRIPTORS, 7, std::as_bytes(std::span(&message, 1)));
  iovec part{const_cast<std::byte*>(packet.data()), packet.size()};
  std::vector<std::byte> control(CMSG_SPACE(fds.size() * sizeof(int)));
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  }
  return sendmsg(guard.socket.fd(), &header, MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size());
}

// Everything that was sent before has been dealt with, and the daemon still listens.
bool Listens(GuardPeer& guard) {
  const gpumux_memory_info_request ask{0, 0};
  guard.Send(GPUMUX_MEMORY_INFO_REQUEST, std::as_bytes(std::span(&ask, 1)));
  return guard.Receive().has_value();
}

void Case(const char* name,
          const std::vector<std::pair<gpumux_hold_descriptors, std::vector<int>>>& messages) {
  GuardPeer guard = Hello();
  for (const auto& [message, fds] : messages) {
    if (!Send(guard, message, fds)) break;
  }
  printf("%s: %s\n", name, Listens(guard) ? "taken" : "hung up");
}

// What stands for a device, as the software GPU's do.
int Device(const std::string& dir, bool fifo) {
  const std::string path = dir + "/dev/nvidia0";
  mkdir(dir.c_str(), 0700);
  mkdir((dir + "/dev").c_str(), 0700);
  if (fifo) mkfifo(path.c_str(), 0600);
  return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

int Main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc != 3) return 2;
  session = argv[1];
  const std::string dir = argv[2];
  const int device = Device(dir + "/fifo", true), file = Device(dir + "/file", false);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC), memory = memfd_create("/dev/nvidia0", MFD_CLOEXEC);
  int pipe[2], sockets[2];
  if (pipe2(pipe, O_CLOEXEC) != 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    return 2;
  close(sockets[1]);
  const std::vector<int> full(GPUMUX_MAX_FDS, device);

  Case("a device", {{{0, 1}, {device}}});
  Case("a whole round in order", {{{0, 40}, full}, {{32, 40}, std::vector<int>(8, device)}});
  Case("none", {{{0, 0}, {}}});
  Case("/dev/null", {{{0, 1}, {null}}});
  Case("a pipe", {{{0, 1}, {pipe[0]}}});
  Case("a socket whose other end is closed", {{{0, 1}, {sockets[0]}}});
  Case("a file with a device's name", {{{0, 1}, {file}}});
  Case("memory with a device's name", {{{0, 1}, {memory}}});
  Case("a pipe behind devices", {{{0, 3}, {device, device, pipe[1]}}});
  Case("more than a message may have", {{{0, 200}, std::vector<int>(200, device)}});
  Case("more than are counted", {{{0, 1}, {device, device}}});
  Case("fewer than the first", {{{0, 0}, {device}}});
  Case("a count and no descriptor", {{{0, 5}, {}}});
  Case("a count above all", {{{0, GPUMUX_MAX_HELD + 1}, full}});
  Case("a count that wraps",
       {{{0, 40}, full}, {{UINT32_MAX - 3, 40}, {device, device, device, device, device}}});
  Case("a part without a first", {{{32, 40}, std::vector<int>(8, device)}});
  Case("a part of another round", {{{0, 40}, full}, {{32, 48}, std::vector<int>(8, device)}});
  Case("a part twice", {{{0, 80}, full}, {{32, 80}, full}, {{32, 80}, full}});

  // Rounds that never come whole, and rounds that do.
  GuardPeer guard = Hello();
  for (int round = 0; round < 200; ++round) {
    if (!Send(guard, {0, 64}, full)) return 1;
  }
  for (int round = 0; round < 50; ++round) {
    if (!Send(guard, {0, 64}, full) || !Send(guard, {32, 64}, full)) return 1;
  }
  const auto called = [&] {
    return std::atomic_ref(guard.limits.as<gpumux_limits_page>()->descriptors_call).load();
  };
  uint32_t answered = called();
  // As a guard does, whose program makes a call now and then.
  const auto send_whole = [&] { return Send(guard, {0, 64}, full) && Send(guard, {32, 64}, full); };
  puts(send_whole() && Listens(guard) ? "sound" : "hung up");
  for (;; usleep(10'000)) {
    const uint32_t call = called();
    if (call != answered && send_whole()) answered = call;
  }
}

}  // namespace
}  // namespace gpumux::test

int main(int argc, char** argv) { return gpumux::test::Main(argc, argv); }
