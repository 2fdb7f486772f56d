// SPDX-License-Identifier: Apache-2.0
//
// What is known, over time: the last sample, and of each tenant what may be told
// from the change between samples. No clock, no daemon, no terminal.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tui/sample.h"

namespace gpumux::tui {

// The part of the time between two samples for which a tenant held its GPU,
// 0 to 1. Nullopt: not known.
using Part = std::optional<double>;

// Of one tenant, over the samples in which it was seen.
struct History {
  char key = '*';         // its letter in the bars; '*' where there are more tenants than letters
  std::deque<Part> held;  // the newest last, as long as Model::times(), or shorter
  std::optional<double> launches_per_second;
  Part Last() const { return held.empty() ? std::nullopt : held.back(); }
};

class Model {
 public:
  using Time = std::chrono::nanoseconds;  // CLOCK_MONOTONIC
  static constexpr size_t kMostSamples = 512;
  static constexpr size_t kMostEvents = 200;

  void Take(Sample sample, Time at);
  void TakeEvents(EventsSample events);
  // No daemon answers: why, as a line. What is shown stays, and says how old it is.
  void Lose(std::string why) { lost_ = std::move(why); }

  bool HasSample() const { return samples_ > 0; }
  const Sample& sample() const { return sample_; }
  // Why there is nothing newer; "": there is.
  const std::string& lost() const { return lost_; }
  const History& Of(const std::string& tenant) const;
  // How long each column of the histories took.
  const std::deque<Time>& spans() const { return spans_; }
  const std::deque<EventSample>& events() const { return events_; }
  uint64_t next_event_after() const { return next_event_after_; }

  // By all tenants together; nullopt where that of one is not known, and `why` says so.
  Part HeldOf(const GpuSample& gpu, std::string& why) const;

 private:
  struct Tracked {
    History history;
    std::optional<double> gpu_seconds;
    std::optional<uint64_t> launches;
    bool seen = false;
  };
  void Follow(const TenantSample& tenant, std::optional<double> seconds);
  char FreeKey() const;

  Sample sample_;
  size_t samples_ = 0;
  Time at_{};
  std::string lost_;
  std::map<std::string, Tracked> tracked_;
  std::deque<Time> spans_;
  std::deque<EventSample> events_;
  uint64_t next_event_after_ = 0;
};

// GPU time that a tenant had so far, where it is counted: with turns, and of one
// that is latency-critical by its gate. Nullopt: nobody counts it.
std::optional<double> GpuSecondsOf(const TenantSample& tenant);
// Why that is so, for people: "" if it is counted.
std::string WhyNotCounted(const TenantSample& tenant);

bool IsOn(const TenantSample& tenant, const GpuSample& gpu);

}  // namespace gpumux::tui
