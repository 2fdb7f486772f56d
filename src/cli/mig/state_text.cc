// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/process.h"
#include "base/units.h"
#include "cli/mig/bar.h"
#include "cli/mig/state.h"
#include "cli/table.h"

namespace gpumux::cli {
namespace {

using gpu::MigModes;
using Align = Table::Align;
using Style = Table::Style;

constexpr const char* kUnknown = "-";

std::string MemoryOf(const MigDeviceState& device) {
  if (device.memory) {
    return fmt::format("{:.1f} / {:.2f} GiB", static_cast<double>(device.memory->used_bytes) / kGiB,
                       static_cast<double>(device.memory->total_bytes) / kGiB);
  }
  return device.device.total_bytes
             ? fmt::format("- / {:.2f} GiB", static_cast<double>(*device.device.total_bytes) / kGiB)
             : kUnknown;
}

std::string ProcessesOf(const MigDeviceState& device) {
  if (!device.processes) return "not told: " + Plain(device.processes.error().message, 80);
  std::vector<std::string> shown;
  for (const gpu::ProcessUse& use : *device.processes) {
    shown.push_back(
        fmt::format("pid {}{}", use.pid, use.used_bytes ? " (" + FormatBytes(*use.used_bytes) + ")" : ""));
  }
  const std::string processes = shown.empty() ? "" : fmt::format("{}", fmt::join(shown, ", "));
  if (!device.tenants || device.tenants->empty()) return processes.empty() ? kUnknown : processes;
  const std::string tenants = Plain(fmt::format("{}", fmt::join(*device.tenants, ", ")), 100);
  return processes.empty() ? tenants : tenants + ": " + processes;
}

// "1c.3g.71gb" where the driver calls it so; else what it is of.
std::string ProfileOf(const MigInstanceState& instance, const MigDeviceState* device) {
  if (device) {
    const size_t at = device->device.name.rfind("MIG ");
    if (at != std::string::npos)
      return device->device.name.substr(at + 4, device->device.name.find(' ', at + 4) - at - 4);
  }
  return instance.profile.empty() ? kUnknown : instance.profile;
}

void AddRow(Table& table, const MigInstanceState& instance, const MigDeviceState* device) {
  const auto& placed = instance.placed;
  table.AddRow(
      {{fmt::format("{}/{}", instance.id, device ? std::to_string(device->device.compute_instance) : "-")},
       {ProfileOf(instance, device)},
       {placed ? fmt::format("{}:{}", placed->placement.start, placed->placement.size) : kUnknown},
       {device && device->device.sms ? std::to_string(*device->device.sms) : kUnknown},
       {device ? MemoryOf(*device) : kUnknown},
       {device ? device->device.uuid : "no compute instance: no program can use it",
        device ? Style::kPlain : Style::kWarning},
       {device ? ProcessesOf(*device) : ""}});
}

std::string InstancesText(const std::vector<MigInstanceState>& instances, const Terminal& terminal) {
  if (instances.empty()) return "no instances: no program can use this GPU\n";
  Table table;
  table.AddColumn("GI/CI");
  table.AddColumn("PROFILE");
  table.AddColumn("AT", Align::kRight, 2);
  table.AddColumn("SMS", Align::kRight, 3);
  table.AddColumn("MEM used/total", Align::kRight, 1);
  table.AddColumn("DEVICE");
  table.AddColumn("USED BY");
  for (const MigInstanceState& instance : instances) {
    for (const MigDeviceState& device : instance.devices) AddRow(table, instance, &device);
    if (instance.devices.empty()) AddRow(table, instance, nullptr);
  }
  return table.Render(terminal);
}

std::string RoomText(const MigGpuState& gpu) {
  if (!gpu.room) return "what still fits is not told: " + Plain(gpu.room.error().message, 200) + "\n";
  std::vector<std::string> fits;
  for (const auto& [name, count] : *gpu.room) fits.push_back(fmt::format("{}x {}", count, name));
  return fits.empty() ? "nothing more fits\n"
                      : fmt::format("still fits, of each alone: {}\n", fmt::join(fits, ", "));
}

// Two lines, where every place is known.
std::string BarOf(const MigGpuState& gpu) {
  core::mig::Layout layout;
  for (const MigInstanceState& instance : *gpu.instances) {
    const gpu::MigProfile* profile =
        instance.placed ? gpu.model.FindProfile(instance.placed->profile) : nullptr;
    if (!profile || !profile->memory_slices) return "";
    layout.push_back({instance.placed->placement.start, *profile->id});
  }
  return gpu.placements && gpu.model.memory_slices ? MigBar(gpu.model, layout) : "";
}

std::string Indented(const std::string& text) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = text.find('\n', at);
    out += "  " + text.substr(at, end - at + 1);
    at = end + 1;
  }
  return out;
}

