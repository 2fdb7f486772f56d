// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/command_line.h"

namespace gpumux::cli {

// A command takes what stands behind its name and returns the exit status.
int RunMain(const std::vector<std::string>& arguments);
int StatusMain(const std::vector<std::string>& arguments);
int TopMain(const std::vector<std::string>& arguments);
int PsMain(const std::vector<std::string>& arguments);
int SetMain(const std::vector<std::string>& arguments);
int StopMain(const std::vector<std::string>& arguments);
int EventsMain(const std::vector<std::string>& arguments);
int HistoryMain(const std::vector<std::string>& arguments);
int ExplainMain(const std::vector<std::string>& arguments);
int ConfigMain(const std::vector<std::string>& arguments);
int DoctorMain(const std::vector<std::string>& arguments);
int ReserveMain(const std::vector<std::string>& arguments);
int ModeMain(const std::vector<std::string>& arguments);
int PromiseMain(const std::vector<std::string>& arguments);
int KernelspecMain(const std::vector<std::string>& arguments);
int MigMain(const std::vector<std::string>& arguments);
int MpsMain(const std::vector<std::string>& arguments);
int CompletionMain(const std::vector<std::string>& arguments);
int VersionMain(const std::vector<std::string>& arguments);

// What each takes; that of `run` is in run_options.h.
const CommandSpec& StatusSpec();
const CommandSpec& TopSpec();
const CommandSpec& PsSpec();
const CommandSpec& SetSpec();
const CommandSpec& StopSpec();
const CommandSpec& EventsSpec();
const CommandSpec& HistorySpec();
const CommandSpec& ExplainSpec();
const CommandSpec& ConfigSpec();
const CommandSpec& DoctorSpec();
const CommandSpec& ReserveSpec();
const CommandSpec& ModeSpec();
const CommandSpec& PromiseSpec();
const CommandSpec& KernelspecSpec();
const CommandSpec& MigSpec();
const CommandSpec& MpsSpec();
const CommandSpec& CompletionSpec();
const CommandSpec& VersionSpec();

struct Command {
  const char* name;
  const char* summary;
  int (*main)(const std::vector<std::string>&);
  const CommandSpec& (*spec)();
};

// In the order of the help.
std::span<const Command> AllCommands();

// Runs `gpumux ARGUMENTS...`.
int RunCommand(const std::vector<std::string>& arguments);

// Says the error on stderr (as JSON when `json`) and gives its exit status.
int Report(const Error& error, bool json = false);

}  // namespace gpumux::cli
