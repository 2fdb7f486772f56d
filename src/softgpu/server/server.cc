// SPDX-License-Identifier: Apache-2.0
#include "softgpu/server/server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <utility>

#include "softgpu/descriptors.h"
#include "softgpu/names.h"
#include "softgpu/uuid.h"

namespace gpumux::softgpu {

namespace {

constexpr size_t kMaxPeers = 8192;
// No GPU here has more: what one request may move, before the model is asked.
constexpr uint64_t kMaxAmount = 1ULL << 46;
#ifndef SO_PEERPIDFD
constexpr int kSoPeerPidfd = 77;
#else
constexpr int kSoPeerPidfd = SO_PEERPIDFD;
#endif

std::chrono::nanoseconds Now() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return std::chrono::seconds(ts.tv_sec) + std::chrono::nanoseconds(ts.tv_nsec);
}

// A descriptor that tells when the peer ends. Asked of the socket where the
// kernel can (6.5), so that a reused pid cannot be meant.
int PeerProcess(int fd, pid_t pid) {
  int pidfd = -1;
  socklen_t size = sizeof(pidfd);
  if (getsockopt(fd, SOL_SOCKET, kSoPeerPidfd, &pidfd, &size) == 0) return pidfd;
  return pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1;
}

template <typename T>
bool SendOne(int fd, const T& message) {
  return send(fd, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(message);
}

// NVML's numbers of compute modes.
constexpr uint64_t kDefault = 0, kProhibited = 2, kExclusiveProcess = 3;

Description Describe(const sim::Machine& machine, uint32_t index, uint64_t identity) {
  const sim::GpuInstance& gpu = machine.gpus[index];
  Description d;
  snprintf(d.name, sizeof(d.name), "%.60s%s", gpu.name.c_str(), kSimulatedMark);
  if (gpu.uuid) {
    memcpy(d.uuid, gpu.uuid->data(), sizeof(d.uuid));
  } else {
    memcpy(d.uuid, MakeUuid(identity, index).bytes, sizeof(d.uuid));
  }
  snprintf(d.driver_version, sizeof(d.driver_version), "%s",
           machine.driver_version.empty() ? kSystemDriverVersion : machine.driver_version.c_str());
  d.cuda_version = machine.cuda_version != 0 ? machine.cuda_version : kDriverVersion;
  d.pci_device = gpu.model.pci_device;
  d.pci_subsystem = gpu.model.pci_subsystem;
  d.sms = gpu.spec.sms;
  d.threads_per_sm = gpu.spec.threads_per_sm;
  d.blocks_per_sm = gpu.spec.blocks_per_sm;
  d.major = gpu.model.major;
  d.minor = gpu.model.minor;
  d.clock_mhz = gpu.model.clock_mhz;
  d.memory_clock_mhz = gpu.model.memory_clock_mhz;
  d.bus_bits = gpu.model.bus_bits;
  d.l2_kib = gpu.model.l2_kib;
  d.shared_kib_per_sm = gpu.model.shared_kib_per_sm;
  d.flags = (gpu.model.mig ? kFlagMig : 0) | (gpu.model.ecc ? kFlagEcc : 0) |
            (gpu.model.unified ? kFlagUnified : 0);
  d.total = gpu.spec.nvml_total;
  d.usable = gpu.spec.usable;
  return d;
}

}  // namespace

Server::Server(int listener, const sim::Machine& machine, uint64_t identity) : identity_(identity) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  Add({.kind = Kind::kListener, .fd = listener});
  Add({.kind = Kind::kTimer, .fd = timer_});
  for (uint32_t i = 0; i < machine.gpus.size(); ++i) {
    gpus_.push_back(std::make_unique<Gpu>(machine.gpus[i].spec));
    gpus_.back()->description = Describe(machine, i, identity);
  }
}

Server::~Server() {
  for (const auto& [token, source] : sources_) close(source.fd);
  close(epoll_);
}

uint64_t Server::Add(Source source) {
  const uint64_t token = next_token_++;
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = token;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, source.fd, &event);
  if (source.kind == Kind::kPeer) ++peers_;
  sources_.emplace(token, source);
  return token;
}

void Server::Remove(uint64_t token) {
  auto it = sources_.find(token);
  if (it == sources_.end()) return;
  if (it->second.kind == Kind::kPeer) --peers_;
  close(it->second.fd);
  sources_.erase(it);
}

