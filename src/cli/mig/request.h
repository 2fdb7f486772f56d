// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "core/mig/planner.h"

namespace gpumux::cli {

inline constexpr size_t kMostPlannedGpus = 64;
// Of a file with tenants, or with configurations.
inline constexpr size_t kMaxMigFileBytes = 1u << 20;

// "H200", "2xH200,A30": GPUs that nothing is on, called "GPU 0" and so on. kInvalid,
// kNotFound, kUnsupported (a GPU without MIG).
Result<std::vector<core::mig::GpuState>> ParseMigGpus(const std::string& text);

// "3x1g.18gb,1x3g.71gb": instances by name or id. kInvalid.
Result<std::vector<core::mig::Want>> ParseMigWants(const std::string& text);

// Tenants as JSON: {"tenants": [{"name": "serve", "count": 2, "mem": "14GiB", "share": "10%",
// "isolate": "full"}]}; every member but one of mem, share and profile may be left out.
// kInvalid: what is wrong, and where ("tenants[0].mem: ...").
Result<std::vector<core::mig::Want>> ParseMigTenants(const std::string& text);

// A file as it is. kNotFound, kInvalid (too large, no file).
Result<std::string> ReadMigFile(const std::string& path);

}  // namespace gpumux::cli
