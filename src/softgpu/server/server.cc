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

#include "sim/mps.h"
#include "softgpu/descriptors.h"
#include "softgpu/names.h"
#include "softgpu/server/messages.h"
#include "softgpu/uuid.h"

namespace gpumux::softgpu {

namespace {

constexpr size_t kMaxPeers = 8192;
#ifndef SO_PEERPIDFD
constexpr int kSoPeerPidfd = 77;
#else
constexpr int kSoPeerPidfd = SO_PEERPIDFD;
#endif

// A descriptor that tells when the peer ends. Asked of the socket where the
// kernel can (6.5), so that a reused pid cannot be meant.
int PeerProcess(int fd, pid_t pid) {
  int pidfd = -1;
  socklen_t size = sizeof(pidfd);
  if (getsockopt(fd, SOL_SOCKET, kSoPeerPidfd, &pidfd, &size) == 0) return pidfd;
  return pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1;
}

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
  d.parent = index;
  d.total = gpu.spec.nvml_total;
  d.usable = gpu.spec.usable;
  return d;
}

}  // namespace

Server::Server(int listener, const sim::Machine& machine, uint64_t identity, std::string dir)
    : identity_(identity),
      dir_(std::move(dir)),
      mps_clients_(
          sim::MpsClients(machine.driver_version.empty() ? kSystemDriverVersion : machine.driver_version)) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  Add({.kind = Kind::kListener, .fd = listener});
  Add({.kind = Kind::kTimer, .fd = timer_});
  for (uint32_t i = 0; i < machine.gpus.size(); ++i) {
    gpus_.push_back(std::make_unique<Gpu>(machine.gpus[i].spec));
    gpus_.back()->description = Describe(machine, i, identity);
  }
  StartMig(machine);
}

Server::~Server() {
  for (const auto& [token, source] : sources_) close(source.fd);
  close(epoll_);
}

uint64_t Server::Add(Source source) { return Add(source, EPOLLIN); }

