// SPDX-License-Identifier: Apache-2.0
//
// A screen from what is known and what was chosen. The same arguments give the
// same screen.
#pragma once

#include <string>

#include "tui/cells.h"
#include "tui/model.h"
#include "tui/view.h"

namespace gpumux::tui {

struct Look {
  bool ascii = false;
  bool keys = true;  // the last line says what keys there are
  std::string host;
  std::string time;             // of day
  std::string every;            // between samples: "1 s"
  long utc_offset_seconds = 0;  // for times of events
};

Screen Draw(const Model& model, const View& view, int width, int height, const Look& look);

// What fits on such a screen.
Room RoomOf(const Model& model, const View& view, int width, int height);

}  // namespace gpumux::tui
