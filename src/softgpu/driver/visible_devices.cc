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

}  // namespace

std::vector<uint32_t> VisibleDevices(std::optional<std::string_view> list,
                                     std::optional<std::string_view> order,
                                     const std::vector<VisibleGpu>& gpus) {
  std::vector<uint32_t> by_order(gpus.size());
  std::iota(by_order.begin(), by_order.end(), 0);
  if (order != "PCI_BUS_ID") {
    std::stable_sort(by_order.begin(), by_order.end(),
                     [&](uint32_t a, uint32_t b) { return gpus[a].sms > gpus[b].sms; });
  }
  if (!list) return by_order;
  std::vector<std::string> uuids;
  for (uint32_t gpu : by_order) uuids.push_back(gpus[gpu].uuid);
  std::vector<uint32_t> visible;
  std::string_view rest = *list;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    std::string_view entry = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    while (!entry.empty() && entry.front() == ' ') entry.remove_prefix(1);
    while (!entry.empty() && entry.back() == ' ') entry.remove_suffix(1);
    const auto gpu = Match(entry, uuids);
    if (!gpu) break;
    if (std::find(visible.begin(), visible.end(), by_order[*gpu]) != visible.end()) return {};
    visible.push_back(by_order[*gpu]);
  }
  return visible;
}

}  // namespace gpumux::softgpu
