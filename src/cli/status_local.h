// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/result.h"
#include "gpu/source.h"

namespace gpumux::cli {

// The body of GET /v1/status as far as NVML alone can tell it: what needs a
// daemon is null, with the reason beside it.
Result<std::string> StatusFromNvml(const gpu::GpuSource& source);

}  // namespace gpumux::cli
