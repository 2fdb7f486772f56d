// SPDX-License-Identifier: Apache-2.0
//
// Programs on GPUs under core::Turns, in virtual time: what each one got of each
// GPU, when, and how long it waited. Written without regard to how turns are
// decided: the GPU runs whatever is past a gate, and programs that are past their
// gates together share it as the driver's time slices do.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/turns.h"

namespace gpumux::core::testing {

using Time = Turns::Time;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct Program {
  TurnShare share = {};
  Time kernel = milliseconds(1);
  // CPU time between a kernel's end and the next launch. Nullopt: kernels are
  // queued ahead, as many as a gate's wait lets pass.
  std::optional<Time> think = {};
  // Waits for its work after each so much of it, and launches the next so much later.
  Time step = Time::max(), pause = {};
  Turns::Gpus gpus = 1;
  // Works in the first so much of each so long.
  Time busy_for = seconds(1), every = seconds(1);
  Time from = {};                                           // is there from then on
  Time until = Time::max();                                 // and ends
  Time hangs_at = Time::max();                              // a kernel that starts after it does not end
  Time stopped_at = Time::max(), goes_on_at = Time::max();  // launches nothing meanwhile
};

class World {
 public:
  // Measured on an H200: a switch between processes, and what two that are
  // time-sliced keep of the GPU.
  static constexpr Time kSwitch = microseconds(120);
  static constexpr double kSliced = 0.81;
  // Work that one wait at the gate lets pass, and when a process says that it has none.
  static constexpr Time kSegment = microseconds(500);
  static constexpr Time kQuiet = microseconds(50);
  static constexpr Time kBucket = milliseconds(1);

  struct Runner {
    Program program;
    bool there = false, queued = false;
    double left_ns = 0;  // of what is in flight; below 0: it does not end
    Time step_left{};    // not launched yet
    Time launch_at{};
    Time done_at{-kQuiet};
    uint64_t progress = 0;
    // Results.
    double ran_ns = 0;
    std::vector<double> ran_in;  // by kBucket
    Time waits_since{};
    bool waits = false;
    Time longest_wait{};
    size_t gate_changes = 0;
    bool open = true;
  };

  explicit World(std::vector<Program> programs, Turns::Times times = Turns::Times())
      : turns(programs.size(), times),
        runners(programs.size()),
        rates_(programs.size()),
        seen_(programs.size()) {
    for (size_t i = 0; i < programs.size(); ++i) {
      runners[i].program = programs[i];
      runners[i].step_left = programs[i].step;
    }
  }

  void RunFor(Time duration) {
    const Time end = now + duration;
    while (now < end) {
      ComeAndGo();
      Launch();
      if (now >= ask_at_) Ask();
      Launch();
      Advance(std::min(end, ask_at_));
    }
  }

  double Ran(size_t i) const { return runners[i].ran_ns; }
  // Of what all got.
  double Part(size_t i) const {
    double sum = 0;
    for (const auto& runner : runners) sum += runner.ran_ns;
    return sum > 0 ? runners[i].ran_ns / sum : 0;
  }
  // Of the time since `since`.
  double Ratio(size_t i, Time since = Time(0)) const {
    return InBuckets(i, since, now) / static_cast<double>((now - since).count());
  }
  double InBuckets(size_t i, Time from, Time to) const {
    double sum = 0;
    const auto& ran = runners[i].ran_in;
    for (size_t k = static_cast<size_t>(from / kBucket); k < std::min(ran.size(), size_t(to / kBucket)); ++k)
      sum += ran[k];
    return sum;
  }
  // The most and the least of any window.
  std::pair<double, double> Windows(size_t i, Time from, Time window = Turns::kWindow) const {
    double most = 0, least = 1e300;
    for (Time at = from; at + window <= now; at += kBucket) {
      const double ran = InBuckets(i, at, at + window);
      most = std::max(most, ran), least = std::min(least, ran);
    }
    const auto ns = static_cast<double>(window.count());
    return {most / ns, least / ns};
  }
  size_t Ends(size_t i, TurnEnd why) const {
    return static_cast<size_t>(std::count_if(events.begin(), events.end(), [&](const Turns::Event& event) {
      return event.tenant == i && event.why == why;
    }));
  }

  Turns turns;
  std::vector<Runner> runners;
  std::vector<Turns::Event> events;
  Time now{};
  std::function<void()> after_ask = [] {};

 private:
  static constexpr size_t kNobody = SIZE_MAX, kSeveral = SIZE_MAX - 1;
  struct Gpu {
    size_t last = kNobody;
    Time switched_at{};  // nothing runs before
    size_t in_flight = 0;
  };

  bool Active(const Runner& r) const {
    return r.there && now % r.program.every < r.program.busy_for &&
           (now < r.program.stopped_at || now >= r.program.goes_on_at);
  }

