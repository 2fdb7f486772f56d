// SPDX-License-Identifier: Apache-2.0
//
// The thread that opens and closes gates for turns: looks at the tenants' gate pages,
// asks core::Turns, sets or clears the daemon's bit. No CUDA, no NVML, no lock that
// anybody else holds; it allocates when a new roster comes, and never else. While
// nobody takes turns it sleeps for good.
//
// When it dies, or does not run for GPUMUX_TURN_STALE_NS, every opener clears the
// bit: what is left is the driver's own time-slicing.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "base/unique_fd.h"
#include "daemon/turn_roster.h"
#include "daemon/turn_waits.h"

namespace gpumux::daemon {

class TurnThread {
 public:
  // `waits` outlives it.
  TurnThread(const core::Turns::Times& times, TurnWaits& waits);
  // Opens all gates.
  ~TurnThread();
  TurnThread(const TurnThread&) = delete;
  TurnThread& operator=(const TurnThread&) = delete;

  // From one thread. It takes effect within microseconds; the gates of tenants that are
  // no longer in it are opened.
  void Take(std::unique_ptr<TurnRoster> roster);

 private:
  struct Slot {
    uint64_t serial = 0;  // 0: free
    const TurnTenant* tenant = nullptr;
    bool closed = false;
    bool held = false;                     // the turn that it has was noted
    core::Turns::Time billed_before{};     // when it took turns before
    std::optional<uint64_t> stopped_at{};  // its progress then, after the grace time
  };

  void Run();
  void TakeRoster();
  void Replace(const TurnRoster& after);
  void Look();
  bool Believe(size_t i, const core::Turns::Seen& seen);
  void SetGates();
  void Note(const core::Turns::Event& event);
  void NoteBegun();
  void Publish();
  void Sleep(core::Turns::Time until) const;
  static void Free(TurnRoster* roster);

  // Handed over without a lock: the thread is never made to wait by the loop.
  std::atomic<TurnRoster*> coming_ = nullptr;
  std::atomic<TurnRoster*> gone_ = nullptr;  // a list
  std::atomic<bool> stop_ = false;
  UniqueFd wake_;

  // The thread's own.
  TurnWaits& waits_;
  core::Turns turns_;
  TurnRoster* roster_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<core::Turns::Seen> seen_;
  core::Turns::Time beat_{};

  std::thread thread_;
};

}  // namespace gpumux::daemon
