// SPDX-License-Identifier: Apache-2.0
#include "gpu/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "gpu/nvml_mig.h"
#include "gpu/nvml_processes.h"
#include "gpu/nvml_xids.h"
#include "gpumux/abi/nvml/nvml.h"

namespace gpumux::gpu {

namespace {

using namespace gpumux::nvml;  // NOLINT: the binary interface's own names

// Above any machine of today; a count beyond it means that the answer is not one.
constexpr unsigned kMaxDevices = 1024;

struct Functions {
  nvmlReturn_t (*init)() = nullptr;
  nvmlReturn_t (*shutdown)() = nullptr;
  const char* (*error_string)(nvmlReturn_t) = nullptr;
  nvmlReturn_t (*driver_version)(char*, unsigned) = nullptr;
  nvmlReturn_t (*count)(unsigned*) = nullptr;
  nvmlReturn_t (*handle_by_index)(unsigned, nvmlDevice_t*) = nullptr;
  nvmlReturn_t (*uuid)(nvmlDevice_t, char*, unsigned) = nullptr;
  nvmlReturn_t (*name)(nvmlDevice_t, char*, unsigned) = nullptr;
  nvmlReturn_t (*pci)(nvmlDevice_t, nvmlPciInfo_t*) = nullptr;
  nvmlReturn_t (*memory_v2)(nvmlDevice_t, nvmlMemory_v2_t*) = nullptr;
  nvmlReturn_t (*memory_v1)(nvmlDevice_t, nvmlMemory_t*) = nullptr;
  nvmlReturn_t (*compute_mode)(nvmlDevice_t, nvmlComputeMode_t*) = nullptr;
  nvmlReturn_t (*utilization)(nvmlDevice_t, nvmlUtilization_t*) = nullptr;
  nvmlReturn_t (*set_compute_mode)(nvmlDevice_t, nvmlComputeMode_t) = nullptr;
  nvmlReturn_t (*cpu_affinity)(nvmlDevice_t, unsigned, unsigned long*) = nullptr;
  nvmlReturn_t (*memory_affinity)(nvmlDevice_t, unsigned, unsigned long*, unsigned scope) = nullptr;
  nvmlReturn_t (*persistence)(nvmlDevice_t, unsigned*) = nullptr;
  nvmlReturn_t (*cores)(nvmlDevice_t, unsigned*) = nullptr;
  nvmlReturn_t (*compute_capability)(nvmlDevice_t, int*, int*) = nullptr;
};

// Of single precision, by the compute capability (CUDA programming guide); 0: not known.
unsigned CoresOfMultiprocessor(int major, int minor) {
  if (major == 7 || (major == 8 && minor == 0)) return 64;
  return major >= 8 && major <= 12 ? 128 : 0;
}

class NvmlLibrary final : public Nvml {
 public:
  static Result<std::unique_ptr<Nvml>> Load(const std::string& path) {
    auto library = std::unique_ptr<NvmlLibrary>(new NvmlLibrary);
    library->handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library->handle_) {
      const char* why = dlerror();
      return Fail(Code::kUnavailable, "cannot load NVML: " + std::string(why ? why : path),
                  "check the NVIDIA driver with nvidia-smi");
    }
    NvmlLibrary* self = library.get();
    const NvmlError error = [self](nvmlReturn_t result, const std::string& what) {
      return self->Error(result, what);
    };
    self->processes_ = std::make_unique<NvmlProcessLists>(self->handle_, error);
    self->mig_ =
        MakeMig(self->handle_, [self](const Uuid& gpu) { return self->Find(gpu); }, *self->processes_, error);
    self->xids_ = std::make_unique<NvmlXids>([self](const char* name) { return dlsym(self->handle_, name); });
    if (Status status = library->Bind(); !status) return tl::unexpected(status.error());
    if (Status status = library->Enumerate(); !status) return tl::unexpected(status.error());
    return library;
  }

  ~NvmlLibrary() override {
    if (xids_) xids_->End();
    if (initialised_ && api_.shutdown) api_.shutdown();
    if (handle_) dlclose(handle_);
  }

  const std::vector<Device>& Devices() const override { return devices_; }

