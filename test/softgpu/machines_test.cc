// SPDX-License-Identifier: Apache-2.0
//
// Other GPUs than the H200, several of them, and which of them a program sees.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "child.h"
#include "cuda_functions.h"
#include "sim/gpu_models.h"

namespace gpumux::test {
namespace {

using namespace cuda;

class SoftGpuMachines : public SoftGpuTest {
 protected:
  ~SoftGpuMachines() override {
    unsetenv("GPUMUX_SOFTGPU");
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("CUDA_DEVICE_ORDER");
  }
  std::string Write(const char* name, const std::string& text) {
    const std::string path = dir() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
};

std::string CudaName(int device) {
  char name[128] = {};
  EXPECT_EQ(CU(cuDeviceGetName, char*, int, int)(name, sizeof(name), device), CUDA_SUCCESS);
  return name;
}
int Attribute(int attribute, int device) {
  int value = -1;
  EXPECT_EQ(CU(cuDeviceGetAttribute, int*, int, int)(&value, attribute, device), CUDA_SUCCESS);
  return value;
}
size_t Total(int device) {
  size_t bytes = 0;
  EXPECT_EQ(CU(cuDeviceTotalMem_v2, size_t*, int)(&bytes, device), CUDA_SUCCESS);
  return bytes;
}
std::string Bus(int device) {
  char text[32] = {};
  EXPECT_EQ(CU(cuDeviceGetPCIBusId, char*, int, int)(text, sizeof(text), device), CUDA_SUCCESS);
  return text;
}

// Every model in one machine: what CUDA, NVML and the table say is one thing,
// and a context takes what the table's rule says.
TEST_F(SoftGpuMachines, EveryModel) {
  std::string list;
  for (const auto& model : sim::GpuModels()) list += (list.empty() ? "" : ",") + std::string(model.key);
  setenv("GPUMUX_SOFTGPU", list.c_str(), 1);
  setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
  InChild([] {
    ASSERT_EQ(CU(cuInit, unsigned)(0), CUDA_SUCCESS);
    ASSERT_EQ(NVML(nvmlInit_v2, )(), 0);
    int count = 0;
    ASSERT_EQ(CU(cuDeviceGetCount, int*)(&count), CUDA_SUCCESS);
    ASSERT_EQ(count, static_cast<int>(sim::GpuModels().size()));
    int i = 0;
    for (const auto& model : sim::GpuModels()) {
      SCOPED_TRACE(model.key);
      const sim::GpuSpec spec = sim::SpecOf(model);
      const std::string name = std::string(model.name) + " (software GPU, simulated)";
      EXPECT_EQ(CudaName(i), name);
      EXPECT_EQ(Total(i), spec.usable);
      EXPECT_EQ(Attribute(16, i), model.sms);
      EXPECT_EQ(Attribute(39, i), model.threads_per_sm);
      EXPECT_EQ(Attribute(75, i), model.major);
      EXPECT_EQ(Attribute(76, i), model.minor);
      nvml::nvmlDevice_t device;
      ASSERT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2, unsigned, nvml::nvmlDevice_t*)(static_cast<unsigned>(i),
                                                                                   &device),
                0);
      char nvml_name[96];
      EXPECT_EQ(NVML(nvmlDeviceGetName, nvml::nvmlDevice_t, char*, unsigned)(device, nvml_name, 96), 0);
      EXPECT_EQ(nvml_name, name);
      int major, minor;
      EXPECT_EQ(
          NVML(nvmlDeviceGetCudaComputeCapability, nvml::nvmlDevice_t, int*, int*)(device, &major, &minor),
          0);
      EXPECT_EQ(major * 10 + minor, model.major * 10 + model.minor);
      nvml::nvmlMemory_v2_t memory = {};
      memory.version = nvml::kMemoryV2;
      const auto result =
          NVML(nvmlDeviceGetMemoryInfo_v2, nvml::nvmlDevice_t, nvml::nvmlMemory_v2_t*)(device, &memory);
      EXPECT_EQ(result, model.unified ? nvml::NVML_ERROR_NOT_SUPPORTED : nvml::NVML_SUCCESS);
      if (!model.unified) {
        EXPECT_EQ(memory.total, model.memory_mib << 20);
        EXPECT_EQ(memory.reserved + spec.usable, memory.total);
        EXPECT_EQ(memory.used, spec.opened_device);
        EXPECT_EQ(memory.free, spec.usable - spec.opened_device);
      }
      CUcontext context;
      ASSERT_EQ(CU(cuDevicePrimaryCtxRetain, CUcontext*, int)(&context, i), CUDA_SUCCESS);
      ASSERT_EQ(CU(cuCtxSetCurrent, CUcontext)(context), CUDA_SUCCESS);
      size_t free = 0, total = 0;
      ASSERT_EQ(CU(cuMemGetInfo_v2, size_t*, size_t*)(&free, &total), CUDA_SUCCESS);
      EXPECT_EQ(total, spec.usable);
      EXPECT_EQ(total - free, spec.context_device + spec.opened_device);
      EXPECT_EQ(OwnBytes(device, getpid()), static_cast<long long>(spec.context_own));
      CUdeviceptr p;
      EXPECT_EQ(Alloc(&p, free), CUDA_ERROR_OUT_OF_MEMORY);
      EXPECT_EQ(Alloc(&p, 64 << 20), CUDA_SUCCESS);
      EXPECT_EQ(CU(cuDevicePrimaryCtxReset_v2, int)(i), CUDA_SUCCESS);
      ++i;
    }
  });
}

TEST_F(SoftGpuMachines, OrderAndVisibility) {
  setenv("GPUMUX_SOFTGPU", "2xA30,1xL4,H200", 1);
  // What a program sees: the bus of each device.
  const struct {
    const char* order;
    const char* list;
    std::vector<std::string> buses;
  } cases[] = {
      {nullptr, nullptr, {"0000:13:00.0", "0000:12:00.0", "0000:10:00.0", "0000:11:00.0"}},
      {"PCI_BUS_ID", nullptr, {"0000:10:00.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0"}},
      {"PCI_BUS_ID", "3,0", {"0000:13:00.0", "0000:10:00.0"}},
      {nullptr, "3,0", {"0000:11:00.0", "0000:13:00.0"}},
      {nullptr, "1,7,0", {"0000:12:00.0"}},
      {nullptr, "", {}},
      {nullptr, "MIG-1234", {}},
      {nullptr, "0,0", {}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.order ? c.order : "unset") + " " + (c.list ? c.list : "unset"));
    InChild([&] {
      if (c.order != nullptr) setenv("CUDA_DEVICE_ORDER", c.order, 1);
      if (c.list != nullptr) setenv("CUDA_VISIBLE_DEVICES", c.list, 1);
      const auto result = CU(cuInit, unsigned)(0);
      if (c.buses.empty()) {
        EXPECT_EQ(result, CUDA_ERROR_NO_DEVICE);
        return;
      }
      ASSERT_EQ(result, CUDA_SUCCESS);
      int count = 0;
      CU(cuDeviceGetCount, int*)(&count);
      ASSERT_EQ(count, static_cast<int>(c.buses.size()));
      for (int i = 0; i < count; ++i) EXPECT_EQ(Bus(i), c.buses[static_cast<size_t>(i)]);
      // NVML shows the machine whatever the program sees of it.
      ASSERT_EQ(NVML(nvmlInit_v2, )(), 0);
      unsigned all = 0;
      EXPECT_EQ(NVML(nvmlDeviceGetCount_v2, unsigned*)(&all), 0);
      EXPECT_EQ(all, 4u);
    });
  }
}

