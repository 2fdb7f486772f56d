// SPDX-License-Identifier: Apache-2.0
#include "gpu/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "gpumux/abi/nvml/nvml.h"

namespace gpumux::gpu {

namespace {

using namespace gpumux::nvml;  // NOLINT: the binary interface's own names

// Above any machine of today; a count beyond it means that the answer is not one.
constexpr unsigned kMaxDevices = 1024;
constexpr unsigned kMaxProcesses = 1u << 16;

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
  nvmlReturn_t (*set_compute_mode)(nvmlDevice_t, nvmlComputeMode_t) = nullptr;
  nvmlReturn_t (*cpu_affinity)(nvmlDevice_t, unsigned, unsigned long*) = nullptr;
  nvmlReturn_t (*memory_affinity)(nvmlDevice_t, unsigned, unsigned long*, unsigned scope) = nullptr;
  nvmlReturn_t (*mig_mode)(nvmlDevice_t, unsigned*, unsigned*) = nullptr;
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
    if (Status status = library->Bind(); !status) return tl::unexpected(status.error());
    if (Status status = library->Enumerate(); !status) return tl::unexpected(status.error());
    return library;
  }

  ~NvmlLibrary() override {
    if (initialised_ && api_.shutdown) api_.shutdown();
    if (handle_) dlclose(handle_);
  }

  const std::vector<Device>& Devices() const override { return devices_; }

  Status Restart() override {
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
    std::vector<ProcessUse> all;
    if (Status status = List("nvmlDeviceGetComputeRunningProcesses", *device, gpu, all); !status) {
      return tl::unexpected(status.error());
    }
    // A driver without graphics support lacks this one; compute is what counts.
    (void)List("nvmlDeviceGetGraphicsRunningProcesses", *device, gpu, all);
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
      return std::pair(a.pid, b.used_bytes.value_or(0)) < std::pair(b.pid, a.used_bytes.value_or(0));
    });
    // A process with both kinds of context is listed twice with the same sum.
    all.erase(
        std::unique(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.pid == b.pid; }),
        all.end());
    return all;
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

  Result<bool> MigEnabled(const Uuid& gpu) override {
    auto device = Find(gpu);
    if (!device) return tl::unexpected(device.error());
    if (!api_.mig_mode) return false;  // a driver older than MIG
    unsigned current = 0, pending = 0;
    const nvmlReturn_t result = api_.mig_mode(*device, &current, &pending);
    if (result == NVML_ERROR_NOT_SUPPORTED) return false;
    if (result != NVML_SUCCESS) return Error(result, "MIG mode of " + gpu.ToString());
    return current == 1;
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
    Symbol(api_.set_compute_mode, "nvmlDeviceSetComputeMode");
    Symbol(api_.cpu_affinity, "nvmlDeviceGetCpuAffinity");
    Symbol(api_.memory_affinity, "nvmlDeviceGetMemoryAffinity");
    Symbol(api_.mig_mode, "nvmlDeviceGetMigMode");
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

  // The newest version that the library has, into `all`.
  Status List(const std::string& stem, nvmlDevice_t device, const Uuid& gpu, std::vector<ProcessUse>& all) {
    for (const char* suffix : {"_v3", "_v2", ""}) {
      if (void* function = dlsym(handle_, (stem + suffix).c_str())) {
        const size_t declared = *suffix != 0 ? sizeof(nvmlProcessInfo_t) : sizeof(nvmlProcessInfo_v1_t);
        return ListBy(function, declared, device, gpu, all);
      }
    }
    return Fail(Code::kUnsupported, "this NVML does not list processes");
  }

  // Of how many bytes an entry is, the library shows by what it writes: some
  // releases fill others than the name stands for.
  Status ListBy(void* symbol, size_t declared, nvmlDevice_t device, const Uuid& gpu,
                std::vector<ProcessUse>& all) {
    constexpr size_t kLargestEntry = 64;
    constexpr std::byte kUntouched{0x5a};  // no pid, size or instance has this in its last byte
    auto function = reinterpret_cast<nvmlReturn_t (*)(nvmlDevice_t, unsigned*, void*)>(symbol);
    size_t& known = entry_bytes_[symbol];
    std::vector<std::byte> buffer;
    unsigned room = 64, count = 0;
    // The list may grow between two calls: ask again with room to spare.
    for (bool exact = false;;) {
      buffer.assign(room * kLargestEntry, kUntouched);
      count = room;
      const nvmlReturn_t result = function(device, &count, buffer.data());
      if (result == NVML_ERROR_INSUFFICIENT_SIZE && room < kMaxProcesses) {
        room = std::min(kMaxProcesses, std::max(count + 16, room * 2));
        exact = false;
        continue;
      }
      if (result != NVML_SUCCESS) return Error(result, "processes of " + gpu.ToString());
      count = std::min(count, room);
      if (count == 0 || known != 0 || (exact && count == room)) break;
      // Once more for as many as there are: nothing beyond them is written then.
      room = count;
      exact = true;
    }
    if (known == 0 && count > 0) {
      const auto last =
          std::find_if(buffer.rbegin(), buffer.rend(), [](std::byte b) { return b != kUntouched; });
      const auto written = static_cast<size_t>(buffer.rend() - last);
      known = declared;
      for (const size_t size : {16, 24, 32}) {
        if (size * count == written) known = size;
      }
    }
    for (unsigned i = 0; i < count; ++i) {
      nvmlProcessInfo_v1_t info;
      std::memcpy(&info, &buffer[i * known], sizeof info);
      ProcessUse use{.pid = static_cast<pid_t>(info.pid), .used_bytes = {}};
      if (info.usedGpuMemory != kValueNotAvailable) use.used_bytes = info.usedGpuMemory;
      all.push_back(use);
    }
    return {};
  }

  void* handle_ = nullptr;
  std::map<void*, size_t> entry_bytes_;  // of each list function, once it has shown it
  bool initialised_ = false;
  Functions api_;
  std::vector<Device> devices_;
  std::vector<nvmlDevice_t> handles_;
  std::optional<gpumux::Error> down_;  // why nothing is answered for since the last Restart
  std::string driver_version_;
};

}  // namespace

Result<unsigned> Nvml::Multiprocessors(const Uuid&) {
  return Fail(Code::kUnsupported, "this NVML does not tell the cores");
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