  Status Restart() override {
    xids_->End();
    if (initialised_ && api_.shutdown) api_.shutdown();
    initialised_ = false;
    devices_.clear();
    handles_.clear();
    Status started = Start();
    if (started) started = Enumerate();
    down_ = started ? std::nullopt : std::optional(started.error());
    return started;
  }

  std::string DriverVersion() const override { return driver_version_; }

  Result<DeviceMemory> Memory(const Uuid& gpu) override {
    auto device = Find(gpu);
    if (!device) return tl::unexpected(device.error());
    nvmlReturn_t result = NVML_ERROR_FUNCTION_NOT_FOUND;
    if (api_.memory_v2) {
      nvmlMemory_v2_t memory{};
      memory.version = kMemoryV2;
      result = api_.memory_v2(*device, &memory);
      if (result == NVML_SUCCESS)
        return DeviceMemory{memory.total, memory.reserved, memory.used, memory.free};
    }
    if (api_.memory_v1 && result != NVML_ERROR_GPU_IS_LOST) {
      nvmlMemory_t memory{};
      result = api_.memory_v1(*device, &memory);
      if (result == NVML_SUCCESS) return DeviceMemory{memory.total, 0, memory.used, memory.free};
    }
    return Error(result, "memory of " + gpu.ToString());
  }

  Result<std::vector<ProcessUse>> Processes(const Uuid& gpu) override {
    auto device = Find(gpu);
    if (!device) return tl::unexpected(device.error());
    return processes_->Of(*device, gpu.ToString());
  }

  Result<unsigned> Multiprocessors(const Uuid& gpu) override {
    auto device = Find(gpu);
    if (!device) return tl::unexpected(device.error());
    unsigned cores = 0;
    int major = 0, minor = 0;
    if (!api_.cores || !api_.compute_capability || api_.cores(*device, &cores) != NVML_SUCCESS ||
        api_.compute_capability(*device, &major, &minor) != NVML_SUCCESS)
      return Fail(Code::kUnsupported, "this NVML does not tell the cores");
    const unsigned each = CoresOfMultiprocessor(major, minor);
    if (each == 0) return Fail(Code::kUnsupported, "an architecture that is not known");
    return cores / each;
  }

  Result<ComputeMode> Mode(const Uuid& gpu) override {
    auto device = Find(gpu);
    if (!device) return tl::unexpected(device.error());
    if (!api_.compute_mode) return Fail(Code::kUnsupported, "this NVML does not tell the compute mode");
    nvmlComputeMode_t mode{};
    if (nvmlReturn_t result = api_.compute_mode(*device, &mode); result != NVML_SUCCESS) {
      return Error(result, "compute mode of " + gpu.ToString());
    }
    switch (mode) {
      case NVML_COMPUTEMODE_DEFAULT:
        return ComputeMode::kDefault;
      case NVML_COMPUTEMODE_PROHIBITED:
        return ComputeMode::kProhibited;
      case NVML_COMPUTEMODE_EXCLUSIVE_PROCESS:
        return ComputeMode::kExclusiveProcess;
    }
    return ComputeMode::kUnknown;
  }

  Result<double> Busy(const Uuid& gpu) override {
    auto device = Find(gpu);
    if (!device) return tl::unexpected(device.error());
    if (!api_.utilization) return Nvml::Busy(gpu);
    nvmlUtilization_t rates{};
    if (nvmlReturn_t result = api_.utilization(*device, &rates); result != NVML_SUCCESS)
      return Error(result, "how busy " + gpu.ToString() + " is");
    return std::min(rates.gpu, 100u) / 100.0;
  }

  Status SetMode(const Uuid& gpu, ComputeMode mode) override {
    auto device = Find(gpu);
    if (!device) return tl::unexpected(device.error());
    if (!api_.set_compute_mode) return Nvml::SetMode(gpu, mode);
    nvmlComputeMode_t value = NVML_COMPUTEMODE_DEFAULT;
    if (mode == ComputeMode::kProhibited) value = NVML_COMPUTEMODE_PROHIBITED;
    if (mode == ComputeMode::kExclusiveProcess) value = NVML_COMPUTEMODE_EXCLUSIVE_PROCESS;
    const nvmlReturn_t result = api_.set_compute_mode(*device, value);
    if (result == NVML_ERROR_NO_PERMISSION)
      return Fail(Code::kDenied, "the compute mode of a GPU is set by root alone");
    if (result != NVML_SUCCESS) return Error(result, "compute mode of " + gpu.ToString());
    return {};
  }

