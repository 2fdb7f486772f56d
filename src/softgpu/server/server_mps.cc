// SPDX-License-Identifier: Apache-2.0
//
// MPS: servers, their clients, and what befalls them.
#include <algorithm>
#include <cstddef>
#include <memory>

#include "sim/mps.h"
#include "softgpu/server/codes.h"
#include "softgpu/server/messages.h"
#include "softgpu/server/server.h"

namespace gpumux::softgpu {

uint64_t Server::GpusOf(uint64_t client) const {
  uint64_t gpus = 0;
  for (size_t i = 0; i < gpus_.size(); ++i) gpus |= gpus_[i]->memory.Listed(client) ? 1ULL << i : 0;
  return gpus;
}

bool Server::HasWork(uint64_t client) const {
  return std::any_of(gpus_.begin(), gpus_.end(), [&](const auto& gpu) { return gpu->model.HasWork(client); });
}

bool Server::OnMps(const Source& source, const Request& request) {
  Reply reply;
  switch (request.op) {
    case Op::kMpsReady: {
      MpsServers::Server* server = mps_.Find(source.client);
      if (source.role != Role::kMpsServer || server == nullptr) return false;
      server->every_user = request.amount == 1 && source.uid == 0;
      server->state = MpsState::kActive;
      break;
    }
    case Op::kMpsJoin:
      if (source.role != Role::kCuda) return false;
      reply = JoinMps(source, request);
      break;
    case Op::kMpsPortion:
      if (source.role != Role::kCuda) return false;
      reply.answer = SetPortion(source.client, request);
      break;
    case Op::kMpsState: {
      const MpsServers::Server* server = mps_.Find(request.key);
      if (server == nullptr) {
        reply.answer = Answer::kInvalid;
        break;
      }
      reply.values[0] = static_cast<uint64_t>(server->state);
      for (uint64_t client : server->clients) reply.values[1] += clients_.at(client).ended ? 0 : 1;
      break;
    }
    case Op::kMpsClients:
      return SendMpsClients(source, request.key);
    case Op::kMpsTerminate:
      reply.answer = Terminate(source, request);
      break;
    default:
      return false;
  }
  return SendOne(source.fd, reply);
}

Reply Server::JoinMps(const Source& source, const Request& request) {
  Reply reply;
  const auto fail = [&](int code) {
    reply.answer = Answer::kFailed;
    reply.values[0] = static_cast<uint64_t>(code);
    return reply;
  };
  const MpsServers::Server* server = mps_.Find(request.key);
  const Client& client = clients_.at(source.client);
  if (server == nullptr) return fail(kMpsConnectionFailed);
  if (server->state != MpsState::kActive) return fail(kMpsServerNotReady);
  if (!server->every_user && server->uid != source.uid) return fail(kNotPermitted);
  if (mps_.ServerOf(source.client) != 0 || GpusOf(source.client) != 0) {
    reply.answer = Answer::kInvalid;
    return reply;
  }
  mps_.Join(source.client, request.key);
  for (auto& gpu : gpus_) {
    const auto cost = sim::MpsContext(gpu->spec, gpu->spec.sms);
    gpu->memory.SetTerms(source.client, cost.own, cost.device, 0);
    gpu->model.SetSharing(source.client, {.group = request.key, .below_normal = request.amount == 1});
  }
  Tell(request.key, {.kind = MpsEvent::Kind::kJoined, .pid = static_cast<uint32_t>(client.pid)});
  return reply;
}

Answer Server::SetPortion(uint64_t client, const Request& request) {
  if (request.gpu >= gpus_.size()) return Answer::kInvalid;
  Gpu& gpu = *gpus_[request.gpu];
  if (mps_.ServerOf(client) == 0 || gpu.memory.Listed(client) || gpu.model.HasWork(client) ||
      request.key == 0 || request.key > static_cast<uint64_t>(gpu.spec.sms)) {
    return Answer::kInvalid;
  }
  const int sms = static_cast<int>(request.key);
  const auto cost = sim::MpsContext(gpu.spec, sms);
  gpu.memory.SetTerms(client, cost.own, cost.device, request.amount);
  gpu.model.SetMostSms(client, sms);
  return Answer::kOk;
}

bool Server::SendMpsClients(const Source& source, uint64_t number) {
  auto list = std::make_unique<MpsClientList>();
  if (const MpsServers::Server* server = mps_.Find(number)) {
    for (uint64_t id : server->clients) {
      const Client& client = clients_.at(id);
      if (client.ended || list->count == kMaxListed) continue;
      list->entries[list->count++] = {static_cast<uint32_t>(client.pid), 0, id, GpusOf(id)};
    }
  } else {
    list->answer = Answer::kInvalid;
  }
  const size_t size = offsetof(MpsClientList, entries) + list->count * sizeof(MpsClientEntry);
  return send(source.fd, list.get(), size, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(size);
}

// Its work goes from the GPU and its memory with it; the server's other clients
// go on.
Answer Server::Terminate(const Source& source, const Request& request) {
  const MpsServers::Server* server = mps_.Find(request.key);
  if (server == nullptr) return Answer::kInvalid;
  if (source.uid != 0 && source.uid != server->uid) return Answer::kRefused;
  std::vector<uint64_t> found;
  for (uint64_t id : server->clients) {
    const Client& client = clients_.at(id);
    if (!client.ended && static_cast<uint64_t>(client.pid) == request.amount) found.push_back(id);
  }
  if (found.empty()) return Answer::kInvalid;
  Tell(request.key, {.kind = MpsEvent::Kind::kTerminated, .pid = static_cast<uint32_t>(request.amount)});
  Spread(found, kMpsClientTerminated);
  for (uint64_t id : found) {
    LeaveMps(id);
    shares_.RemoveClient(id);
    for (auto& gpu : gpus_) {
      gpu->memory.RemoveProcess(id);
      gpu->memory.AddProcess(id);
    }
  }
  return Answer::kOk;
}

void Server::OnFault(uint64_t id, uint32_t gpu) {
  const uint64_t number = mps_.ServerOf(id);
  if (number == 0 || clients_.at(id).failure != 0) return;  // without MPS it is its own affair
  const auto fallen = mps_.Fault(id, gpu, [this](uint64_t client) { return GpusOf(client); });
  Tell(number,
       {.kind = MpsEvent::Kind::kFault, .pid = static_cast<uint32_t>(clients_.at(id).pid), .gpu = gpu});
  for (uint64_t client : fallen) {
    Tell(
        number,
        {.kind = MpsEvent::Kind::kFailed, .pid = static_cast<uint32_t>(clients_.at(client).pid), .gpu = gpu});
  }
  Spread(fallen, kIllegalAddress);
  // Those that have ended already keep nobody waiting.
  for (uint64_t client : fallen) {
    if (clients_.at(client).ended) LeaveMps(client);
  }
}

void Server::Spread(const std::vector<uint64_t>& failed, int code) {
  for (uint64_t id : failed) {
    Client& client = clients_.at(id);
    ForEach([&](Gpu& gpu) { gpu.model.RemoveProcess(Now(), id); });
    client.unsent.clear();
    client.in_flight = 0;
    if (client.failure != 0 || client.ended) continue;
    client.failure = code;
    Completion completion;
    completion.op = Op::kFailed;
    completion.kernel = static_cast<uint64_t>(code);
    client.unsent.push_back(completion);
  }
}

void Server::LeaveMps(uint64_t id) {
  const uint64_t number = mps_.ServerOf(id);
  if (number == 0) return;
  const Client& client = clients_.at(id);
  const bool recovered = mps_.Leave(id);
  if (!client.ended) Tell(number, {.kind = MpsEvent::Kind::kLeft, .pid = static_cast<uint32_t>(client.pid)});
  if (recovered) Tell(number, {.kind = MpsEvent::Kind::kRecovered});
}

// Their contexts lived in its own.
void Server::EndMpsServer(uint64_t server) { Spread(mps_.Remove(server), kMpsRpcFailure); }

void Server::Tell(uint64_t number, const MpsEvent& event) {
  const MpsServers::Server* server = mps_.Find(number);
  const auto watch = server != nullptr ? sources_.find(server->watch) : sources_.end();
  // One that does not listen misses it.
  if (watch != sources_.end()) SendOne(watch->second.fd, event);
}

}  // namespace gpumux::softgpu
