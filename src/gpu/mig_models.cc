// SPDX-License-Identifier: Apache-2.0
#include "gpu/mig_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/nearest.h"
#include "base/units.h"

namespace gpumux::gpu {
namespace {

constexpr unsigned kNvidiaVendor = 0x10de;

// What the rows of the table are written with.
constexpr std::nullopt_t na = std::nullopt;
constexpr std::optional<bool> kReset = true, kNoReset = false, kNotKnown = std::nullopt;
constexpr bool kDisplayMode = true, kNoCondition = false, kInferred = true, kSure = false;
constexpr unsigned kId = kInferredId, kSms = kInferredSms, kMemory = kInferredMemory,
                   kPlacements = kInferredPlacements, kEngines = kInferredEngines;
constexpr MigEngines Engines(uint32_t copy, uint32_t nvdec, uint32_t nvenc, uint32_t jpeg, uint32_t ofa) {
  return {copy, nvdec, nvenc, jpeg, ofa};
}

constexpr MigSource kSources[] = {
#define GPUMUX_MIG_SOURCE(key, text) {key, text},
#define GPUMUX_MIG_GPU(...)
#define GPUMUX_MIG_PROFILE(...)
#include "gpu/mig_models.inc"
#undef GPUMUX_MIG_SOURCE
#undef GPUMUX_MIG_GPU
#undef GPUMUX_MIG_PROFILE
};

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::optional<unsigned> Hex(std::string_view text) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Words of a name are compared as a set: people and NVML write them in other orders.
using Words = std::set<std::string>;
struct Called {
  std::string part;  // the first word, without which the others name nothing
  Words words;
};
struct Table {
  std::vector<MigModel> models;
  std::vector<std::vector<Called>> called;  // by model
};

bool Digit(char c) { return c >= '0' && c <= '9'; }

// "NVIDIA A100-SXM4-40GB" → {a100, sxm4, 40gb}; "144G" and "144 GB" are both 144gb.
Words WordsOf(std::string_view text) {
  std::vector<std::string> list(1);
  for (const char c : text) {
    const bool upper = c >= 'A' && c <= 'Z';
    const char letter = upper ? static_cast<char>(c - 'A' + 'a') : c;
    if (Digit(c) || (letter >= 'a' && letter <= 'z')) {
      list.back() += letter;
    } else if (!list.back().empty()) {
      list.emplace_back();
    }
  }
  Words words;
  for (size_t i = 0; i < list.size(); ++i) {
    std::string word = list[i];
    const bool number = !word.empty() && std::ranges::all_of(word, Digit);
    if (number && i + 1 < list.size() && (list[i + 1] == "gb" || list[i + 1] == "g")) {
      word += "gb";
      ++i;
    } else if (word.size() > 1 && word.back() == 'g' && std::all_of(word.begin(), word.end() - 1, Digit)) {
      word += 'b';
    }
    if (!word.empty() && word != "nvidia" && word != "tesla") words.insert(word);
  }
  return words;
}

bool Within(const Words& part, const Words& whole) { return std::ranges::includes(whole, part); }

void AddModel(Table& table, std::string_view names, MigModel model) {
  std::vector<Called> called{{*WordsOf(model.key).begin(), WordsOf(model.key)}};
  for (const std::string_view name : Split(names, '|'))
    called.push_back({std::string(Split(name, ' ')[0]), WordsOf(name)});
  table.called.push_back(std::move(called));
  table.models.push_back(std::move(model));
}

std::vector<uint16_t> PciOf(std::string_view ids) {
  std::vector<uint16_t> devices;
  for (const std::string_view id : Split(ids, ' ')) devices.push_back(static_cast<uint16_t>(*Hex(id)));
  return devices;
}

std::vector<uint32_t> StartsOf(std::string_view digits) {
  std::vector<uint32_t> starts;
  for (const char c : digits) starts.push_back(static_cast<uint32_t>(c - '0'));
  return starts;
}

std::optional<uint64_t> BytesOf(std::optional<uint64_t> mib) {
  return mib ? std::optional(*mib * kMiB) : std::nullopt;
}

// A mode that is kept in the board takes effect at a reset; the two go together on every part.
MigEnable EnableOf(std::optional<bool> needs_reset, bool display_mode) {
  return {.needs_reset = needs_reset, .survives_reboot = needs_reset, .needs_display_mode = display_mode};
}

Table ReadTable() {
  Table table;
#define GPUMUX_MIG_SOURCE(...)
#define GPUMUX_MIG_GPU(key_, name_, called_, pci_, architecture_, reset_, display_, driver_, sms_, sure_, \
                       mig_, gb_, compute_, memory_, most_, note_)                                        \
  AddModel(table, called_,                                                                                \
           {.key = key_,                                                                                  \
            .name = name_,                                                                                \
            .pci_device = PciOf(pci_),                                                                    \
            .architecture = architecture_,                                                                \
            .min_driver = driver_,                                                                        \
            .whole_sms = sms_,                                                                            \
            .whole_sms_inferred = sure_,                                                                  \
            .mig_sms = mig_,                                                                              \
            .nominal_gb = gb_,                                                                            \
            .compute_slices = compute_,                                                                   \
            .memory_slices = memory_,                                                                     \
            .max_instances = most_,                                                                       \
            .enable = EnableOf(reset_, display_),                                                         \
            .profiles = {},                                                                               \
            .note = note_});
#define GPUMUX_MIG_PROFILE(name_, id_, nvml_, compute_, memory_, most_, starts_, sms_, mib_, engines_, \
                           attribute_, confidence_, inferred_, sources_)                               \
  table.models.back().profiles.push_back({.name = name_,                                               \
                                          .id = id_,                                                   \
                                          .nvml_profile = nvml_,                                       \
                                          .compute_slices = compute_,                                  \
                                          .memory_slices = memory_,                                    \
                                          .max_instances = most_,                                      \
                                          .starts = StartsOf(starts_),                                 \
                                          .sms = sms_,                                                 \
                                          .bytes = BytesOf(mib_),                                      \
                                          .engines = engines_,                                         \
                                          .attribute = MigAttribute::attribute_,                       \
                                          .confidence = MigConfidence::confidence_,                    \
                                          .inferred = inferred_,                                       \
                                          .sources = sources_});
#include "gpu/mig_models.inc"
#undef GPUMUX_MIG_SOURCE
#undef GPUMUX_MIG_GPU
#undef GPUMUX_MIG_PROFILE
  return table;
}