  Result<Locality> Near(const Uuid& gpu) override {
    auto device = Find(gpu);
    if (!device) return tl::unexpected(device.error());
    if (!api_.cpu_affinity) return Nvml::Near(gpu);
    constexpr unsigned kScopeNode = 0;  // NVML_AFFINITY_SCOPE_NODE
    std::vector<unsigned long> words(kMaxCpus / (sizeof(unsigned long) * CHAR_BIT));
    const auto size = static_cast<unsigned>(words.size());
    if (nvmlReturn_t result = api_.cpu_affinity(*device, size, words.data()); result != NVML_SUCCESS)
      return Error(result, "processors near " + gpu.ToString());
    Locality locality{.cpus = CpusOfWords(words), .memory_nodes = {}, .source = "NVML"};
    std::fill(words.begin(), words.end(), 0);
    if (api_.memory_affinity && api_.memory_affinity(*device, size, words.data(), kScopeNode) == NVML_SUCCESS)
      locality.memory_nodes = CpusOfWords(words);
    return locality;
  }

  Mig& mig() override { return *mig_; }

  std::vector<Xid> TakeXids() override {
    return initialised_ ? xids_->Take(devices_, handles_) : std::vector<Xid>();
  }

  Result<bool> PersistenceEnabled(const Uuid& gpu) override {
    auto device = Find(gpu);
    if (!device) return tl::unexpected(device.error());
    if (!api_.persistence) return Fail(Code::kUnsupported, "this NVML does not tell the persistence mode");
    unsigned on = 0;
    if (nvmlReturn_t result = api_.persistence(*device, &on); result != NVML_SUCCESS)
      return Error(result, "persistence mode of " + gpu.ToString());
    return on == 1;
  }

 private:
  NvmlLibrary() = default;

  template <typename F>
  bool Symbol(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(handle_, name));
    return function != nullptr;
  }

  Status Bind() {
    const bool all =
        (Symbol(api_.init, "nvmlInit_v2") || Symbol(api_.init, "nvmlInit")) &&
        (Symbol(api_.count, "nvmlDeviceGetCount_v2") || Symbol(api_.count, "nvmlDeviceGetCount")) &&
        (Symbol(api_.handle_by_index, "nvmlDeviceGetHandleByIndex_v2") ||
         Symbol(api_.handle_by_index, "nvmlDeviceGetHandleByIndex")) &&
        Symbol(api_.uuid, "nvmlDeviceGetUUID") && Symbol(api_.name, "nvmlDeviceGetName");
    Symbol(api_.shutdown, "nvmlShutdown");
    Symbol(api_.error_string, "nvmlErrorString");
    Symbol(api_.driver_version, "nvmlSystemGetDriverVersion");
    // Only _v3 fills `busId` of the layout that we declare.
    Symbol(api_.pci, "nvmlDeviceGetPciInfo_v3");
    Symbol(api_.memory_v2, "nvmlDeviceGetMemoryInfo_v2");
    Symbol(api_.memory_v1, "nvmlDeviceGetMemoryInfo");
    Symbol(api_.compute_mode, "nvmlDeviceGetComputeMode");
    Symbol(api_.utilization, "nvmlDeviceGetUtilizationRates");
    Symbol(api_.set_compute_mode, "nvmlDeviceSetComputeMode");
    Symbol(api_.cpu_affinity, "nvmlDeviceGetCpuAffinity");
    Symbol(api_.memory_affinity, "nvmlDeviceGetMemoryAffinity");
    Symbol(api_.persistence, "nvmlDeviceGetPersistenceMode");
    Symbol(api_.cores, "nvmlDeviceGetNumGpuCores");
    Symbol(api_.compute_capability, "nvmlDeviceGetCudaComputeCapability");
    if (!all)
      return Fail(Code::kUnavailable, "NVML lacks functions that every release has",
                  "check the driver's installation");
    return Start();
  }

