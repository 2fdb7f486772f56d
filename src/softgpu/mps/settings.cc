// SPDX-License-Identifier: Apache-2.0
#include "softgpu/mps/settings.h"

#include <charconv>

namespace gpumux::softgpu::mps {

namespace {

std::string Directory(const char* variable, const std::string& otherwise) {
  return variable != nullptr && *variable != 0 ? variable : otherwise;
}

}  // namespace

std::string PipeDirectory(const char* variable, const std::string& softgpu_dir) {
  return Directory(variable, softgpu_dir + "/tmp/nvidia-mps");
}
std::string LogDirectory(const char* variable, const std::string& softgpu_dir) {
  return Directory(variable, softgpu_dir + "/var/log/nvidia-mps");
}

std::optional<double> ParsePercentage(std::string_view text) {
  double percent = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), percent);
  if (error != std::errc() || end != text.data() + text.size() || !(percent > 0) || percent > 100)
    return std::nullopt;
  return percent;
}

std::optional<bool> ParsePriority(std::string_view text) {
  if (text == "0") return false;
  if (text == "1") return true;
  return std::nullopt;
}

std::optional<uint64_t> ParseLimitSize(std::string_view text) {
  if (text.size() < 2) return std::nullopt;
  int shift = 0;
  switch (text.back()) {
    case 'G':
    case 'g':
      shift = 30;
      break;
    case 'M':
    case 'm':
      shift = 20;
      break;
    default:
      return std::nullopt;
  }
  text.remove_suffix(1);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  // More than any GPU has.
  if (number == 0 || number > (1ULL << 45 >> shift)) return std::nullopt;
  return number << shift;
}

std::optional<std::vector<Limit>> ParseLimits(std::string_view text) {
  std::vector<Limit> limits;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view entry = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos || equals == 0) return std::nullopt;
    const auto bytes = ParseLimitSize(entry.substr(equals + 1));
    if (!bytes) return std::nullopt;
    limits.push_back({std::string(entry.substr(0, equals)), *bytes});
  }
  return limits;
}

std::optional<size_t> FindDevice(std::string_view device, const std::vector<std::string>& uuids) {
  for (size_t i = 0; i < uuids.size(); ++i) {
    if (uuids[i] == device) return i;
  }
  size_t ordinal = 0;
  const auto [end, error] = std::from_chars(device.data(), device.data() + device.size(), ordinal);
  if (error != std::errc() || end != device.data() + device.size() || ordinal >= uuids.size())
    return std::nullopt;
  return ordinal;
}

std::vector<uint64_t> ClientLimits(std::string_view text, const std::vector<std::string>& uuids) {
  std::vector<uint64_t> none(uuids.size(), 0);
  const auto limits = ParseLimits(text);
  if (!limits) return none;
  std::vector<uint64_t> bytes = none;
  for (const Limit& limit : *limits) {
    const auto device = FindDevice(limit.device, uuids);
    if (!device) return none;
    bytes[*device] = limit.bytes;
  }
  return bytes;
}

}  // namespace gpumux::softgpu::mps
