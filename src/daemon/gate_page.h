// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/shared_memory.h"
#include "base/unique_fd.h"
#include "gpumux/abi/gate.h"

namespace gpumux::daemon {

// A process's gate page (gpumux/abi/gate.h) as the daemon has it. Any thread: all is atomic.
class GatePage {
 public:
  static Result<GatePage> Create();
  // One that the process had from an earlier daemon.
  static Result<GatePage> Adopt(UniqueFd fd);

  int fd() const { return memory_.read_write(); }
  // Of the process as one who closes others' gates.
  void SetOwnerBit(uint32_t bit);
  // What it was told by an earlier daemon.
  uint32_t OwnerBit() const;

  // The daemon's own bit.
  void CloseForTurn() { gpumux_gate_close(page(), GPUMUX_GATE_TURN); }
  void OpenForTurn() { gpumux_gate_open(page(), GPUMUX_GATE_TURN); }
  // The turn bit holds for GPUMUX_TURN_STALE_NS from then.
  void Beat(uint64_t now_ns);
  // Nobody's bit: the process is dead, and what it has queued shall drain.
  void OpenForGood();

  // As far as it is told (GPUMUX_LAUNCH_TURNS).
  struct Work {
    bool wants =
        false;  // it has work of which it is not known that it has ended, and only its turn may hold it
    bool in_flight = false;  // some of it has passed its gate and not ended
    uint64_t progress = 0;   // another one: something was launched or has ended
  };
  Work Look() const;

  struct Figures {
    uint32_t how = GPUMUX_GATE_NOT_YET;
    uint64_t waits = 0, forcings = 0, closed_ns = 0, dead_bits = 0;
    uint64_t busy_periods = 0, busy_ns = 0, window_ns = 0, windows = 0;
    bool closed = false;
    unsigned processes = 0;  // whose figures these are

    // Whatever the pages say, no sum wraps.
    void Add(const Figures& other);
  };
  Figures Read() const;

 private:
  gpumux_gate_page* page() const { return memory_.as<gpumux_gate_page>(); }
  SharedMemory memory_;
};

}  // namespace gpumux::daemon
