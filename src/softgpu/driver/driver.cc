// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/driver.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "softgpu/driver/driver_version.h"
#include "softgpu/driver/error_codes.h"
#include "softgpu/driver/mps.h"
#include "softgpu/driver/visible_devices.h"
#include "softgpu/names.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {
enum class State { kNew, kReady, kForked };
std::atomic<State> state{State::kNew};
}  // namespace

bool Initialized() { return state.load(std::memory_order_acquire) == State::kReady; }

Driver& Driver::Get() {
  static Driver* driver = new Driver;
  return *driver;
}

CUresult Driver::Init() {
  std::lock_guard lock(init_mutex_);
  switch (state.load()) {
    case State::kReady:
      return CUDA_SUCCESS;
    case State::kForked:
      return CUDA_ERROR_NOT_INITIALIZED;
    case State::kNew:
      break;
  }
  if (FindLocation().off) return CUDA_ERROR_NO_DEVICE;
  if (!connection_.Open(Role::kCuda)) return CUDA_ERROR_SYSTEM_NOT_READY;
  std::vector<Description> gpus;
  if (!connection_.Describe(&gpus) || gpus.empty()) return CUDA_ERROR_SYSTEM_NOT_READY;
  SetCudaVersion(gpus.front().cuda_version);
  if (CUresult error = MakeDevices(gpus); error != CUDA_SUCCESS) {
    connection_.Close();
    return error;
  }
  control_node_ = OpenNode(kMaxGpus);
  static const bool registered = [] {
    pthread_atfork(nullptr, nullptr, [] {
      if (state.load() == State::kReady) state.store(State::kForked);
    });
    return true;
  }();
  (void)registered;
  state.store(State::kReady, std::memory_order_release);
  return CUDA_SUCCESS;
}

namespace {
std::optional<std::string_view> Variable(const char* name) {
  const char* value = getenv(name);
  return value != nullptr ? std::optional<std::string_view>(value) : std::nullopt;
}
}  // namespace

std::vector<uint32_t> Driver::Seen(const std::vector<Description>& gpus) {
  std::vector<VisibleGpu> all;
  std::vector<bool> mig;
  std::vector<VisibleInstance> instances;
  std::vector<uint32_t> places;
  for (uint32_t gpu = 0; gpu < gpus.size(); ++gpu) {
    all.push_back({UuidOf(gpus[gpu].uuid).text, gpus[gpu].sms});
    MigState state;
    mig.push_back((gpus[gpu].flags & kFlagMig) != 0 && connection_.Mig(gpu, &state) && state.enabled != 0);
    for (uint32_t i = 0; mig.back() && i < state.compute_count; ++i) {
      Description d;
      if (!connection_.Describe(state.computes[i].place, &d)) continue;
      instances.push_back({.gpu = gpu,
                           .gpu_instance = d.gpu_instance,
                           .uuid = MigUuidOf(d.uuid).text,
                           .old_name = "MIG-" + all.back().uuid + "/" + std::to_string(d.gpu_instance) + "/" +
                                       std::to_string(d.compute_instance)});
      if (DriverBranch(d.driver_version) < kMigUuidBranch) instances.back().uuid = instances.back().old_name;
      places.push_back(state.computes[i].place);
    }
  }
  const bool several = DriverBranch(gpus.front().driver_version) >= kSeveralMigDevicesBranch;
  std::vector<uint32_t> seen;
  for (const VisibleDevice& device : VisibleDevicesWithMig(
           Variable("CUDA_VISIBLE_DEVICES"), Variable("CUDA_DEVICE_ORDER"), all, mig, instances, several))
    seen.push_back(device.is_instance ? places[device.index] : device.index);
  return seen;
}

// Null: an instance that has gone since it was seen.
std::unique_ptr<Device> Driver::MakeDevice(uint32_t place, const std::vector<Description>& gpus) {
  auto device = std::make_unique<Device>();
  device->gpu = place;
  if (place < gpus.size()) {
    device->description = gpus[place];
    device->uuid = device->gpu_uuid = UuidOf(gpus[place].uuid);
    return device;
  }
  const auto opened = connection_.Call(Op::kMigOpen, place);
  if (!opened || opened->answer != Answer::kOk || !connection_.Describe(place, &device->description) ||
      device->description.parent >= gpus.size())
    return nullptr;
  device->uuid = MigUuidOf(device->description.uuid);
  device->gpu_uuid = UuidOf(gpus[device->description.parent].uuid);
  return device;
}

