// SPDX-License-Identifier: Apache-2.0
//
// MPS from a program's side: attached or not, SMs, memory, numbers of clients,
// as measured on an H200 with driver 580.159.04 unless a test says otherwise.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "mps_world.h"

namespace gpumux::test {
namespace {

using namespace cuda;

class SoftGpuMps : public MpsTest {};

constexpr unsigned long long kMiB = 1 << 20;
constexpr size_t kGiB = 1ULL << 30;

std::string Uuid0() {
  char text[96] = {};
  NVML(nvmlDeviceGetUUID, nvml::nvmlDevice_t, char*, unsigned)(Gpu0(), text, sizeof(text));
  return text;
}

// A client that has its context and waits.
void Idle(const Child::Step& step) {
  ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
  step.Report();
  step.Wait();
}

TEST_F(SoftGpuMps, AProgramIsAttachedWhereThereIsADaemon) {
  StartDaemon();
  EXPECT_EQ(ServerPid(), 0) << "the server comes with the first client";
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    EXPECT_EQ(MpsAttribute(), 1);
    EXPECT_EQ(Sms(), 132);
    EXPECT_EQ(FreeMiB(), 142'565u);
    ASSERT_EQ(Spin(1000), CUDA_SUCCESS);
    EXPECT_EQ(Synchronize(), CUDA_SUCCESS);
  });
  EXPECT_GT(ServerPid(), 0) << "and survives its clients";
}

TEST_F(SoftGpuMps, WithoutADaemonAProgramRunsOutsideAndNobodySaysSo) {
  const auto outside = [] {
    InChild([] {
      setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25", 1);
      setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4G", 1);
      ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
      EXPECT_EQ(MpsAttribute(), 0);
      EXPECT_EQ(Sms(), 132) << "no limit";
      EXPECT_GT(FreeMiB(), 142'000u) << "no limit";
      CUdeviceptr p;
      EXPECT_EQ(Alloc(&p, 8 * kGiB), CUDA_SUCCESS);
    });
  };
  outside();  // no such directory
  StartDaemon();
  setenv("CUDA_MPS_PIPE_DIRECTORY", (dir() + "/misspelt").c_str(), 1);
  outside();
  setenv("CUDA_MPS_PIPE_DIRECTORY", pipes().c_str(), 1);
  // What a daemon leaves that was killed.
  const pid_t daemon = DaemonPid();
  kill(daemon, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return !IsAlive(daemon); }));
  EXPECT_EQ(access((pipes() + "/control").c_str(), F_OK), 0);
  outside();
}

