// SPDX-License-Identifier: Apache-2.0
#include "core/culprit.h"

#include <set>

namespace gpumux::core {

namespace {

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
    return each.busy && each.torn_down_before && *each.torn_down_before <= kDeathBeforeFault;
  };
  if (auto tenant = TheOnly(suspects, dead); !tenant.empty())
    return {tenant, "it died with work under way, and its descriptors were not held, or not long enough"};
  if (auto tenant = TheOnly(suspects, [](const Suspect& each) { return each.busy; }); !tenant.empty())
    return {tenant, "no other tenant had work on the GPU"};
  return {"", "several tenants had work on the GPU, and the driver does not tell whose it was"};
}

}  // namespace gpumux::core
