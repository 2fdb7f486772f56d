// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/visible_devices.h"

#include <algorithm>
#include <charconv>
#include <numeric>

namespace gpumux::softgpu {

namespace {

std::optional<uint32_t> Match(std::string_view entry, const std::vector<std::string>& uuids) {
  if (entry.starts_with("GPU-")) {
    std::optional<uint32_t> found;
    for (uint32_t i = 0; i < uuids.size(); ++i) {
      if (!std::string_view(uuids[i]).starts_with(entry)) continue;
      if (found) return std::nullopt;
      found = i;
    }
    return found;
  }
  uint32_t ordinal = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), ordinal);
  if (error != std::errc() || end != entry.data() + entry.size() || ordinal >= uuids.size())
    return std::nullopt;
  return ordinal;
}

std::vector<uint32_t> ByOrder(std::optional<std::string_view> order, const std::vector<VisibleGpu>& gpus) {
  std::vector<uint32_t> by_order(gpus.size());
  std::iota(by_order.begin(), by_order.end(), 0);
  if (order != "PCI_BUS_ID") {
    std::stable_sort(by_order.begin(), by_order.end(),
                     [&](uint32_t a, uint32_t b) { return gpus[a].sms > gpus[b].sms; });
  }
  return by_order;
}

// Calls `use` with each entry; until it says that the list ends there.
template <typename Use>
void ForEachEntry(std::string_view rest, Use use) {
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    std::string_view entry = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    while (!entry.empty() && entry.front() == ' ') entry.remove_prefix(1);
    while (!entry.empty() && entry.back() == ' ') entry.remove_suffix(1);
    if (!use(entry)) return;
  }
}

std::optional<uint32_t> MatchInstance(std::string_view entry, const std::vector<VisibleInstance>& instances) {
  std::optional<uint32_t> found;
  for (uint32_t i = 0; i < instances.size(); ++i) {
    if (instances[i].old_name == entry) return i;
    if (!std::string_view(instances[i].uuid).starts_with(entry)) continue;
    if (found) return std::nullopt;
    found = i;
  }
  return found;
}

// What may be seen together: see the header.
std::vector<VisibleDevice> Together(const std::vector<VisibleDevice>& named,
                                    const std::vector<VisibleInstance>& instances, bool several) {
  constexpr size_t kMost = 64;
  if (std::none_of(named.begin(), named.end(), [](const auto& device) { return device.is_instance; }))
    return named;
  std::vector<VisibleDevice> seen;
  for (const VisibleDevice& device : named) {
    if (!device.is_instance || seen.size() >= (several ? kMost : 1)) continue;
    const VisibleInstance& instance = instances[device.index];
    const bool again = std::any_of(seen.begin(), seen.end(), [&](const VisibleDevice& other) {
      const VisibleInstance& before = instances[other.index];
      return before.gpu == instance.gpu && before.gpu_instance == instance.gpu_instance;
    });
    if (!again) seen.push_back(device);
  }
  return seen;
}

}  // namespace

std::vector<uint32_t> VisibleDevices(std::optional<std::string_view> list,
                                     std::optional<std::string_view> order,
                                     const std::vector<VisibleGpu>& gpus) {
  std::vector<uint32_t> visible;
  for (const VisibleDevice& device :
       VisibleDevicesWithMig(list, order, gpus, std::vector<bool>(gpus.size()), {}, false))
    visible.push_back(device.index);
  return visible;
}

std::vector<VisibleDevice> VisibleDevicesWithMig(std::optional<std::string_view> list,
                                                 std::optional<std::string_view> order,
                                                 const std::vector<VisibleGpu>& gpus,
                                                 const std::vector<bool>& mig,
                                                 const std::vector<VisibleInstance>& instances,
                                                 bool several) {
  const std::vector<uint32_t> by_order = ByOrder(order, gpus);
  std::vector<VisibleDevice> named;
  bool twice = false;
  const auto add = [&](VisibleDevice device) {
    twice |= std::find(named.begin(), named.end(), device) != named.end();
    named.push_back(device);
  };
  const auto add_gpu = [&](uint32_t gpu) {
    if (!mig[gpu]) add({.is_instance = false, .index = gpu});
    for (uint32_t i = 0; i < instances.size(); ++i) {
      if (mig[gpu] && instances[i].gpu == gpu) add({.is_instance = true, .index = i});
    }
  };
  std::vector<std::string> uuids;
  for (uint32_t gpu : by_order) uuids.push_back(gpus[gpu].uuid);
  if (!list) std::for_each(by_order.begin(), by_order.end(), add_gpu);
  ForEachEntry(list.value_or(""), [&](std::string_view entry) {
    if (entry.starts_with("MIG-")) {
      const auto instance = MatchInstance(entry, instances);
      if (instance) add({.is_instance = true, .index = *instance});
      return instance.has_value();
    }
    const auto gpu = Match(entry, uuids);
    if (gpu) add_gpu(by_order[*gpu]);
    return gpu.has_value();
  });
  return twice ? std::vector<VisibleDevice>() : Together(named, instances, several);
}

}  // namespace gpumux::softgpu
