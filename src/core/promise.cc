// SPDX-License-Identifier: Apache-2.0
#include "core/promise.h"

#include <algorithm>

namespace gpumux::core {

std::string_view Name(Mode mode) {
  switch (mode) {
    case Mode::kExclusive:
      return "exclusive";
    case Mode::kTimeslice:
      return "timeslice";
    case Mode::kTurns:
      return "turns";
    case Mode::kMps:
      return "mps";
    case Mode::kMig:
      return "mig";
  }
  return "?";
}

std::optional<Mode> FindMode(std::string_view name) {
  for (const Mode mode : kModes) {
    if (Name(mode) == name) return mode;
  }
  return std::nullopt;
}

std::string_view Name(Isolation isolation) {
  switch (isolation) {
    case Isolation::kNone:
      return "none";
    case Isolation::kFault:
      return "fault";
    case Isolation::kFull:
      return "full";
  }
  return "?";
}

std::string_view Name(Urgency urgency) {
  switch (urgency) {
    case Urgency::kNormal:
      return "normal";
    case Urgency::kLatency:
      return "latency";
    case Urgency::kBestEffort:
      return "best-effort";
  }
  return "?";
}

std::optional<Urgency> FindUrgency(std::string_view name) {
  for (const Urgency urgency : {Urgency::kNormal, Urgency::kLatency, Urgency::kBestEffort}) {
    if (name == Name(urgency)) return urgency;
  }
  return std::nullopt;
}

uint64_t BytesOf(const MemorySize& size, uint64_t usable_bytes) {
  if (size.ratio <= 0) return size.bytes;
  // Below 2^53 the product is exact enough; above 1 it would exceed the GPU.
  const double bytes = std::min(size.ratio, 1.0) * static_cast<double>(usable_bytes);
  return std::min(usable_bytes, static_cast<uint64_t>(bytes));
}

}  // namespace gpumux::core
