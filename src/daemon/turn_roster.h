// SPDX-License-Identifier: Apache-2.0
//
// What the loop tells the turn thread, and what that tells the loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/turns.h"
#include "daemon/gate_page.h"

namespace gpumux::daemon {

// Of one tenant that takes turns. Written by the turn thread, read by the loop; each
// by itself.
struct TurnFigures {
  std::atomic<core::TurnState> state = core::TurnState::kIdle;
  std::atomic<int64_t> billed_ns = 0;  // GPU time
  std::atomic<double> part = 1;        // of its most crowded GPU, while those want it that do
  std::atomic<int64_t> waited_ns = 0;  // for its turns that have begun
  std::atomic<uint64_t> turns = 0;     // that ended while others wanted the GPU
  std::atomic<uint64_t> overran = 0;   // what was in flight did not end in the grace time
  std::atomic<uint64_t> unused = 0;    // it wanted the GPU, and nothing of it ran

  // By the loop: all its processes are stopped (SIGSTOP), so that none of them can say
  // that its work has ended.
  std::atomic<bool> stopped = false;
};

struct TurnTenant {
  uint64_t serial = 0;  // one a tenant for good
  core::TurnShare share;
  core::Turns::Gpus gpus;                        // by the machine's index
  std::vector<std::shared_ptr<GatePage>> pages;  // of its processes that live
  std::shared_ptr<TurnFigures> figures;

  bool operator==(const TurnTenant&) const = default;
};

// Those that take turns now. Never changed once it is handed over.
struct TurnRoster {
  static constexpr size_t kMost = 256;  // tenants
  std::vector<TurnTenant> tenants;
  TurnRoster* next = nullptr;  // among those that the loop is to free
};

}  // namespace gpumux::daemon
