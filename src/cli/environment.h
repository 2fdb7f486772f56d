// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

namespace gpumux::cli {

// The program's environment: ours, with `set` replacing and `prepend` put in
// front of ':'-separated lists (once, also when it is there already).
std::vector<std::string> TenantEnvironment(const char* const* ours,
                                           const std::map<std::string, std::string>& set,
                                           const std::map<std::string, std::string>& prepend);

}  // namespace gpumux::cli
