// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/terminal.h"

namespace gpumux::cli {

// A table for people. Columns are as wide as their widest cell; on a terminal
// that is too narrow the columns with the highest `drop` go first (0: never),
// and the last column is cut. Never wraps.
class Table {
 public:
  enum class Align { kLeft, kRight };
  enum class Style { kPlain, kGood, kWarning, kBad, kDim };
  struct Cell {
    std::string text;
    Style style = Style::kPlain;
  };

  void AddColumn(std::string header, Align align = Align::kLeft, int drop = 0);
  void AddRow(std::vector<Cell> cells);
  bool empty() const { return rows_.empty(); }
  // Every line ends with a line feed and has no trailing spaces.
  std::string Render(const Terminal& terminal) const;

 private:
  struct Column {
    std::string header;
    Align align;
    int drop;
  };
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace gpumux::cli
