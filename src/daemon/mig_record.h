// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "daemon/mig_steps.h"
#include "gpu/uuid.h"

namespace gpumux::daemon {

// A change that is under way, on the disk before its first step: whoever finds it after a crash
// knows what there was.
struct MigChangeRecord {
  gpu::Uuid gpu;
  std::vector<MigPart> before;
  core::mig::Layout wanted;
  uid_t by = 0;

  bool operator==(const MigChangeRecord&) const = default;
};
std::string FormatMigChange(const MigChangeRecord& record);
// kInvalid. Any bytes may come.
Result<MigChangeRecord> ParseMigChange(std::string_view text);

// Layouts that are made again after a reset or a boot, when nothing is there.
using MigKept = std::map<gpu::Uuid, std::vector<MigPart>>;
std::string FormatMigKept(const MigKept& kept);
Result<MigKept> ParseMigKept(std::string_view text);

inline constexpr size_t kMaxMigRecordBytes = 1 << 20;

}  // namespace gpumux::daemon
