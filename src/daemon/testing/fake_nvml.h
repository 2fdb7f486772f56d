// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <new>
#include <thread>

#include "gpu/nvml.h"

namespace gpumux::daemon {

// NVML's figures in memory that survives fork: the daemon reads them in its
// process, the test and its children set them in theirs.
struct FakeFigures {
  static constexpr int kMaxProcesses = 1024;
  // An H200's.
  uint64_t total_bytes = 150754820096;
  uint64_t reserved_bytes = 644939776;
  std::atomic<uint64_t> unexplained_bytes{0};
  std::atomic<bool> lost{false};
  // The next so many lists show each process with so much more: calls that began
  // and whose memory was free again while NVML was asked.
  std::atomic<int> flickers{0};
  std::atomic<uint64_t> flicker_bytes{0};
  struct Process {
    std::atomic<pid_t> pid{0};
    std::atomic<uint64_t> bytes{0};
  };
  Process processes[kMaxProcesses];

  static FakeFigures* Create() {
    void* memory =
        mmap(nullptr, sizeof(FakeFigures), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return new (memory) FakeFigures;
  }

  // 0 removes the process from the list.
  void Set(pid_t pid, uint64_t bytes) {
    for (Process& process : processes) {
      pid_t expected = pid;
      if (process.pid.load() != pid &&
          (bytes == 0 || !process.pid.compare_exchange_strong(expected = 0, pid)))
        continue;
      process.bytes = bytes;
      if (bytes == 0) process.pid = 0;
      return;
    }
  }
};

class FakeNvml final : public gpu::Nvml {
 public:
  FakeNvml(FakeFigures& figures, unsigned gpus) : figures_(figures) {
    for (unsigned i = 0; i < gpus; ++i) {
      gpu::Device device{.uuid = {}, .index = i, .name = "NVIDIA H200", .pci_bus_id = "00000000:18:00.0"};
      device.uuid.bytes = {0xfa, 0x4e, static_cast<uint8_t>(i)};
      devices_.push_back(device);
    }
  }
  const std::vector<gpu::Device>& Devices() const override { return devices_; }
  Status Restart() override { return {}; }
  std::string DriverVersion() const override { return "580.0"; }
  // Processes are on GPU 0; the others are empty.
  Result<gpu::DeviceMemory> Memory(const gpu::Uuid& gpu) override {
    if (figures_.lost) return Fail(Code::kUnavailable, "GPU is lost");
    gpu::DeviceMemory memory{.total_bytes = figures_.total_bytes, .reserved_bytes = figures_.reserved_bytes};
    if (gpu == devices_[0].uuid) {
      memory.used_bytes = figures_.unexplained_bytes;
      bool any = false;
      for (const auto& process : figures_.processes) {
        if (process.pid == 0) continue;
        any = true;
        memory.used_bytes += process.bytes + 5832704;
      }
      if (any) memory.used_bytes += 3407872;
    }
    memory.free_bytes = memory.total_bytes - memory.reserved_bytes - memory.used_bytes;
    return memory;
  }
  Result<std::vector<gpu::ProcessUse>> Processes(const gpu::Uuid& gpu) override {
    if (figures_.lost) return Fail(Code::kUnavailable, "GPU is lost");
    std::vector<gpu::ProcessUse> list;
    if (gpu != devices_[0].uuid) return list;
    const uint64_t more = figures_.flickers > 0 ? figures_.flicker_bytes.load() : 0;
    if (more > 0) --figures_.flickers;
    for (const auto& process : figures_.processes) {
      if (const pid_t pid = process.pid) list.push_back({pid, process.bytes.load() + more});
    }
    return list;
  }
  Result<gpu::ComputeMode> Mode(const gpu::Uuid&) override { return gpu::ComputeMode::kDefault; }

 private:
  FakeFigures& figures_;
  std::vector<gpu::Device> devices_;
};

}  // namespace gpumux::daemon
