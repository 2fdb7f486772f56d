// SPDX-License-Identifier: Apache-2.0
#include "cli/mig/file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/nearest.h"
#include "cli/mig/request.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

using core::mig::ProfileName;
using YAML::Node;

constexpr uint32_t kMostInstances = 64;  // of one profile on one GPU, in a file
constexpr size_t kMostConfigs = 1000, kMostEntries = 100;
constexpr uint16_t kNvidia = 0x10de;

tl::unexpected<Error> Wrong(const Node& node, const std::string& what, std::string hint = "") {
  const int line = node.Mark().line;
  return Fail(Code::kInvalid, line < 0 ? what : fmt::format("line {}: {}", line + 1, what), std::move(hint));
}

std::string Shown(const Node& node) { return node.IsScalar() ? Plain(node.Scalar(), 60) : "a list or a map"; }

// The keys of a map, each once and each known.
Status CheckKeys(const Node& map, const std::vector<std::string>& known, const std::string& what) {
  if (!map.IsMap()) return Wrong(map, fmt::format("{} is no map", what));
  std::set<std::string> seen;
  for (const auto& member : map) {
    const Node& key = member.first;
    if (!key.IsScalar()) return Wrong(key, fmt::format("{}: a key is no text", what));
    if (!known.empty() && std::ranges::count(known, key.Scalar()) == 0) {
      const auto nearest = Nearest(key.Scalar(), known);
      return Wrong(key, fmt::format("{}: '{}' is not known", what, Shown(key)),
                   nearest ? fmt::format("did you mean {}?", *nearest)
                           : fmt::format("known are {}", fmt::join(known, ", ")));
    }
    if (!seen.insert(key.Scalar()).second)
      return Wrong(key, fmt::format("{}: '{}' is there twice", what, Shown(key)));
  }
  return {};
}

// A member of a map whose keys were checked; an undefined node if it is not there.
Node Member(const Node& map, const char* name) {
  for (const auto& member : map) {
    if (member.first.Scalar() == name) return member.second;
  }
  return Node(YAML::NodeType::Undefined);
}

std::optional<uint32_t> Number(std::string_view text, int base, uint32_t most) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  const bool good =
      !text.empty() && error == std::errc() && end == text.data() + text.size() && value <= most;
  return good ? std::optional(value) : std::nullopt;
}

Result<std::optional<std::vector<uint32_t>>> ReadDevices(const Node& node) {
  if (node.IsScalar() && node.Scalar() == "all") return std::nullopt;
  if (!node.IsSequence())
    return Wrong(node, fmt::format("devices: '{}' is neither all nor a list of numbers", Shown(node)));
  std::vector<uint32_t> devices;
  for (const Node& item : node) {
    const auto index = item.IsScalar() ? Number(item.Scalar(), 10, kMostPlannedGpus - 1) : std::nullopt;
    if (!index || devices.size() >= kMostPlannedGpus)
      return Wrong(item, fmt::format("devices: '{}' is no number of a GPU", Shown(item)));
    devices.push_back(*index);
  }
  return devices;
}

// "0x233510DE" or "0x233510DE:0x18BE10DE".
std::optional<MigPciId> ReadPciId(std::string_view text) {
  const auto id = [](std::string_view part) -> std::optional<uint32_t> {
    if (!part.starts_with("0x") && !part.starts_with("0X")) return std::nullopt;
    return Number(part.substr(2), 16, UINT32_MAX);
  };
  const size_t colon = text.find(':');
  const auto first = id(text.substr(0, colon));
  if (!first) return std::nullopt;
  MigPciId out{static_cast<uint16_t>(*first >> 16), static_cast<uint16_t>(*first & 0xffff)};
  if (colon == std::string_view::npos) return out;
  out.subsystem = id(text.substr(colon + 1));
  return out.subsystem ? std::optional(out) : std::nullopt;
}

Result<std::vector<MigPciId>> ReadFilter(const Node& node) {
  std::vector<MigPciId> filter;
  std::vector<Node> items;
  if (node.IsSequence()) {
    for (const Node& item : node) items.push_back(item);
  }
  if (node.IsScalar()) items = {node};
  if (items.empty()) return Wrong(node, "device-filter is neither a PCI id nor a list of them");
  for (const Node& item : items) {
    const auto id = item.IsScalar() ? ReadPciId(item.Scalar()) : std::nullopt;
    if (!id || filter.size() >= kMostPlannedGpus)
      return Wrong(item, fmt::format("device-filter: '{}' is no PCI id", Shown(item)),
                   "write for example 0x233510DE");
    filter.push_back(*id);
  }
  return filter;
}