// A UUID names the same GPU to both libraries, whatever its ordinal.
TEST_F(SoftGpuMachines, UuidsNameGpusNotOrdinals) {
  setenv("GPUMUX_SOFTGPU", "T4,2xH100-80", 1);
  ASSERT_EQ(NVML(nvmlInit_v2, )(), 0);
  for (unsigned index = 0; index < 3; ++index) {
    nvml::nvmlDevice_t device;
    char uuid[96];
    ASSERT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2, unsigned, nvml::nvmlDevice_t*)(index, &device), 0);
    ASSERT_EQ(NVML(nvmlDeviceGetUUID, nvml::nvmlDevice_t, char*, unsigned)(device, uuid, sizeof(uuid)), 0);
    for (size_t length : {strlen(uuid), size_t{12}}) {
      const std::string prefix(uuid, length);
      InChild([&] {
        setenv("CUDA_VISIBLE_DEVICES", prefix.c_str(), 1);
        ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
        char expected[32];
        snprintf(expected, sizeof(expected), "0000:%02X:00.0", 0x10 + index);
        EXPECT_EQ(Bus(0), expected);
        EXPECT_EQ(
            OwnBytes(device, getpid()),
            static_cast<long long>(sim::SpecOf(*sim::FindGpuModel(index == 0 ? "T4" : "H100")).context_own));
      });
    }
  }
}