TEST_F(SoftGpuMps, APercentageLimitsTheSmsAndShrinksTheContext) {
  StartDaemon();
  const struct {
    const char* percent;
    int sms;
    unsigned long long free;
  } cases[] = {
      {"1", 8, 143'023}, {"25", 32, 0}, {"99", 130, 0}, {"100", 132, 142'565}, {"wrong", 132, 142'565}};
  for (const auto& c : cases) {
    InChild([&] {
      setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", c.percent, 1);
      ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
      EXPECT_EQ(Sms(), c.sms) << c.percent;
      if (c.free != 0) {
        EXPECT_EQ(FreeMiB(), c.free) << c.percent;
      }
    });
  }
}

TEST_F(SoftGpuMps, AMemoryLimitHoldsForEveryWayToTakeMemory) {
  StartDaemon();
  InChild([] {
    setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4G", 1);
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    EXPECT_EQ(FreeMiB(), 3582u) << "the context counts";
    size_t total = 0;
    ASSERT_EQ(CU(cuDeviceTotalMem_v2, size_t*, int)(&total, 0), CUDA_SUCCESS);
    EXPECT_EQ(total, 150'109'880'320u);
    CUdeviceptr p;
    EXPECT_EQ(Alloc(&p, 8 * kGiB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(CU(cuMemAllocAsync, CUdeviceptr*, size_t, CUstream)(&p, 8 * kGiB, nullptr),
              CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(CU(cuMemAllocManaged, CUdeviceptr*, size_t, unsigned)(&p, 8 * kGiB, 1),
              CUDA_ERROR_OUT_OF_MEMORY);
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handle;
    EXPECT_EQ(CU(cuMemCreate, CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
                 unsigned long long)(&handle, 8 * kGiB, &prop, 0),
              CUDA_ERROR_OUT_OF_MEMORY);
    CUDA_ARRAY3D_DESCRIPTOR array = {};
    array.Width = array.Height = 2048;
    array.Depth = 512;
    array.Format = 0x20;
    array.NumChannels = 1;
    CUarray made;
    EXPECT_EQ(CU(cuArray3DCreate_v2, CUarray*, const CUDA_ARRAY3D_DESCRIPTOR*)(&made, &array),
              CUDA_ERROR_OUT_OF_MEMORY);
    // Within it all goes, and what is freed can be had again.
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(CU(cuMemAllocManaged, CUdeviceptr*, size_t, unsigned)(&p, 2 * kGiB, 1), CUDA_SUCCESS);
      EXPECT_EQ(FreeMiB(), 3582u - 2048);
      ASSERT_EQ(Free(p), CUDA_SUCCESS);
    }
    ASSERT_EQ(Alloc(&p, 3 * kGiB), CUDA_SUCCESS);
    EXPECT_EQ(FreeMiB(), 3582u - 3072);
  });
}

TEST_F(SoftGpuMps, OneEntryForAGpuThatIsNotThereDropsEveryLimit) {
  StartDaemon();
  const std::string uuid = Uuid0();
  const struct {
    std::string limits;
    bool limited;
  } cases[] = {{"0=2G", true}, {uuid + "=2G", true}, {"0=2G,1=4G", false}, {"0=2048", false}};
  for (const auto& c : cases) {
    InChild([&] {
      setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", c.limits.c_str(), 1);
      ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
      EXPECT_EQ(MpsAttribute(), 1);
      EXPECT_EQ(FreeMiB(), c.limited ? 2048u - 514 : 142'565u) << c.limits;
    });
  }
}

TEST_F(SoftGpuMps, AProgramCanOnlyLowerWhatTheServerAllows) {
  setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50", 1);
  setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4G", 1);
  StartDaemon();
  const struct {
    const char *percent, *limit;
    int sms;
    unsigned long long most;
  } cases[] = {{"75", "0=8G", 66, 4096}, {"25", "0=2G", 32, 2048}, {nullptr, nullptr, 66, 4096}};
  for (const auto& c : cases) {
    InChild([&] {
      for (const auto& [name, value] : {std::pair("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", c.percent),
                                        std::pair("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", c.limit)}) {
        value != nullptr ? setenv(name, value, 1) : unsetenv(name);
      }
      ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
      EXPECT_EQ(Sms(), c.sms);
      EXPECT_LT(FreeMiB(), c.most);
      EXPECT_GT(FreeMiB(), c.most - 516) << "less than a context with all SMs";
    });
  }
}

TEST_F(SoftGpuMps, GpusAreChosenByUuidInTheServersOrder) {
  setenv("GPUMUX_SOFTGPU", "3xH200", 1);
  std::string uuids[3];
  for (unsigned i = 0; i < 3; ++i) {
    nvml::nvmlDevice_t device = nullptr;
    char text[96] = {};
    NVML(nvmlInit_v2, )();
    NVML(nvmlDeviceGetHandleByIndex_v2, unsigned, nvml::nvmlDevice_t*)(i, &device);
    NVML(nvmlDeviceGetUUID, nvml::nvmlDevice_t, char*, unsigned)(device, text, sizeof(text));
    uuids[i] = text;
  }
  setenv("CUDA_VISIBLE_DEVICES", (uuids[2] + "," + uuids[1]).c_str(), 1);
  StartDaemon();
  const struct {
    const char* list;
    int count;
    int first;
  } cases[] = {{nullptr, 2, 2}, {"1", 1, 1}, {uuids[1].c_str(), 1, 1}, {uuids[0].c_str(), 0, -1}};
  for (const auto& c : cases) {
    InChild([&] {
      c.list != nullptr ? setenv("CUDA_VISIBLE_DEVICES", c.list, 1) : unsetenv("CUDA_VISIBLE_DEVICES");
      const CUresult result = CU(cuInit, unsigned)(0);
      EXPECT_EQ(result, c.count > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE);
      if (result != CUDA_SUCCESS) return;
      int count = 0;
      EXPECT_EQ(CU(cuDeviceGetCount, int*)(&count), CUDA_SUCCESS);
      EXPECT_EQ(count, c.count);
      EXPECT_EQ(MpsAttribute(), 1);
      char bus[32] = {};
      EXPECT_EQ(CU(cuDeviceGetPCIBusId, char*, int, int)(bus, sizeof(bus), 0), CUDA_SUCCESS);
      EXPECT_EQ(std::string(bus), "0000:1" + std::to_string(c.first) + ":00.0");
    });
  }
}

// Starts clients until one is refused; how many have a context.
int CountClients(int most, std::vector<std::unique_ptr<Child>>* clients) {
  for (int i = 0; i < most; ++i) {
    clients->push_back(std::make_unique<Child>([](const Child::Step& step) {
      const CUresult result = InitWithContext();
      EXPECT_TRUE(result == CUDA_SUCCESS || result == 46) << result;
      if (result != CUDA_SUCCESS) _exit(46);
      step.Report();
      step.Wait();
    }));
    if (clients->back()->WaitReport()) continue;
    EXPECT_EQ(clients->back()->Join(), 46);
    return i;
  }
  return most;
}

TEST_F(SoftGpuMps, TheFortyNinthClientIsRefused) {
  StartDaemon();
  std::vector<std::unique_ptr<Child>> clients;
  EXPECT_EQ(CountClients(49, &clients), 48);
  clients.front()->Continue();
  EXPECT_EQ(clients.front()->Join(), 0);
  InChild([] { EXPECT_EQ(InitWithContext(), CUDA_SUCCESS) << "a place is free again"; });
}

TEST_F(SoftGpuMps, ANewerDriverHasSixtyPlaces) {  // documented
  const std::string spec = dir() + "/gpus.json";
  std::ofstream(spec)
      << R"({"driver_version": "590.44.01", "cuda_version": "13.0", "gpus": [{"model": "H200"}]})";
  setenv("GPUMUX_SOFTGPU", spec.c_str(), 1);
  StartDaemon();
  std::vector<std::unique_ptr<Child>> clients;
  EXPECT_EQ(CountClients(61, &clients), 60);
}

TEST_F(SoftGpuMps, NvmlListsServerAndClients) {
  StartDaemon();
  Child client(Idle);
  ASSERT_TRUE(client.WaitReport());
  Child outside([](const Child::Step& step) {
    setenv("CUDA_MPS_PIPE_DIRECTORY", "/nowhere", 1);
    Idle(step);
  });
  ASSERT_TRUE(outside.WaitReport());
  const auto device = Gpu0();
  EXPECT_EQ(OwnBytes(device, client.pid()), static_cast<long long>(514 * kMiB));
  EXPECT_EQ(OwnBytes(device, ServerPid()), static_cast<long long>(66 * kMiB));
  EXPECT_EQ(OwnBytes(device, outside.pid()), 543'162'368);
  nvml::nvmlProcessInfo_v2_t infos[8] = {};
  unsigned count = 8;
  ASSERT_EQ(NVML(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvml::nvmlDevice_t, unsigned*,
                 nvml::nvmlProcessInfo_v2_t*)(device, &count, infos),
            0);
  ASSERT_EQ(count, 1u) << "the client alone: the server is a compute process";
  EXPECT_EQ(infos[0].pid, static_cast<unsigned>(client.pid()));
  EXPECT_EQ(infos[0].usedGpuMemory, 514 * kMiB);
}

TEST_F(SoftGpuMps, InExclusiveModeTheServerIsTheOneProcess) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to set the compute mode";
  StartDaemon();
  ASSERT_EQ(NVML(nvmlDeviceSetComputeMode, nvml::nvmlDevice_t, unsigned)(Gpu0(), 3), 0);
  Child one(Idle), two(Idle);
  ASSERT_TRUE(one.WaitReport());
  ASSERT_TRUE(two.WaitReport());
  setenv("CUDA_MPS_PIPE_DIRECTORY", "/nowhere", 1);
  InChild([] { EXPECT_EQ(static_cast<int>(InitWithContext()), 46) << "outside"; });
  setenv("CUDA_MPS_PIPE_DIRECTORY", pipes().c_str(), 1);
  one.Continue();
  two.Continue();
  one.Join();
  two.Join();
  Command("shutdown_server " + std::to_string(ServerPid()));
  setenv("CUDA_MPS_PIPE_DIRECTORY", "/nowhere", 1);
  Child outside(Idle);
  ASSERT_TRUE(outside.WaitReport()) << "nobody else is there";
  setenv("CUDA_MPS_PIPE_DIRECTORY", pipes().c_str(), 1);
  InChild([] { EXPECT_NE(InitWithContext(), CUDA_SUCCESS) << "the server gets no context"; });
}

}  // namespace
}  // namespace gpumux::test
