// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <string>
#include <tl/expected.hpp>

namespace gpumux::config {

// In a file, counted from 1; 0: the file as a whole.
struct Position {
  unsigned line = 0, column = 0;
  auto operator<=>(const Position&) const = default;
};

// Why a file, or a variable, cannot be taken as it is.
struct Problem {
  std::string file;  // or the name of a variable
  Position at;
  std::string message;
  std::string hint;

  // "/etc/gpumux/config.toml:3:1: message; hint"
  std::string ToString() const;
};

}  // namespace gpumux::config
