// SPDX-License-Identifier: Apache-2.0
//
// What the server's clients ask for on their control connections.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "softgpu/descriptors.h"
#include "softgpu/server/codes.h"
#include "softgpu/server/messages.h"
#include "softgpu/server/server.h"

namespace gpumux::softgpu {

namespace {

// NVML's numbers of compute modes.
constexpr uint64_t kDefault = 0, kProhibited = 2, kExclusiveProcess = 3;

}  // namespace

bool Server::OnControl(Source& source, const void* data, size_t size, int descriptor) {
  Request request;
  if (size == sizeof(request)) {
    memcpy(&request, data, sizeof(request));
    if (request.op >= Op::kShare && request.op <= Op::kDetach) {
      return OnShare(source, request, descriptor);
    }
    if (request.op == Op::kOpenDevice) {
      if (descriptor >= 0) close(descriptor);
      if (source.role != Role::kCuda) return false;
      Reply opened;
      const int device = OpenDevice(source.client, request.gpu);
      if (device < 0) opened.answer = Answer::kInvalid;
      const bool sent = SendWithDescriptor(source.fd, &opened, sizeof(opened), device, MSG_DONTWAIT);
      if (device >= 0) close(device);
      return sent;
    }
  }
  if (size == sizeof(request) && request.op >= Op::kMigState && request.op <= Op::kMigOpen)
    return OnMig(source, request, descriptor);
  if (descriptor >= 0) close(descriptor);
  if (size != sizeof(request) || request.amount > kMaxAmount) return false;
  Gpu* const found = FindGpu(request.gpu);
  // A compute instance may have gone, whoever asks.
  if (found == nullptr)
    return request.gpu >= kFirstPlace && SendOne(source.fd, Reply{.answer = Answer::kInvalid});
  Gpu& gpu = *found;
  Reply reply;
  switch (request.op) {
    case Op::kMemory:
      // To a program its own limit is a full GPU.
      reply.values[0] = gpu.description.total;
      reply.values[1] = gpu.description.total - gpu.description.usable;
      reply.values[2] = gpu.description.usable;
      reply.values[3] = source.role == Role::kCuda
                            ? gpu.description.usable - gpu.memory.FreeFor(source.client)
                            : UsedBytes(gpu);
      break;
    case Op::kUtilization:
      reply.values[0] = static_cast<uint64_t>(gpu.model.BusyShare(Now(), std::chrono::seconds(1)) * 1e6);
      reply.values[1] = gpu.compute_mode;
      reply.values[2] = gpu.mig.enabled() ? 1 : 0;
      break;
    case Op::kDescribe:
      return SendOne(source.fd, gpu.description);
    case Op::kFaults:
      reply.values[0] = gpu.faults;
      break;
    case Op::kSetComputeMode:
      if (gpu.mig.enabled()) {
        reply.answer = Answer::kFailed;
        reply.values[0] = nvml::NVML_ERROR_NOT_SUPPORTED;
      } else if (source.uid != 0) {
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
    case Op::kReserveManaged:
    case Op::kReleaseManaged:
      if (source.role != Role::kCuda && source.role != Role::kMpsServer) return false;
      reply = Change(source.client, request);
      break;
    default:
      return OnMps(source, request);
  }
  return SendOne(source.fd, reply);
}

bool Server::OnShare(Source& source, const Request& request, int descriptor) {
  Reply reply;
  int attached = -1;
  bool opened = false;
  const uint64_t client = source.client;
  const auto done = [&](bool ok) { reply.answer = ok ? Answer::kOk : Answer::kInvalid; };
  if (source.role != Role::kCuda || FindGpu(request.gpu) == nullptr || request.amount > kMaxAmount) {
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
      reply.values[2] = AsSeenBy(client, share->gpu);
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

Reply Server::Change(uint64_t client, const Request& request) {
  Gpu& gpu = *FindGpu(request.gpu);
  sim::DeviceMemory& memory = gpu.memory;
  Reply reply;
  const auto taken = [&](bool ok) { reply.answer = ok ? Answer::kOk : Answer::kOutOfMemory; };
  const auto given = [&](bool ok) { reply.answer = ok ? Answer::kOk : Answer::kInvalid; };
  switch (request.op) {
    case Op::kAddContext:
      return AddContext(client, gpu);
    case Op::kRemoveContext:
      given(memory.RemoveContext(client));
      break;
    case Op::kTake:
      taken(memory.Take(client, request.amount));
      break;
    case Op::kGive:
      given(memory.Give(client, request.amount));
      break;
    case Op::kTouchManaged:
      taken(memory.TouchManaged(client, request.amount));
      break;
    case Op::kReserveManaged:
      taken(memory.ReserveManaged(client, request.amount));
      break;
    case Op::kReleaseManaged:
      given(memory.ReleaseManaged(client, request.amount));
      break;
    default:
      given(memory.FreeManaged(client, request.amount));
  }
  return reply;
}

Reply Server::AddContext(uint64_t id, Gpu& gpu) {
  Reply reply;
  const Client& self = clients_.at(id);
  const MpsServers::Server* server = mps_.Find(mps_.ServerOf(id));
  if (self.failure != 0 || (server != nullptr && server->state == MpsState::kFault)) {
    reply.answer = Answer::kFailed;
    reply.values[0] = static_cast<uint64_t>(
        self.failure != 0 && self.failure != kIllegalAddress ? self.failure : kMpsServerNotReady);
    return reply;
  }
  reply.answer = Answer::kBusy;
  // With MIG on, programs run in instances, and in the one that they have opened.
  const bool instance = gpu.description.gpu_instance != ~0U;
  if (gpu.compute_mode == kProhibited || gpu.mig.enabled() || (instance && !gpu.openers.contains(id)))
    return reply;
  // An MPS server and its clients are one process to the compute mode.
  const auto owner = [&](uint64_t of, const Client& client) {
    if (const uint64_t its_server = mps_.ServerOf(of); its_server != 0) of = its_server;
    const auto it = clients_.find(of);
    return it != clients_.end() ? it->second.pid : client.pid;
  };
  uint32_t clients = 0;
  for (const auto& [other, client] : clients_) {
    if (!gpu.memory.Listed(other)) continue;
    if (gpu.compute_mode == kExclusiveProcess && owner(other, client) != owner(id, self)) return reply;
    if (other != id && mps_.ServerOf(other) != 0) ++clients;
  }
  if (server != nullptr && clients >= mps_clients_) return reply;
  reply.answer = gpu.memory.AddContext(id) ? Answer::kOk : Answer::kOutOfMemory;
  return reply;
}

// A pipe with the name of a device: its last writer's end tells us that nobody
// has it open any more, and that cannot be said of a file or a socket.
int Server::OpenDevice(uint64_t id, uint32_t gpu) {
  Client& client = clients_.at(id);
  if ((FindGpu(gpu) == nullptr && gpu != kMaxGpus) || client.devices.size() > gpus_.size() * 8 + 8) return -1;
  const std::string dir = dir_ + "/" + kDeviceDirectory;
  mkdir(dir.c_str(), 0755);
  const std::string path =
      dir + "/nvidia" + (gpu == kMaxGpus ? "ctl" : std::to_string(FindGpu(gpu)->description.parent));
  unlink(path.c_str());
  if (mkfifo(path.c_str(), 0600) != 0) return -1;
  const int ours = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
  const int theirs = open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
  unlink(path.c_str());
  if (ours < 0 || theirs < 0) {
    if (ours >= 0) close(ours);
    if (theirs >= 0) close(theirs);
    return -1;
  }
  // No EPOLLIN: what is written into it is nobody's business.
  client.devices.push_back(Add({.kind = Kind::kDevice, .fd = ours, .client = id}, 0));
  return theirs;
}

// A process may have connected more than once (two copies of the library): it is still one process.
void Server::ListProcesses(Gpu& on, ProcessList* list) {
  struct Use {
    uint64_t bytes = 0;
    double busy = 0;
    bool mps_client = false;
  };
  std::map<pid_t, Use> own;
  for (const auto& [id, client] : clients_) {
    const bool here = on.description.gpu_instance == ~0U || on.openers.contains(id);
    if (!here || !on.memory.Listed(id)) continue;
    Use& use = own[client.pid];
    use.bytes += on.memory.OwnBytes(id);
    use.busy += on.model.BusyShare(Now(), std::chrono::seconds(1), id);
    use.mps_client |= mps_.ServerOf(id) != 0;
  }
  for (const auto& [pid, use] : own) {
    if (list->count == kMaxListed) break;
    ProcessEntry& entry = list->entries[list->count++];
    entry.pid = static_cast<uint32_t>(pid);
    entry.busy_ppm = static_cast<uint32_t>(std::min(use.busy, 1.0) * 1e6);
    entry.own_bytes = use.bytes;
    entry.mps_client = use.mps_client ? 1U : 0U;
    entry.gpu_instance = on.description.gpu_instance;
    entry.compute_instance = on.description.compute_instance;
  }
}

bool Server::SendProcesses(const Source& source, uint32_t number) {
  auto list = std::make_unique<ProcessList>();
  Gpu& gpu = *FindGpu(number);
  ListProcesses(gpu, list.get());
  if (gpu.mig.enabled()) {
    for (const auto& [place, instance] : instances_) {
      if (instance->description.parent == number) ListProcesses(*instance, list.get());
    }
  }
  const size_t size = offsetof(ProcessList, entries) + list->count * sizeof(ProcessEntry);
  return send(source.fd, list.get(), size, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(size);
}

}  // namespace gpumux::softgpu