const Table& TheTable() {
  static const Table table = ReadTable();
  return table;
}

struct NotCapable {
  std::string_view words, name;
};
// NVIDIA's list of GPUs with MIG has none of these. A GPU in whose name the words are is one,
// unless the table has it.
constexpr NotCapable kNotCapable[] = {
    {"l40", "L40"},
    {"l40s", "L40S"},
    {"l4", "L4"},
    {"l20", "L20"},
    {"l2", "L2"},
    {"a10", "A10"},
    {"a10g", "A10G"},
    {"a16", "A16"},
    {"a2", "A2"},
    {"a40", "A40"},
    {"t4", "T4"},
    {"v100", "V100"},
    {"p100", "P100"},
    {"geforce", "GeForce"},
    {"titan", "TITAN"},
    {"quadro", "Quadro"},
    {"rtx pro 4000", "RTX PRO 4000"},
    {"rtx pro 2000", "RTX PRO 2000"},
    {"rtx", "RTX"},
};

std::string Listed(const std::vector<size_t>& models) {
  std::string out;
  for (const size_t model : models) {
    if (!out.empty()) out += model == models.back() ? " or " : ", ";
    out += TheTable().models[model].key;
  }
  return out;
}

// Indices of the parts that have the longest name which `words` contain; else of
// those of whose names `words` are a part ("H100").
std::vector<size_t> Matching(const Words& words) {
  std::vector<size_t> longest, wider;
  size_t most = 0;
  for (size_t i = 0; i < TheTable().models.size(); ++i) {
    size_t here = 0;
    bool part = false;
    for (const Called& called : TheTable().called[i]) {
      if (Within(called.words, words)) here = std::max(here, called.words.size());
      part = part || (words.contains(called.part) && Within(words, called.words));
    }
    if (part) wider.push_back(i);
    if (here == 0 || here < most) continue;
    if (here > most) longest.clear();
    most = here;
    longest.push_back(i);
  }
  return longest.empty() ? wider : longest;
}

