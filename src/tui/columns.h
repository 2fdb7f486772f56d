// SPDX-License-Identifier: Apache-2.0
//
// The rows of the table: what stands in each column, how rows are sorted and
// which pass a filter.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tui/cells.h"
#include "tui/model.h"

namespace gpumux::tui {

enum class Column {
  kStarted,  // the daemon's order: by start, those that wait last. Not shown
  kKey,
  kName,
  kId,
  kOwner,
  kState,
  kGpu,
  kMode,
  kMemory,
  kGuaranteed,
  kPeak,
  kHeld,
  kLaunches,
  kWaited,
  kRefused,
  kEnforced,
  kCommand
};

struct ColumnSpec {
  Column column;
  const char* head;  // "" is not shown
  bool right;        // aligned
  int drop;          // the highest goes first where the screen is narrow; 0: never
  bool high_first;   // how sorting by it begins
  const char* meaning;
};
std::span<const ColumnSpec> AllColumns();
const ColumnSpec& SpecOf(Column column);

// A tenant, or a process outside gpumux.
struct Row {
  const TenantSample* tenant = nullptr;
  const StrangerSample* stranger = nullptr;
  const GpuSample* gpu = nullptr;  // of a stranger
  std::string id;                  // of the tenant; of a stranger "pid 812", which no tenant is called
};

struct Text {
  std::string text;
  Ink ink = Ink::kPlain;
};
Text CellText(const Row& row, Column column, const Model& model);

std::vector<Row> AllRows(const Model& model);
// A part of its name, id, owner, state, mode or command, in any case of letters.
bool Passes(const Row& row, const std::string& filter);
// Rows with an unknown value are last, whichever way; equal ones stay as they were.
void Sort(std::vector<Row>& rows, Column column, bool descending, const Model& model);

// "61.2" of GiB, "–" where it is unknown.
std::string Gib(const Bytes& bytes);
std::string BytesText(const Bytes& bytes);
// "48 %", "–".
std::string Percent(const Part& part);

inline constexpr const char* kUnknown = "–";

}  // namespace gpumux::tui
