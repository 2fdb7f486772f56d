// SPDX-License-Identifier: Apache-2.0
#include "modes/sharing_mode.h"

#include "modes/exclusive/exclusive.h"
#include "modes/timeslice/timeslice.h"

namespace gpumux::modes {

const SharingMode& ModeOf(core::Mode mode) {
  static const Exclusive exclusive;
  static const Timeslice timeslice;
  if (mode == core::Mode::kExclusive) return exclusive;
  return timeslice;
}

}  // namespace gpumux::modes
