// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "cli/doctor/check.h"

namespace gpumux::cli::doctor {

// Whether the guard can be loaded into programs of a system: that of `root`
// (a container's, from /proc/PID/root), or with "" this one.
Verdict GuardFits(const Environment& environment, const std::string& root);

// Other libraries in front of the CUDA driver: what a preloaded file is, as far
// as it is of interest; "" for one that leaves CUDA alone.
std::string RivalIn(const std::string& file);
// Libraries of profilers, by their names.
bool IsProfiler(const std::string& file);

}  // namespace gpumux::cli::doctor