std::string Cut(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 60)) out += c >= ' ' && c <= '~' ? c : '?';
  return out;
}

tl::unexpected<Error> NotFound(std::string_view text) {
  std::vector<std::string> keys;
  for (const MigModel& model : MigModels()) keys.push_back(model.key);
  const auto nearest = Nearest(text, keys);
  return Fail(Code::kNotFound, fmt::format("no GPU called '{}' is in the table of GPUs with MIG", Cut(text)),
              nearest ? fmt::format("did you mean {}?", *nearest) : "gpumux mig profiles lists them");
}

std::optional<uint16_t> PciDevice(std::string_view text) {
  if (!text.starts_with("0x") && !text.starts_with("0X")) return std::nullopt;
  const auto value = Hex(text.substr(2));
  if (!value) return std::nullopt;
  if (*value > 0xffff) {
    if ((*value & 0xffff) != kNvidiaVendor) return std::nullopt;
    return static_cast<uint16_t>(*value >> 16);
  }
  return static_cast<uint16_t>(*value);
}

}  // namespace

bool MigModel::placements_known() const {
  return memory_slices && !profiles.empty() &&
         std::ranges::all_of(profiles, [](const MigProfile& profile) { return profile.placements_known(); });
}

const MigProfile* MigModel::FindProfile(uint32_t id) const {
  const auto found = std::ranges::find(profiles, std::optional<uint32_t>(id), &MigProfile::id);
  return found == profiles.end() ? nullptr : &*found;
}

std::span<const MigModel> MigModels() { return TheTable().models; }

std::span<const MigSource> MigSources() { return kSources; }

const MigModel* FindMigModelByPci(uint16_t device) {
  for (const MigModel& model : MigModels()) {
    if (std::ranges::count(model.pci_device, device) > 0) return &model;
  }
  return nullptr;
}

std::optional<std::string> WhyNoMig(std::string_view name) {
  const Words words = WordsOf(name);
  if (!Matching(words).empty()) return std::nullopt;
  for (const NotCapable& gpu : kNotCapable) {
    if (Within(WordsOf(gpu.words), words))
      return fmt::format("{} has no MIG: {} is not in NVIDIA's list of GPUs that can be partitioned",
                         Cut(name), gpu.name);
  }
  return std::nullopt;
}

Result<const MigModel*> FindMigModel(std::string_view text) {
  if (const auto device = PciDevice(text)) {
    if (const MigModel* model = FindMigModelByPci(*device)) return model;
    return NotFound(text);
  }
  const auto found = Matching(WordsOf(text));
  if (found.size() == 1) return &MigModels()[found[0]];
  if (found.size() > 1)
    return Fail(Code::kInvalid, fmt::format("'{}' is more than one GPU", Cut(text)),
                fmt::format("say {}", Listed(found)));
  if (const auto why = WhyNoMig(text)) return Fail(Code::kUnsupported, *why);
  return NotFound(text);
}

std::string_view MigAttributeSuffix(MigAttribute attribute) {
  switch (attribute) {
    case MigAttribute::kNone:
      return "";
    case MigAttribute::kMe:
      return "+me";
    case MigAttribute::kMeAll:
      return "+me.all";
    case MigAttribute::kGfx:
      return "+gfx";
    case MigAttribute::kNoMe:
      return "-me";
  }
  return "";
}

std::string_view Name(MigConfidence confidence) {
  switch (confidence) {
    case MigConfidence::kHigh:
      return "high";
    case MigConfidence::kMedium:
      return "medium";
    case MigConfidence::kLow:
      return "low";
  }
  return "";
}

}  // namespace gpumux::gpu
