// SPDX-License-Identifier: Apache-2.0
//
// Each GPU: does it answer, and do its settings let programs share it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/units.h"
#include "cli/doctor/check.h"
#include "cli/doctor/daemon_answers.h"
#include "cli/doctor/files.h"
#include "cli/terminal.h"
#include "gpu/nvml_mig.h"

namespace gpumux::cli::doctor {
namespace {

const char* const kNoNvml = "NVML does not answer";

Verdict Answers(const Environment& environment) {
  const GpuView& gpus = environment.gpus();
  if (!gpus.nvml) return Skip(kNoNvml);
  const auto& devices = gpus.nvml->Devices();
  for (const gpu::Device& device : devices) {
    const auto memory = gpus.nvml->Memory(device.uuid);
    if (!memory && memory.error().code != Code::kUnsupported)
      return Bad(fmt::format("GPU {}: {}", device.index.Label(), Plain(memory.error().message, 200)),
                 "sudo dmesg | grep NVRM; a GPU that is lost needs a reset or a reboot");
  }
  // The kernel module keeps a folder for each GPU that it drives, also for one that NVML cannot open.
  const size_t driven = Entries(environment.At("/proc/driver/nvidia/gpus")).size();
  if (!gpus.simulated() && driven > devices.size())
    return Bad(fmt::format("the driver has {} GPUs and NVML lists {}", driven, devices.size()),
               "nvidia-smi -L; sudo dmesg | grep NVRM");
  return Ok(fmt::format("{} of {} answer", devices.size(), devices.size()));
}

Verdict Modes(const Environment& environment) {
  const GpuView& gpus = environment.gpus();
  if (!gpus.nvml) return Skip(kNoNvml);
  for (const gpu::Device& device : gpus.nvml->Devices()) {
    const auto mode = gpus.nvml->Mode(device.uuid);
    if (!mode) continue;
    const std::string fix = fmt::format("sudo nvidia-smi -i {} -c DEFAULT", device.index.Label());
    if (*mode == gpu::ComputeMode::kProhibited)
      return Bad(
          fmt::format("GPU {} is in compute mode PROHIBITED: no program can use it", device.index.Label()),
          fix);
    if (*mode == gpu::ComputeMode::kExclusiveProcess)
      return Bad(fmt::format("GPU {} is in compute mode EXCLUSIVE_PROCESS: a second process gets "
                             "CUDA_ERROR_DEVICE_UNAVAILABLE, so nothing can be shared",
                             device.index.Label()),
                 fix);
  }
  return Ok("DEFAULT: several processes may use a GPU");
}

// A GPU with MIG on is of use by its instances alone.
std::optional<Verdict> OfPartitioned(gpu::Nvml& nvml, const gpu::Device& device,
                                     std::vector<std::string>& on) {
  const std::string name = "GPU " + device.index.Label(), index = device.index.Label();
  const auto instances = nvml.mig().Devices(device.uuid);
  if (!instances) return CannotTell(fmt::format("{}: {}", name, Plain(instances.error().message, 200)));
  if (instances->empty())
    return Bad(
        fmt::format("MIG is on on {}, and it has no instances: no program can use it", name),
        fmt::format(
            "sudo nvidia-smi mig -i {} -cgi PROFILE -C (gpumux mig plan says which); or switch it off: sudo "
            "nvidia-smi -i {} -mig 0",
            index, index));
  on.push_back(
      fmt::format("{} with {} instance{}", name, instances->size(), instances->size() == 1 ? "" : "s"));
  return std::nullopt;
}

Verdict Mig(const Environment& environment) {
  const GpuView& gpus = environment.gpus();
  if (!gpus.nvml) return Skip(kNoNvml);
  std::vector<std::string> on;
  bool any = false;
  for (const gpu::Device& device : gpus.nvml->Devices()) {
    if (device.instance) continue;
    const auto told = gpus.nvml->mig().Modes(device.uuid);
    if (!told && told.error().code == Code::kUnsupported) return Skip(Plain(told.error().message, 200));
    if (!told)
      return CannotTell(fmt::format("GPU {}: {}", device.index.Label(), Plain(told.error().message, 200)));
    if (!*told) continue;
    any = true;
    const gpu::MigModes modes = **told;
    if (modes.pending != modes.current)
      return Warn(
          fmt::format("MIG is {} on GPU {}, and {} with its next reset", modes.current ? "on" : "off",
                      device.index.Label(), modes.pending ? "comes on" : "goes off"),
          fmt::format(
              "sudo nvidia-smi --gpu-reset -i {}, once no program uses it; or set it back: sudo nvidia-smi "
              "-i {} -mig {}",
              device.index.Label(), device.index.Label(), modes.current ? 1 : 0));
    if (!modes.current) continue;
    if (const auto bad = OfPartitioned(*gpus.nvml, device, on)) return *bad;
  }
  if (!on.empty()) return Ok(fmt::format("on: {}; gpumux mig status shows them", fmt::join(on, ", ")));
  return Ok(any ? "off" : "no GPU here has MIG");
}

Verdict Persistence(const Environment& environment) {
  const GpuView& gpus = environment.gpus();
  if (!gpus.nvml) return Skip(kNoNvml);
  if (gpus.simulated()) return Skip("of no meaning for the software GPU");
  for (const gpu::Device& device : gpus.nvml->Devices()) {
    const auto on = gpus.nvml->PersistenceEnabled(device.uuid);
    if (!on) return Skip(Plain(on.error().message, 200));
    // Not worth a warning: a running daemon keeps the driver loaded as well.
    if (!*on)
      return {Status::kOk,
              fmt::format("off on GPU {}: the first program after a pause starts seconds later",
                          device.index.Label()),
              fmt::format("sudo nvidia-smi -i {} -pm 1", device.index.Label())};
  }
  return Ok("on");
}

// "NVRM: Xid (PCI:0000:18:00): 79, pid=..., GPU has fallen off the bus."
Verdict Xids(const Environment& environment) {
  const auto log = ReadText(environment.At("/dev/kmsg"));
  if (!log) return Skip("the kernel's log may not be read by this user (root may)");
  size_t count = 0;
  std::string last;
  for (const std::string& line : Split(*log, '\n')) {
    const size_t at = line.find("NVRM: Xid ");
    if (at == std::string::npos) continue;
    ++count;
    last = line.substr(at + 6);
  }
  if (count == 0) return Ok("no Xid in the kernel's log");
  // 79: off the bus; 48, 63, 64, 94, 95: memory; 119, 120: the GPU's own processor. The others are mostly
  // programs' faults.
  const size_t colon = last.find("): ");
  const uint64_t number = colon == std::string::npos ? 0 : NumberAt(last.substr(colon + 3)).value_or(0);
  const bool hardware =
      std::ranges::count(std::initializer_list<uint64_t>{48, 63, 64, 79, 94, 95, 119, 120}, number);
  const std::string evidence = fmt::format("{} Xid error{} in the kernel's log, the last: {}", count,
                                           count == 1 ? "" : "s", Plain(last, 160));
  return Warn(evidence, hardware ? "the GPU itself: nvidia-smi -q, then a reset or a reboot"
                                 : "a program's fault, most likely: see which pid");
}

// Room for one that runs can be kept by whose it is, and by root.
std::string HowToCover(const std::vector<Stranger>& strangers, const Environment& environment) {
  for (const Stranger& stranger : strangers) {
    const auto owner = ProcessOwner(stranger.pid, environment.Proc());
    if (!owner || (environment.uid != 0 && *owner != environment.uid)) continue;
    return fmt::format(
        "keep room for it: gpumux reserve --pid {} --mem {}; from the next start on: gpumux run --mem SIZE "
        "-- PROGRAM",
        stranger.pid, stranger.bytes ? FormatRoundedUp(*stranger.bytes) : "SIZE");
  }
  return "gpumux run --mem SIZE -- PROGRAM";
}

Verdict Strangers(const Environment& environment) {
  const auto known = UnmanagedOf(environment);
  if (!known) return Skip(known.error().message);
  if (known->empty()) return Ok("every process on the GPUs is a tenant's");
  std::vector<std::string> shown;
  for (const Stranger& stranger : *known) {
    shown.push_back(fmt::format("pid {} on GPU {}{}", stranger.pid, stranger.gpu,
                                stranger.bytes ? " (" + FormatBytes(*stranger.bytes) + ")" : ""));
    if (shown.size() == 5) break;
  }
  return Warn(fmt::format("{} process{} without a promise: {}. What {} take{} is promised to nobody",
                          known->size(), known->size() == 1 ? "" : "es", fmt::join(shown, ", "),
                          known->size() == 1 ? "it" : "they", known->size() == 1 ? "s" : ""),
              HowToCover(*known, environment));
}

}  // namespace

std::span<const Check> GpuChecks() {
  static constexpr Check kChecks[] = {
      {"gpu-answers", "gpu", "every GPU answers NVML", Answers},
      {"gpu-compute-mode", "gpu", "the compute mode lets several processes in", Modes},
      {"gpu-mig", "gpu", "MIG is off, or has instances", Mig},
      {"gpu-persistence", "gpu", "persistence mode", Persistence},
      {"gpu-xid", "gpu", "Xid errors in the kernel's log", Xids},
      {"gpu-strangers", "gpu", "processes on the GPUs that have no promise", Strangers},
  };
  return kChecks;
}

}  // namespace gpumux::cli::doctor
