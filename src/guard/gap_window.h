// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

namespace gpumux::guard {

// A latency-critical program that is bound by its launches leaves the GPU idle for most of
// a request, and what runs there meanwhile costs it nothing, as long as its own kernels
// catch up before it waits for them. So its gates may stay open for the first part of a
// request: until the time at which it usually has launched nearly everything.
//
//   first launch                              last launch   end
//   ├──────────── gates open ────────┼─ closed ─────┼────────┤
//                                    └── margin ────┘
//
// Whether that is so is measured, request by request: some are strict, with gates closed from the
// first launch, and those with a window must take no longer. If they do, the margin grows, up
// to a strict request; if not, it shrinks. Programs that wait for the GPU (the end is
// long after the last launch) or have short requests are strict always. One request that is much shorter than
// those before ends what was learnt: a program that does now this and now that is strict, too.
//
// Times in nanoseconds of one clock. One thread at a time.
class GapWindow {
 public:
  // A request begins. Returns when its gates are to be closed; at `now` or before: at once.
  uint64_t Begin(uint64_t now);
  // It launches, and Watches().
  void Launched(uint64_t now) { last_launch_ = now; }
  // The present request's launches are wanted.
  bool Watches() const { return watches_; }
  void End(uint64_t now);
  // Something else is known to be urgent: this request says nothing.
  void Abandon() { begun_ = false; }

  // What a window would be now, from the first launch; 0: strict.
  uint64_t window_ns() const { return Span() > margin_ ? Span() - margin_ : 0; }
  uint64_t windows() const { return windows_; }

  static constexpr unsigned kKept = 32;
  static constexpr uint64_t kShortest = 1'000'000;
  static constexpr uint64_t kLeastMargin = 300'000;

 private:
  struct Recent {
    uint64_t values[kKept];
    uint32_t count;  // ever
    void Add(uint64_t value) { values[count++ % kKept] = value; }
    // Nearest rank of what is kept; 0 without any.
    uint64_t Rank(unsigned percent) const;
    void Clear() { count = 0; }
  };

  uint64_t Span() const { return spans_.Rank(10); }
  bool IsLaunchBound() const;
  bool IsOfAnotherKind(uint64_t length) const;
  void StartAnew();
  void Judge();
  void GiveUp();

  Recent strict_ = {}, windowed_ = {};  // lengths of requests
  Recent spans_ = {}, tails_ = {};      // of strict ones: to the last launch, and from there to the end
  uint64_t begun_at_ = 0, last_launch_ = 0, close_at_ = 0;
  uint64_t margin_ = 0;        // 0: not chosen yet
  uint64_t requests_ = 0;      // ever
  uint64_t windows_ = 0;       // ever
  uint64_t strict_until_ = 0;  // by number of requests
  uint64_t back_off_ = 0;
  bool begun_ = false, watches_ = false;
};

}  // namespace gpumux::guard
