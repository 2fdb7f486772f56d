// SPDX-License-Identifier: Apache-2.0
#include "core/mps.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/units.h"

namespace gpumux::core {

namespace {
constexpr unsigned kFirstBranchWith60 = 590;
constexpr unsigned kLeastSms = 8;
}  // namespace

unsigned MpsClientsOf(std::string_view driver_version) {
  unsigned branch = 0;
  std::from_chars(driver_version.data(), driver_version.data() + driver_version.size(), branch);
  return branch >= kFirstBranchWith60 ? 60 : 48;
}

unsigned MpsSms(unsigned sms, double ratio) {
  if (ratio >= 1) return sms;
  // 0.29 * 100 is 28.999...: what was written as a percentage stays one.
  const auto floor = static_cast<unsigned>(static_cast<double>(sms) * ratio + 1e-9);
  return std::min(sms, std::max(floor / 2 * 2, kLeastSms));
}

std::string MpsPercentage(double ratio) {
  std::string text = fmt::format("{:.4f}", std::min(ratio, 1.0) * 100);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

std::string MpsLimits(const std::vector<MpsLimit>& limits) {
  std::string text;
  for (const MpsLimit& limit : limits) {
    text += fmt::format("{}{}={}M", text.empty() ? "" : ",", limit.gpu.ToString(),
                        limit.bytes / kMiB + (limit.bytes % kMiB > 0 ? 1 : 0));
  }
  return text;
}

uint64_t LimitOfProcess(uint64_t limit_bytes, unsigned processes) {
  return limit_bytes / std::max(processes, 1u);
}

std::optional<std::string> WhyNotMps(unsigned processes, const MpsSnapshot& gpu, const gpu::Index& index) {
  if (!gpu.not_now.empty()) return fmt::format("GPU {}: {}", index.Label(), gpu.not_now);
  if (gpu.clients + processes <= gpu.most_clients) return std::nullopt;
  return fmt::format("GPU {} has {} of {} MPS clients, and this one needs {}", index.Label(), gpu.clients,
                     gpu.most_clients, processes);
}

}  // namespace gpumux::core
