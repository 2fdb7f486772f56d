// SPDX-License-Identifier: Apache-2.0
//
// What CUDA programs see of MIG.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>

#include "child.h"
#include "mig_functions.h"

namespace gpumux::test {
namespace {

using namespace nvml;
using cuda::CUdeviceptr;
using cuda::CUresult;

class SoftGpuMigCuda : public SoftGpuTest {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "skipped: MIG is changed by root";
  }
  // A machine with MIG on GPU 0, its driver of this version.
  nvmlDevice_t Machine(const std::string& gpus, const std::string& driver = "580.159.04") {
    const std::string path = dir() + "/gpus.json";
    std::ofstream(path) << "{\"driver_version\": \"" << driver << "\", \"gpus\": [" << gpus << "]}";
    setenv("GPUMUX_SOFTGPU", path.c_str(), 1);
    return GpuHandle(0);
  }
};

constexpr const char* kH200WithMig = R"({"model": "H200", "mig": true})";

// What a program with this CUDA_VISIBLE_DEVICES (null: none) sees: "name, SMs, GiB".
void ExpectSeen(const char* visible, const std::vector<std::string>& expected) {
  SCOPED_TRACE(visible != nullptr ? visible : "without CUDA_VISIBLE_DEVICES");
  InChild([&] {
    if (visible != nullptr) setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    const CUresult init = CU(cuInit, unsigned)(0);
    std::vector<std::string> seen;
    int count = 0;
    if (init == cuda::CUDA_SUCCESS) {
      EXPECT_EQ(CU(cuDeviceGetCount, int*)(&count), cuda::CUDA_SUCCESS);
    } else {
      EXPECT_EQ(init, cuda::CUDA_ERROR_NO_DEVICE);
    }
    for (int i = 0; i < count; ++i) {
      char name[96] = {};
      size_t bytes = 0;
      int sms = 0;
      EXPECT_EQ(CU(cuDeviceGetName, char*, int, int)(name, sizeof name, i), cuda::CUDA_SUCCESS);
      EXPECT_EQ(CU(cuDeviceTotalMem_v2, size_t*, int)(&bytes, i), cuda::CUDA_SUCCESS);
      EXPECT_EQ(CU(cuDeviceGetAttribute, int*, int, int)(&sms, 16, i), cuda::CUDA_SUCCESS);
      std::string text = name;
      text.resize(std::min(text.size(), text.find(" (software")));
      seen.push_back(text + ", " + std::to_string(sms) + ", " + std::to_string(bytes >> 20));
    }
    EXPECT_EQ(seen, expected);
  });
}

const std::string kOne = "NVIDIA H200 MIG 1g.18gb, 16, 16384", kThree = "NVIDIA H200 MIG 3g.71gb, 60, 71168";

TEST_F(SoftGpuMigCuda, AnInstanceIsADeviceOfItsOwn) {
  const auto gpu = Machine(kH200WithMig);
  ExpectSeen(nullptr, {});  // MIG is on, and there is no instance
  const std::string three = MakeMigDevice(gpu, k3g, k3c), one = MakeMigDevice(gpu, k1g, k1c);
  ExpectSeen(nullptr, {kThree, kOne});
  ExpectSeen(one.c_str(), {kOne});
  ExpectSeen(one.substr(0, 12).c_str(), {kOne});
  ExpectSeen((one + "," + three).c_str(), {kOne, kThree});
  ExpectSeen((one + "," + one).c_str(), {});
  ExpectSeen("0", {kThree, kOne});
  ExpectSeen("MIG-00000000-0000-0000-0000-000000000000", {});
  const auto old_name = "MIG-" + UuidText(gpu) + "/";
  nvmlDevice_t device = nullptr;
  unsigned id = 0;
  ASSERT_EQ(MigByIndex(gpu, 1, &device), NVML_SUCCESS);
  ASSERT_EQ(NVML(nvmlDeviceGetGpuInstanceId, nvmlDevice_t, unsigned*)(device, &id), NVML_SUCCESS);
  ExpectSeen((old_name + std::to_string(id) + "/0").c_str(), {kOne});
  ExpectSeen((old_name + std::to_string(id) + "/1").c_str(), {});
  InChild([&] {
    setenv("CUDA_VISIBLE_DEVICES", one.c_str(), 1);
    ASSERT_EQ(CU(cuInit, unsigned)(0), cuda::CUDA_SUCCESS);
    unsigned char own[16], whole[16];
    EXPECT_EQ(CU(cuDeviceGetUuid_v2, void*, int)(own, 0), cuda::CUDA_SUCCESS);
    EXPECT_EQ(CU(cuDeviceGetUuid, void*, int)(whole, 0), cuda::CUDA_SUCCESS);
    char text[8];
    snprintf(text, sizeof text, "%02x%02x", own[0], own[1]);
    EXPECT_EQ(one.substr(4, 4), text);
    snprintf(text, sizeof text, "%02x%02x", whole[0], whole[1]);
    EXPECT_EQ(UuidText(GpuHandle(0)).substr(4, 4), text);
    char bus[16];
    EXPECT_EQ(CU(cuDeviceGetPCIBusId, char*, int, int)(bus, sizeof bus, 0), cuda::CUDA_SUCCESS);
    EXPECT_STREQ(bus, "0000:10:00.0");
  });
}

// It has seen the whole GPU, and comes too late for a context on it.
TEST_F(SoftGpuMigCuda, AProgramThatStartedBeforeMigWasEnabled) {
  const auto gpu = Machine(R"({"model": "H200"})");
  Child early([](const Child::Step& step) {
    ASSERT_EQ(CU(cuInit, unsigned)(0), cuda::CUDA_SUCCESS);
    step.Report();
    step.Wait();
    EXPECT_EQ(InitWithContext(), cuda::CUDA_ERROR_DEVICE_UNAVAILABLE);
  });
  ASSERT_TRUE(early.WaitReport());
  EXPECT_EQ(SetMig(gpu, true), NVML_SUCCESS);
  MakeMigDevice(gpu, k7g, k7c);
  early.Continue();
  EXPECT_EQ(early.Join(), 0);
}

TEST_F(SoftGpuMigCuda, BeforeR570AProgramSeesOne) {
  const auto gpu = Machine(kH200WithMig, "550.54.15");
  const std::string three = MakeMigDevice(gpu, k3g, k3c), one = MakeMigDevice(gpu, k1g, k1c);
  ExpectSeen(nullptr, {kThree});
  ExpectSeen((one + "," + three).c_str(), {kOne});
}

TEST_F(SoftGpuMigCuda, BeforeR470DevicesAreNamedAfterTheirGpu) {
  const auto gpu = Machine(R"({"model": "A100-40", "mig": true})", "450.80.02");
  const std::string one = MakeMigDevice(gpu, k1g, k1c);
  EXPECT_EQ(one.rfind("MIG-GPU-", 0), 0u) << one;
  ExpectSeen(one.c_str(), {"NVIDIA A100-SXM4-40GB MIG 1g.5gb, 14, 4864"});
}

TEST_F(SoftGpuMigCuda, BesideAnInstanceNoWholeGpuIsSeen) {
  const auto gpu = Machine(std::string(R"({"model": "L4"}, )") + kH200WithMig);
  const auto partitioned = GpuHandle(1);
  ExpectSeen(nullptr, {"NVIDIA L4, 58, 22935"});
  const std::string one = MakeMigDevice(partitioned, k1g, k1c);
  ExpectSeen(nullptr, {kOne});
  ExpectSeen(UuidText(gpu).c_str(), {"NVIDIA L4, 58, 22935"});
  ExpectSeen((UuidText(gpu) + "," + one).c_str(), {kOne});
}

// A mode that waits for a reset changes nothing for who is there already.
TEST_F(SoftGpuMigCuda, DisablingThatWaitsForAReset) {
  const auto gpu = Machine(R"({"model": "A100-40", "mig": true})");
  MakeMigDevice(gpu, k1g, k1c);
  Child early([](const Child::Step& step) {
    ASSERT_EQ(CU(cuInit, unsigned)(0), cuda::CUDA_SUCCESS);
    step.Report();
    step.Wait();
    EXPECT_EQ(InitWithContext(), cuda::CUDA_SUCCESS);
  });
  ASSERT_TRUE(early.WaitReport());
  EXPECT_EQ(SetMig(gpu, false), NVML_ERROR_RESET_REQUIRED);
  EXPECT_EQ(Modes(gpu), "1 0");
  early.Continue();
  EXPECT_EQ(early.Join(), 0);
}

// Of one GPU instance a program gets one compute instance; their memory is the same.
TEST_F(SoftGpuMigCuda, ComputeInstancesShareMemory) {
  const auto gpu = Machine(kH200WithMig);
  nvmlGpuInstance_t three = nullptr;
  nvmlComputeInstance_t compute[2];
  ASSERT_EQ(CreateGi(gpu, k3g, &three), NVML_SUCCESS);
  for (auto& each : compute) ASSERT_EQ(CreateCi(three, k1c, &each), NVML_SUCCESS);
  ExpectSeen(nullptr, {"NVIDIA H200 MIG 1c.3g.71gb, 16, 71168"});
  nvmlDevice_t first = nullptr, second = nullptr;
  ASSERT_EQ(MigByIndex(gpu, 0, &first), NVML_SUCCESS);
  ASSERT_EQ(MigByIndex(gpu, 1, &second), NVML_SUCCESS);
  setenv("CUDA_VISIBLE_DEVICES", UuidText(second).c_str(), 1);
  Child holder([](const Child::Step& step) {
    CUdeviceptr pointer;
    ASSERT_EQ(InitWithContext(), cuda::CUDA_SUCCESS);
    ASSERT_EQ(Alloc(&pointer, 40ull << 30), cuda::CUDA_SUCCESS);
    step.Report();
    step.Wait();
  });
  unsetenv("CUDA_VISIBLE_DEVICES");
  ASSERT_TRUE(holder.WaitReport());
  EXPECT_GT(ReadMemory(first).used, 40ull << 30);
  EXPECT_EQ(ReadMemory(first).used, ReadMemory(second).used);
  EXPECT_EQ(OwnBytes(first, holder.pid()), -1) << "it runs on the other one";
  EXPECT_GT(OwnBytes(second, holder.pid()), 40ll << 30);
  // The whole GPU's list says where each process is.
  nvmlProcessInfo_v2_t info[4];
  unsigned count = 4;
  ASSERT_EQ(NVML(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDevice_t, unsigned*, nvmlProcessInfo_v2_t*)(
                gpu, &count, info),
            NVML_SUCCESS);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(info[0].pid, static_cast<unsigned>(holder.pid()));
  EXPECT_EQ(info[0].computeInstanceId, 1u);
  EXPECT_GT(ReadMemory(gpu).used, 40ull << 30);
  // A program is on it.
  EXPECT_EQ(DestroyCi(compute[1]), NVML_ERROR_IN_USE);
  EXPECT_EQ(DestroyCi(compute[0]), NVML_SUCCESS);
  EXPECT_EQ(DestroyGi(three), NVML_ERROR_IN_USE);
  EXPECT_EQ(SetMig(gpu, false), NVML_ERROR_IN_USE);
  EXPECT_EQ(Modes(gpu), "1 0");
  holder.Continue();
  EXPECT_EQ(holder.Join(), 0);
  EXPECT_TRUE(Eventually([&] { return DestroyCi(compute[1]) == NVML_SUCCESS; }));
  EXPECT_EQ(DestroyGi(three), NVML_SUCCESS);
}

TEST_F(SoftGpuMigCuda, AnInstancesMemoryIsItsOwn) {
  const auto gpu = Machine(kH200WithMig);
  const std::string one = MakeMigDevice(gpu, k1g, k1c), other = MakeMigDevice(gpu, k1g, k1c);
  for (const std::string& uuid : {one, other}) {
    InChild([&] {
      setenv("CUDA_VISIBLE_DEVICES", uuid.c_str(), 1);
      ASSERT_EQ(InitWithContext(), cuda::CUDA_SUCCESS);
      CUdeviceptr pointer = 0;
      EXPECT_EQ(Alloc(&pointer, 16ull << 30), cuda::CUDA_ERROR_OUT_OF_MEMORY);
      EXPECT_EQ(Alloc(&pointer, 15ull << 30), cuda::CUDA_SUCCESS);
      size_t free = 0, total = 0;
      EXPECT_EQ(CU(cuMemGetInfo_v2, size_t*, size_t*)(&free, &total), cuda::CUDA_SUCCESS);
      EXPECT_EQ(total, 16ull << 30);
      EXPECT_LT(free, 1ull << 30);
    });
  }
}

// Two programs that each keep their instance busy need as long as one: they do not take turns.
TEST_F(SoftGpuMigCuda, InstancesRunAtTheSameTime) {
  const auto gpu = Machine(kH200WithMig);
  const std::string one = MakeMigDevice(gpu, k1g, k1c), other = MakeMigDevice(gpu, k1g, k1c);
  constexpr int kKernels = 10;
  const auto run = [](const std::string& uuid) {
    return std::make_unique<Child>([uuid](const Child::Step& step) {
      setenv("CUDA_VISIBLE_DEVICES", uuid.c_str(), 1);
      ASSERT_EQ(InitWithContext(), cuda::CUDA_SUCCESS);
      ASSERT_EQ(Spin(1'000'000), cuda::CUDA_SUCCESS);  // the module is loaded
      ASSERT_EQ(Synchronize(), cuda::CUDA_SUCCESS);
      step.Report();
      step.Wait();
      for (int i = 0; i < kKernels; ++i) ASSERT_EQ(Spin(20'000'000, nullptr, 16), cuda::CUDA_SUCCESS);
      ASSERT_EQ(Synchronize(), cuda::CUDA_SUCCESS);
    });
  };
  auto first = run(one), second = run(other);
  ASSERT_TRUE(first->WaitReport());
  ASSERT_TRUE(second->WaitReport());
  const auto begin = std::chrono::steady_clock::now();
  first->Continue();
  second->Continue();
  EXPECT_EQ(first->Join(), 0);
  EXPECT_EQ(second->Join(), 0);
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, std::chrono::milliseconds(20 * kKernels));
  EXPECT_LT(took, std::chrono::milliseconds(20 * kKernels * 3 / 2)) << "taking turns it is twice as long";
}

