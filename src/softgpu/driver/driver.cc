// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/driver.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>

#include "softgpu/driver/driver_version.h"
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
  std::vector<VisibleGpu> all;
  for (const Description& gpu : gpus) all.push_back({UuidOf(gpu.uuid).text, gpu.sms});
  const auto variable = [](const char* name) {
    const char* value = getenv(name);
    return value != nullptr ? std::optional<std::string_view>(value) : std::nullopt;
  };
  std::vector<std::unique_ptr<Device>> devices;
  for (uint32_t gpu : VisibleDevices(variable("CUDA_VISIBLE_DEVICES"), variable("CUDA_DEVICE_ORDER"), all)) {
    auto device = std::make_unique<Device>();
    device->ordinal = static_cast<CUdevice>(devices.size());
    device->gpu = gpu;
    device->description = gpus[gpu];
    device->uuid = UuidOf(gpus[gpu].uuid);
    devices.push_back(std::move(device));
  }
  if (devices.empty()) {
    connection_.Close();
    return CUDA_ERROR_NO_DEVICE;
  }
  devices_ = std::move(devices);
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
