// SPDX-License-Identifier: Apache-2.0
//
// The policy applied to one owner: who goes first, and which quotas bind it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/policy.h"
#include "core/running.h"

namespace gpumux::core {

// The user's rule, else the highest of its groups, else that of every user, else 0.
int PriorityOf(const Policy& policy, const std::string& user, const std::vector<std::string>& groups);

// What those whom one quota binds together have now.
struct QuotaUse {
  static constexpr size_t kMaxNames = 3;
  uint64_t guaranteed_bytes = 0;
  size_t tenants = 0;
  std::set<gpu::Uuid> gpus = {};
  std::vector<std::string> names = {};  // of the first tenants, for people
};

// A quota that binds a request.
struct Bound {
  std::string whose;  // "user anna", "group vision"
  std::string key;    // of the configuration: "quota.every-user"
  Quota quota;
  QuotaUse use;

  bool HasRoomFor(uint64_t bytes) const;  // further guaranteed bytes
  bool HasRoomForATenant() const { return !quota.tenants || use.tenants < *quota.tenants; }
  // On how many GPUs that none of them is on may a tenant be started?
  size_t FurtherGpus() const;
};

// Of all tenants that run, looked up by owner.
class QuotaBook {
 public:
  // `policy` must outlive it.
  QuotaBook(const Policy& policy, const std::vector<Running>& running);
  std::vector<Bound> BoundsOf(const std::string& user, const std::vector<std::string>& groups) const;

 private:
  const Policy& policy_;
  std::map<std::string, QuotaUse> users_, groups_;
};

// What to do about a quota; `what` is "memory", "tenants" or "gpus".
std::string HowToRaise(const Bound& bound, const char* what);

// "user anna has 60.0 of 80.0 GiB guaranteed (serve, train)", and of tenants and GPUs alike.
std::string DescribeBytes(const Bound& bound);
std::string DescribeTenants(const Bound& bound);
std::string DescribeGpus(const Bound& bound);

}  // namespace gpumux::core
