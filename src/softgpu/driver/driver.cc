// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/driver.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <numeric>

#include "softgpu/driver/driver_version.h"
#include "softgpu/driver/error_codes.h"
#include "softgpu/driver/mps.h"
#include "softgpu/driver/visible_devices.h"

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

CUresult Driver::MakeDevices(const std::vector<Description>& gpus) {
  const auto variable = [](const char* name) {
    const char* value = getenv(name);
    return value != nullptr ? std::optional<std::string_view>(value) : std::nullopt;
  };
  const auto visible = [&](const std::vector<uint32_t>& of, std::optional<std::string_view> order) {
    std::vector<VisibleGpu> all;
    for (uint32_t gpu : of) all.push_back({UuidOf(gpus[gpu].uuid).text, gpus[gpu].sms});
    std::vector<uint32_t> found;
    for (uint32_t index : VisibleDevices(variable("CUDA_VISIBLE_DEVICES"), order, all))
      found.push_back(of[index]);
    return found;
  };
  std::vector<uint32_t> every(gpus.size());
  std::iota(every.begin(), every.end(), 0);
  const MpsServerOffer offer = AskForMps(connection_);
  struct Closer {
    int fd;
    ~Closer() {
      if (fd >= 0) close(fd);
    }
  } closer{offer.socket};
  if (offer.error != CUDA_SUCCESS) return offer.error;
  // The MPS server's GPUs are all there are to its client, in the server's order.
  const std::vector<uint32_t> seen =
      offer.server != 0 ? visible(offer.gpus, "PCI_BUS_ID") : visible(every, variable("CUDA_DEVICE_ORDER"));
  std::vector<std::unique_ptr<Device>> devices;
  for (uint32_t gpu : seen) {
    auto device = std::make_unique<Device>();
    device->ordinal = static_cast<CUdevice>(devices.size());
    device->gpu = gpu;
    device->description = gpus[gpu];
    device->uuid = UuidOf(gpus[gpu].uuid);
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
