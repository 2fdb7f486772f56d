// SPDX-License-Identifier: Apache-2.0
#include "modes/sharing_mode.h"

#include "modes/exclusive/exclusive.h"
#include "modes/mps/mps.h"
#include "modes/timeslice/timeslice.h"
#include "modes/turns/turns.h"

namespace gpumux::modes {

const SharingMode& ModeOf(core::Mode mode) {
  static const Exclusive exclusive;
  static const Timeslice timeslice;
  static const Turns turns;
  static const Mps mps;
  switch (mode) {
    case core::Mode::kExclusive:
      return exclusive;
    case core::Mode::kTurns:
      return turns;
    case core::Mode::kMps:
      return mps;
    case core::Mode::kTimeslice:
      break;
  }
  return timeslice;
}

}  // namespace gpumux::modes
