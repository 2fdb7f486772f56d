// SPDX-License-Identifier: Apache-2.0
//
// gpumux-softgpud DIRECTORY SPEC: the server of one software GPU. Started by
// the libraries, not by people. Returns 0 once a background process listens.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "sim/gpu_spec_parser.h"
#include "softgpu/server/server.h"

namespace gpumux::softgpu {
namespace {

constexpr size_t kMaxDocumentBytes = 1 << 20;

// The text of a file that is one: no device, no pipe that never ends.
Result<std::string> ReadDocument(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat st;
  if (fd < 0) return Fail(Code::kNotFound, path + ": " + strerror(errno));
  std::string text;
  bool good =
      fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= static_cast<off_t>(kMaxDocumentBytes);
  while (good) {
    char buffer[4096];
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n == 0) break;
    good = n > 0 && text.size() <= kMaxDocumentBytes;
    if (good) text.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  if (!good) return Fail(Code::kInvalid, path + ": not a file of at most 1 MiB");
  return text;
}

Result<sim::Machine> ParseSpec(const std::string& spec) {
  if (!sim::IsGpuDocumentPath(spec)) return sim::ParseGpuList(spec);
  auto text = ReadDocument(spec);
  if (!text) return tl::unexpected(text.error());
  auto machine = sim::ParseGpuDocument(*text);
  if (!machine) machine.error().message = spec + ": " + machine.error().message;
  return machine;
}

int OpenLock(const std::string& path) {
  // First without O_CREAT: in a sticky directory another user's file may be
  // opened but not "created".
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0 && errno == ENOENT) {
    fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd >= 0) fchmod(fd, 0666);
  }
  return fd;
}

int Listen(const std::string& dir) {
  const std::string path = dir + "/" + kSocketName;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    fprintf(stderr, "%s: the path of a socket has at most %zu characters\n", path.c_str(),
            sizeof(address.sun_path) - 1);
    return -1;
  }
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  // What lies there belongs to a server that was killed: we hold its lock.
  unlink(path.c_str());
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), 0666) != 0 || listen(fd, 1024) != 0) {
    fprintf(stderr, "%s: %s\n", path.c_str(), strerror(errno));
    return -1;
  }
  return fd;
}

int Main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s DIRECTORY SPEC\n", argv[0]);
    return 2;
  }
  const std::string dir = argv[1];
  // From here on the program that started us must not read what we write.
  const int log =
      open((dir + "/softgpud.log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(null, 0);
  dup2(null, 1);
  dup2(log >= 0 ? log : null, 2);
  // What it had open is not ours to keep open either.
  close_range(3, ~0U, 0);

  const auto machine = ParseSpec(argv[2]);
  if (!machine) {
    fprintf(stderr, "gpumux-softgpud: GPUMUX_SOFTGPU: %s\n", machine.error().ToString().c_str());
    return 2;
  }
  struct stat st;
  if (stat(dir.c_str(), &st) != 0 || !S_ISDIR(st.st_mode)) {
    fprintf(stderr, "gpumux-softgpud: %s is not a directory\n", dir.c_str());
    return 2;
  }
  const uint64_t identity = (static_cast<uint64_t>(st.st_dev) << 40) ^ st.st_ino;

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
  prctl(PR_SET_NAME, "gpumux-softgpud");
  if (chdir("/") != 0) return 1;
  for (int signal : {SIGINT, SIGHUP, SIGPIPE, SIGTSTP}) std::signal(signal, SIG_IGN);
  for (int signal : {SIGTERM, SIGCHLD}) std::signal(signal, SIG_DFL);
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }

  // Held for life: one server a directory. One that is about to end may still
  // hold it.
  const int lock = OpenLock(dir + "/" + kServerLockName);
  if (lock < 0 || flock(lock, LOCK_EX) != 0) {
    fprintf(stderr, "%s/%s: %s\n", dir.c_str(), kServerLockName, strerror(errno));
    return 1;
  }
  const int listener = Listen(dir);
  if (listener < 0) return 1;
  const char ok = 0;
  if (write(ready[1], &ok, 1) != 1) return 1;
  close(ready[1]);
  {
    Server server(listener, *machine, identity, dir);
    server.Run(std::chrono::seconds(3));
    unlink((dir + "/" + kSocketName).c_str());
  }
  return 0;
}

}  // namespace
}  // namespace gpumux::softgpu

int main(int argc, char** argv) { return gpumux::softgpu::Main(argc, argv); }