TEST_F(SoftGpuMachines, ADocument) {
  const std::string path = Write("gpus.json", R"({
    "driver_version": "550.54.15",
    "gpus": [{"model": "H100-80", "memory": "10GiB", "reserved": 0, "sms": 4, "name": "Small",
              "uuid": "GPU-00112233-4455-6677-8899-aabbccddeeff"}, {"model": "T4"}]})");
  setenv("GPUMUX_SOFTGPU", path.c_str(), 1);
  InChild([] {
    int version = 0;
    EXPECT_EQ(CU(cuDriverGetVersion, int*)(&version), CUDA_SUCCESS) << "before cuInit";
    EXPECT_EQ(version, 12040);
    const auto get = CU(cuGetProcAddress_v2, const char*, void**, int, uint64_t, int*);
    void* p = nullptr;
    int status = -1;
    EXPECT_EQ(get("cuMemAlloc", &p, 12050, 0, &status), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(get("cuMemAlloc", &p, 12040, 0, &status), CUDA_SUCCESS);
    EXPECT_NE(p, nullptr);
    // Of CUDA 13.0 alone: this driver has never heard of it.
    EXPECT_EQ(get("cuCheckpointProcessLock", &p, 12040, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(p, nullptr);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    ASSERT_EQ(CU(cuInit, unsigned)(0), CUDA_SUCCESS);
    EXPECT_EQ(CudaName(1), "Small (software GPU, simulated)") << "4 SMs are slower than a T4";
    EXPECT_EQ(Total(1), 10ull << 30);
    EXPECT_EQ(Attribute(16, 1), 4);
    unsigned char uuid[16];
    EXPECT_EQ(CU(cuDeviceGetUuid_v2, void*, int)(uuid, 1), CUDA_SUCCESS);
    EXPECT_EQ(uuid[15], 0xff);
    ASSERT_EQ(NVML(nvmlInit_v2, )(), 0);
    char driver[80];
    EXPECT_EQ(NVML(nvmlSystemGetDriverVersion, char*, unsigned)(driver, sizeof(driver)), 0);
    EXPECT_STREQ(driver, "550.54.15");
    EXPECT_EQ(NVML(nvmlSystemGetCudaDriverVersion_v2, int*)(&version), 0);
    EXPECT_EQ(version, 12040);
  });
}

TEST_F(SoftGpuMachines, ASpecThatIsNoneIsRefusedAndSaidInTheLog) {
  const std::string bad = Write("bad.json", R"({"gpus":[{"model":"T4","memroy":"1GiB"}]})");
  for (const std::string& spec : {std::string("H201"), std::string("2x"), dir() + "/none.json", bad,
                                  dir() + "/", std::string("/dev/zero"), std::string("/")}) {
    InChild([&] {
      setenv("GPUMUX_SOFTGPU", spec.c_str(), 1);
      EXPECT_EQ(CU(cuInit, unsigned)(0), CUDA_ERROR_SYSTEM_NOT_READY) << spec;
      EXPECT_EQ(NVML(nvmlInit_v2, )(), nvml::NVML_ERROR_DRIVER_NOT_LOADED) << spec;
    });
  }
  std::ifstream file(dir() + "/softgpud.log");
  const std::string log((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(log.find("memroy"), std::string::npos) << log;
  EXPECT_NE(log.find("\"H201\""), std::string::npos) << log;
}

TEST_F(SoftGpuMachines, ComputeMode) {
  const auto set = [](int mode) {
    return NVML(nvmlDeviceSetComputeMode, nvml::nvmlDevice_t, int)(Gpu0(), mode);
  };
  const auto get = [] {
    nvml::nvmlComputeMode_t mode{};
    EXPECT_EQ(NVML(nvmlDeviceGetComputeMode, nvml::nvmlDevice_t, nvml::nvmlComputeMode_t*)(Gpu0(), &mode), 0);
    return mode;
  };
  EXPECT_EQ(get(), nvml::NVML_COMPUTEMODE_DEFAULT);
  if (getuid() != 0) {
    EXPECT_EQ(set(3), nvml::NVML_ERROR_NO_PERMISSION);
    return;
  }
  EXPECT_EQ(set(1), nvml::NVML_ERROR_NOT_SUPPORTED) << "exclusive thread has gone";
  EXPECT_EQ(set(77), nvml::NVML_ERROR_INVALID_ARGUMENT);
  ASSERT_EQ(set(3), nvml::NVML_SUCCESS);
  EXPECT_EQ(get(), nvml::NVML_COMPUTEMODE_EXCLUSIVE_PROCESS);
  Child holder([](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    EXPECT_EQ(Attribute(20, 0), 3);
    step.Report();
    step.Wait();
  });
  ASSERT_TRUE(holder.WaitReport());
  InChild([] { EXPECT_EQ(InitWithContext(), static_cast<CUresult>(46)); });
  holder.Kill();
  holder.Join();
  InChild([&] {
    EXPECT_TRUE(Eventually([] { return InitWithContext() == CUDA_SUCCESS; }));
    EXPECT_EQ(chmod(dir().c_str(), 0755), 0);
    EXPECT_EQ(setuid(65534), 0);
    NVML(nvmlShutdown, )();
    EXPECT_EQ(set(0), nvml::NVML_ERROR_NO_PERMISSION);
  });
  ASSERT_EQ(set(2), nvml::NVML_SUCCESS);
  InChild([] { EXPECT_EQ(InitWithContext(), static_cast<CUresult>(46)); });
}

}  // namespace
}  // namespace gpumux::test
