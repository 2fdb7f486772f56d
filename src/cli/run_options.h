// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "cli/command_line.h"
#include "config/meaning.h"

namespace gpumux::cli {

// What `gpumux run` was asked for, checked as far as it can be without a daemon.
struct RunOptions {
  std::optional<MemorySize> mem;        // unset: no guarantee
  std::optional<MemorySize> mem_limit;  // the B of A:B; unset: as `mem`
  unsigned gpu_count = 1;               // unless gpu_list has entries
  std::vector<std::string> gpu_list;    // indices and UUIDs
  std::string name;
  std::vector<std::pair<std::string, std::string>> labels;
  bool wait = true;
  std::optional<std::chrono::milliseconds> wait_limit;
  std::optional<std::chrono::milliseconds> time;
  std::string mode = "auto";
  std::string isolate = "fault";
  // Above 0 and up to 1. The P of P:Q, in mode turns a minimum, in mode mps a ceiling;
  // and the Q, in mode turns alone.
  std::optional<double> share, share_ceiling;
  std::string priority = "normal";
  std::optional<unsigned> processes;
  unsigned restarts = 0;  // times that a program which a neighbour's fault ended is started again
  std::string place;      // empty: as the machine's configuration says
  std::string cpu_affinity = "none";
  bool strict = false;
  bool json = false;
  bool summary = false;
  bool quiet = false;
  bool own_group = false;
  bool allow_reconfigure = false;  // in mode mig: an instance may be made for it
  bool help = false;
  std::vector<std::string> command;
};

const CommandSpec& RunSpec();

// The value of --mem into `options`: "10GiB", "40%", "10GiB:20GiB".
Status TakeMem(const std::string& text, RunOptions& options);

// `defaults`: what the configuration says, for options that `arguments` do not have.
// kInvalid: a wrong value or no command. kUnsupported: an option of the
// product that this version cannot keep; it is never dropped silently.
Result<RunOptions> ParseRunOptions(const std::vector<std::string>& arguments,
                                   const std::vector<config::RunDefault>& defaults = {});

}  // namespace gpumux::cli
