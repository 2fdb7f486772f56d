// SPDX-License-Identifier: Apache-2.0
#include "core/quota.h"

#include <fmt/format.h>

#include <algorithm>

namespace gpumux::core {

namespace {

const Rule* Find(const std::map<std::string, Rule>& rules, const std::string& name) {
  const auto it = rules.find(name);
  return it == rules.end() ? nullptr : &it->second;
}

bool Limits(const Quota& quota) { return quota.guaranteed_bytes || quota.tenants || quota.gpus; }

uint64_t Plus(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

void Add(const Running& tenant, QuotaUse& use) {
  for (const Running::On& on : tenant.on) {
    use.guaranteed_bytes = Plus(use.guaranteed_bytes, on.guaranteed_bytes);
    use.gpus.insert(on.gpu);
  }
  ++use.tenants;
  if (use.names.size() < QuotaUse::kMaxNames) use.names.push_back(tenant.name);
}

const QuotaUse& UseOf(const std::map<std::string, QuotaUse>& uses, const std::string& name) {
  static const QuotaUse kNone;
  const auto it = uses.find(name);
  return it == uses.end() ? kNone : it->second;
}

// " (serve, train and 3 more)"
std::string Names(const QuotaUse& use) {
  if (use.names.empty()) return "";
  std::string text = fmt::format(" ({}", fmt::join(use.names, ", "));
  if (use.tenants > use.names.size()) text += fmt::format(" and {} more", use.tenants - use.names.size());
  return text + ")";
}

}  // namespace

int PriorityOf(const Policy& policy, const std::string& user, const std::vector<std::string>& groups) {
  const Rule* own = Find(policy.users, user);
  if (own && own->priority) return *own->priority;
  std::optional<int> highest;
  for (const std::string& group : groups) {
    const Rule* rule = Find(policy.groups, group);
    if (rule && rule->priority) highest = std::max(highest.value_or(*rule->priority), *rule->priority);
  }
  if (highest) return *highest;
  return !own && policy.every_user ? policy.every_user->priority.value_or(0) : 0;
}

bool Bound::HasRoomFor(uint64_t bytes) const {
  if (!quota.guaranteed_bytes || bytes == 0) return true;
  return use.guaranteed_bytes <= *quota.guaranteed_bytes &&
         bytes <= *quota.guaranteed_bytes - use.guaranteed_bytes;
}

size_t Bound::FurtherGpus() const {
  if (!quota.gpus) return SIZE_MAX;
  return *quota.gpus > use.gpus.size() ? *quota.gpus - use.gpus.size() : 0;
}

QuotaBook::QuotaBook(const Policy& policy, const std::vector<Running>& running) : policy_(policy) {
  for (const Running& tenant : running) {
    Add(tenant, users_[tenant.user]);
    for (const std::string& group : tenant.groups) {
      if (policy.groups.contains(group)) Add(tenant, groups_[group]);
    }
  }
}

std::vector<Bound> QuotaBook::BoundsOf(const std::string& user,
                                       const std::vector<std::string>& groups) const {
  std::vector<Bound> bounds;
  const Rule* own = Find(policy_.users, user);
  const std::string own_key = own ? "quota.user." + user : "quota.every-user";
  if (!own && policy_.every_user) own = &*policy_.every_user;
  if (own && Limits(own->quota)) bounds.push_back({"user " + user, own_key, own->quota, UseOf(users_, user)});
  for (const std::string& group : groups) {
    const Rule* rule = Find(policy_.groups, group);
    if (rule && Limits(rule->quota))
      bounds.push_back({"group " + group, "quota.group." + group, rule->quota, UseOf(groups_, group)});
  }
  return bounds;
}

std::string HowToRaise(const Bound& bound, const char* what) {
  return fmt::format("ask for less, or ask who runs this machine to raise {}.{} in its configuration",
                     bound.key, what);
}

std::string DescribeBytes(const Bound& bound) {
  return fmt::format("{} has {} of {} guaranteed{}", bound.whose, FormatBytes(bound.use.guaranteed_bytes),
                     FormatBytes(*bound.quota.guaranteed_bytes), Names(bound.use));
}

std::string DescribeTenants(const Bound& bound) {
  return fmt::format("{} has {} of {} tenants{}", bound.whose, bound.use.tenants, *bound.quota.tenants,
                     Names(bound.use));
}

std::string DescribeGpus(const Bound& bound) {
  return fmt::format("{} is on {} of {} GPUs{}", bound.whose, bound.use.gpus.size(), *bound.quota.gpus,
                     Names(bound.use));
}

}  // namespace gpumux::core
