// SPDX-License-Identifier: Apache-2.0
//
// Critical errors that the driver reports of GPUs (Xids), as events.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "daemon/events.h"
#include "daemon/machine.h"

namespace gpumux::daemon {

// "Xid 31 (MMU fault: an illegal access of a program)"; one that is not known: the number alone.
std::string DescribeXid(unsigned number);

// A program that faults over and over does not fill the log: the same error of the same GPU is told at
// once, and those that follow it together, once a minute.
class Xids {
 public:
  static constexpr Time kTogether = std::chrono::minutes(1);

  Xids(Machine& machine, EventLog& events, const Clock& clock)
      : machine_(machine), events_(events), clock_(clock) {}

  // At the daemon's start, from which on they are told, and once a second.
  void Tick() { Take(machine_.nvml().TakeXids()); }
  void Take(const std::vector<gpu::Xid>& xids);

 private:
  struct Untold {
    Time told_at{};
    uint64_t count = 0;
  };
  void Tell(const GpuState& gpu, unsigned number, const std::string& more);

  Machine& machine_;
  EventLog& events_;
  const Clock& clock_;
  std::map<std::pair<size_t, unsigned>, Untold> recent_;  // by place of the GPU, and number
};

}  // namespace gpumux::daemon
