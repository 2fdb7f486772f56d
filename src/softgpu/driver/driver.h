// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gpumux/abi/cuda/driver.h"
#include "softgpu/client/connection.h"

namespace gpumux::softgpu {

struct Context;
struct Pool;

// A GPU as this process sees it: visible, and in the order of
// CUDA_DEVICE_ORDER and CUDA_VISIBLE_DEVICES.
struct Device {
  cuda::CUdevice ordinal = 0;
  uint32_t gpu = 0;  // the server's number: a GPU, or a compute instance
  GpuUuid uuid;      // of a MIG device its own
  GpuUuid gpu_uuid;
  Description description;
  Context* primary = nullptr;  // one object for life, active or not
  unsigned primary_count = 0;
  Pool* default_pool = nullptr;
  Pool* current_pool = nullptr;
  int node = -1;         // stands for /dev/nvidia<gpu>; from the first context on
  bool mps = false;      // its work goes to the GPU through MPS
  bool limited = false;  // by MPS, in memory
};

// The state of the driver in this process. Made by cuInit, never destroyed:
// programs call into the driver from destructors and from threads that outlive
// main.
class Driver {
 public:
  static Driver& Get();

  cuda::CUresult Init();
  // Nothing for an ordinal that does not exist.
  Device* FindDevice(cuda::CUdevice ordinal);
  const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }

  cuda::CUresult AddContext(Device* device);
  // One request to the server. kInvalid when the server is gone.
  Answer Change(const Device& device, Op op, uint64_t amount = 0);
  // Free bytes of the whole device; nothing when the server is gone.
  struct Memory {
    uint64_t total = 0;
    uint64_t free = 0;
  };
  std::optional<Memory> QueryMemory(const Device& device);
  // NVML's number of it; nothing when the server is gone.
  std::optional<int> ComputeMode(const Device& device);
  // About memory that is shared: a descriptor may go along, one may come back.
  std::optional<Reply> AskShare(Op op, const Device* device, uint64_t amount, uint64_t key, int send = -1,
                                int* receive = nullptr);
  // The server's number of this process.
  uint64_t client() const { return connection_.client(); }
  Device* FindDeviceOfGpu(uint64_t gpu);
  int OpenWork() { return connection_.OpenWork(); }

 private:
  cuda::CUresult MakeDevices(const std::vector<Description>& gpus);
  // What is to be seen outside MPS, as the server numbers it.
  std::vector<uint32_t> Seen(const std::vector<Description>& gpus);
  std::unique_ptr<Device> MakeDevice(uint32_t place, const std::vector<Description>& gpus);
  int OpenNode(uint32_t gpu);

  std::mutex init_mutex_;
  Connection connection_;
  std::vector<std::unique_ptr<Device>> devices_;
  int control_node_ = -1;  // stands for /dev/nvidiactl
};

// After cuInit, and not in a child that was forked after it (the driver does
// not survive a fork either).
bool Initialized();

}  // namespace gpumux::softgpu