uint64_t Server::Add(Source source, uint32_t events) {
  const uint64_t token = next_token_++;
  epoll_event event = {};
  event.events = events;
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
        case Kind::kDevice: {
          // The last copy of it is closed.
          auto client = clients_.find(it->second.client);
          Remove(token);
          if (client == clients_.end()) break;
          client->second.closed = true;
          if (client->second.ended) Forget(client->first);
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
  } else if (hello.role == Role::kMpsWatch) {
    auto client = clients_.find(hello.client);
    MpsServers::Server* server = mps_.Find(hello.client);
    if (client == clients_.end() || client->second.pid != source.pid || server == nullptr ||
        server->watch != 0)
      return false;
    server->watch = token;
    source.client = hello.client;
  } else if (hello.role == Role::kCuda || hello.role == Role::kMpsServer) {
    source.client = next_client_++;
    Client& client = clients_[source.client];
    client.pid = source.pid;
    client.uid = source.uid;
    client.control = token;
    client.mps_server = hello.role == Role::kMpsServer;
    for (auto& gpu : gpus_) {
      gpu->memory.AddProcess(source.client);
      if (client.mps_server) {
        gpu->memory.SetTerms(source.client, gpu->spec.mps_server_own, gpu->spec.mps_server_device, 0);
      }
    }
    if (client.mps_server) mps_.Add(source.client, source.uid);
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

bool Server::OnWork(Source& source, const void* data, size_t size) {
  Launch launch;
  if (size != sizeof(launch)) return false;
  memcpy(&launch, data, sizeof(launch));
  auto it = clients_.find(source.client);
  Gpu* gpu = FindGpu(launch.gpu);
  if (it == clients_.end() || gpu == nullptr) return false;
  Client& client = it->second;
  if (launch.op == Op::kFault) {
    if (client.failure == 0) ++gpus_[gpu->description.parent]->faults;
    OnFault(source.client, launch.gpu);
    return true;
  }
  if (launch.op != Op::kLaunch) return false;
  if (client.failure != 0) return true;  // it does not know yet
  if (launch.duration_ns > kMaxKernelNs || launch.blocks == 0 || launch.blocks > (1ULL << 48) ||
      launch.threads_per_block == 0 || launch.threads_per_block > 1024 || client.in_flight >= kMaxInFlight) {
    return false;
  }
  ++client.in_flight;
  gpu->model.Launch(Now(), source.client, launch.stream,
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
  const bool whole = it->second.role != Role::kNvml && it->second.role != Role::kMpsWatch && client != 0;
  Remove(token);
  if (whole) DropClient(client);
}

void Server::DropClient(uint64_t id) {
  auto it = clients_.find(id);
  if (it == clients_.end() || it->second.ended) return;
  Client& client = it->second;
  if (client.mps_server) EndMpsServer(id);
  if (mps_.ServerOf(id) != 0) ReadLaunches(client);
  if (client.failure != 0) LeaveMps(id);  // it has nothing on the GPU; its server may recover
  if ((mps_.ServerOf(id) == 0 && client.failure == 0) || client.devices.empty() || client.closed) {
    Forget(id);
    return;
  }
  // Its descriptors tell whether that was all: the process has closed its own
  // by now or will at once, and others may have copies.
  client.ended = true;
  client.unsent.clear();
  for (uint64_t* token : {&client.control, &client.work, &client.process}) {
    Remove(*token);
    *token = 0;
  }
  if (client.failure == 0) {
    Tell(mps_.ServerOf(id), {.kind = MpsEvent::Kind::kLeft, .pid = static_cast<uint32_t>(client.pid)});
  }
}

// What it launched before its end is on the GPU, though we may not have read it yet.
void Server::ReadLaunches(const Client& client) {
  auto work = sources_.find(client.work);
  if (work == sources_.end()) return;
  Launch launch;
  for (uint64_t i = 0; i < kMaxInFlight; ++i) {
    const ssize_t n = recv(work->second.fd, &launch, sizeof(launch), MSG_DONTWAIT | MSG_TRUNC);
    if (n != sizeof(launch) || !OnWork(work->second, &launch, sizeof(launch))) return;
  }
}

void Server::Forget(uint64_t id) {
  for (uint32_t gpu = 0; gpu < gpus_.size(); ++gpu) {
    if (mps_.ServerOf(id) != 0 && gpus_[gpu]->model.HasWork(id)) OnFault(id, gpu);
  }
  LeaveMps(id);
  auto it = clients_.find(id);
  const Client client = std::move(it->second);
  clients_.erase(it);
  shares_.RemoveClient(id);
  ForEach([&](Gpu& gpu) {
    gpu.memory.RemoveProcess(id);
    gpu.model.RemoveProcess(Now(), id);
    gpu.openers.erase(id);
  });
  Remove(client.control);
  Remove(client.work);
  Remove(client.process);
  for (uint64_t token : client.devices) Remove(token);
}

void Server::RunModels() {
  ForEach([&](Gpu& gpu) {
    gpu.model.Advance(Now());
    for (const auto& done : gpu.model.TakeCompletions()) {
      auto client = clients_.find(done.process);
      if (client == clients_.end() || client->second.ended) continue;
      Completion completion;
      completion.kernel = done.kernel;
      completion.start_ns = done.start.count();
      completion.end_ns = done.end.count();
      client->second.unsent.push_back(completion);
    }
  });
  for (auto& [id, client] : clients_) {
    if (!client.unsent.empty()) Flush(client);
  }
}

void Server::Flush(Client& client) {
  auto source = sources_.find(client.work);
  if (source == sources_.end()) return;
  while (!client.unsent.empty() && SendOne(source->second.fd, client.unsent.front())) {
    if (client.unsent.front().op == Op::kCompletion) --client.in_flight;
    client.unsent.pop_front();
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
  ForEach([&](Gpu& gpu) {
    const auto event = gpu.model.NextEventTime();
    if (event && (next.count() == 0 || *event < next)) next = *event;
  });
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
