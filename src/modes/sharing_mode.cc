// SPDX-License-Identifier: Apache-2.0
#include "modes/sharing_mode.h"

#include "modes/exclusive/exclusive.h"
#include "modes/mig/mig.h"
#include "modes/mps/mps.h"
#include "modes/timeslice/timeslice.h"
#include "modes/turns/turns.h"

namespace gpumux::modes {

const SharingMode& ModeOf(core::Mode mode) {
  static const Exclusive exclusive;
  static const Timeslice timeslice;
  static const Turns turns;
  static const Mps mps;
  static const Mig mig;
  switch (mode) {
    case core::Mode::kExclusive:
      return exclusive;
    case core::Mode::kTurns:
      return turns;
    case core::Mode::kMps:
      return mps;
    case core::Mode::kMig:
      return mig;
    case core::Mode::kTimeslice:
      break;
  }
  return timeslice;
}

Status SupportsOn(core::Mode mode, const Setting& setting) {
  if (setting.partitioned)
    return Fail(Code::kUnsupported, "it is partitioned (MIG): its instances can be used, not itself",
                "see them with: gpumux mig status");
  if (mode == core::Mode::kMig && !setting.instance)
    return Fail(Code::kUnsupported, "it is no MIG instance", "see what would fit: gpumux mig plan");
  if (mode == core::Mode::kMps && setting.instance)
    return Fail(Code::kUnsupported, "MPS within a MIG instance was not tried, so nothing is promised of it",
                "use --mode timeslice, turns or mig");
  return ModeOf(mode).Supports(setting.compute_mode);
}

}  // namespace gpumux::modes