  Status Start() {
    if (nvmlReturn_t result = api_.init(); result != NVML_SUCCESS) return Error(result, "start of NVML");
    initialised_ = true;
    return {};
  }

  Status Enumerate() {
    char text[96] = {};
    if (api_.driver_version && api_.driver_version(text, sizeof text) == NVML_SUCCESS) driver_version_ = text;
    unsigned count = 0;
    if (nvmlReturn_t result = api_.count(&count); result != NVML_SUCCESS)
      return Error(result, "number of GPUs");
    for (unsigned i = 0; i < std::min(count, kMaxDevices); ++i) {
      nvmlDevice_t handle = nullptr;
      // A GPU that fell off the bus keeps its place in the count: the others go on.
      if (api_.handle_by_index(i, &handle) != NVML_SUCCESS) continue;
      Device device{.uuid = {}, .index = i, .name = {}, .pci_bus_id = {}};
      text[0] = 0;
      if (api_.uuid(handle, text, sizeof text) != NVML_SUCCESS) continue;
      const auto uuid = ParseUuid(std::string_view(text, strnlen(text)));
      if (!uuid) continue;
      device.uuid = *uuid;
      text[0] = 0;
      if (api_.name(handle, text, sizeof text) == NVML_SUCCESS) device.name.assign(text, strnlen(text));
      nvmlPciInfo_t pci{};
      if (api_.pci && api_.pci(handle, &pci) == NVML_SUCCESS) {
        device.pci_bus_id.assign(pci.busId, std::find(pci.busId, std::end(pci.busId), '\0') - pci.busId);
      }
      devices_.push_back(std::move(device));
      handles_.push_back(handle);
    }
    return {};
  }

  template <size_t N>
  static size_t strnlen(const char (&text)[N]) {
    return std::find(text, text + N, '\0') - text;
  }

  Result<nvmlDevice_t> Find(const Uuid& gpu) const {
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (devices_[i].uuid == gpu) return handles_[i];
    }
    if (down_) return tl::unexpected(*down_);
    return Fail(Code::kNotFound, "NVML shows no GPU " + gpu.ToString());
  }

  tl::unexpected<gpumux::Error> Error(nvmlReturn_t result, const std::string& what) const {
    const char* text = api_.error_string ? api_.error_string(result) : nullptr;
    Code code = Code::kUnavailable;
    if (result == NVML_ERROR_NOT_SUPPORTED || result == NVML_ERROR_FUNCTION_NOT_FOUND)
      code = Code::kUnsupported;
    return Fail(code,
                "NVML does not answer (" + what + "): " + (text ? text : "error " + std::to_string(result)));
  }

  void* handle_ = nullptr;
  bool initialised_ = false;
  Functions api_;
  std::vector<Device> devices_;
  std::vector<nvmlDevice_t> handles_;
  std::optional<gpumux::Error> down_;  // why nothing is answered for since the last Restart
  std::string driver_version_;
  std::unique_ptr<NvmlProcessLists> processes_;
  std::unique_ptr<Mig> mig_;
  std::unique_ptr<NvmlXids> xids_;
};

}  // namespace

Result<unsigned> Nvml::Multiprocessors(const Uuid&) {
  return Fail(Code::kUnsupported, "this NVML does not tell the cores");
}

Mig& Nvml::mig() {
  static Mig none;
  return none;
}

Result<bool> Nvml::MigEnabled(const Uuid& gpu) {
  auto modes = mig().Modes(gpu);
  if (!modes) return tl::unexpected(modes.error());
  return modes->has_value() && (*modes)->current;
}

Result<Locality> Nvml::Near(const Uuid&) {
  return Fail(Code::kUnsupported, "this NVML does not tell what is near a GPU");
}

Result<std::unique_ptr<Nvml>> Nvml::Open(const GpuSource& source) {
  if (!source.simulated) return NvmlLibrary::Load("libnvidia-ml.so.1");
  setenv("GPUMUX_SOFTGPU", source.spec.c_str(), 1);
  setenv("GPUMUX_SOFTGPU_DIR", source.dir.c_str(), 1);
  return NvmlLibrary::Load(source.libraries_dir + "/libnvidia-ml.so.1");
}

}  // namespace gpumux::gpu
