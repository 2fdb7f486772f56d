// SPDX-License-Identifier: Apache-2.0
#include "core/rate_limit.h"

#include <algorithm>

namespace gpumux::core {

namespace {
constexpr size_t kForgetAbove = 256;  // users: then those of the past are looked for
}

RateLimit::RateLimit(unsigned per_second, unsigned burst)
    : each_(std::chrono::nanoseconds(std::chrono::seconds(1)) / per_second), burst_(each_ * burst) {}

RateLimit::Time RateLimit::Wait(uid_t user, Time now) {
  if (due_.size() >= kForgetAbove) std::erase_if(due_, [&](const auto& each) { return each.second <= now; });
  Time& due = due_.try_emplace(user, now).first->second;
  due = std::max(due, now) + each_;
  return std::max(Time(0), due - now - burst_);
}

}  // namespace gpumux::core