// Enabling, by what the table knows of the part.
std::string WhatItTakes(const std::string& name) {
  const auto table = gpu::FindMigModel(name);
  if (!table || !(*table)->enable.needs_reset) return "";
  return *(*table)->enable.needs_reset
             ? ". No program may use the GPU, which has to be reset; the mode stays, instances end with a "
               "reset"
             : ". No program may use the GPU; mode and instances end when the driver unloads";
}

}  // namespace

std::string MigStateLine(const MigGpuState& gpu) {
  if (!gpu.modes) return "MIG: not known: " + Plain(gpu.modes.error().message, 200);
  if (!*gpu.modes) {
    const auto why = gpu::WhyNoMig(gpu.device.name);
    return why ? Plain(*why, 200) : "this GPU has no MIG";
  }
  const MigModes modes = **gpu.modes;
  std::string line = modes.current ? "MIG is on" : "MIG is off";
  if (modes.pending != modes.current)
    line += modes.pending ? ", and comes on with a reset" : ", and goes off with a reset";
  return line;
}

std::string MigAdvice(const MigGpuState& gpu, const MigReader& reader) {
  if (!gpu.modes || !*gpu.modes) return "";
  const MigModes modes = **gpu.modes;
  const std::string index = gpu.device.index.Label(), sudo = reader.root ? "" : "sudo ";
  if (modes.pending != modes.current) {
    const std::string reset =
        reader.simulated ? "gpumux-softgpu-reset " : sudo + "nvidia-smi --gpu-reset -i ";
    return fmt::format("{}{}, once no program uses the GPU\n", reset, index);
  }
  if (!modes.current) {
    const std::string enable = fmt::format("{}gpumux mig enable {}", sudo, index);
    return fmt::format(
        "its driver lists profiles only while MIG is on; gpumux mig profiles shows those of the table\n"
        "to enable it: {}{}\n",
        enable, WhatItTakes(gpu.device.name));
  }
  const bool denied = (!gpu.placements && gpu.placements.error().code == Code::kDenied) ||
                      (!gpu.room && gpu.room.error().code == Code::kDenied);
  return denied ? "placements and what still fits are shown to root, and to who may read "
                  "/dev/nvidia-caps/nvidia-cap2 (mig/monitor) or nvidia-cap1 (mig/config)\n"
                : "";
}

std::string MigStateText(const std::vector<MigGpuState>& gpus, const Terminal& terminal,
                         const MigReader& reader) {
  std::string text;
  for (const MigGpuState& gpu : gpus) {
    text += fmt::format("{}GPU {}  {}  {}\n", text.empty() ? "" : "\n", gpu.device.index.Label(),
                        Plain(gpu.device.name, 60), MigStateLine(gpu));
    if (gpu.enabled()) {
      text += gpu.instances ? Indented(BarOf(gpu)) + Indented(InstancesText(*gpu.instances, terminal))
                            : "  instances are not told: " + Plain(gpu.instances.error().message, 200) + "\n";
      if (gpu.room || gpu.room.error().code != Code::kDenied) text += Indented(RoomText(gpu));
    }
    text += Indented(MigAdvice(gpu, reader));
  }
  return text.empty() ? "NVML shows no GPU\n" : text;
}

}  // namespace gpumux::cli