void Server::Run(std::chrono::milliseconds idle) {
  auto quiet_since = Now();
  for (;;) {
    epoll_event events[64];
    const int n = epoll_wait(epoll_, events, std::size(events), peers_ == 0 ? 100 : -1);
    if (n < 0 && errno != EINTR) return;
    for (int i = 0; i < n; ++i) {
      const uint64_t token = events[i].data.u64;
      auto it = sources_.find(token);
      if (it == sources_.end()) continue;
      switch (it->second.kind) {
        case Kind::kListener:
          Accept();
          break;
        case Kind::kTimer: {
          uint64_t expirations;
          if (read(timer_, &expirations, sizeof(expirations)) > 0) armed_ = {};
          break;
        }
        case Kind::kProcess:
          DropClient(it->second.client);
          break;
        case Kind::kExport: {
          // Nobody has the other end open any more.
          const uint64_t inode = it->second.inode;
          Remove(token);
          shares_.RemoveExport(inode);
          break;
        }
        case Kind::kPeer:
          if (events[i].events & EPOLLOUT) {
            if (auto client = clients_.find(it->second.client); client != clients_.end())
              Flush(client->second);
          }
          if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) OnPeer(token);
          break;
      }
    }
    RunModels();
    SetTimer();
    if (peers_ > 0) quiet_since = Now();
    if (Now() - quiet_since >= idle) return;
  }
}

void Server::Accept() {
  const int listener = sources_.at(1).fd;
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return;
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (peers_ >= kMaxPeers || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    close(fd);
    return;
  }
  Add({.kind = Kind::kPeer, .fd = fd, .pid = peer.pid, .uid = peer.uid});
}

