// SPDX-License-Identifier: Apache-2.0
#include "sim/gpu_spec_parser.h"

#include <algorithm>
#include <charconv>

#include "sim/mps.h"

namespace gpumux::sim {

namespace {

// What an error shows of a text that may be anything.
std::string Quote(std::string_view text) {
  std::string quoted = "\"";
  for (char c : text.substr(0, 40)) quoted += c >= ' ' && c < 127 && c != '"' && c != '\\' ? c : '?';
  return quoted + (text.size() > 40 ? "...\"" : "\"");
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Digits followed by an 'x' say how many; "RTX-4090" begins with neither.
bool TakeCount(std::string_view* item, uint32_t* count) {
  size_t digits = 0;
  while (digits < item->size() && (*item)[digits] >= '0' && (*item)[digits] <= '9') ++digits;
  if (digits == 0 || digits == item->size() || ((*item)[digits] != 'x' && (*item)[digits] != 'X'))
    return true;
  const auto [end, error] = std::from_chars(item->data(), item->data() + digits, *count);
  if (error != std::errc() || *count == 0) return false;
  item->remove_prefix(digits + 1);
  return true;
}

}  // namespace

Result<Machine> ParseGpuList(std::string_view text) {
  Machine machine;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    std::string_view item = Trim(rest.substr(0, comma));
    if (more) rest.remove_prefix(comma + 1);
    const std::string_view whole = item;
    uint32_t count = 1;
    if (!TakeCount(&item, &count)) {
      return Fail(Code::kInvalid, Quote(whole) + " does not say how many GPUs", "write for example 2xA30");
    }
    const GpuModelData* model = FindGpuModel(item);
    if (model == nullptr) {
      std::string known;
      for (const GpuModelData& each : GpuModels()) {
        known += (known.empty() ? "" : ", ") + std::string(each.key);
      }
      return Fail(Code::kInvalid, "there is no GPU model " + Quote(item), "known are " + known);
    }
    if (count > kMaxSpecGpus - machine.gpus.size()) {
      return Fail(Code::kInvalid, Quote(text) + " are more than " + std::to_string(kMaxSpecGpus) + " GPUs");
    }
    for (uint32_t i = 0; i < count; ++i) {
      machine.gpus.push_back({*model, std::string(model->name), SpecOf(*model), std::nullopt});
    }
  }
  return machine;
}

bool IsGpuDocumentPath(std::string_view spec) {
  return spec.find('/') != std::string_view::npos || spec.ends_with(".json");
}

std::optional<std::array<unsigned char, 16>> ParseUuid(std::string_view text) {
  std::array<unsigned char, 16> bytes{};
  if (text.size() != 40 || !text.starts_with("GPU-")) return std::nullopt;
  text.remove_prefix(4);
  size_t nibble = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (i == 8 || i == 13 || i == 18 || i == 23) {
      if (c != '-') return std::nullopt;
      continue;
    }
    // Lower case alone: programs compare UUIDs as text.
    const int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (value < 0) return std::nullopt;
    auto& byte = bytes[nibble++ / 2];
    byte = static_cast<unsigned char>(byte << 4 | value);
  }
  return bytes;
}

bool IsDriverVersion(std::string_view text) {
  int numbers = 0;
  size_t digits = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || text[i] == '.') {
      if (digits == 0 || digits > 4) return false;
      ++numbers;
      digits = 0;
    } else if (text[i] >= '0' && text[i] <= '9') {
      ++digits;
    } else {
      return false;
    }
  }
  return numbers == 2 || numbers == 3;
}

int CudaVersionOfDriver(std::string_view version) {
  if (!IsDriverVersion(version)) return 0;
  int branch = 0;
  std::from_chars(version.data(), version.data() + version.find('.'), branch);
  constexpr struct {
    int branch, cuda;
  } kBranches[] = {{450, 11000}, {455, 11010}, {460, 11020}, {465, 11030}, {470, 11040},
                   {495, 11050}, {510, 11060}, {515, 11070}, {520, 11080}, {525, 12000},
                   {530, 12010}, {535, 12020}, {545, 12030}, {550, 12040}, {555, 12050},
                   {560, 12060}, {565, 12070}, {570, 12080}, {575, 12090}, {580, 13000}};
  int cuda = 0;
  for (const auto& each : kBranches) {
    if (branch >= each.branch) cuda = each.cuda;
  }
  // Newer branches have entry points that nobody recorded.
  return branch >= 585 ? 0 : cuda;
}

uint32_t MpsClients(std::string_view driver_version) {
  int branch = 0;
  std::from_chars(driver_version.data(), driver_version.data() + driver_version.size(), branch);
  return branch >= 590 ? 60 : 48;
}

}  // namespace gpumux::sim
