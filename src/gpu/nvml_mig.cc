// SPDX-License-Identifier: Apache-2.0
#include "gpu/nvml_mig.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <utility>

namespace gpumux::gpu {

using namespace gpumux::nvml;  // NOLINT: the binary interface's own names

namespace {

// Above any GPU of today. NVML fills arrays without being told their size: they have room for so
// many, and an answer of more is none.
constexpr unsigned kMaxProfiles = 64;  // NVML's numbers of profiles, GPU and compute
constexpr unsigned kMaxPlacements = 64;
constexpr unsigned kMaxInstances = 64;
constexpr unsigned kMaxMigDevices = 64;

constexpr const char* kRightsHint =
    "run as root, or with read access to /dev/nvidia-caps/nvidia-cap1 (mig/config; mig/monitor is enough to "
    "look)";

// NVML's number of a profile says what it has besides its size.
MigAttribute AttributeOf(unsigned nvml_profile) {
  switch (nvml_profile) {
    case 7:
    case 8:
      return MigAttribute::kMe;
    case 10:
    case 11:
    case 12:
    case 17:
      return MigAttribute::kGfx;
    case 13:
    case 14:
      return MigAttribute::kNoMe;
    case 15:
    case 16:
      return MigAttribute::kMeAll;
    default:
      return MigAttribute::kNone;
  }
}

// Text that a driver filled in: bounded, and fit to be shown.
template <size_t N>
std::string TextOf(const char (&text)[N]) {
  std::string shown(text, std::find(text, text + N, '\0'));
  std::replace_if(shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

std::string ProfileName(const std::string& name) {
  constexpr std::string_view kPrefix = "MIG ";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

template <typename Info>
MigProfile ProfileOf(unsigned nvml_profile, const Info& info) {
  MigProfile profile;
  profile.id = info.id;
  profile.nvml_profile = nvml_profile;
  profile.compute_slices = info.sliceCount;
  profile.max_instances = info.instanceCount;
  profile.sms = info.multiprocessorCount;
  profile.bytes = info.memorySizeMB << 20;
  profile.engines = MigEngines{.copy = info.copyEngineCount,
                               .nvdec = info.decoderCount,
                               .nvenc = info.encoderCount,
                               .jpeg = info.jpegCount,
                               .ofa = info.ofaCount};
  profile.attribute = AttributeOf(nvml_profile);
  if constexpr (requires { info.name; }) profile.name = ProfileName(TextOf(info.name));
  return profile;
}

template <typename Info>
MigComputeProfile ComputeProfileOf(const Info& info) {
  return {.id = info.id,
          .slices = info.sliceCount,
          .max_instances = info.instanceCount,
          .sms = info.multiprocessorCount};
}

class NvmlMig final : public Mig {
 public:
  NvmlMig(void* library, std::function<Result<nvmlDevice_t>(const Uuid&)> find, NvmlProcessLists& processes,
          NvmlError error)
      : library_(library), find_(std::move(find)), processes_(processes), error_(std::move(error)) {}

  Result<std::optional<MigModes>> Modes(const Uuid& gpu) override {
    auto device = find_(gpu);
    if (!device) return tl::unexpected(device.error());
    unsigned current = 0, pending = 0;
    const nvmlReturn_t result = Call("nvmlDeviceGetMigMode", *device, &current, &pending);
    if (result == NVML_ERROR_NOT_SUPPORTED) return std::nullopt;
    if (result != NVML_SUCCESS)
      return Failed(result, "nvmlDeviceGetMigMode", "MIG mode of " + gpu.ToString());
    return MigModes{.current = current == kMigEnable, .pending = pending == kMigEnable};
  }

  Result<MigModes> SetMode(const Uuid& gpu, bool on) override {
    auto device = find_(gpu);
    if (!device) return tl::unexpected(device.error());
    const std::string what = std::string(on ? "enabling" : "disabling") + " MIG on " + gpu.ToString();
    nvmlReturn_t activation = NVML_SUCCESS;
    const nvmlReturn_t result =
        Call("nvmlDeviceSetMigMode", *device, on ? kMigEnable : kMigDisable, &activation);
    if (result == NVML_ERROR_NO_PERMISSION)
      return Fail(Code::kDenied, what + ": no rights: the MIG mode of a GPU is set by root alone");
    if (result != NVML_SUCCESS) return Failed(result, "nvmlDeviceSetMigMode", what);
    auto modes = Modes(gpu);
    if (!modes) return tl::unexpected(modes.error());
    const MigModes now = modes->value_or(MigModes{});
    // What could not be done now is a mode that waits; what neither counts nor waits was refused.
    if (activation != NVML_SUCCESS && now.current != on && now.pending != on)
      return Failed(activation, "nvmlDeviceSetMigMode", what);
    return now;
  }

  Result<std::vector<MigProfile>> Profiles(const Uuid& gpu) override {
    auto device = find_(gpu);
    if (!device) return tl::unexpected(device.error());
    std::vector<MigProfile> profiles;
    for (unsigned number = 0; number < kMaxProfiles; ++number) {
      MigProfile profile;
      const nvmlReturn_t result = Profile(*device, number, profile);
      if (result == NVML_ERROR_INVALID_ARGUMENT) break;  // NVML knows no more
      if (result == NVML_ERROR_NOT_SUPPORTED) continue;  // this GPU does not have it
      if (result != NVML_SUCCESS)
        return Failed(result, "nvmlDeviceGetGpuInstanceProfileInfo", "MIG profiles of " + gpu.ToString());
      if (const auto placements = Placements(*device, *profile.id)) {
        for (const MigPlacement& placement : *placements) {
          profile.memory_slices = placement.size;
          profile.starts.push_back(placement.start);
        }
        std::sort(profile.starts.begin(), profile.starts.end());
      }
      profiles.push_back(std::move(profile));
    }
    if (profiles.empty())
      return Fail(Code::kUnsupported, "MIG profiles of " + gpu.ToString() +
                                          ": the driver lists none: it does so only while MIG is enabled");
    return profiles;
  }

  Result<uint32_t> Room(const Uuid& gpu, uint32_t profile) override {
    auto device = find_(gpu);
    if (!device) return tl::unexpected(device.error());
    unsigned count = 0;
    constexpr const char* kCall = "nvmlDeviceGetGpuInstanceRemainingCapacity";
    if (nvmlReturn_t result = Call(kCall, *device, profile, &count); result != NVML_SUCCESS)
      return Failed(result, kCall, "room for MIG profile " + std::to_string(profile));
    return count;
  }

  Result<std::vector<MigInstance>> Instances(const Uuid& gpu) override {
    auto device = find_(gpu);
    if (!device) return tl::unexpected(device.error());
    auto profiles = Profiles(gpu);
    if (!profiles) return tl::unexpected(profiles.error());
    std::vector<MigInstance> instances;
    for (const MigProfile& profile : *profiles) {
      std::array<nvmlGpuInstance_t, kMaxInstances> handles{};
      unsigned count = kMaxInstances;
      constexpr const char* kCall = "nvmlDeviceGetGpuInstances";
      if (nvmlReturn_t result = Call(kCall, *device, *profile.id, handles.data(), &count);
          result != NVML_SUCCESS)
        return Failed(result, kCall, "GPU instances of " + gpu.ToString());
      if (count > kMaxInstances) return TooMany("GPU instances");
      for (unsigned i = 0; i < count; ++i) {
        const auto instance = InfoOf(handles[i]);
        // One that was destroyed meanwhile is none.
        if (!instance && instance.error().code == Code::kNotFound) continue;
        if (!instance) return tl::unexpected(instance.error());
        instances.push_back(*instance);
      }
    }
    std::sort(instances.begin(), instances.end(), [](const MigInstance& a, const MigInstance& b) {
      return std::pair(a.placement.start, a.id) < std::pair(b.placement.start, b.id);
    });
    return instances;
  }

  Result<MigInstance> Create(const Uuid& gpu, uint32_t profile,
                             const std::optional<MigPlacement>& placement) override {
    auto device = find_(gpu);
    if (!device) return tl::unexpected(device.error());
    nvmlGpuInstance_t handle = nullptr;
    const char* call = "nvmlDeviceCreateGpuInstance";
    nvmlReturn_t result = NVML_SUCCESS;
    if (placement) {
      call = "nvmlDeviceCreateGpuInstanceWithPlacement";
      const nvmlGpuInstancePlacement_t where{placement->start, placement->size};
      result = Call(call, *device, profile, &where, &handle);
    } else {
      result = Call(call, *device, profile, &handle);
    }
    std::string what = "creating a GPU instance of profile " + std::to_string(profile);
    if (placement) what += " at " + std::to_string(placement->start);
    if (result != NVML_SUCCESS) return Failed(result, call, what + " on " + gpu.ToString());
    return InfoOf(handle);
  }

  Status Destroy(const Uuid& gpu, uint32_t instance) override {
    auto handle = Instance(gpu, instance);
    if (!handle) return tl::unexpected(handle.error());
    if (nvmlReturn_t result = Call("nvmlGpuInstanceDestroy", *handle); result != NVML_SUCCESS)
      return Failed(result, "nvmlGpuInstanceDestroy",
                    "destroying GPU instance " + std::to_string(instance) + " of " + gpu.ToString());
    return {};
  }

  Result<std::vector<MigComputeProfile>> ComputeProfiles(const Uuid& gpu, uint32_t instance) override {
    auto handle = Instance(gpu, instance);
    if (!handle) return tl::unexpected(handle.error());
    return ComputeProfilesOf(*handle);
  }

  Result<std::vector<MigInstance>> ComputeInstances(const Uuid& gpu, uint32_t instance) override {
    auto handle = Instance(gpu, instance);
    if (!handle) return tl::unexpected(handle.error());
    auto profiles = ComputeProfilesOf(*handle);
    if (!profiles) return tl::unexpected(profiles.error());
    std::vector<MigInstance> found;
    for (const MigComputeProfile& profile : *profiles) {
      std::array<nvmlComputeInstance_t, kMaxInstances> handles{};
      unsigned count = kMaxInstances;
      constexpr const char* kCall = "nvmlGpuInstanceGetComputeInstances";
      if (nvmlReturn_t result = Call(kCall, *handle, profile.id, handles.data(), &count);
          result != NVML_SUCCESS)
        return Failed(result, kCall, "compute instances of GPU instance " + std::to_string(instance));
      if (count > kMaxInstances) return TooMany("compute instances");
      for (unsigned i = 0; i < count; ++i) {
        const auto one = ComputeInfoOf(handles[i]);
        if (!one && one.error().code == Code::kNotFound) continue;
        if (!one) return tl::unexpected(one.error());
        found.push_back(*one);
      }
    }
    std::sort(found.begin(), found.end(),
              [](const MigInstance& a, const MigInstance& b) { return a.id < b.id; });
    return found;
  }

  Result<MigInstance> CreateCompute(const Uuid& gpu, uint32_t instance, uint32_t profile) override {
    auto handle = Instance(gpu, instance);
    if (!handle) return tl::unexpected(handle.error());
    nvmlComputeInstance_t made = nullptr;
    constexpr const char* kCall = "nvmlGpuInstanceCreateComputeInstance";
    if (nvmlReturn_t result = Call(kCall, *handle, profile, &made); result != NVML_SUCCESS)
      return Failed(result, kCall,
                    "creating a compute instance of profile " + std::to_string(profile) +
                        " in GPU instance " + std::to_string(instance));
    return ComputeInfoOf(made);
  }

  Status DestroyCompute(const Uuid& gpu, uint32_t instance, uint32_t compute) override {
    auto parent = Instance(gpu, instance);
    if (!parent) return tl::unexpected(parent.error());
    const std::string name =
        "compute instance " + std::to_string(compute) + " of GPU instance " + std::to_string(instance);
    nvmlComputeInstance_t handle = nullptr;
    constexpr const char* kFind = "nvmlGpuInstanceGetComputeInstanceById";
    if (nvmlReturn_t result = Call(kFind, *parent, compute, &handle); result != NVML_SUCCESS)
      return Failed(result, kFind, name);
    if (nvmlReturn_t result = Call("nvmlComputeInstanceDestroy", handle); result != NVML_SUCCESS)
      return Failed(result, "nvmlComputeInstanceDestroy", "destroying " + name);
    return {};
  }

  Result<std::vector<MigDevice>> Devices(const Uuid& gpu) override {
    auto handles = Handles(gpu);
    if (!handles) return tl::unexpected(handles.error());
    std::vector<MigDevice> devices;
    for (auto& [handle, device] : *handles) {
      char text[96] = {};
      if (Call("nvmlDeviceGetUUID", handle, &text[0], static_cast<unsigned>(sizeof text)) != NVML_SUCCESS)
        continue;  // destroyed a moment ago
      device.uuid = TextOf(text);
      std::fill(std::begin(text), std::end(text), '\0');
      if (Call("nvmlDeviceGetName", handle, &text[0], static_cast<unsigned>(sizeof text)) == NVML_SUCCESS)
        device.name = TextOf(text);
      nvmlDeviceAttributes_t attributes{};
      if (Call("nvmlDeviceGetAttributes_v2", handle, &attributes) == NVML_SUCCESS) {
        device.sms = attributes.multiprocessorCount;
        device.total_bytes = attributes.memorySizeMB << 20;
      }
      devices.push_back(std::move(device));
    }
    return devices;
  }

  Result<DeviceMemory> Memory(const Uuid& gpu, uint32_t gpu_instance, uint32_t compute_instance) override {
    auto handle = Find(gpu, gpu_instance, compute_instance);
    if (!handle) return tl::unexpected(handle.error());
    nvmlMemory_v2_t second{};
    second.version = kMemoryV2;
    nvmlReturn_t result = Call("nvmlDeviceGetMemoryInfo_v2", *handle, &second);
    if (result == NVML_SUCCESS) return DeviceMemory{second.total, second.reserved, second.used, second.free};
    nvmlMemory_t first{};
    result = Call("nvmlDeviceGetMemoryInfo", *handle, &first);
    if (result == NVML_SUCCESS) return DeviceMemory{first.total, 0, first.used, first.free};
    return Failed(result, "nvmlDeviceGetMemoryInfo", "memory of " + NameOf(gpu_instance, compute_instance));
  }

  Result<std::vector<ProcessUse>> Processes(const Uuid& gpu, uint32_t gpu_instance,
                                            uint32_t compute_instance) override {
    auto handle = Find(gpu, gpu_instance, compute_instance);
    if (!handle) return tl::unexpected(handle.error());
    return processes_.Of(*handle, NameOf(gpu_instance, compute_instance));
  }

 private:
  using Handle = std::pair<nvmlDevice_t, MigDevice>;

  // What a driver does not have, it does not have: the caller is told so, and nothing is made up.
  template <typename... P>
  nvmlReturn_t Call(const char* name, P... parameters) {
    void* symbol = dlsym(library_, name);
    if (!symbol) return NVML_ERROR_FUNCTION_NOT_FOUND;
    return reinterpret_cast<nvmlReturn_t (*)(P...)>(symbol)(parameters...);
  }

  static std::string NameOf(uint32_t gpu_instance, uint32_t compute_instance) {
    return "MIG device " + std::to_string(gpu_instance) + "/" + std::to_string(compute_instance);
  }

  static tl::unexpected<Error> TooMany(const char* what) {
    return Fail(Code::kInternal, std::string("NVML says that there are more ") + what + " than there can be");
  }

  tl::unexpected<Error> Failed(nvmlReturn_t result, const char* call, const std::string& what) const {
    switch (result) {
      case NVML_ERROR_IN_USE:
        return Fail(Code::kConflict, what + ": in use by another client", "end the programs on it first");
      case NVML_ERROR_INSUFFICIENT_RESOURCES:
        return Fail(Code::kConflict, what + ": insufficient resources: there is no room for it",
                    "gpumux mig status shows what is taken and what still fits");
      case NVML_ERROR_NO_PERMISSION:
        return Fail(Code::kDenied, what + ": no rights", kRightsHint);
      case NVML_ERROR_NOT_SUPPORTED:
        return Fail(Code::kUnsupported,
                    what + ": not supported: MIG is off on this GPU, or the GPU does not have this");
      case NVML_ERROR_INVALID_STATE:
      case NVML_ERROR_RESET_REQUIRED:
        return Fail(Code::kConflict, what + ": the GPU is in the wrong state: it needs a reset first");
      case NVML_ERROR_NOT_FOUND:
        return Fail(Code::kNotFound, what + ": there is none (any more)");
      case NVML_ERROR_INVALID_ARGUMENT:
        return Fail(Code::kInvalid, what + ": the driver does not know this profile, placement or instance");
      case NVML_ERROR_FUNCTION_NOT_FOUND:
        return Fail(Code::kUnsupported, what + ": not known: this driver's NVML does not have " + call);
      default:
        return error_(result, what);
    }
  }

  // The newest layout that the library takes. An older one answers INVALID_ARGUMENT to a newer
  // version word, which is also what ends the list: so each is tried.
  nvmlReturn_t Profile(nvmlDevice_t device, unsigned number, MigProfile& profile) {
    constexpr const char* kVersioned = "nvmlDeviceGetGpuInstanceProfileInfoV";
    nvmlGpuInstanceProfileInfo_v3_t third{};
    third.version = kGpuInstanceProfileV3;
    nvmlReturn_t result = Call(kVersioned, device, number, &third);
    if (result == NVML_SUCCESS) profile = ProfileOf(number, third);
    if (!OtherLayout(result)) return result;
    nvmlGpuInstanceProfileInfo_v2_t second{};
    second.version = kGpuInstanceProfileV2;
    result = Call(kVersioned, device, number, &second);
    if (result == NVML_SUCCESS) profile = ProfileOf(number, second);
    if (!OtherLayout(result)) return result;
    nvmlGpuInstanceProfileInfo_t first{};
    result = Call("nvmlDeviceGetGpuInstanceProfileInfo", device, number, &first);
    if (result == NVML_SUCCESS) profile = ProfileOf(number, first);
    return result;
  }

  static bool OtherLayout(nvmlReturn_t result) {
    return result == NVML_ERROR_INVALID_ARGUMENT || result == NVML_ERROR_ARGUMENT_VERSION_MISMATCH ||
           result == NVML_ERROR_FUNCTION_NOT_FOUND;
  }

  std::optional<std::vector<MigPlacement>> Placements(nvmlDevice_t device, unsigned profile) {
    constexpr const char* kCall = "nvmlDeviceGetGpuInstancePossiblePlacements_v2";
    nvmlGpuInstancePlacement_t* const nowhere = nullptr;
    unsigned count = 0;
    if (Call(kCall, device, profile, nowhere, &count) != NVML_SUCCESS || count > kMaxPlacements)
      return std::nullopt;
    std::array<nvmlGpuInstancePlacement_t, kMaxPlacements> filled{};
    if (Call(kCall, device, profile, filled.data(), &count) != NVML_SUCCESS || count > kMaxPlacements)
      return std::nullopt;
    std::vector<MigPlacement> placements;
    for (unsigned i = 0; i < count; ++i) placements.push_back({filled[i].start, filled[i].size});
    return placements;
  }

  Result<nvmlGpuInstance_t> Instance(const Uuid& gpu, uint32_t id) {
    auto device = find_(gpu);
    if (!device) return tl::unexpected(device.error());
    nvmlGpuInstance_t handle = nullptr;
    constexpr const char* kCall = "nvmlDeviceGetGpuInstanceById";
    if (nvmlReturn_t result = Call(kCall, *device, id, &handle); result != NVML_SUCCESS)
      return Failed(result, kCall, "GPU instance " + std::to_string(id) + " of " + gpu.ToString());
    return handle;
  }

  // A handle that went stale is an argument that is none.
  static nvmlReturn_t Gone(nvmlReturn_t result) {
    return result == NVML_ERROR_INVALID_ARGUMENT ? NVML_ERROR_NOT_FOUND : result;
  }

  Result<MigInstance> InfoOf(nvmlGpuInstance_t handle) {
    nvmlGpuInstanceInfo_t info{};
    if (nvmlReturn_t result = Gone(Call("nvmlGpuInstanceGetInfo", handle, &info)); result != NVML_SUCCESS)
      return Failed(result, "nvmlGpuInstanceGetInfo", "a GPU instance");
    return MigInstance{info.id, info.profileId, {info.placement.start, info.placement.size}};
  }

  Result<MigInstance> ComputeInfoOf(nvmlComputeInstance_t handle) {
    nvmlComputeInstanceInfo_t info{};
    constexpr const char* kCall = "nvmlComputeInstanceGetInfo_v2";
    if (nvmlReturn_t result = Gone(Call(kCall, handle, &info)); result != NVML_SUCCESS)
      return Failed(result, kCall, "a compute instance");
    return MigInstance{info.id, info.profileId, {info.placement.start, info.placement.size}};
  }

  Result<std::vector<MigComputeProfile>> ComputeProfilesOf(nvmlGpuInstance_t handle) {
    std::vector<MigComputeProfile> profiles;
    for (unsigned number = 0; number < kMaxProfiles; ++number) {
      MigComputeProfile profile;
      const nvmlReturn_t result = ComputeProfile(handle, number, profile);
      if (result == NVML_ERROR_INVALID_ARGUMENT) break;
      if (result == NVML_ERROR_NOT_SUPPORTED) continue;
      if (result != NVML_SUCCESS)
        return Failed(result, "nvmlGpuInstanceGetComputeInstanceProfileInfo",
                      "compute profiles of a GPU instance");
      profiles.push_back(profile);
    }
    return profiles;
  }

  nvmlReturn_t ComputeProfile(nvmlGpuInstance_t handle, unsigned number, MigComputeProfile& profile) {
    constexpr const char* kVersioned = "nvmlGpuInstanceGetComputeInstanceProfileInfoV";
    nvmlComputeInstanceProfileInfo_v3_t third{};
    third.version = kComputeInstanceProfileV3;
    nvmlReturn_t result = Call(kVersioned, handle, number, kComputeEnginesShared, &third);
    if (result == NVML_SUCCESS) profile = ComputeProfileOf(third);
    if (!OtherLayout(result)) return result;
    nvmlComputeInstanceProfileInfo_v2_t second{};
    second.version = kComputeInstanceProfileV2;
    result = Call(kVersioned, handle, number, kComputeEnginesShared, &second);
    if (result == NVML_SUCCESS) profile = ComputeProfileOf(second);
    if (!OtherLayout(result)) return result;
    nvmlComputeInstanceProfileInfo_t first{};
    result =
        Call("nvmlGpuInstanceGetComputeInstanceProfileInfo", handle, number, kComputeEnginesShared, &first);
    if (result == NVML_SUCCESS) profile = ComputeProfileOf(first);
    return result;
  }

  // NVML numbers them up to a maximum, and there are holes.
  Result<std::vector<Handle>> Handles(const Uuid& gpu) {
    auto device = find_(gpu);
    if (!device) return tl::unexpected(device.error());
    unsigned most = 0;
    constexpr const char* kCount = "nvmlDeviceGetMaxMigDeviceCount";
    constexpr const char* kHandle = "nvmlDeviceGetMigDeviceHandleByIndex";
    const nvmlReturn_t counted = Call(kCount, *device, &most);
    if (counted == NVML_ERROR_NOT_SUPPORTED) return std::vector<Handle>{};
    if (counted != NVML_SUCCESS) return Failed(counted, kCount, "MIG devices of " + gpu.ToString());
    std::vector<Handle> handles;
    for (unsigned index = 0; index < std::min(most, kMaxMigDevices); ++index) {
      nvmlDevice_t handle = nullptr;
      const nvmlReturn_t result = Call(kHandle, *device, index, &handle);
      if (result == NVML_ERROR_NOT_FOUND || result == NVML_ERROR_NOT_SUPPORTED) continue;
      if (result != NVML_SUCCESS) return Failed(result, kHandle, "MIG devices of " + gpu.ToString());
      MigDevice found;
      found.index = index;
      if (Call("nvmlDeviceGetGpuInstanceId", handle, &found.gpu_instance) != NVML_SUCCESS ||
          Call("nvmlDeviceGetComputeInstanceId", handle, &found.compute_instance) != NVML_SUCCESS)
        continue;  // destroyed a moment ago
      handles.emplace_back(handle, std::move(found));
    }
    return handles;
  }

  Result<nvmlDevice_t> Find(const Uuid& gpu, uint32_t gpu_instance, uint32_t compute_instance) {
    auto handles = Handles(gpu);
    if (!handles) return tl::unexpected(handles.error());
    for (const auto& [handle, device] : *handles) {
      if (device.gpu_instance == gpu_instance && device.compute_instance == compute_instance) return handle;
    }
    return Fail(Code::kNotFound,
                "there is no " + NameOf(gpu_instance, compute_instance) + " on " + gpu.ToString());
  }

  void* library_;
  std::function<Result<nvmlDevice_t>(const Uuid&)> find_;
  NvmlProcessLists& processes_;
  NvmlError error_;
};

tl::unexpected<Error> NotAsked() { return Fail(Code::kUnsupported, "MIG is not asked about"); }

}  // namespace

Result<std::optional<MigModes>> Mig::Modes(const Uuid&) { return NotAsked(); }
Result<MigModes> Mig::SetMode(const Uuid&, bool) { return NotAsked(); }
Result<std::vector<MigProfile>> Mig::Profiles(const Uuid&) { return NotAsked(); }
Result<uint32_t> Mig::Room(const Uuid&, uint32_t) { return NotAsked(); }
Result<std::vector<MigInstance>> Mig::Instances(const Uuid&) { return NotAsked(); }
Result<MigInstance> Mig::Create(const Uuid&, uint32_t, const std::optional<MigPlacement>&) {
  return NotAsked();
}
Status Mig::Destroy(const Uuid&, uint32_t) { return NotAsked(); }
Result<std::vector<MigComputeProfile>> Mig::ComputeProfiles(const Uuid&, uint32_t) { return NotAsked(); }
Result<std::vector<MigInstance>> Mig::ComputeInstances(const Uuid&, uint32_t) { return NotAsked(); }
Result<MigInstance> Mig::CreateCompute(const Uuid&, uint32_t, uint32_t) { return NotAsked(); }
Status Mig::DestroyCompute(const Uuid&, uint32_t, uint32_t) { return NotAsked(); }
Result<std::vector<MigDevice>> Mig::Devices(const Uuid&) { return NotAsked(); }
Result<DeviceMemory> Mig::Memory(const Uuid&, uint32_t, uint32_t) { return NotAsked(); }
Result<std::vector<ProcessUse>> Mig::Processes(const Uuid&, uint32_t, uint32_t) { return NotAsked(); }

std::unique_ptr<Mig> MakeMig(void* library, std::function<Result<nvmlDevice_t>(const Uuid&)> find,
                             NvmlProcessLists& processes, NvmlError error) {
  return std::make_unique<NvmlMig>(library, std::move(find), processes, std::move(error));
}

}  // namespace gpumux::gpu
