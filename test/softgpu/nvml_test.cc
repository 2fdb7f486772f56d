// SPDX-License-Identifier: Apache-2.0
//
// NVML as monitoring programs use it: each call answers a value or says that it
// has none, and writes nothing then.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "child.h"
#include "cuda_functions.h"

namespace gpumux::test {
namespace {

using namespace nvml;

class SoftGpuNvml : public SoftGpuTest {};

nvmlDevice_t Handle(unsigned index) {
  nvmlDevice_t device = nullptr;
  EXPECT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2, unsigned, nvmlDevice_t*)(index, &device), NVML_SUCCESS);
  return device;
}

const std::vector<const char*>& AllNames() {
  static const std::vector<const char*> names = {
#define GPUMUX_NVML_ENTRY(symbol) #symbol,
#include "softgpu/nvml/entry_points.inc"
#undef GPUMUX_NVML_ENTRY
  };
  return names;
}

// Every name of the library: before nvmlInit it says so, with a handle of
// nobody's it says so, and with a device it answers a value or "not supported".
// What it writes stays within its place: around it lie marks.
TEST_F(SoftGpuNvml, EveryCallAnswersAValueOrSaysThatThereIsNone) {
  EXPECT_GE(AllNames().size(), 398u);
  InChild([] {
    setenv("GPUMUX_SOFTGPU", "H200,T4,Thor,RTX-4090", 1);
    for (const char* name : AllNames()) ASSERT_NE(Symbol(SOFTGPU_LIBNVML, name), nullptr);
    using Getter = nvmlReturn_t (*)(nvmlDevice_t, void*, void*, void*, void*);
    std::vector<const char*> getters;
    for (const char* name : AllNames()) {
      if (strncmp(name, "nvmlDeviceGet", 13) == 0 && strstr(name, "Handle") == nullptr &&
          strstr(name, "GetCount") == nullptr &&
          strcmp(name, "nvmlDeviceGetFieldValues") != 0) {  // takes a number of places
        getters.push_back(name);
      }
    }
    EXPECT_GT(getters.size(), 150u);
    // Room for the largest structure, with marks behind it.
    std::vector<unsigned char> place(1 << 16);
    auto call = [&](const char* name, nvmlDevice_t device) {
      std::fill(place.begin(), place.end(), 0);
      return reinterpret_cast<Getter>(Symbol(SOFTGPU_LIBNVML, name))(
          device, place.data(), place.data() + 16384, place.data() + 32768, place.data() + 49152);
    };
    for (const char* name : getters) {
      EXPECT_NE(call(name, nullptr), NVML_SUCCESS) << name << " before nvmlInit";
    }
    ASSERT_EQ(NVML(nvmlInit_v2, )(), NVML_SUCCESS);
    int supported = 0;
    for (unsigned index = 0; index < 4; ++index) {
      for (const char* name : getters) {
        const auto result = call(name, Handle(index));
        switch (static_cast<int>(result)) {
          case NVML_SUCCESS:
            ++supported;
            break;
          case NVML_ERROR_NOT_SUPPORTED:
          case NVML_ERROR_NOT_FOUND:
            EXPECT_EQ(std::count(place.begin(), place.end(), 0), static_cast<long>(place.size())) << name;
            break;
          case NVML_ERROR_INSUFFICIENT_SIZE:  // the lengths are zeros or pointers
          case NVML_ERROR_INVALID_ARGUMENT:
          case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
            break;
          default:
            ADD_FAILURE() << name << " " << result;
        }
      }
    }
    EXPECT_GT(supported, 4 * 25);
  });
}

