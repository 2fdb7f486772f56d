// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "cli/commands.h"

namespace gpumux::cli {

// Scripts to be sourced, made of the commands' own specs. Tenants are asked for
// with `gpumux completion --tenants`.
std::string BashCompletion(std::span<const Command> commands);
std::string ZshCompletion(std::span<const Command> commands);

}  // namespace gpumux::cli
