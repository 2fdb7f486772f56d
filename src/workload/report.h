// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "workload/allocations.h"
#include "workload/memory_report.h"
#include "workload/options.h"
#include "workload/statistics.h"

namespace gpumux::workload {

// Everything that one run found out.
struct Report {
  std::string device_name;
  std::optional<Summary> load;
  std::optional<uint64_t> free_bytes, total_bytes;  // after memory was taken and the load was run
  std::optional<Outcome> alloc;
  std::string alloc_result;  // the driver's name of alloc->result
  std::optional<bool> verified;
  std::string fault_result;  // with --end fault
  std::vector<MemoryStep> steps;
  std::string error;
  int exit_status = 0;
};

// One line, ends without a line feed.
std::string ToJson(const Report& report, const Options& options);
// For people; several lines.
std::string ToText(const Report& report, const Options& options);

}  // namespace gpumux::workload