// The calls that nvtop makes, in its order, and what it makes of them.
TEST_F(SoftGpuNvml, AsNvtopCallsIt) {
  setenv("GPUMUX_SOFTGPU", "H200,L4", 1);
  Child worker([](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), cuda::CUDA_SUCCESS);
    for (int i = 0; i < 20; ++i) ASSERT_EQ(Spin(100'000'000), cuda::CUDA_SUCCESS);
    step.Report();
    step.Wait();
  });
  ASSERT_TRUE(worker.WaitReport());
  ASSERT_EQ(NVML(nvmlInit_v2, )(), NVML_SUCCESS);
  unsigned count = 0;
  ASSERT_EQ(NVML(nvmlDeviceGetCount_v2, unsigned*)(&count), NVML_SUCCESS);
  ASSERT_EQ(count, 2u);
  const auto device = Handle(0);
  nvmlPciInfo_t pci;
  ASSERT_EQ(NVML(nvmlDeviceGetPciInfo_v3, nvmlDevice_t, nvmlPciInfo_t*)(device, &pci), NVML_SUCCESS);
  EXPECT_STREQ(pci.busId, "00000000:10:00.0");
  char name[64];
  ASSERT_EQ(NVML(nvmlDeviceGetName, nvmlDevice_t, char*, unsigned)(device, name, sizeof(name)), NVML_SUCCESS);
  EXPECT_STREQ(name, "NVIDIA H200 (software GPU, simulated)");
  unsigned value = 0, other = 0;
  EXPECT_EQ(NVML(nvmlDeviceGetMaxPcieLinkGeneration, nvmlDevice_t, unsigned*)(device, &value),
            NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(NVML(nvmlDeviceGetMaxPcieLinkWidth, nvmlDevice_t, unsigned*)(device, &value),
            NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(NVML(nvmlDeviceGetTemperatureThreshold, nvmlDevice_t, int, unsigned*)(device, 0, &value),
            NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(NVML(nvmlDeviceGetClockInfo, nvmlDevice_t, int, unsigned*)(device, 0, &value),
            NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(NVML(nvmlDeviceGetMaxClockInfo, nvmlDevice_t, int, unsigned*)(device, 0, &value), NVML_SUCCESS);
  EXPECT_EQ(value, 1980u);
  nvmlUtilization_t rates;
  EXPECT_TRUE(Eventually([&] {
    return NVML(nvmlDeviceGetUtilizationRates, nvmlDevice_t, nvmlUtilization_t*)(device, &rates) ==
               NVML_SUCCESS &&
           rates.gpu > 50 && rates.gpu <= 100;
  }));
  EXPECT_EQ(NVML(nvmlDeviceGetEncoderUtilization, nvmlDevice_t, unsigned*, unsigned*)(device, &value, &other),
            NVML_SUCCESS);
  EXPECT_EQ(value, 0u);
  EXPECT_EQ(NVML(nvmlDeviceGetDecoderUtilization, nvmlDevice_t, unsigned*, unsigned*)(device, &value, &other),
            NVML_SUCCESS);
  EXPECT_EQ(NVML(nvmlDeviceGetTemperature, nvmlDevice_t, int, unsigned*)(device, 0, &value),
            NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(NVML(nvmlDeviceGetFanSpeed, nvmlDevice_t, unsigned*)(device, &value), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(NVML(nvmlDeviceGetPowerUsage, nvmlDevice_t, unsigned*)(device, &value), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(NVML(nvmlDeviceGetPcieThroughput, nvmlDevice_t, int, unsigned*)(device, 0, &value),
            NVML_ERROR_NOT_SUPPORTED);
  const auto mig = NVML(nvmlDeviceGetMigMode, nvmlDevice_t, unsigned*, unsigned*);
  EXPECT_EQ(mig(device, &value, &other), NVML_SUCCESS);
  EXPECT_EQ(value, 0u);
  EXPECT_EQ(mig(Handle(1), &value, &other), NVML_ERROR_NOT_SUPPORTED) << "an L4 cannot";
  // First without room, then with.
  const auto use = NVML(nvmlDeviceGetProcessUtilization, nvmlDevice_t, nvmlProcessUtilizationSample_t*,
                        unsigned*, unsigned long long);
  unsigned room = 0;
  EXPECT_EQ(use(device, nullptr, &room, 0), NVML_ERROR_INSUFFICIENT_SIZE);
  ASSERT_GE(room, 1u);
  std::vector<nvmlProcessUtilizationSample_t> samples(room);
  ASSERT_EQ(use(device, samples.data(), &room, 0), NVML_SUCCESS);
  ASSERT_EQ(room, 1u);
  EXPECT_EQ(samples[0].pid, static_cast<unsigned>(worker.pid()));
  EXPECT_GT(samples[0].smUtil, 50u);
  EXPECT_LE(samples[0].smUtil, 100u);
  EXPECT_GT(samples[0].timeStamp, 1'700'000'000'000'000ull);
  room = 1;
  EXPECT_EQ(use(Handle(1), samples.data(), &room, 0), NVML_ERROR_NOT_FOUND) << "nobody runs there";
}

// Each version of the process list with its own size of an entry, and the
// protocol of a list that is too short.
TEST_F(SoftGpuNvml, ProcessListsHaveTheirSizesAndSayWhatRoomTheyNeed) {
  const auto hold = [](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), cuda::CUDA_SUCCESS);
    step.Report();
    step.Wait();
  };
  Child a(hold), b(hold);
  ASSERT_TRUE(a.WaitReport());
  ASSERT_TRUE(b.WaitReport());
  const auto device = Gpu0();
  struct Version {
    const char* name;
    size_t entry;
  };
  for (const Version& version : {Version{"nvmlDeviceGetComputeRunningProcesses", 16},
                                 Version{"nvmlDeviceGetComputeRunningProcesses_v2", 24},
                                 Version{"nvmlDeviceGetComputeRunningProcesses_v3", 24}}) {
    SCOPED_TRACE(version.name);
    const auto list = reinterpret_cast<nvmlReturn_t (*)(nvmlDevice_t, unsigned*, void*)>(
        Symbol(SOFTGPU_LIBNVML, version.name));
    unsigned count = 0;
    EXPECT_EQ(list(device, &count, nullptr), NVML_ERROR_INSUFFICIENT_SIZE);
    EXPECT_EQ(count, 2u);
    std::vector<unsigned char> bytes(5 * version.entry, 0xee);
    count = 1;
    EXPECT_EQ(list(device, &count, bytes.data()), NVML_ERROR_INSUFFICIENT_SIZE);
    EXPECT_EQ(count, 2u);
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0xee), static_cast<long>(bytes.size()))
        << "nothing was written";
    count = 5;
    EXPECT_EQ(list(device, &count, bytes.data()), NVML_SUCCESS);
    ASSERT_EQ(count, 2u);
    std::set<unsigned> pids;
    for (size_t i = 0; i < 2; ++i) {
      unsigned pid;
      unsigned long long used;
      memcpy(&pid, &bytes[i * version.entry], 4);
      memcpy(&used, &bytes[i * version.entry + 8], 8);
      pids.insert(pid);
      EXPECT_EQ(used, 543'162'368u);
      if (version.entry == 24) {
        unsigned instance;
        memcpy(&instance, &bytes[i * version.entry + 16], 4);
        EXPECT_EQ(instance, ~0u);
      }
    }
    EXPECT_EQ(pids, (std::set<unsigned>{static_cast<unsigned>(a.pid()), static_cast<unsigned>(b.pid())}));
    for (size_t i = 2 * version.entry; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], 0xee) << i;
    EXPECT_EQ(list(device, nullptr, bytes.data()), NVML_ERROR_INVALID_ARGUMENT);
  }
  char name[256];
  const auto process_name = NVML(nvmlSystemGetProcessName, unsigned, char*, unsigned);
  EXPECT_EQ(process_name(static_cast<unsigned>(a.pid()), name, sizeof(name)), NVML_SUCCESS);
  EXPECT_NE(std::string(name).find("softgpu_test"), std::string::npos);
  EXPECT_EQ(process_name(static_cast<unsigned>(a.pid()), name, 5), NVML_SUCCESS);
  EXPECT_EQ(strlen(name), 4u);
  EXPECT_EQ(process_name(0x7fffffff, name, sizeof(name)), NVML_ERROR_NOT_FOUND);
}

// Every version of the PCI structure writes its own size and no more.
TEST_F(SoftGpuNvml, PciInfoOfEveryVersion) {
  const auto device = Gpu0();
  const struct {
    const char* name;
    size_t size;
  } versions[] = {
      {"nvmlDeviceGetPciInfo", 32}, {"nvmlDeviceGetPciInfo_v2", 52}, {"nvmlDeviceGetPciInfo_v3", 68}};
  for (const auto& version : versions) {
    SCOPED_TRACE(version.name);
    unsigned char bytes[128];
    memset(bytes, 0xee, sizeof(bytes));
    EXPECT_EQ(reinterpret_cast<nvmlReturn_t (*)(nvmlDevice_t, void*)>(Symbol(SOFTGPU_LIBNVML, version.name))(
                  device, bytes),
              NVML_SUCCESS);
    EXPECT_STREQ(reinterpret_cast<char*>(bytes), "0000:10:00.0");
    unsigned numbers[4];
    memcpy(numbers, bytes + 16, sizeof(numbers));
    EXPECT_EQ(numbers[1], 0x10u);
    EXPECT_EQ(numbers[3], 0x233510deu);
    for (size_t i = version.size; i < sizeof(bytes); ++i) ASSERT_EQ(bytes[i], 0xee) << i;
  }
  nvmlPciInfoExt_v1_t ext = {};
  const auto get = NVML(nvmlDeviceGetPciInfoExt, nvmlDevice_t, nvmlPciInfoExt_v1_t*);
  EXPECT_EQ(get(device, &ext), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  ext.version = kPciInfoExtV1;
  EXPECT_EQ(get(device, &ext), NVML_SUCCESS);
  EXPECT_STREQ(ext.busId, "00000000:10:00.0");
  EXPECT_EQ(ext.baseClass, 3u);
}

TEST_F(SoftGpuNvml, MemoryOfEveryVersionIsOneThing) {
  Child holder([](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), cuda::CUDA_SUCCESS);
    step.Report();
    step.Wait();
  });
  ASSERT_TRUE(holder.WaitReport());
  const auto device = Gpu0();
  nvmlMemory_t v1;
  nvmlMemory_v2_t v2 = {};
  EXPECT_EQ(NVML(nvmlDeviceGetMemoryInfo_v2, nvmlDevice_t, nvmlMemory_v2_t*)(device, &v2),
            NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  v2.version = kMemoryV2;
  ASSERT_EQ(NVML(nvmlDeviceGetMemoryInfo_v2, nvmlDevice_t, nvmlMemory_v2_t*)(device, &v2), NVML_SUCCESS);
  ASSERT_EQ(NVML(nvmlDeviceGetMemoryInfo, nvmlDevice_t, nvmlMemory_t*)(device, &v1), NVML_SUCCESS);
  EXPECT_EQ(v2.used, 552'402'944u);
  EXPECT_EQ(v2.total, v2.reserved + v2.used + v2.free);
  EXPECT_EQ(v1.total, v1.used + v1.free);
  EXPECT_EQ(v1.total, v2.total);
  EXPECT_EQ(v1.free, v2.free);
  nvmlBAR1Memory_t bar1;
  ASSERT_EQ(NVML(nvmlDeviceGetBAR1MemoryInfo, nvmlDevice_t, nvmlBAR1Memory_t*)(device, &bar1), NVML_SUCCESS);
  EXPECT_EQ(bar1.bar1Total, bar1.bar1Free + bar1.bar1Used);
  EXPECT_GE(bar1.bar1Total, v2.total);
}

TEST_F(SoftGpuNvml, EventSets) {
  const auto create = NVML(nvmlEventSetCreate, nvmlEventSet_t*);
  const auto destroy = NVML(nvmlEventSetFree, nvmlEventSet_t);
  const auto wait = NVML(nvmlEventSetWait_v2, nvmlEventSet_t, nvmlEventData_t*, unsigned);
  const auto add = NVML(nvmlDeviceRegisterEvents, nvmlDevice_t, unsigned long long, nvmlEventSet_t);
  nvmlEventSet_t set = nullptr;
  EXPECT_EQ(create(&set), NVML_ERROR_UNINITIALIZED);
  const auto device = Gpu0();
  EXPECT_EQ(create(nullptr), NVML_ERROR_INVALID_ARGUMENT);
  ASSERT_EQ(create(&set), NVML_SUCCESS);
  unsigned long long types = 0;
  EXPECT_EQ(NVML(nvmlDeviceGetSupportedEventTypes, nvmlDevice_t, unsigned long long*)(device, &types),
            NVML_SUCCESS);
  EXPECT_EQ(add(device, types, set), NVML_SUCCESS);
  EXPECT_EQ(add(device, ~0ull, set), NVML_ERROR_NOT_SUPPORTED);
  nvmlEventData_t data;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(wait(set, &data, 50), NVML_ERROR_TIMEOUT);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
  EXPECT_EQ(wait(set, &data, 0), NVML_ERROR_TIMEOUT);
  EXPECT_EQ(wait(set, nullptr, 0), NVML_ERROR_INVALID_ARGUMENT);
  // Freed under somebody who waits: they come back, and nothing is used after.
  std::thread waiting([&] { EXPECT_EQ(wait(set, &data, 30'000), NVML_ERROR_INVALID_ARGUMENT); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(destroy(set), NVML_SUCCESS);
  waiting.join();
  EXPECT_EQ(destroy(set), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(wait(set, &data, 0), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(add(device, types, set), NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(SoftGpuNvml, EventSetsTellOfFaultsOnceAndOfThoseAfterTheyWatch) {
  const auto fault = [] {
    InChild([] {
      ASSERT_EQ(InitWithContext(), cuda::CUDA_SUCCESS);
      ASSERT_EQ(Launch(GetFunction("fault"), 1, 1, nullptr, nullptr), cuda::CUDA_SUCCESS);
      EXPECT_EQ(Synchronize(), cuda::CUDA_ERROR_ILLEGAL_ADDRESS);
    });
  };
  const auto device = Gpu0();
  const auto wait = NVML(nvmlEventSetWait_v2, nvmlEventSet_t, nvmlEventData_t*, unsigned);
  const auto watch = [&] {
    nvmlEventSet_t set = nullptr;
    EXPECT_EQ(NVML(nvmlEventSetCreate, nvmlEventSet_t*)(&set), NVML_SUCCESS);
    EXPECT_EQ(NVML(nvmlDeviceRegisterEvents, nvmlDevice_t, unsigned long long, nvmlEventSet_t)(
                  device, kEventTypeXidCriticalError, set),
              NVML_SUCCESS);
    return set;
  };
  const nvmlEventSet_t first = watch();
  fault();
  nvmlEventData_t data{};
  ASSERT_EQ(wait(first, &data, 10'000), NVML_SUCCESS);
  EXPECT_EQ(data.device, device);
  EXPECT_EQ(data.eventType, 8u);
  EXPECT_EQ(data.eventData, 31u);
  EXPECT_EQ(wait(first, &data, 0), NVML_ERROR_TIMEOUT);
  // One that watches later is told of what comes then; each is told.
  const nvmlEventSet_t second = watch();
  EXPECT_EQ(wait(second, &data, 0), NVML_ERROR_TIMEOUT);
  fault();
  EXPECT_EQ(wait(second, &data, 10'000), NVML_SUCCESS);
  EXPECT_EQ(wait(first, &data, 10'000), NVML_SUCCESS);
  for (const nvmlEventSet_t set : {first, second})
    EXPECT_EQ(NVML(nvmlEventSetFree, nvmlEventSet_t)(set), NVML_SUCCESS);
}

TEST_F(SoftGpuNvml, TopologyNamesAndWhatIsNotThere) {
  InChild([] {
    setenv("GPUMUX_SOFTGPU", "3xH100-80", 1);
    ASSERT_EQ(NVML(nvmlInit_v2, )(), NVML_SUCCESS);
    unsigned value = 77;
    const auto ancestor = NVML(nvmlDeviceGetTopologyCommonAncestor, nvmlDevice_t, nvmlDevice_t, unsigned*);
    EXPECT_EQ(ancestor(Handle(0), Handle(1), &value), NVML_SUCCESS);
    EXPECT_EQ(value, 40u);
    EXPECT_EQ(ancestor(Handle(0), Handle(0), &value), NVML_SUCCESS);
    EXPECT_EQ(value, 0u);
    EXPECT_EQ(ancestor(Handle(0), nullptr, &value), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(NVML(nvmlDeviceGetP2PStatus, nvmlDevice_t, nvmlDevice_t, int, unsigned*)(Handle(0), Handle(1),
                                                                                       0, &value),
              NVML_SUCCESS);
    EXPECT_EQ(value, 5u);
    const auto nearest =
        NVML(nvmlDeviceGetTopologyNearestGpus, nvmlDevice_t, unsigned, unsigned*, nvmlDevice_t*);
    unsigned count = 0;
    nvmlDevice_t others[4] = {};
    EXPECT_EQ(nearest(Handle(1), 40, &count, nullptr), NVML_SUCCESS);
    EXPECT_EQ(count, 2u);
    EXPECT_EQ(nearest(Handle(1), 40, &count, others), NVML_SUCCESS);
    EXPECT_EQ(others[0], Handle(0));
    EXPECT_EQ(others[1], Handle(2));
    nvmlDevice_t device;
    EXPECT_EQ(NVML(nvmlDeviceGetHandleBySerial, const char*, nvmlDevice_t*)("1234", &device),
              NVML_ERROR_NOT_FOUND);
    EXPECT_EQ(NVML(nvmlDeviceGetMigDeviceHandleByIndex, nvmlDevice_t, unsigned, nvmlDevice_t*)(Handle(0), 0,
                                                                                               &device),
              NVML_ERROR_NOT_FOUND);
    char text[64];
    EXPECT_EQ(NVML(nvmlDeviceGetSerial, nvmlDevice_t, char*, unsigned)(Handle(0), text, 64),
              NVML_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(NVML(nvmlDeviceGetBoardId, nvmlDevice_t, unsigned*)(Handle(0), &value),
              NVML_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(NVML(nvmlDeviceGetName, nvmlDevice_t, char*, unsigned)(Handle(0), text, 10),
              NVML_ERROR_INSUFFICIENT_SIZE);
    EXPECT_EQ(NVML(nvmlDeviceGetAccountingMode, nvmlDevice_t, unsigned*)(Handle(0), &value), NVML_SUCCESS);
    EXPECT_EQ(value, 0u);
    nvmlFieldValue_t field = {};
    field.fieldId = 83;
    EXPECT_EQ(NVML(nvmlDeviceGetFieldValues, nvmlDevice_t, int, nvmlFieldValue_t*)(Handle(0), 1, &field),
              NVML_SUCCESS);
    EXPECT_EQ(field.nvmlReturn, NVML_ERROR_NOT_SUPPORTED);
    const auto error = reinterpret_cast<const char* (*)(int)>(Symbol(SOFTGPU_LIBNVML, "nvmlErrorString"));
    EXPECT_STREQ(error(0), "Success");
    EXPECT_STREQ(error(15), "GPU is lost");
    EXPECT_STREQ(error(-7), "Unknown Error");
    EXPECT_STREQ(error(998), "Unknown Error");
    ASSERT_EQ(NVML(nvmlSystemGetNVMLVersion, char*, unsigned)(text, 64), NVML_SUCCESS);
    EXPECT_STREQ(text, "13.580.159.04");
  });
}

TEST_F(SoftGpuNvml, SaysWhatIsNearEachGpu) {
  // Two nodes with two processors each, as /sys would show them.
  const std::string folder = dir() + "/sys/devices/system/node";
  for (const char* node : {"/node0", "/node2"}) std::filesystem::create_directories(folder + node);
  std::ofstream(folder + "/has_cpu") << "0,2\n";
  std::ofstream(folder + "/node0/cpulist") << "0-1\n";
  std::ofstream(folder + "/node2/cpulist") << "64,66\n";
  InChild([] {
    setenv("GPUMUX_SOFTGPU", "4xH200", 1);
    ASSERT_EQ(NVML(nvmlInit_v2, )(), NVML_SUCCESS);
    const auto cpus = NVML(nvmlDeviceGetCpuAffinity, nvmlDevice_t, unsigned, unsigned long*);
    const auto nodes = NVML(nvmlDeviceGetMemoryAffinity, nvmlDevice_t, unsigned, unsigned long*, unsigned);
    for (unsigned i = 0; i < 4; ++i) {
      unsigned long set[3] = {~0ul, ~0ul, ~0ul};
      ASSERT_EQ(cpus(Handle(i), 3, set), NVML_SUCCESS);
      EXPECT_EQ(set[0], i < 2 ? 3ul : 0ul);
      EXPECT_EQ(set[1], i < 2 ? 0ul : 5ul);
      EXPECT_EQ(set[2], 0ul);
      ASSERT_EQ(nodes(Handle(i), 1, set, 0), NVML_SUCCESS);
      EXPECT_EQ(set[0], i < 2 ? 1ul : 4ul);
    }
    unsigned long small = 7;
    EXPECT_EQ(cpus(Handle(3), 1, &small), NVML_ERROR_INSUFFICIENT_SIZE);
    EXPECT_EQ(small, 7ul);
    EXPECT_EQ(cpus(Handle(0), 0, &small), NVML_ERROR_INVALID_ARGUMENT);
  });
}

}  // namespace
}  // namespace gpumux::test
