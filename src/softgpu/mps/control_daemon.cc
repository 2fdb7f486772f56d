// SPDX-License-Identifier: Apache-2.0
#include "softgpu/mps/control_daemon.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "softgpu/faults.h"
#include "softgpu/server/codes.h"

namespace gpumux::softgpu::mps {

namespace {

constexpr size_t kMaxPeers = 1024;

bool MakeDirectories(const std::string& dir) {
  for (size_t at = 1; at != std::string::npos;) {
    at = dir.find('/', at);
    if (mkdir(dir.substr(0, at).c_str(), 0755) != 0 && errno != EEXIST && errno != EACCES && errno != EROFS)
      return false;
    if (at != std::string::npos) ++at;
  }
  return access(dir.c_str(), W_OK) == 0;
}

bool WriteFile(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) return false;
  const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(fd);
  return written;
}

std::string Variable(const char* name) {
  const char* value = getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

ControlDaemon::~ControlDaemon() {
  for (int fd : {listener_, lock_, signals_, log_fd_, server_log_}) {
    if (fd >= 0) close(fd);
  }
}

bool ControlDaemon::Open() {
  if (!MakeDirectories(options_.pipes) || !MakeDirectories(options_.logs)) {
    fprintf(stderr, "Cannot use %s or %s: %s\n", options_.pipes.c_str(), options_.logs.c_str(),
            strerror(errno));
    return false;
  }
  lock_ =
      open((options_.pipes + "/" + kControlLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (lock_ < 0 || flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    printf("An instance of this daemon is already running\n");
    return false;
  }
  const int append = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
  log_fd_ = open((options_.logs + "/control.log").c_str(), append, 0644);
  server_log_ = open((options_.logs + "/server.log").c_str(), append, 0644);
  log_ = Log(log_fd_);
  if (!gpu_.Open(Role::kNvml) || !gpu_.Describe(&gpus_)) {
    fprintf(stderr, "There is no software GPU\n");
    return false;
  }
  const std::string path = options_.pipes + "/" + kControlSocket;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    printf("Cannot find MPS control daemon process\n");
    return false;
  }
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  unlink(path.c_str());  // of a daemon that was killed: we have its lock
  listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), 0666) != 0 || listen(listener_, 256) != 0) {
    fprintf(stderr, "%s: %s\n", path.c_str(), strerror(errno));
    return false;
  }
  char identity[20];
  snprintf(identity, sizeof(identity), "%llx", static_cast<unsigned long long>(gpu_.identity()));
  if (!WriteFile(options_.pipes + "/" + kMarkFile, identity)) return false;

