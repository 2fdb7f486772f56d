// SPDX-License-Identifier: Apache-2.0
//
// What the owner of a machine allows: who may have how much at once, who goes
// first, how GPUs are filled, and what is done about idle tenants. Comes from the configuration; pure data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/units.h"
#include "core/idle.h"

namespace gpumux::core {

// At once, over all GPUs. Nullopt: as much as there is.
struct Quota {
  std::optional<uint64_t> guaranteed_bytes;  // sum of guarantees
  std::optional<unsigned> tenants;           // that run; those that wait do not count
  std::optional<unsigned> gpus;              // GPUs that any of them is on
};

// Rules for a user or for all members of a group together.
struct Rule {
  Quota quota;
  // Of the queue: a higher one goes first, equals by arrival. Nullopt: not said here.
  std::optional<int> priority;
};

enum class Fill {
  kPack,    // a guarantee goes to the fullest GPU that holds it: large pieces stay whole
  kSpread,  // to the emptiest: neighbours are fewest
};

struct Policy {
  Fill fill = Fill::kPack;
  std::map<std::string, Rule> users;   // by name
  std::map<std::string, Rule> groups;  // by name: a quota is of all members together
  std::optional<Rule> every_user;      // of each user that `users` does not name
  IdlePolicy idle;
};

}  // namespace gpumux::core
