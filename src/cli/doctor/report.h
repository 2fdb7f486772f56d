// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/check.h"
#include "cli/terminal.h"

namespace gpumux::cli::doctor {

struct Finding {
  Check check;
  Verdict verdict;
};

const char* Name(Status status);

// For people: a line for each, what to do below it, and a count. Evidence is
// wrapped to the terminal; a fix never is, for it is there to be copied.
// `quiet`: nothing but what is wrong.
std::string Render(const std::vector<Finding>& findings, const Terminal& terminal, bool quiet);

// The data of `gpumux doctor --json`, as JSON text.
std::string FindingsJson(const std::vector<Finding>& findings, std::optional<pid_t> pid);

// 0: nothing is wrong; 1: something failed, or with `strict` was warned of;
// 3: some check could not look.
int ExitStatusOf(const std::vector<Finding>& findings, bool strict);

}  // namespace gpumux::cli::doctor
