// SPDX-License-Identifier: Apache-2.0
//
// The driver: is it there, is it new enough, do its parts belong together, may
// this user open its devices.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/unique_fd.h"
#include "cli/doctor/check.h"
#include "cli/doctor/files.h"
#include "cli/terminal.h"
#include "gpu/nvml_mig.h"
#include "gpumux/abi/session.h"

namespace gpumux::cli::doctor {
namespace {

constexpr unsigned kOldestDriver = 520;  // of CUDA 11.8, the oldest that the guard is made for
constexpr int kNewestCuda = 13999;       // the entry points of 13.x are known

constexpr const char* kSoftwareGpu = "the software GPU (simulated) needs none";

// Addresses on the PCI bus of NVIDIA's display and 3D controllers.
std::vector<std::string> GpusOnTheBus(const Environment& environment) {
  std::vector<std::string> found;
  const std::string folder = environment.At("/sys/bus/pci/devices");
  for (const std::string& address : Entries(folder)) {
    const std::string vendor = ReadText(fmt::format("{}/{}/vendor", folder, address)).value_or("");
    const std::string kind = ReadText(fmt::format("{}/{}/class", folder, address)).value_or("");
    if (vendor.starts_with("0x10de") && (kind.starts_with("0x0300") || kind.starts_with("0x0302")))
      found.push_back(address);
  }
  return found;
}

// The version of the loaded kernel module; "" if there is none.
std::string KernelModule(const Environment& environment) {
  const auto text = ReadText(environment.At("/proc/driver/nvidia/version"));
  return text ? VersionIn(text->substr(0, text->find('\n'))) : "";
}

Verdict Present(const Environment& environment) {
  const GpuView& gpus = environment.gpus();
  if (!gpus.source) return Bad(gpus.error.message, gpus.error.hint);
  const auto on_the_bus = GpusOnTheBus(environment);
  if (!gpus.simulated()) {
    const std::string module = KernelModule(environment);
    if (!module.empty()) return Ok(fmt::format("kernel module {}", module));
    return Bad("the driver's libraries are installed, and its kernel module is not loaded",
               "sudo modprobe nvidia");
  }
  const auto asked_for = environment.Variable("GPUMUX_SOFTGPU");
  if (asked_for && !asked_for->empty())
    return Ok(
        fmt::format("the software GPU (simulated) was asked for: GPUMUX_SOFTGPU={}", Plain(*asked_for, 60)));
  if (on_the_bus.empty()) return Ok("no NVIDIA GPU and no driver: programs get the software GPU (simulated)");
  return Bad(
      fmt::format("an NVIDIA GPU is on the PCI bus ({}) without its driver: programs get the software GPU",
                  fmt::join(on_the_bus, ", ")),
      "sudo modprobe nvidia, or install the driver");
}

Verdict Answers(const Environment& environment) {
  const GpuView& gpus = environment.gpus();
  if (!gpus.source) return Skip("no driver");
  if (!gpus.nvml) return Bad(gpus.error.message, gpus.error.hint.empty() ? "nvidia-smi" : gpus.error.hint);
  const size_t count = gpus.nvml->Devices().size();
  if (count == 0) return Bad("NVML lists no GPU", "nvidia-smi -L (in a container: start it with its GPUs)");
  return Ok(fmt::format("NVML lists {} GPU{}: {}", count, count == 1 ? "" : "s",
                        Plain(gpus.nvml->Devices()[0].name, 80)));
}

Verdict NewEnough(const Environment& environment) {
  const GpuView& gpus = environment.gpus();
  if (!gpus.nvml) return Skip("NVML does not answer");
  const std::string version = Plain(gpus.nvml->DriverVersion(), 40);
  const auto branch = NumberAt(version);
  if (!branch) return CannotTell("NVML does not say the driver's version");
  if (*branch < kOldestDriver)
    return Bad(fmt::format("driver {}, and gpumux needs {} or later (CUDA 11.8)", version, kOldestDriver),
               "install a newer driver");
  const auto& cuda = environment.cuda();
  if (!cuda)
    return Bad(fmt::format("driver {}, and {}", version, Plain(cuda.error().message, 200)),
               "install the driver's CUDA library (Debian: libcuda1)");
  const std::string name = fmt::format("{}.{}", cuda->cuda_version / 1000, cuda->cuda_version % 1000 / 10);
  if (cuda->cuda_version > kNewestCuda)
    return Warn(fmt::format("driver {} (CUDA {}) is newer than what this gpumux knows: new ways to allocate "
                            "memory are not capped",
                            version, name),
                "install a newer gpumux");
  return Ok(fmt::format("{} (CUDA {}), needs {} or later", version, name, kOldestDriver));
}

Verdict PartsMatch(const Environment& environment) {
  const GpuView& gpus = environment.gpus();
  if (!gpus.source || gpus.simulated()) return Skip(kSoftwareGpu);
  const std::string module = KernelModule(environment);
  if (module.empty()) return Skip("no kernel module");
  std::vector<std::string> others;
  const auto compare = [&](const char* what, const std::string& version) {
    if (!version.empty() && version != module) others.push_back(fmt::format("{} is {}", what, version));
  };
  if (gpus.nvml) compare("NVML", Plain(gpus.nvml->DriverVersion(), 40));
  const auto& cuda = environment.cuda();
  if (cuda) {
    const size_t name = cuda->file.rfind("libcuda.so.");
    if (name != std::string::npos) compare("libcuda", VersionIn(cuda->file.substr(name)));
  }
  if (others.empty()) return Ok(fmt::format("kernel module and libraries are {}", module));
  return Bad(fmt::format("the kernel module is {}, {}: CUDA fails", module, fmt::join(others, ", ")),
             "reboot, or unload and load the nvidia modules");
}

Verdict Devices(const Environment& environment) {
  const GpuView& gpus = environment.gpus();
  if (!gpus.source || gpus.simulated()) return Skip(kSoftwareGpu);
  std::vector<std::string> wanted = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
  for (const std::string& name : Entries(environment.At("/dev"))) {
    if (name.starts_with("nvidia") && name.size() > 6 &&
        name.find_first_not_of("0123456789", 6) == std::string::npos)
      wanted.push_back("/dev/" + name);
  }
  for (const std::string& path : wanted) {
    const std::string file = environment.At(path);
    if (!Exists(file)) return Bad(path + " does not exist", "sudo nvidia-modprobe -u -c=0");
    if (!environment.MayUse(file))
      return Bad(fmt::format("{} may not be read and written by {}", path, environment.user),
                 fmt::format("ls -l {}; let its group have {}", path, environment.user));
    const UniqueFd fd(::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    if (!fd && errno == EPERM)
      return Bad(fmt::format("{}: the device rules of this container or service forbid it", path),
                 "start the container with its GPUs, or the service with DeviceAllow=char-nvidia* rw");
    if (!fd) return Bad(fmt::format("{}: {}", path, std::strerror(errno)), "dmesg | grep NVRM");
  }
  return Ok(fmt::format("{} device files are there and may be used", wanted.size()));
}

// Whether a MIG device is called so, or begins so and no other does.
bool NamesInstance(const std::string& entry, gpu::Nvml& nvml) {
  size_t fitting = 0;
  for (const gpu::Device& gpu : nvml.Devices()) {
    if (gpu.instance) continue;
    for (const gpu::MigDevice& device :
         nvml.mig().Devices(gpu.uuid).value_or(std::vector<gpu::MigDevice>{})) {
      const std::string old_name =
          fmt::format("MIG-{}/{}/{}", gpu.uuid.ToString(), device.gpu_instance, device.compute_instance);
      if (entry == old_name || device.uuid.starts_with(entry)) ++fitting;
    }
  }
  return fitting == 1;
}

// What an entry of CUDA_VISIBLE_DEVICES means; "" if it names a GPU or an instance of one.
std::string Complaint(const std::string& entry, gpu::Nvml& nvml) {
  const std::vector<gpu::Device>& devices = nvml.Devices();
  if (entry.starts_with("GPU-")) {
    const auto fitting = std::count_if(devices.begin(), devices.end(), [&](const gpu::Device& device) {
      return device.uuid.ToString().starts_with(entry);
    });
    if (fitting == 1) return "";
    return fitting == 0 ? "there is no such GPU" : "several GPUs begin so";
  }
  if (entry.starts_with("MIG-"))
    return NamesInstance(entry, nvml) ? "" : "there is no such MIG device (instances end with a reset)";
  if (entry.find_first_not_of("0123456789") != std::string::npos) return "not a number and not a UUID";
  const auto index = NumberAt(entry);
  return index && *index < devices.size()
             ? ""
             : fmt::format("there {} {} GPU{}", devices.size() == 1 ? "is" : "are", devices.size(),
                           devices.size() == 1 ? "" : "s");
}

Verdict Visible(const Environment& environment) {
  const auto visible = environment.Variable("CUDA_VISIBLE_DEVICES");
  if (!visible) return Ok("CUDA_VISIBLE_DEVICES is not set");
  if (environment.Variable(GPUMUX_ENV_SESSION)) return Ok("set by gpumux run, for this tenant");
  const GpuView& gpus = environment.gpus();
  if (!gpus.nvml) return Skip("NVML does not answer");
  const std::string fix = "unset CUDA_VISIBLE_DEVICES";
  const std::string shown = fmt::format("CUDA_VISIBLE_DEVICES is \"{}\"", Plain(*visible, 80));
  const std::string effect = " (programs of gpumux run get their own)";
  auto entries = Split(*visible, ',');
  if (entries.empty()) return Warn(shown + ": programs find no GPU" + effect, fix);
  for (const std::string& entry : entries) {
    const std::string complaint = Complaint(entry, *gpus.nvml);
    if (!complaint.empty())
      return Warn(
          fmt::format("{}: \"{}\" ends the list, for {}{}", shown, Plain(entry, 60), complaint, effect), fix);
  }
  std::sort(entries.begin(), entries.end());
  if (std::adjacent_find(entries.begin(), entries.end()) != entries.end())
    return Warn(shown + ": a GPU that is named twice leaves none" + effect, fix);
  return Ok(shown);
}

}  // namespace

std::span<const Check> DriverChecks() {
  static constexpr Check kChecks[] = {
      {"driver-present", "driver", "an NVIDIA driver, or the software GPU that was asked for", Present},
      {"driver-nvml", "driver", "NVML starts and lists the GPUs", Answers},
      {"driver-version", "driver", "the driver is new enough, and not newer than what is known", NewEnough},
      {"driver-match", "driver", "kernel module, NVML and libcuda are of one version", PartsMatch},
      {"driver-devices", "driver", "this user may open the device files", Devices},
      {"driver-visible", "driver", "CUDA_VISIBLE_DEVICES names GPUs that there are", Visible},
  };
  return kChecks;
}

}  // namespace gpumux::cli::doctor