TEST_F(SoftGpuMigCuda, NothingIsSharedBetweenGpuInstances) {
  const auto gpu = Machine(kH200WithMig);
  nvmlGpuInstance_t two = nullptr;
  nvmlComputeInstance_t compute = nullptr;
  ASSERT_EQ(CreateGi(gpu, k2g, &two), NVML_SUCCESS);
  std::vector<std::string> uuids;
  for (int i = 0; i < 2; ++i) ASSERT_EQ(CreateCi(two, k1c, &compute), NVML_SUCCESS);
  MakeMigDevice(gpu, k1g, k1c);
  for (unsigned index = 0; index < 3; ++index) {
    nvmlDevice_t device = nullptr;
    ASSERT_EQ(MigByIndex(gpu, index, &device), NVML_SUCCESS);
    uuids.push_back(UuidText(device));
  }
  struct Handle {
    char bytes[64];
  };
  int handles[2];
  ASSERT_EQ(pipe(handles), 0);
  Child owner([&](const Child::Step& step) {
    setenv("CUDA_VISIBLE_DEVICES", uuids[0].c_str(), 1);
    CUdeviceptr pointer;
    Handle handle;
    ASSERT_EQ(InitWithContext(), cuda::CUDA_SUCCESS);
    ASSERT_EQ(Alloc(&pointer, 4 << 20), cuda::CUDA_SUCCESS);
    ASSERT_EQ(CU(cuIpcGetMemHandle, Handle*, CUdeviceptr)(&handle, pointer), cuda::CUDA_SUCCESS);
    ASSERT_EQ(write(handles[1], &handle, sizeof handle), static_cast<ssize_t>(sizeof handle));
    step.Report();
    step.Wait();
  });
  ASSERT_TRUE(owner.WaitReport());
  Handle handle;
  ASSERT_EQ(read(handles[0], &handle, sizeof handle), static_cast<ssize_t>(sizeof handle));
  const auto open = [&](const std::string& uuid, CUresult expected) {
    InChild([&] {
      setenv("CUDA_VISIBLE_DEVICES", uuid.c_str(), 1);
      CUdeviceptr pointer = 0;
      ASSERT_EQ(InitWithContext(), cuda::CUDA_SUCCESS);
      EXPECT_EQ(CU(cuIpcOpenMemHandle_v2, CUdeviceptr*, Handle, unsigned)(&pointer, handle, 1), expected);
    });
  };
  open(uuids[1], cuda::CUDA_SUCCESS);  // another compute instance of the same GPU instance
  open(uuids[2], cuda::CUDA_ERROR_MAP_FAILED);
  InChild([] {
    ASSERT_EQ(CU(cuInit, unsigned)(0), cuda::CUDA_SUCCESS);
    int can = 9;
    EXPECT_EQ(CU(cuDeviceCanAccessPeer, int*, int, int)(&can, 0, 1), cuda::CUDA_SUCCESS);
    EXPECT_EQ(can, 0);
  });
  owner.Continue();
  EXPECT_EQ(owner.Join(), 0);
}

}  // namespace
}  // namespace gpumux::test