CUresult Driver::MakeDevices(const std::vector<Description>& gpus) {
  const MpsServerOffer offer = AskForMps(connection_);
  struct Closer {
    int fd;
    ~Closer() {
      if (fd >= 0) close(fd);
    }
  } closer{offer.socket};
  if (offer.error != CUDA_SUCCESS) return offer.error;
  std::vector<uint32_t> seen;
  if (offer.server != 0) {
    // The MPS server's GPUs are all there are to its client, in the server's order.
    std::vector<VisibleGpu> all;
    for (uint32_t gpu : offer.gpus) all.push_back({UuidOf(gpus[gpu].uuid).text, gpus[gpu].sms});
    for (uint32_t index : VisibleDevices(Variable("CUDA_VISIBLE_DEVICES"), "PCI_BUS_ID", all))
      seen.push_back(offer.gpus[index]);
  } else {
    seen = Seen(gpus);
  }
  std::vector<std::unique_ptr<Device>> devices;
  for (uint32_t place : seen) {
    auto device = MakeDevice(place, gpus);
    if (device == nullptr) continue;
    device->ordinal = static_cast<CUdevice>(devices.size());
    devices.push_back(std::move(device));
  }
  if (devices.empty()) return CUDA_ERROR_NO_DEVICE;
  if (offer.server != 0) {
    if (CUresult error = JoinMps(connection_, offer, devices); error != CUDA_SUCCESS) return error;
  }
  devices_ = std::move(devices);
  return CUDA_SUCCESS;
}

int Driver::OpenNode(uint32_t gpu) {
  Request request;
  request.op = Op::kOpenDevice;
  request.gpu = gpu;
  int node = -1;
  connection_.Call(request, -1, &node);
  return node;
}

CUresult Driver::AddContext(Device* device) {
  if (device->node < 0) device->node = OpenNode(device->gpu);
  const auto reply = connection_.Call(Op::kAddContext, device->gpu);
  if (!reply) return CUDA_ERROR_UNKNOWN;
  switch (reply->answer) {
    case Answer::kOk:
      return CUDA_SUCCESS;
    case Answer::kOutOfMemory:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case Answer::kBusy:
      return CUDA_ERROR_DEVICE_UNAVAILABLE;
    case Answer::kFailed:
      return static_cast<CUresult>(reply->values[0]);
    default:
      return CUDA_ERROR_UNKNOWN;
  }
}

Device* Driver::FindDevice(CUdevice ordinal) {
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= devices_.size()) return nullptr;
  return devices_[static_cast<size_t>(ordinal)].get();
}

Answer Driver::Change(const Device& device, Op op, uint64_t amount) {
  const auto reply = connection_.Call(op, device.gpu, amount);
  return reply ? reply->answer : Answer::kInvalid;
}

std::optional<int> Driver::ComputeMode(const Device& device) {
  const auto reply = connection_.Call(Op::kUtilization, device.gpu);
  if (!reply || reply->answer != Answer::kOk) return std::nullopt;
  return static_cast<int>(reply->values[1]);
}

std::optional<Reply> Driver::AskShare(Op op, const Device* device, uint64_t amount, uint64_t key, int send,
                                      int* receive) {
  Request request;
  request.op = op;
  request.gpu = device != nullptr ? device->gpu : 0;
  request.amount = amount;
  request.key = key;
  auto reply = connection_.Call(request, send, receive);
  if (!reply || reply->answer != Answer::kOk) return std::nullopt;
  return reply;
}

Device* Driver::FindDeviceOfGpu(uint64_t gpu) {
  for (const auto& device : devices_) {
    if (device->gpu == gpu) return device.get();
  }
  return nullptr;
}

std::optional<Driver::Memory> Driver::QueryMemory(const Device& device) {
  const auto reply = connection_.Call(Op::kMemory, device.gpu);
  if (!reply || reply->answer != Answer::kOk) return std::nullopt;
  return Memory{reply->values[2], reply->values[2] - reply->values[3]};
}

}  // namespace gpumux::softgpu
