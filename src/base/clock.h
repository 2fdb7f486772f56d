// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <time.h>

#include <chrono>

namespace gpumux {

// The seam between code and time: the daemon runs on SystemClock, tests and the
// simulator on ManualClock. Any thread may call a SystemClock.
class Clock {
 public:
  virtual ~Clock() = default;
  // CLOCK_MONOTONIC: comparable between processes of one boot.
  virtual std::chrono::nanoseconds Now() const = 0;
  // For timestamps that people read; may jump.
  virtual std::chrono::system_clock::time_point WallTime() const = 0;
};

class SystemClock final : public Clock {
 public:
  std::chrono::nanoseconds Now() const override {
    timespec ts{};
    ::clock_gettime(CLOCK_MONOTONIC, &ts);
    return std::chrono::seconds(ts.tv_sec) + std::chrono::nanoseconds(ts.tv_nsec);
  }
  std::chrono::system_clock::time_point WallTime() const override { return std::chrono::system_clock::now(); }
};

// Stands still until it is moved. One thread.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(std::chrono::nanoseconds start = std::chrono::seconds(1)) : now_(start) {}
  std::chrono::nanoseconds Now() const override { return now_; }
  std::chrono::system_clock::time_point WallTime() const override {
    return std::chrono::system_clock::time_point(
        std::chrono::duration_cast<std::chrono::system_clock::duration>(now_));
  }
  void Advance(std::chrono::nanoseconds by) { now_ += by; }

 private:
  std::chrono::nanoseconds now_;
};

}  // namespace gpumux
