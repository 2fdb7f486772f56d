// SPDX-License-Identifier: Apache-2.0
//
// Files of NVIDIA's mig-parted: named configurations of MIG, each a list of entries that say
// for some GPUs whether MIG is on and how many instances of which profiles they have. Read
// as mig-parted reads them: strictly, and what is not known is an error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "core/mig/profile_name.h"

namespace gpumux::cli {

// "0x233510DE": a GPU's PCI device and vendor.
struct MigPciId {
  uint16_t device = 0, vendor = 0;
  std::optional<uint32_t> subsystem = {};

  bool operator==(const MigPciId&) const = default;
};

struct MigFileEntry {
  std::optional<std::vector<uint32_t>> devices = {};  // indices; nullopt: "all"
  std::vector<MigPciId> filter = {};                  // empty: every GPU
  bool enabled = false;
  // In the order of the file. A name with a compute part ("1c.3g.71gb") counts compute instances.
  std::vector<std::pair<core::mig::ProfileName, uint32_t>> instances = {};

  bool operator==(const MigFileEntry&) const = default;
};

struct MigFile {
  std::vector<std::pair<std::string, std::vector<MigFileEntry>>> configs;  // by label, in order

  bool operator==(const MigFile&) const = default;
};

// kInvalid, with the line: "line 7: mig-devices: ...".
Result<MigFile> ParseMigFile(const std::string& text);
std::string MigFileText(const MigFile& file);

// The configuration of that label; without one, the only one. kInvalid, kNotFound.
Result<std::vector<MigFileEntry>> FindMigConfig(const MigFile& file, const std::optional<std::string>& label);

// What the entries, in order, leave of a GPU: the last one that is for it, as mig-parted applies
// every one of them. Null: none is for it. `index` as nvidia-smi counts.
const MigFileEntry* EntryFor(const std::vector<MigFileEntry>& config, uint32_t index,
                             const gpu::MigModel& model);

// A label that a file can have.
bool IsMigLabel(std::string_view text);

}  // namespace gpumux::cli