Status ReadInstances(const Node& node, MigFileEntry& entry) {
  if (node.IsNull()) return {};
  if (const Status status = CheckKeys(node, {}, "mig-devices"); !status) return status;
  uint32_t sum = 0;
  for (const auto& member : node) {
    const Node &key = member.first, &value = member.second;
    const auto name = core::mig::ParseProfileName(key.Scalar());
    if (!name) return Wrong(key, fmt::format("mig-devices: {}", name.error().message), name.error().hint);
    const auto count = value.IsScalar() ? Number(value.Scalar(), 10, kMostInstances) : std::nullopt;
    if (!count)
      return Wrong(value, fmt::format("mig-devices: {}: '{}' is no count up to {}", Shown(key), Shown(value),
                                      kMostInstances));
    if (std::ranges::count(entry.instances, *name, [](const auto& one) { return one.first; }) > 0)
      return Wrong(key, fmt::format("mig-devices: {} is there twice", name->ToString()));
    entry.instances.emplace_back(*name, *count);
    sum += *count;
  }
  if (node.size() > 0 && sum == 0)
    return Wrong(node, "mig-devices: all counts are 0", "write {} for a GPU without instances");
  return {};
}

Status ReadMembers(const Node& node, MigFileEntry& entry) {
  const Node devices = Member(node, "devices"), enabled = Member(node, "mig-enabled");
  const Node filter = Member(node, "device-filter"), instances = Member(node, "mig-devices");
  if (!devices.IsDefined()) return Wrong(node, "an entry needs devices", "write devices: all");
  auto list = ReadDevices(devices);
  if (!list) return tl::unexpected(list.error());
  entry.devices = std::move(*list);
  if (filter.IsDefined()) {
    auto ids = ReadFilter(filter);
    if (!ids) return tl::unexpected(ids.error());
    entry.filter = std::move(*ids);
  }
  if (!enabled.IsDefined()) return Wrong(node, "an entry needs mig-enabled", "write mig-enabled: true");
  if (!enabled.IsScalar() || (enabled.Scalar() != "true" && enabled.Scalar() != "false"))
    return Wrong(enabled, fmt::format("mig-enabled: '{}' is neither true nor false", Shown(enabled)));
  entry.enabled = enabled.Scalar() == "true";
  if (entry.enabled && !instances.IsDefined())
    return Wrong(node, "an entry with mig-enabled: true needs mig-devices", "write mig-devices: {} for none");
  if (!instances.IsDefined()) return {};
  if (const Status status = ReadInstances(instances, entry); !status) return status;
  if (!entry.enabled && !entry.instances.empty())
    return Wrong(instances, "an entry with mig-enabled: false has no mig-devices");
  return {};
}

Result<MigFileEntry> ReadEntry(const Node& node) {
  MigFileEntry entry;
  if (const Status status =
          CheckKeys(node, {"devices", "device-filter", "mig-enabled", "mig-devices"}, "an entry");
      !status)
    return tl::unexpected(status.error());
  if (const Status status = ReadMembers(node, entry); !status) return tl::unexpected(status.error());
  return entry;
}

Result<MigFile> ReadConfigs(const Node& node) {
  MigFile file;
  if (const Status status = CheckKeys(node, {}, "mig-configs"); !status)
    return tl::unexpected(status.error());
  if (node.size() == 0 || node.size() > kMostConfigs)
    return Wrong(node, "mig-configs has no configurations, or too many");
  for (const auto& member : node) {
    const Node &key = member.first, &value = member.second;
    if (!IsMigLabel(key.Scalar()))
      return Wrong(key, fmt::format("'{}' is no label", Shown(key)), "letters, digits, '.', '_' and '-'");
    if (!value.IsSequence() || value.size() == 0 || value.size() > kMostEntries)
      return Wrong(value, fmt::format("{} is no list of entries", Shown(key)));
    std::vector<MigFileEntry> entries;
    for (const Node& item : value) {
      auto entry = ReadEntry(item);
      if (!entry) return tl::unexpected(entry.error());
      entries.push_back(std::move(*entry));
    }
    file.configs.emplace_back(key.Scalar(), std::move(entries));
  }
  return file;
}

