// SPDX-License-Identifier: Apache-2.0
#include "cli/mig/bar.h"

#include <fmt/format.h>

#include <algorithm>

namespace gpumux::cli {
namespace {

using core::mig::Layout;
using core::mig::Placed;
using core::mig::ProfileOf;

// Characters of one slice, with the line before it. Eight slices of the wider one are 65 columns.
constexpr size_t kNarrow = 4, kWide = 8;

// "1g+me" of "1g.18gb+me".
std::string Short(const gpu::MigProfile& profile) {
  return profile.name.substr(0, profile.name.find('.')) +
         std::string(gpu::MigAttributeSuffix(profile.attribute));
}

std::string Cell(const gpu::MigProfile& profile, size_t width) {
  std::string text = profile.name.size() <= width ? profile.name : Short(profile);
  text.resize(width, '.');
  return text;
}

}  // namespace

std::string MigBar(const gpu::MigModel& model, const Layout& layout) {
  const uint32_t slices = std::min(model.memory_slices.value_or(0), core::mig::kMostSlices);
  const size_t width = slices > 8 ? kNarrow : kWide;
  std::string bar = "|", numbers;
  for (uint32_t slice = 0; slice < slices;) {
    const auto here = std::ranges::find(layout, slice, &Placed::start);
    const uint32_t size = here == layout.end() ? 1 : *ProfileOf(model, here->profile).memory_slices;
    const size_t cells = size * width - 1;
    bar += here == layout.end() ? std::string(cells, ' ') : Cell(ProfileOf(model, here->profile), cells);
    bar += "|";
    for (const uint32_t end = slice + size; slice < end; ++slice)
      numbers += fmt::format("{:<{}}", slice, width);
  }
  numbers.erase(numbers.find_last_not_of(' ') + 1);
  return bar + "\n" + numbers + "\n";
}

}  // namespace gpumux::cli
