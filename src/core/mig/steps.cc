// SPDX-License-Identifier: Apache-2.0
#include "core/mig/steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace gpumux::core::mig {
namespace {

bool Has(const Layout& layout, Placed instance) { return std::ranges::count(layout, instance) > 0; }

Status CheckFree(const gpu::MigModel& model, const std::vector<Present>& going) {
  std::vector<std::string> busy;
  for (const Present& present : going) {
    if (!present.users.empty())
      busy.push_back(fmt::format("{} ({})", Name(model, present.instance), fmt::join(present.users, ", ")));
  }
  if (busy.empty()) return {};
  return Fail(Code::kConflict, fmt::format("in use, and not in the new layout: {}", fmt::join(busy, "; ")),
              busy.size() == 1 ? "end what runs there first" : "end what runs on them first");
}

}  // namespace

Result<Change> StepsTo(const gpu::MigModel& model, const std::vector<Present>& present,
                       const Layout& wanted) {
  if (const Status status = CheckLayout(model, wanted); !status) return tl::unexpected(status.error());
  Change change;
  std::vector<Present> going;
  for (const Present& there : present) {
    if (Has(wanted, there.instance)) {
      change.kept.push_back(there.instance);
    } else {
      going.push_back(there);
    }
  }
  if (const Status status = CheckFree(model, going); !status) return tl::unexpected(status.error());
  Layout coming;
  for (const Placed& instance : wanted) {
    if (!Has(change.kept, instance)) coming.push_back(instance);
  }
  std::ranges::sort(change.kept);
  std::ranges::sort(going, {}, &Present::instance);
  // The order in which people and other tools make them: a driver that chooses places itself needs it.
  std::ranges::sort(coming, [&](Placed a, Placed b) {
    const auto size = [&](Placed p) { return ProfileOf(model, p.profile).memory_slices; };
    return size(a) != size(b) ? size(a) > size(b) : a < b;
  });
  for (const Present& there : going) change.steps.push_back({Step::What::kDestroy, there.instance});
  for (const Placed& instance : coming) change.steps.push_back({Step::What::kCreate, instance});
  return change;
}

std::vector<Step> Undo(const std::vector<Step>& done) {
  std::vector<Step> back;
  for (auto step = done.rbegin(); step != done.rend(); ++step) {
    const bool created = step->what == Step::What::kCreate;
    back.push_back({created ? Step::What::kDestroy : Step::What::kCreate, step->instance});
  }
  return back;
}

std::string ToString(const gpu::MigModel& model, const Step& step) {
  return fmt::format("{} {}", step.what == Step::What::kDestroy ? "destroy" : "create",
                     Name(model, step.instance));
}

}  // namespace gpumux::core::mig