Result<MigFile> ReadRoot(const Node& root) {
  if (const Status status = CheckKeys(root, {"version", "mig-configs"}, "the file"); !status)
    return tl::unexpected(status.error());
  const Node version = Member(root, "version"), configs = Member(root, "mig-configs");
  if (!version.IsDefined() || !version.IsScalar() || version.Scalar() != "v1")
    return Wrong(version.IsDefined() ? version : root, "the version is not v1", "write version: v1");
  if (!configs.IsDefined()) return Wrong(root, "the file has no mig-configs");
  return ReadConfigs(configs);
}

std::string PciText(const MigPciId& id) {
  std::string text = fmt::format("0x{:04X}{:04X}", id.device, id.vendor);
  return id.subsystem ? text + fmt::format(":0x{:08X}", *id.subsystem) : text;
}

std::string EntryText(const MigFileEntry& entry) {
  std::string out;
  if (entry.filter.size() == 1) {
    out += fmt::format("    - device-filter: \"{}\"\n      ", PciText(entry.filter[0]));
  } else if (!entry.filter.empty()) {
    std::vector<std::string> ids;
    for (const MigPciId& id : entry.filter) ids.push_back('"' + PciText(id) + '"');
    out += fmt::format("    - device-filter: [{}]\n      ", fmt::join(ids, ", "));
  } else {
    out += "    - ";
  }
  out += entry.devices ? fmt::format("devices: [{}]\n", fmt::join(*entry.devices, ", ")) : "devices: all\n";
  out += fmt::format("      mig-enabled: {}\n", entry.enabled);
  if (!entry.enabled) return out;
  if (entry.instances.empty()) return out + "      mig-devices: {}\n";
  out += "      mig-devices:\n";
  for (const auto& [name, count] : entry.instances)
    out += fmt::format("        \"{}\": {}\n", name.ToString(), count);
  return out;
}

}  // namespace

bool IsMigLabel(std::string_view text) {
  return !text.empty() && text.size() <= 100 && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

Result<MigFile> ParseMigFile(const std::string& text) {
  // The library throws, for bytes that are no YAML and for nodes that are not what they are
  // asked for: nothing of it leaves this function.
  try {
    return ReadRoot(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    return Fail(Code::kInvalid,
                error.mark.is_null()
                    ? fmt::format("no YAML: {}", Plain(error.msg, 120))
                    : fmt::format("line {}: no YAML: {}", error.mark.line + 1, Plain(error.msg, 120)));
  } catch (const std::exception& error) {
    return Fail(Code::kInvalid, fmt::format("no YAML: {}", Plain(error.what(), 120)));
  }
}

std::string MigFileText(const MigFile& file) {
  std::string out = "version: v1\nmig-configs:\n";
  for (const auto& [label, entries] : file.configs) {
    out += fmt::format("  \"{}\":\n", label);
    for (const MigFileEntry& entry : entries) out += EntryText(entry);
  }
  return out;
}

Result<std::vector<MigFileEntry>> FindMigConfig(const MigFile& file,
                                                const std::optional<std::string>& label) {
  std::vector<std::string> labels;
  for (const auto& [name, entries] : file.configs) {
    labels.push_back(name);
    if (label == name || (!label && file.configs.size() == 1)) return entries;
  }
  if (!label)
    return Fail(Code::kInvalid, "the file has several configurations",
                fmt::format("say --label, one of {}", fmt::join(labels, ", ")));
  const auto nearest = Nearest(*label, labels);
  return Fail(Code::kNotFound, fmt::format("the file has no configuration '{}'", Plain(*label, 60)),
              nearest ? fmt::format("did you mean {}?", *nearest)
                      : fmt::format("it has {}", fmt::join(labels, ", ")));
}

const MigFileEntry* EntryFor(const std::vector<MigFileEntry>& config, uint32_t index,
                             const gpu::MigModel& model) {
  const MigFileEntry* last = nullptr;
  for (const MigFileEntry& entry : config) {
    const bool listed = !entry.devices || std::ranges::count(*entry.devices, index) > 0;
    const bool filtered =
        entry.filter.empty() || std::ranges::any_of(entry.filter, [&](const MigPciId& id) {
          return id.vendor == kNvidia && std::ranges::count(model.pci_device, id.device) > 0;
        });
    if (listed && filtered) last = &entry;
  }
  return last;
}

}  // namespace gpumux::cli
