// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/result.h"

namespace gpumux::cli {

// A manual page in scdoc's form from its template in docs/man: what the command
// line says of itself stands in place of these lines.
//
//   @NAME@      "gpumux-run - start a program ..."
//   @SYNOPSIS@  the usage
//   @OPTIONS@   every option with its help
//   @COMMANDS@  every command with its summary
//   @KEYS@      every key of the configuration
//
// `page` is the template's name without ".scd": "gpumux-run.1". kNotFound: a page
// of a command that there is not; kInvalid: a page of a command that lacks a line.
Result<std::string> ManPage(const std::string& page, const std::string& text);

}  // namespace gpumux::cli
