// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "core/mig/geometry.h"

namespace gpumux::core::mig {

// What instances of a layout have together, against the whole GPU: SMs with MIG off, and
// memory of the largest instance, which is all that MIG gives out. What is not known of
// one instance is not known of the sum.
struct Parts {
  std::optional<uint64_t> sms, whole_sms;
  std::optional<uint64_t> bytes, whole_bytes;

  Parts& operator+=(const Parts& other);
};
Parts PartsOf(const gpu::MigModel& model, const Layout& layout);

// What does not work, or works otherwise, on every GPU with MIG on.
struct Limit {
  std::string_view id;    // for programs, for good
  std::string_view text;  // for people
};
std::span<const Limit> LimitsOfMig();

}  // namespace gpumux::core::mig
