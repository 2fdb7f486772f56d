// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace gpumux::cli {

// A command takes what stands behind its name and returns the exit status.
int RunMain(const std::vector<std::string>& arguments);
int StatusMain(const std::vector<std::string>& arguments);
int PsMain(const std::vector<std::string>& arguments);
int StopMain(const std::vector<std::string>& arguments);
int VersionMain(const std::vector<std::string>& arguments);

// Runs `gpumux ARGUMENTS...`.
int RunCommand(const std::vector<std::string>& arguments);

// Says the error on stderr (as JSON when `json`) and gives its exit status.
int Report(const Error& error, bool json = false);

}  // namespace gpumux::cli
