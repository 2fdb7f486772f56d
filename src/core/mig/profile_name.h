// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gpu/mig_models.h"

namespace gpumux::core::mig {

// "[Nc.]Mg.Sgb[+attr|-me]": how NVIDIA's tools write a profile. For people and
// files only: two profiles are compared by their ids.
struct ProfileName {
  std::optional<uint32_t> compute;  // of a compute instance that has a part of its GPU instance: "1c.3g.71gb"
  uint32_t slices = 0;              // compute slices of the GPU instance
  uint32_t gb = 0;                  // of its memory, as NVIDIA rounds it
  gpu::MigAttribute attribute = gpu::MigAttribute::kNone;

  bool operator==(const ProfileName&) const = default;
  std::string ToString() const;
};

// In either case of letters, with or without "MIG " before it, as nvidia-smi prints it.
// "3c.3g.71gb" is 3g.71gb. kInvalid with the reason.
Result<ProfileName> ParseProfileName(std::string_view text);

// The profile that `text` means on this GPU: by name, or by id ("19"). Drivers have
// named one profile differently ("3g.39gb" is 3g.40gb): a name whose size is at most
// 5 % off means the one with these slices and this attribute. kInvalid: no profile's
// name, or one of a compute instance. kNotFound: the GPU has no such profile, with those it has.
Result<const gpu::MigProfile*> FindProfile(const gpu::MigModel& model, std::string_view text);

// "3g.71gb at 4".
std::string At(const gpu::MigProfile& profile, uint32_t start);

}  // namespace gpumux::core::mig