void Server::OnPeer(uint64_t token) {
  // A few messages at a time: a client that launches in bursts is served
  // quickly and cannot keep the others waiting.
  for (int i = 0; i < 16; ++i) {
    auto it = sources_.find(token);
    if (it == sources_.end()) return;
    alignas(8) char buffer[256];
    int descriptor = -1;
    const ssize_t n =
        ReceiveWithDescriptor(it->second.fd, buffer, sizeof(buffer), &descriptor, MSG_TRUNC | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    const size_t size = n > 0 ? static_cast<size_t>(n) : 0;
    bool keep = size > 0 && size <= sizeof(buffer);
    if (keep) {
      Source& source = it->second;
      keep = !source.greeted              ? OnHello(token, source, buffer, size)
             : source.role == Role::kWork ? OnWork(source, buffer, size)
                                          : OnControl(source, buffer, size, std::exchange(descriptor, -1));
    }
    if (descriptor >= 0) close(descriptor);
    if (!keep) {
      DropPeer(token);
      return;
    }
  }
}

bool Server::OnHello(uint64_t token, Source& source, const void* data, size_t size) {
  Hello hello;
  if (size != sizeof(hello)) return false;
  memcpy(&hello, data, sizeof(hello));
  HelloReply reply;
  reply.gpus = static_cast<uint32_t>(gpus_.size());
  reply.identity = identity_;
  if (hello.op != Op::kHello || hello.magic != kMagic || hello.version != kVersion) {
    reply.answer = Answer::kRefused;
    SendOne(source.fd, reply);
    return false;
  }
  if (hello.role == Role::kWork) {
    auto client = clients_.find(hello.client);
    if (client == clients_.end() || client->second.pid != source.pid || client->second.work != 0)
      return false;
    client->second.work = token;
    source.client = hello.client;
  } else if (hello.role == Role::kCuda) {
    source.client = next_client_++;
    Client& client = clients_[source.client];
    client.pid = source.pid;
    client.control = token;
    for (auto& gpu : gpus_) gpu->memory.AddProcess(source.client);
    if (const int pidfd = PeerProcess(source.fd, source.pid); pidfd >= 0) {
      client.process = Add({.kind = Kind::kProcess, .fd = pidfd, .client = source.client});
    }
    reply.client = source.client;
  } else if (hello.role != Role::kNvml) {
    return false;
  }
  source.role = hello.role;
  source.greeted = true;
  return SendOne(source.fd, reply);
}

bool Server::OnControl(Source& source, const void* data, size_t size, int descriptor) {
  Request request;
  if (size == sizeof(request)) {
    memcpy(&request, data, sizeof(request));
    if (request.op >= Op::kShare && request.op <= Op::kDetach) {
      return OnShare(source, request, descriptor);
    }
  }
  if (descriptor >= 0) close(descriptor);
  if (size != sizeof(request)) return false;
  if (request.gpu >= gpus_.size() || request.amount > kMaxAmount) return false;
  Gpu& gpu = *gpus_[request.gpu];
  Reply reply;
  switch (request.op) {
    case Op::kMemory:
      reply.values[0] = gpu.description.total;
      reply.values[1] = gpu.description.total - gpu.description.usable;
      reply.values[2] = gpu.description.usable;
      reply.values[3] = gpu.memory.used();
      break;
    case Op::kUtilization:
      reply.values[0] = static_cast<uint64_t>(gpu.model.BusyShare(Now(), std::chrono::seconds(1)) * 1e6);
      reply.values[1] = gpu.compute_mode;
      break;
    case Op::kDescribe:
      return SendOne(source.fd, gpu.description);
    case Op::kSetComputeMode:
      if (source.uid != 0) {
        reply.answer = Answer::kRefused;
      } else if (request.amount != kDefault && request.amount != kProhibited &&
                 request.amount != kExclusiveProcess) {
        reply.answer = Answer::kInvalid;
      } else {
        gpu.compute_mode = request.amount;
      }
      break;
    case Op::kProcesses:
      return SendProcesses(source, request.gpu);
    case Op::kAddContext:
    case Op::kRemoveContext:
    case Op::kTake:
    case Op::kGive:
    case Op::kTouchManaged:
    case Op::kFreeManaged:
      if (source.role != Role::kCuda) return false;
      reply.answer = Change(source.client, request);
      break;
    default:
      return false;
  }
  return SendOne(source.fd, reply);
}

bool Server::OnShare(Source& source, const Request& request, int descriptor) {
  Reply reply;
  int attached = -1;
  bool opened = false;
  const uint64_t client = source.client;
  const auto done = [&](bool ok) { reply.answer = ok ? Answer::kOk : Answer::kInvalid; };
  if (source.role != Role::kCuda || request.gpu >= gpus_.size() || request.amount > kMaxAmount) {
    if (descriptor >= 0) close(descriptor);
    return false;
  }
  uint64_t key = request.key;
  switch (request.op) {
    case Op::kShare:
      if (descriptor >= 0) {
        reply.values[0] = shares_.Add(client, request.gpu, request.amount,
                                      fcntl(descriptor, F_DUPFD_CLOEXEC, 3), identity_);
      }
      done(reply.values[0] != 0);
      break;
    case Op::kTakeShared:
      if (!shares_.Take(key, client, request.amount)) reply.answer = Answer::kOutOfMemory;
      break;
    case Op::kGiveShared:
      done(shares_.Give(key, client, request.amount));
      break;
    case Op::kUnshare:
      done(shares_.Release(key, client));
      break;
    case Op::kExport: {
      // A pipe: its inode says what it stands for, and the end that we keep
      // hangs up with the last copy of the other.
      const Shares::Share* share = shares_.Find(key);
      int ends[2];
      if (share == nullptr || share->creator != client || pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        done(false);
        break;
      }
      struct stat st;
      fstat(ends[0], &st);
      shares_.AddExport(key, st.st_ino);
      Add({.kind = Kind::kExport, .fd = ends[0], .inode = st.st_ino});
      attached = ends[1];
      opened = true;
      break;
    }
    case Op::kAttachFile: {
      struct stat st;
      key = descriptor >= 0 && fstat(descriptor, &st) == 0 && S_ISFIFO(st.st_mode)
                ? shares_.FindExport(st.st_ino)
                : 0;
      [[fallthrough]];
    }
    case Op::kAttach: {
      const Shares::Share* share = shares_.Find(key);
      done(share != nullptr);
      if (share == nullptr) break;
      shares_.Attach(key, client);
      reply.values[0] = key;
      reply.values[1] = share->bytes;
      reply.values[2] = share->gpu;
      reply.values[3] = share->creator;
      attached = share->file;
      break;
    }
    default:
      done(shares_.Detach(key, client));
  }
  const bool sent = SendWithDescriptor(source.fd, &reply, sizeof(reply), attached, MSG_DONTWAIT);
  if (opened) close(attached);
  if (descriptor >= 0) close(descriptor);
  return sent;
}

Answer Server::Change(uint64_t client, const Request& request) {
  sim::DeviceMemory& memory = gpus_[request.gpu]->memory;
  const auto taken = [](bool ok) { return ok ? Answer::kOk : Answer::kOutOfMemory; };
  const auto given = [](bool ok) { return ok ? Answer::kOk : Answer::kInvalid; };
  switch (request.op) {
    case Op::kAddContext:
      return AddContext(client, *gpus_[request.gpu]);
    case Op::kRemoveContext:
      return given(memory.RemoveContext(client));
    case Op::kTake:
      return taken(memory.Take(client, request.amount));
    case Op::kGive:
      return given(memory.Give(client, request.amount));
    case Op::kTouchManaged:
      return taken(memory.TouchManaged(client, request.amount));
    default:
      return given(memory.FreeManaged(client, request.amount));
  }
}

Answer Server::AddContext(uint64_t id, Gpu& gpu) {
  if (gpu.compute_mode == kProhibited) return Answer::kBusy;
  if (gpu.compute_mode == kExclusiveProcess) {
    for (const auto& [other, client] : clients_) {
      if (client.pid != clients_.at(id).pid && gpu.memory.Listed(other)) return Answer::kBusy;
    }
  }
  return gpu.memory.AddContext(id) ? Answer::kOk : Answer::kOutOfMemory;
}

bool Server::SendProcesses(const Source& source, uint32_t gpu) {
  // A process may have connected more than once (two copies of the library):
  // it is still one process.
  struct Use {
    uint64_t bytes = 0;
    double busy = 0;
  };
  std::map<pid_t, Use> own;
  for (const auto& [id, client] : clients_) {
    if (!gpus_[gpu]->memory.Listed(id)) continue;
    Use& use = own[client.pid];
    use.bytes += gpus_[gpu]->memory.OwnBytes(id);
    use.busy += gpus_[gpu]->model.BusyShare(Now(), std::chrono::seconds(1), id);
  }
  ProcessList list;
  for (const auto& [pid, use] : own) {
    if (list.count == kMaxListed) break;
    list.entries[list.count++] = {static_cast<uint32_t>(pid),
                                  static_cast<uint32_t>(std::min(use.busy, 1.0) * 1e6), use.bytes};
  }
  const size_t size = offsetof(ProcessList, entries) + list.count * sizeof(ProcessEntry);
  return send(source.fd, &list, size, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(size);
}

bool Server::OnWork(Source& source, const void* data, size_t size) {
  Launch launch;
  if (size != sizeof(launch)) return false;
  memcpy(&launch, data, sizeof(launch));
  auto it = clients_.find(source.client);
  if (it == clients_.end() || launch.op != Op::kLaunch || launch.gpu >= gpus_.size()) return false;
  Client& client = it->second;
  if (launch.duration_ns > kMaxKernelNs || launch.blocks == 0 || launch.blocks > (1ULL << 48) ||
      launch.threads_per_block == 0 || launch.threads_per_block > 1024 || client.in_flight >= kMaxInFlight) {
    return false;
  }
  ++client.in_flight;
  gpus_[launch.gpu]->model.Launch(Now(), source.client, launch.stream,
                                  {.id = launch.kernel,
                                   .duration = std::chrono::nanoseconds(launch.duration_ns),
                                   .blocks = launch.blocks,
                                   .threads_per_block = launch.threads_per_block});
  return true;
}

void Server::DropPeer(uint64_t token) {
  auto it = sources_.find(token);
  if (it == sources_.end()) return;
  const uint64_t client = it->second.client;
  const bool whole = it->second.role != Role::kNvml && client != 0;
  Remove(token);
  if (whole) DropClient(client);
}

void Server::DropClient(uint64_t id) {
  auto it = clients_.find(id);
  if (it == clients_.end()) return;
  const Client client = std::move(it->second);
  clients_.erase(it);
  shares_.RemoveClient(id);
  for (auto& gpu : gpus_) {
    gpu->memory.RemoveProcess(id);
    gpu->model.RemoveProcess(Now(), id);
  }
  Remove(client.control);
  Remove(client.work);
  Remove(client.process);
}

void Server::RunModels() {
  for (auto& gpu : gpus_) {
    gpu->model.Advance(Now());
    for (const auto& done : gpu->model.TakeCompletions()) {
      auto client = clients_.find(done.process);
      if (client == clients_.end()) continue;
      Completion completion;
      completion.kernel = done.kernel;
      completion.start_ns = done.start.count();
      completion.end_ns = done.end.count();
      client->second.unsent.push_back(completion);
    }
  }
  for (auto& [id, client] : clients_) {
    if (!client.unsent.empty()) Flush(client);
  }
}

void Server::Flush(Client& client) {
  auto source = sources_.find(client.work);
  if (source == sources_.end()) return;
  while (!client.unsent.empty() && SendOne(source->second.fd, client.unsent.front())) {
    client.unsent.pop_front();
    --client.in_flight;
  }
  const bool full = !client.unsent.empty();
  if (full == client.waits_for_room) return;
  client.waits_for_room = full;
  epoll_event event = {};
  event.events = full ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = client.work;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, source->second.fd, &event);
}

void Server::SetTimer() {
  std::chrono::nanoseconds next{};
  for (const auto& gpu : gpus_) {
    const auto event = gpu->model.NextEventTime();
    if (event && (next.count() == 0 || *event < next)) next = *event;
  }
  if (next == armed_) return;
  armed_ = next;
  itimerspec when = {};
  if (next.count() != 0) {
    // 0 would disarm; a time that has passed fires at once.
    const int64_t ns = std::max<int64_t>(next.count(), 1);
    when.it_value.tv_sec = ns / 1'000'000'000;
    when.it_value.tv_nsec = ns % 1'000'000'000;
  }
  timerfd_settime(timer_, TFD_TIMER_ABSTIME, &when, nullptr);
}

}  // namespace gpumux::softgpu
