// SPDX-License-Identifier: Apache-2.0
#include "core/culprit.h"

#include <fmt/format.h>

#include <map>
#include <set>

namespace gpumux::core {

namespace {

// What every client of a server gets that somebody else's fault ended.
constexpr uint32_t kSpreads = 700;

// The one tenant among those that `is` holds of; empty: none, or several.
template <typename Is>
std::string TheOnly(const std::vector<Suspect>& suspects, Is&& is) {
  std::set<std::string> tenants;
  for (const Suspect& suspect : suspects) {
    if (is(suspect)) tenants.insert(suspect.tenant);
  }
  return tenants.size() == 1 ? *tenants.begin() : "";
}

}  // namespace

Culprit FindCulprit(const std::vector<Suspect>& suspects) {
  const auto dead = [](const Suspect& each) {
    return each.died_before && *each.died_before <= kDeathBeforeFault && each.busy && each.error == 0;
  };
  if (auto tenant = TheOnly(suspects, dead); !tenant.empty()) return {tenant, "it died with work under way"};
  // A fault of one's own may have a number of its own.
  const auto own = [](const Suspect& each) {
    return each.error != 0 && each.error < 800 && each.error != kSpreads;
  };
  if (auto tenant = TheOnly(suspects, own); !tenant.empty()) {
    for (const Suspect& each : suspects) {
      if (own(each)) return {tenant, fmt::format("it alone has error {}", each.error)};
    }
  }
  if (auto tenant = TheOnly(suspects, [](const Suspect& each) { return each.busy; }); !tenant.empty())
    return {tenant, "no other tenant had work on the GPU"};
  if (auto tenant = TheOnly(suspects, [](const Suspect& each) { return each.in_every_fault; });
      !tenant.empty())
    return {tenant, "it is the only one that was there at every fault"};
  return {"", "several tenants had work on the GPU, and the driver does not tell whose it was"};
}

}  // namespace gpumux::core
