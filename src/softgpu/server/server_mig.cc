// SPDX-License-Identifier: Apache-2.0
//
// MIG: who may change it, and what its instances are to programs. What fits is in mig.h.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "sim/gpu_models.h"
#include "softgpu/names.h"
#include "softgpu/server/messages.h"
#include "softgpu/server/server.h"
#include "softgpu/uuid.h"

namespace gpumux::softgpu {

using namespace gpumux::nvml;  // NOLINT: NVML's own names

namespace {

constexpr char kStateFile[] = "mig.state";
constexpr size_t kMaxStateBytes = 1 << 20;

// Whether the descriptor is the file of that name, open for reading.
bool Stands(int descriptor, const std::string& path) {
  struct stat ours, theirs;
  const int flags = fcntl(descriptor, F_GETFL);
  const int way = flags & O_ACCMODE;
  return flags >= 0 && (flags & O_PATH) == 0 && (way == O_RDONLY || way == O_RDWR) &&
         fstat(descriptor, &theirs) == 0 && lstat(path.c_str(), &ours) == 0 && S_ISREG(ours.st_mode) &&
         ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

std::optional<uint32_t> StartOf(uint64_t plus_one) {
  return plus_one == 0 ? std::nullopt : std::optional(static_cast<uint32_t>(plus_one - 1));
}

}  // namespace

Server::Gpu* Server::FindGpu(uint32_t number) {
  if (number < gpus_.size()) return gpus_[number].get();
  const auto found = instances_.find(number);
  return found != instances_.end() ? found->second.get() : nullptr;
}

// The state is one of the directory, and outlives the server, which ends when it is idle: that is no
// unloading of a driver.
void Server::StartMig(const sim::Machine& machine) {
  std::map<std::string, std::string> saved;
  std::ifstream in(dir_ + "/" + kStateFile);
  std::string text(kMaxStateBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  std::istringstream lines(text.substr(0, static_cast<size_t>(in.gcount())));
  std::string of;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("gpu ")) {
      of = line;
    } else if (line.starts_with("next ")) {
      const unsigned long next = strtoul(line.c_str() + 5, nullptr, 10);
      if (next > kFirstPlace && next < 1UL << 30) next_place_ = static_cast<uint32_t>(next);
    } else {
      saved[of] += line + '\n';
    }
  }
  for (uint32_t i = 0; i < gpus_.size(); ++i) {
    Gpu& gpu = *gpus_[i];
    const sim::GpuInstance& made = machine.gpus[i];
    gpu.model_key = made.model.key;
    const auto model = gpu::FindMigModel(gpu.model_key);
    const sim::GpuModelData* whole = sim::FindGpuModel(gpu.model_key);
    // One of another size than its model's has no profiles that anybody knows.
    const bool as_made = whole != nullptr && sim::SpecOf(*whole).nvml_total == made.spec.nvml_total &&
                         whole->sms == made.spec.sms;
    if (!model || !as_made || !made.model.mig) continue;
    gpu.mig = MigGpu(MigProfilesOf(**model, made.spec.nvml_total, made.spec.sms), **model);
    gpu.mig.Boot(made.mig);
    const auto state = saved.find("gpu " + std::to_string(i) + " " + gpu.model_key);
    if (state == saved.end()) continue;
    if (Status status = gpu.mig.Restore(state->second); !status) {
      fprintf(stderr, "%s/%s: GPU %u: %s\n", dir_.c_str(), kStateFile, i, status.error().ToString().c_str());
    }
    AddInstancePlaces(i);
  }
  // Of a file that somebody wrote: numbers that are in use are not given again.
  for (const auto& [place, gpu] : instances_) next_place_ = std::max(next_place_, place + 1);
  for (const auto& [number, pool] : pools_) next_place_ = std::max(next_place_, number + 1);
}

void Server::SaveMig() {
  std::ostringstream text;
  text << "next " << next_place_ << '\n';
  for (size_t i = 0; i < gpus_.size(); ++i) {
    if (!gpus_[i]->mig.capable()) continue;
    text << "gpu " << i << ' ' << gpus_[i]->model_key << '\n' << gpus_[i]->mig.Save();
  }
  if (text.str() == saved_mig_) return;
  saved_mig_ = text.str();
  const std::string path = dir_ + "/" + kStateFile, fresh = path + ".new";
  std::ofstream out(fresh, std::ios::trunc);
  out << saved_mig_;
  out.close();
  if (!out || rename(fresh.c_str(), path.c_str()) != 0)
    fprintf(stderr, "%s: %s\n", path.c_str(), strerror(errno));
}

void Server::AddInstancePlaces(uint32_t gpu) {
  for (const auto& [id, instance] : gpus_[gpu]->mig.instances()) {
    for (const auto& [compute_id, compute] : instance.computes) AddPlace(gpu, instance, compute);
    pools_.try_emplace(instance.number);
  }
}

void Server::AddPlace(uint32_t gpu, const MigGpu::Instance& instance, const MigGpu::Compute& compute) {
  const Gpu& parent = *gpus_[gpu];
  const uint64_t bytes = static_cast<uint64_t>(instance.profile.memory_mib) << 20;
  const auto spec_of = [&](uint32_t sms) {
    return sim::SpecOf(bytes, 0, static_cast<int>(sms), parent.spec.threads_per_sm,
                       parent.spec.blocks_per_sm);
  };
  std::shared_ptr<sim::DeviceMemory>& pool = pools_[instance.number];
  if (!pool) pool = std::make_shared<sim::DeviceMemory>(spec_of(instance.profile.sms));
  auto place = std::make_unique<Gpu>(spec_of(static_cast<uint32_t>(compute.sms)), pool);
  Description& d = place->description;
  d = parent.description;
  d.parent = gpu;
  d.gpu_instance = instance.id;
  d.compute_instance = compute.id;
  d.flags &= ~kFlagMig;
  d.sms = compute.sms;
  d.total = d.usable = bytes;
  d.l2_kib = d.l2_kib / parent.mig.memory_slices() * instance.profile.memory_slices;
  std::string name = parent.description.name;
  if (const size_t mark = name.find(kSimulatedMark); mark != std::string::npos) name.resize(mark);
  name += " MIG ";
  if (compute.size != instance.profile.compute_slices) name += std::to_string(compute.size) + "c.";
  snprintf(d.name, sizeof(d.name), "%.68s%s", (name + instance.profile.name).c_str(), kSimulatedMark);
  memcpy(d.uuid, MakeMigUuid(parent.description.uuid, instance.id, compute.id).bytes, sizeof(d.uuid));
  instances_.insert_or_assign(compute.place, std::move(place));
}

void Server::DropPlaces() {
  const auto any = [&](auto has) { return std::any_of(gpus_.begin(), gpus_.end(), has); };
  std::erase_if(instances_, [&](const auto& place) {
    return !any([&](const auto& gpu) { return gpu->mig.FindCompute(place.first) != nullptr; });
  });
  std::erase_if(pools_, [&](const auto& pool) {
    return !any([&](const auto& gpu) { return gpu->mig.FindInstance(pool.first) != nullptr; });
  });
}

bool Server::InUse(uint32_t place) const {
  const auto found = instances_.find(place);
  if (found == instances_.end()) return false;
  const Gpu& gpu = *found->second;
  return shares_.Any(place) || std::any_of(gpu.openers.begin(), gpu.openers.end(),
                                           [&](uint64_t client) { return gpu.memory.Listed(client); });
}

bool Server::InUse(const Gpu& gpu) const {
  const uint32_t number = gpu.description.parent;
  const bool whole =
      shares_.Any(number) || std::any_of(clients_.begin(), clients_.end(),
                                         [&](const auto& client) { return gpu.memory.Listed(client.first); });
  return whole || std::any_of(instances_.begin(), instances_.end(), [&](const auto& place) {
           return place.second->description.parent == number && InUse(place.first);
         });
}

uint64_t Server::UsedBytes(const Gpu& gpu) const {
  if (!gpu.mig.enabled()) return gpu.memory.used();
  uint64_t used = 0;
  for (const auto& [id, instance] : gpu.mig.instances()) {
    const auto pool = pools_.find(instance.number);
    if (pool != pools_.end() && pool->second) used += pool->second->used();
  }
  return used;
}

uint64_t Server::MigRights(const Source& source, int descriptor) const {
  if (source.uid == 0) return kMigMayConfigure | kMigMayLook;
  if (descriptor < 0) return 0;
  if (Stands(descriptor, dir_ + "/" + kMigConfigFile)) return kMigMayConfigure | kMigMayLook;
  return Stands(descriptor, dir_ + "/" + kMigMonitorFile) ? kMigMayLook : 0;
}

bool Server::SendMigState(const Source& source, const Gpu& gpu) {
  MigState state;
  state.capable = gpu.mig.capable() ? 1 : 0;
  state.enabled = gpu.mig.enabled() ? 1 : 0;
  state.pending = gpu.mig.pending() ? 1 : 0;
  state.max_devices = gpu.mig.max_devices();
  for (const auto& [id, instance] : gpu.mig.instances()) {
    if (state.instance_count == kMaxMigInstances) break;
    state.instances[state.instance_count++] = {instance.number, id, instance.profile.id, instance.start};
    for (const auto& [compute_id, compute] : instance.computes) {
      if (state.compute_count == kMaxMigInstances) break;
      state.computes[state.compute_count++] = {compute.place,   compute_id,    instance.number,
                                               compute.profile, compute.start, compute.index};
    }
  }
  return SendOne(source.fd, state);
}

bool Server::OnMig(Source& source, const Request& request, int descriptor) {
  const auto done = [&](bool sent) {
    if (descriptor >= 0) close(descriptor);
    return sent;
  };
  const Role wanted = request.op == Op::kMigOpen ? Role::kCuda : Role::kNvml;
  if (source.role != wanted && request.op != Op::kMigReset && request.op != Op::kMigState) return done(false);
  if (request.op == Op::kMigOpen) return done(SendOne(source.fd, OpenInstance(source.client, request)));
  if (request.gpu >= gpus_.size()) return done(false);
  const Gpu& gpu = *gpus_[request.gpu];
  if (request.op == Op::kMigState) return done(SendMigState(source, gpu));
  if (request.op == Op::kMigProfiles) {
    MigProfileList list;
    for (const MigProfileEntry& entry : gpu.mig.profiles()) list.entries[list.count++] = entry;
    return done(SendOne(source.fd, list));
  }
  return done(SendOne(source.fd, ChangeMig(source, request, descriptor)));
}

Reply Server::ChangeMig(const Source& source, const Request& request, int descriptor) {
  Reply reply;
  Gpu& gpu = *gpus_[request.gpu];
  const uint64_t rights = MigRights(source, descriptor);
  const auto number = static_cast<uint32_t>(request.key), profile = static_cast<uint32_t>(request.amount);
  nvmlReturn_t result = NVML_ERROR_NO_PERMISSION;
  uint32_t count = 0;
  const bool room = request.op == Op::kMigRoom || request.op == Op::kMigComputeRoom;
  if (request.op == Op::kMigRights) {
    reply.values[0] = rights;
    return reply;
  }
  if (request.op == Op::kMigReset) {
    result = ResetGpus(source, request);
  } else if (!gpu.mig.capable()) {
    result = NVML_ERROR_NOT_SUPPORTED;
  } else if (request.op == Op::kMigSetMode) {
    // No capability file is enough for that.
    if (source.uid == 0) {
      reply.values[0] = gpu.mig.SetMode(request.amount == 1, InUse(gpu));
      DropPlaces();
      result = NVML_SUCCESS;
    }
  } else if ((rights & (room ? kMigMayLook : kMigMayConfigure)) != 0) {
    switch (request.op) {
      case Op::kMigRoom:
        result = gpu.mig.Room(profile, &count);
        reply.values[0] = count;
        break;
      case Op::kMigComputeRoom:
        result = gpu.mig.ComputeRoom(number, profile, &count);
        reply.values[0] = count;
        break;
      case Op::kMigCreate:
        result = gpu.mig.Create(profile, StartOf(request.key), next_place_);
        reply.values[0] = next_place_;
        break;
      case Op::kMigCreateCompute:
        result = gpu.mig.CreateCompute(number, profile, StartOf(request.amount >> 32), next_place_);
        reply.values[0] = next_place_;
        break;
      case Op::kMigDestroy:
      case Op::kMigDestroyCompute:
        result = DestroyInstance(gpu, request);
        break;
      default:
        result = NVML_ERROR_INVALID_ARGUMENT;
    }
    if (result == NVML_SUCCESS && (request.op == Op::kMigCreate || request.op == Op::kMigCreateCompute)) {
      ++next_place_;
      if (request.op == Op::kMigCreate) pools_.try_emplace(static_cast<uint32_t>(reply.values[0]));
      if (const MigGpu::Instance* instance = gpu.mig.FindInstance(number);
          instance != nullptr && request.op == Op::kMigCreateCompute)
        AddPlace(request.gpu, *instance, *gpu.mig.FindCompute(static_cast<uint32_t>(reply.values[0])));
    }
  }
  if (result == NVML_SUCCESS && !room) SaveMig();
  if (result != NVML_SUCCESS) {
    reply.answer = Answer::kFailed;
    reply.values[0] = static_cast<uint64_t>(result);
  }
  return reply;
}

nvmlReturn_t Server::DestroyInstance(Gpu& gpu, const Request& request) {
  const auto number = static_cast<uint32_t>(request.key);
  if (request.op == Op::kMigDestroyCompute) {
    if (InUse(number)) return NVML_ERROR_IN_USE;
    const nvmlReturn_t result = gpu.mig.DestroyCompute(number);
    DropPlaces();
    return result;
  }
  const nvmlReturn_t result = gpu.mig.Destroy(number);
  DropPlaces();
  return result;
}

// What nobody does who has a program on it; NVML's own clients do not keep anybody from it here.
nvmlReturn_t Server::ResetGpus(const Source& source, const Request& request) {
  if (source.uid != 0 && source.uid != geteuid()) return NVML_ERROR_NO_PERMISSION;
  const bool unload = request.amount == 1;
  const uint32_t first = unload ? 0 : request.gpu;
  const auto last = unload ? static_cast<uint32_t>(gpus_.size()) : request.gpu + 1;
  for (uint32_t i = first; i < last; ++i) {
    if (InUse(*gpus_[i])) return NVML_ERROR_IN_USE;
  }
  for (uint32_t i = first; i < last; ++i) {
    gpus_[i]->compute_mode = 0;
    if (unload) {
      gpus_[i]->mig.Unload();
    } else {
      gpus_[i]->mig.Reset();
    }
  }
  DropPlaces();
  return NVML_SUCCESS;
}

// The client has chosen it; of the compute instances of a GPU instance it may have one.
Reply Server::OpenInstance(uint64_t id, const Request& request) {
  const auto refused = Reply{.answer = Answer::kInvalid};
  const auto found = instances_.find(request.gpu);
  if (found == instances_.end()) return refused;
  Gpu& gpu = *found->second;
  for (const auto& [place, other] : instances_) {
    if (place != request.gpu && other->pool == gpu.pool && other->openers.contains(id)) return refused;
  }
  if (!gpu.openers.insert(id).second) return {};
  gpu.memory.SetTerms(id, gpu.spec.context_own, gpu.spec.context_device, 0);
  gpu.memory.AddProcess(id);
  return {};
}

// Memory of another compute instance of the same GPU instance is memory of one's own.
uint32_t Server::AsSeenBy(uint64_t client, uint32_t gpu) {
  const Gpu* of = FindGpu(gpu);
  for (const auto& [place, other] : instances_) {
    if (of != nullptr && other->pool == of->pool && other->openers.contains(client)) return place;
  }
  return gpu;
}

}  // namespace gpumux::softgpu