  void ComeAndGo() {
    for (size_t i = 0; i < runners.size(); ++i) {
      Runner& r = runners[i];
      const bool should = now >= r.program.from && now < r.program.until;
      if (should == r.there) continue;
      const auto launch_at = now;
      if (should) {
        turns.Add(i, r.program.share, r.program.gpus);
        r.launch_at = launch_at;
      } else {
        turns.Remove(i);
        r.queued = r.waits = false, r.left_ns = 0;
      }
      r.there = should;
      ask_at_ = now;
    }
  }

  void Launch() {
    for (auto& r : runners) {
      const bool ahead = !r.program.think && r.step_left > Time(0);
      if (Active(r) && !r.queued && r.launch_at <= now && (r.left_ns == 0 || ahead)) {
        r.queued = true, ++r.progress;
      }
      if (r.queued && r.left_ns == 0 && r.open) {
        const Time usual = r.program.think ? r.program.kernel : std::max(kSegment, r.program.kernel);
        const Time segment = std::min(usual, r.step_left);
        r.step_left -= segment;
        r.left_ns = now >= r.program.hangs_at ? -1 : static_cast<double>(segment.count());
        r.queued = false, ++r.progress;
        if (Active(r) && !r.program.think && r.step_left > Time(0)) r.queued = true;
      }
      const bool waits = r.queued || r.left_ns != 0;
      if (waits && !r.waits) r.waits_since = now;
      r.waits = waits;
    }
  }

  void Ask() {
    for (size_t i = 0; i < runners.size(); ++i) {
      const Runner& r = runners[i];
      seen_[i] = {.wants = r.queued || r.left_ns != 0 || now < r.done_at + kQuiet,
                  .in_flight = r.left_ns != 0,
                  .progress = r.progress};
    }
    const auto answer = turns.Update(now, seen_);
    events.insert(events.end(), answer.events.begin(), answer.events.end());
    ask_at_ = answer.next;
    for (size_t i = 0; i < runners.size(); ++i) {
      const bool open = !runners[i].there || turns.Open(i);
      runners[i].gate_changes += open != runners[i].open;
      runners[i].open = open;
    }
    after_ask();
  }

  void Advance(Time limit) {
    for (auto& gpu : gpus_) gpu.in_flight = 0;
    for (const auto& r : runners) EachGpu(r, [&](Gpu& gpu) { gpu.in_flight += r.left_ns != 0; });
    Time end = limit;
    std::fill(rates_.begin(), rates_.end(), 0);
    for (size_t i = 0; i < runners.size(); ++i) {
      Runner& r = runners[i];
      for (const Time at : {r.launch_at, r.program.from, r.program.until, r.program.stopped_at,
                            r.program.goes_on_at, (now / r.program.every + 1) * r.program.every}) {
        if (at > now) end = std::min(end, at);
      }
      if (r.left_ns == 0) continue;
      double rate = 1;
      EachGpu(r, [&](Gpu& gpu) {
        if (gpu.in_flight == 1 && gpu.last != i) {
          // Nobody else was there before the first.
          gpu.switched_at = gpu.last == kNobody ? now : now + kSwitch;
          gpu.last = i;
        }
        if (gpu.in_flight == 1 && gpu.switched_at > now) {
          rate = 0;
          end = std::min(end, gpu.switched_at);
        }
        if (gpu.in_flight > 1)
          rate = std::min(rate, kSliced / static_cast<double>(gpu.in_flight)), gpu.last = kSeveral;
      });
      rates_[i] = rate;
      if (rate > 0 && r.left_ns > 0) {
        const auto done = now + Time(std::max<int64_t>(1, static_cast<int64_t>(r.left_ns / rate + 0.999)));
        end = std::min(end, done);
      }
    }
    end = std::min(end, (now / kBucket + 1) * kBucket);
    for (size_t i = 0; i < runners.size(); ++i) Run(runners[i], rates_[i], end);
    now = end;
  }

  void Run(Runner& r, double rate, Time end) {
    if (r.waits && rate == 0) r.longest_wait = std::max(r.longest_wait, end - r.waits_since);
    if (r.left_ns == 0 || rate == 0) return;
    r.waits_since = end;
    double ran = rate * static_cast<double>((end - now).count());
    if (r.left_ns > 0) {
      ran = std::min(ran, r.left_ns);
      r.left_ns -= ran;
      if (r.left_ns < 1) {
        r.left_ns = 0;
        ++r.progress;
        r.done_at = end;
        r.launch_at = end + r.program.think.value_or(Time(0));
        if (r.step_left <= Time(0)) r.launch_at = end + r.program.pause, r.step_left = r.program.step;
      }
    }
    r.ran_ns += ran;
    r.ran_in.resize(static_cast<size_t>(now / kBucket) + 1);
    r.ran_in.back() += ran;
  }

  void EachGpu(const Runner& r, auto visit) {
    for (size_t gpu = 0; gpu < std::size(gpus_); ++gpu) {
      if (r.program.gpus[gpu]) visit(gpus_[gpu]);
    }
  }

  Gpu gpus_[4];
  std::vector<double> rates_;
  std::vector<Turns::Seen> seen_;
  Time ask_at_{};
};

}  // namespace gpumux::core::testing
