// SPDX-License-Identifier: Apache-2.0
//
// nvidia-cuda-mps-control of the software GPU: the daemon of MPS, and what
// passes it commands.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>

#include "softgpu/mps/control_daemon.h"
#include "softgpu/names.h"

namespace gpumux::softgpu {

// Faults are asked for by rule, not by exported name: there are none.
extern const char* const kFrontNames[];
const char* const kFrontNames[] = {nullptr};

}  // namespace gpumux::softgpu

namespace gpumux::softgpu::mps {
namespace {

constexpr char kUsage[] =
    "usage: nvidia-cuda-mps-control [-d | -f] [-multiuser-server]\n"
    "       nvidia-cuda-mps-control [-v | -h]\n"
    "\n"
    "MPS of the software GPU (simulated). Without an option it reads commands from\n"
    "standard input and passes them to the daemon of CUDA_MPS_PIPE_DIRECTORY.\n"
    "\n"
    "  -d                 start the daemon in the background\n"
    "  -f                 start the daemon in the foreground\n"
    "  -multiuser-server  with -d or -f, as root: one server for all users\n"
    "  -v                 print the version\n"
    "  -h                 print this\n";

int ServeInForeground(const ControlDaemon::Options& options) {
  ControlDaemon daemon(options);
  return daemon.Open() ? daemon.Run() : 1;
}

// The caller goes on when the daemon listens.
int ServeInBackground(const ControlDaemon::Options& options) {
  close_range(3, ~0U, 0);  // what the caller has open is not ours to keep open
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) return 1;
  const pid_t child = fork();
  if (child < 0) return 1;
  if (child > 0) {
    close(ready[1]);
    char byte = 1;
    return read(ready[0], &byte, 1) == 1 ? byte : 1;
  }
  close(ready[0]);
  setsid();
  if (fork() > 0) _exit(0);
  ControlDaemon daemon(options);
  const char byte = daemon.Open() ? 0 : 1;
  fflush(nullptr);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd : {0, 1, 2}) dup2(null, fd);
  if (write(ready[1], &byte, 1) != 1 || byte != 0) return 1;
  close(ready[1]);
  return chdir("/") == 0 ? daemon.Run() : 1;
}

int Connect(const std::string& pipes) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = pipes + "/" + kControlSocket;
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (path.size() >= sizeof(address.sun_path) || access((pipes + "/" + kMarkFile).c_str(), F_OK) != 0)
    return -1;
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ? fd : -1;
}

// False: the daemon is gone.
bool Command(int fd, const std::string& line) {
  const ControlRequest request = {.op = ControlOp::kCommand};
  std::string packet(reinterpret_cast<const char*>(&request), sizeof(request));
  packet += line.substr(0, kMaxCommand);
  if (send(fd, packet.data(), packet.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(packet.size()))
    return false;
  for (;;) {
    char buffer[sizeof(CommandReply) + kMaxReplyText];
    ssize_t n;
    do {
      n = recv(fd, buffer, sizeof(buffer), 0);
    } while (n < 0 && errno == EINTR);
    CommandReply head;
    if (n < static_cast<ssize_t>(sizeof(head))) return false;
    memcpy(&head, buffer, sizeof(head));
    if (head.magic != kControlMagic) return false;
    fwrite(buffer + sizeof(head), 1, static_cast<size_t>(n) - sizeof(head), stdout);
    if (head.last == 1) return true;
  }
}

int PassCommands(const std::string& pipes) {
  const int fd = Connect(pipes);
  if (fd < 0) {
    printf("Cannot find MPS control daemon process\n");
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    if (!Command(fd, line)) return 1;
    fflush(stdout);
    if (line.starts_with("quit")) return 0;
  }
  return 0;
}

int Main(int argc, char** argv) {
  bool background = false, foreground = false, every_user = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option == "-d") {
      background = true;
    } else if (option == "-f") {
      foreground = true;
    } else if (option == "-multiuser-server") {
      every_user = true;
    } else if (option == "-v") {
      printf("CUDA MPS Control binary version: %d (software GPU, simulated)\n", kDriverVersion);
      return 0;
    } else if (option == "-h") {
      fputs(kUsage, stdout);
      return 0;
    } else {
      // -S and --static-partitioning too: they came with CUDA 13.1.
      fprintf(stderr, "nvidia-cuda-mps-control: unrecognized option '%s'\n%s", argv[i], kUsage);
      return 1;
    }
  }
  const Location location = FindLocation();
  ControlDaemon::Options options;
  options.pipes = PipeDirectory(getenv("CUDA_MPS_PIPE_DIRECTORY"), location.dir);
  options.logs = LogDirectory(getenv("CUDA_MPS_LOG_DIRECTORY"), location.dir);
  options.every_user = every_user;
  if (every_user && geteuid() != 0) {
    fprintf(stderr, "nvidia-cuda-mps-control: -multiuser-server is for root\n");
    return 1;
  }
  if (!background && !foreground)
    return every_user ? (fputs(kUsage, stderr), 1) : PassCommands(options.pipes);
  return background ? ServeInBackground(options) : ServeInForeground(options);
}

}  // namespace
}  // namespace gpumux::softgpu::mps

int main(int argc, char** argv) { return gpumux::softgpu::mps::Main(argc, argv); }