  defaults_.percent = ParsePercentage(Variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")).value_or(100);
  defaults_.below_normal = ParsePriority(Variable("CUDA_MPS_CLIENT_PRIORITY")).value_or(false);
  defaults_.limits = ParseLimits(Variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")).value_or(std::vector<Limit>());
  return true;
}

int ControlDaemon::Run() {
  // The process that serves, not the one that was started in the foreground.
  if (!WriteFile(options_.pipes + "/" + kPidFile, std::to_string(getpid()))) return 1;
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signals_ = signalfd(-1, &signals, SFD_CLOEXEC);
  Say("Starting control daemon using socket " + options_.pipes + "/" + kControlSocket);
  Say("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=" + options_.pipes);
  Say("CUDA MPS Control binary version: " + std::to_string(gpus_.front().cuda_version));
  while (!quitting_ || !servers_.empty()) {
    std::vector<pollfd> fds = {{signals_, POLLIN, 0}, {listener_, POLLIN, 0}};
    auto deadline = Clock::time_point::max();
    for (const Server& server : servers_) {
      fds.push_back({server.process, POLLIN, 0});
      fds.push_back({server.socket, POLLIN, 0});
    }
    for (const Peer& peer : peers_) {
      fds.push_back({peer.fd, POLLIN, 0});
      deadline = std::min(deadline, peer.deadline);
    }
    int wait = -1;
    if (deadline != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      wait = static_cast<int>(std::max<int64_t>(left.count(), 0));
    }
    if (poll(fds.data(), fds.size(), wait) < 0 && errno != EINTR) return 1;
    if (fds[0].revents != 0) {
      for (Server& server : servers_) EndServer(server, SIGTERM);
      quitting_ = true;
      signals_ = -1;  // a second one comes to nothing
    }
    size_t at = 2;
    for (Server& server : servers_) {
      if (fds[at + 1].revents != 0) OnServer(server);
      if (fds[at].revents != 0) Reap(server);
      at += 2;
    }
    for (Peer& peer : peers_) {
      if (fds[at++].revents != 0) OnPeer(peer);
    }
    if (fds[1].revents != 0) Accept();
    std::erase_if(servers_, [](const Server& server) { return server.pid == 0; });
    Reconsider();
    std::erase_if(peers_, [](const Peer& peer) {
      if (peer.gone) close(peer.fd);
      return peer.gone;
    });
  }
  Say("Exit");
  for (const char* name : {kControlSocket, kPidFile, kMarkFile})
    unlink((options_.pipes + "/" + name).c_str());
  for (Peer& peer : peers_) {
    if (peer.waits_for) Reply(peer, "");
    close(peer.fd);
  }
  return 0;
}

// A script may order it (docs/reference/software-gpu-faults.md).
void ControlDaemon::Hang() {
  const FaultRun* faults = CurrentFaults();
  while (faults != nullptr && faults->script().mps_hangs) {
    poll(nullptr, 0, 20);
    faults = CurrentFaults();
  }
}

void ControlDaemon::Accept() {
  const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return;
  ucred who = {};
  socklen_t size = sizeof(who);
  if (peers_.size() >= kMaxPeers || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) {
    close(fd);
    return;
  }
  Say("Accepting connection...");
  Peer peer;
  peer.fd = fd;
  peer.pid = who.pid;
  peer.uid = who.uid;
  peer.gid = who.gid;
  peers_.push_back(peer);
}

void ControlDaemon::OnPeer(Peer& peer) {
  char buffer[sizeof(ControlRequest) + kMaxCommand];
  const ssize_t n = recv(peer.fd, buffer, sizeof(buffer), MSG_DONTWAIT | MSG_TRUNC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  ControlRequest request;
  const size_t size = n > 0 ? static_cast<size_t>(n) : 0;
  if (size < sizeof(request) || size > sizeof(buffer) || peer.pending || peer.waits_for ||
      peer.offered != 0) {
    peer.gone = true;
    return;
  }
  Hang();  // with something to answer: who hangs up keeps nobody waiting
  memcpy(&request, buffer, sizeof(request));
  if (request.magic != kControlMagic || request.version != kControlVersion) {
    peer.gone = true;
  } else if (request.op == ControlOp::kClient) {
    const std::string who =
        "NEW CLIENT " + std::to_string(peer.pid) + " from user " + std::to_string(peer.uid);
    // A daemon that is not root's can start servers of its own user alone.
    if (geteuid() != 0 && peer.uid != geteuid()) {
      Say(who + ": User is not permitted");
      Offer offer;
      offer.error = kNotPermitted;
      Answer(peer, offer);
      return;
    }
    const bool ready = std::any_of(servers_.begin(), servers_.end(), [](const Server& s) { return s.ready; });
    Say(who + (ready ? ": Server already exists" : ": Server is not ready, push client to pending list"));
    peer.pending = true;
  } else if (request.op == ControlOp::kCommand) {
    std::string line(buffer + sizeof(request), size - sizeof(request));
    Say("NEW UI: " + line.substr(0, 200));
    if (const auto text = Execute(peer, line)) Reply(peer, *text);
  } else {
    peer.gone = true;
  }
}

void ControlDaemon::Answer(Peer& peer, const Offer& offer) {
  send(peer.fd, &offer, sizeof(offer), MSG_NOSIGNAL | MSG_DONTWAIT);
  peer.pending = false;
  peer.gone = offer.error != 0;  // else it hangs up when it has joined
}

bool ControlDaemon::HasClients(const Server& server) {
  return std::any_of(peers_.begin(), peers_.end(),
                     [&](const Peer& peer) { return peer.offered == server.pid && !peer.gone; }) ||
         !Clients(server).empty();
}

void ControlDaemon::Fail(int code) {
  Offer offer;
  offer.error = code;
  for (Peer& peer : peers_) {
    if (peer.pending && !peer.gone) Answer(peer, offer);
  }
}

Offer ControlDaemon::MakeOffer(const Server& server) {
  Offer offer;
  offer.server = server.number;
  offer.percent = server.settings.percent;
  offer.below_normal = server.settings.below_normal ? 1 : 0;
  std::vector<std::string> uuids;
  for (uint32_t gpu : server.gpus) {
    offer.gpu[offer.gpus++] = gpu;
    uuids.push_back(UuidOfGpu(gpu));
  }
  // A device that is none changes nothing: nobody checks what is set.
  for (const Limit& limit : server.settings.limits) {
    if (const auto device = FindDevice(limit.device, uuids)) offer.limit[*device] = limit.bytes;
  }
  return offer;
}

void ControlDaemon::Reconsider() {
  for (Peer& peer : peers_) {
    if (peer.deadline > Clock::now()) continue;
    peer.deadline = Clock::time_point::max();
    for (Server& server : servers_) {
      if (peer.waits_for == 0 || peer.waits_for == server.pid) EndServer(server, SIGKILL);
    }
  }
  const auto current =
      std::find_if(servers_.begin(), servers_.end(), [](const Server& s) { return !s.told_to_end; });
  for (Peer& peer : peers_) {
    if (!peer.pending || peer.gone || quitting_) continue;
    if (servers_.empty()) {
      if (StartServer(options_.every_user ? 0 : peer.uid, peer.gid)) return;
      Fail(kMpsConnectionFailed);
      return;
    }
    if (current == servers_.end() || !current->ready || current->stopping) break;
    if (!options_.every_user && current->uid != peer.uid) {
      current->stopping = true;
      break;
    }
    peer.offered = current->pid;
    Answer(peer, MakeOffer(*current));
  }
  if (quitting_) Fail(kMpsConnectionFailed);
  for (Server& server : servers_) {
    if (server.ready && server.stopping && !server.told_to_end && !HasClients(server))
      EndServer(server, SIGTERM);
  }
  // Commands whose server has ended.
  for (Peer& peer : peers_) {
    if (!peer.waits_for || *peer.waits_for == 0) continue;
    const bool there = std::any_of(servers_.begin(), servers_.end(),
                                   [&](const Server& s) { return s.pid == *peer.waits_for; });
    if (there) continue;
    peer.waits_for.reset();
    peer.deadline = Clock::time_point::max();
    Reply(peer, "");
  }
}

ServerOrders ControlDaemon::MakeOrders(const Settings& settings, bool every_user) {
  ServerOrders orders;
  orders.every_user = every_user ? 1 : 0;
  orders.percent = settings.percent;
  orders.below_normal = settings.below_normal ? 1 : 0;
  std::string limits;
  for (const Limit& limit : settings.limits) {
    const std::string one = limit.device + "=" + std::to_string(limit.bytes >> 20) + "M,";
    if (limits.size() + one.size() <= sizeof(orders.limits)) limits += one;
  }
  if (!limits.empty()) limits.pop_back();
  memcpy(orders.limits, limits.data(), limits.size());
  return orders;
}

bool ControlDaemon::StartServer(uid_t uid, gid_t gid) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) return false;
  char own[4096];
  const ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
  std::string program(own, length > 0 ? static_cast<size_t>(length) : 0);
  program = program.substr(0, program.rfind('/') + 1) + "nvidia-cuda-mps-server";
  const pid_t child = fork();
  if (child == 0) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    // First out of the way of their numbers.
    const int socket = fcntl(sockets[1], F_DUPFD_CLOEXEC, 10), log = fcntl(server_log_, F_DUPFD_CLOEXEC, 10);
    if (dup2(socket, kServerSocket) < 0 || dup2(log, kServerLog) < 0) _exit(127);
    if (geteuid() == 0 && uid != 0 && (setgroups(0, nullptr) != 0 || setgid(gid) != 0 || setuid(uid) != 0))
      _exit(127);
    setenv("GPUMUX_SOFTGPU_DIR", gpu_.dir().c_str(), 1);
    unsetenv("LD_PRELOAD");
    execl(program.c_str(), program.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  close(sockets[1]);
  if (child < 0) {
    close(sockets[0]);
    return false;
  }
  const ServerOrders orders = MakeOrders(defaults_, options_.every_user);
  if (send(sockets[0], &orders, sizeof(orders), MSG_NOSIGNAL) != sizeof(orders)) {
    Say("Server " + std::to_string(child) + " does not listen");  // its end is noticed as any other's
  }
  log_.Write("Control", child,
             "Starting new server " + std::to_string(child) + " for user " + std::to_string(uid));
  Server server;
  server.pid = child;
  server.process = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  server.socket = sockets[0];
  server.uid = uid;
  server.settings = defaults_;
  servers_.push_back(std::move(server));
  return true;
}

void ControlDaemon::OnServer(Server& server) {
  char buffer[sizeof(ServerReady) + 8];
  const ssize_t n = recv(server.socket, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (n == 0) {
    close(server.socket);
    server.socket = -1;
  }
  if (n != sizeof(ServerReady)) return;  // an event: who waits is looked at again
  ServerReady ready;
  memcpy(&ready, buffer, sizeof(ready));
  if (ready.error != 0) {
    Fail(ready.error);
    return;
  }
  server.ready = true;
  server.number = ready.number;
  for (uint32_t i = 0; i < std::min(ready.gpus, kMaxGpus); ++i) {
    if (ready.gpu[i] < gpus_.size()) server.gpus.push_back(ready.gpu[i]);
  }
  Say("NEW SERVER " + std::to_string(server.pid) + ": Ready");
}

void ControlDaemon::Reap(Server& server) {
  int status = 0;
  waitpid(server.pid, &status, 0);
  Say("Server " + std::to_string(server.pid) + " exited with status " + std::to_string(status));
  // One that nobody asked to end leaves those who wait for it without an answer.
  if (!server.ready) Fail(kMpsConnectionFailed);
  close(server.process);
  if (server.socket >= 0) close(server.socket);
  server.pid = 0;
}

void ControlDaemon::EndServer(Server& server, int signal) {
  server.told_to_end = true;
  if (server.pid > 0) kill(server.pid, signal);
}

ControlDaemon::Server* ControlDaemon::FindServer(std::string_view pid) {
  for (Server& server : servers_) {
    if (std::to_string(server.pid) == pid) return &server;
  }
  return nullptr;
}

std::vector<MpsClientEntry> ControlDaemon::Clients(const Server& server) {
  auto list = std::make_unique<MpsClientList>();
  if (!server.ready || !gpu_.MpsClients(server.number, list.get())) return {};
  return {list->entries, list->entries + list->count};
}

}  // namespace gpumux::softgpu::mps
