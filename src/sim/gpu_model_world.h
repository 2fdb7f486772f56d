// SPDX-License-Identifier: Apache-2.0
//
// For tests: programs around a model, in virtual time.
#pragma once

#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

#include "sim/gpu_model.h"

namespace gpumux::sim {

// From a completion to the next launch of a program that does nothing else:
// 1957 kernels of 500 us a second.
inline constexpr GpuModel::Time kHost = std::chrono::microseconds(11);

// Programs around a model: calls back with each completion and at chosen times.
class World {
 public:
  using Time = GpuModel::Time;
  GpuModel model{kH200};
  std::function<void(const GpuModel::Completion&)> on_completion = [](const auto&) {};

  void At(Time t, std::function<void()> action) { actions_.push({t, order_++, std::move(action)}); }
  Time now() const { return now_; }

  void RunUntil(Time end) {
    while (true) {
      const auto event = model.NextEventTime();
      Time next = end;
      if (event) next = std::min(next, *event);
      if (!actions_.empty()) next = std::min(next, actions_.top().time);
      now_ = std::max(now_, next);
      model.Advance(now_);
      bool acted = false;
      for (const auto& completion : model.TakeCompletions()) {
        on_completion(completion);
        acted = true;
      }
      while (!actions_.empty() && actions_.top().time <= now_) {
        auto action = actions_.top().run;
        actions_.pop();
        action();
        acted = true;
      }
      if (!acted && now_ >= end) return;
    }
  }

 private:
  struct Action {
    Time time;
    uint64_t order;
    std::function<void()> run;
    bool operator<(const Action& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  std::priority_queue<Action> actions_;
  uint64_t order_ = 0;
  Time now_{};
};

inline GpuModel::Kernel Spin(GpuModel::Time duration, uint64_t blocks, uint64_t id = 0) {
  return {.id = id, .duration = duration, .blocks = blocks, .threads_per_block = 1024};
}

// Kernels a second of each of `clients` that launch one kernel of 500 us, wait
// for it, and do `think` of work on the host. `sharing`: of each; alone without it.
inline std::vector<double> ClosedLoop(int clients, uint64_t blocks, GpuModel::Time think,
                                      const std::vector<GpuModel::Sharing>& sharing = {}) {
  World world;
  for (size_t i = 0; i < sharing.size(); ++i) world.model.SetSharing(i + 1, sharing[i]);
  std::vector<uint64_t> done(static_cast<size_t>(clients) + 1);
  const auto launch = [&](uint64_t client) {
    world.model.Launch(world.now(), client, 1, Spin(std::chrono::microseconds(500), blocks));
  };
  world.on_completion = [&](const GpuModel::Completion& c) {
    ++done[c.process];
    world.At(c.end + kHost + think, [&, client = c.process] { launch(client); });
  };
  for (int i = 1; i <= clients; ++i) {
    world.At(std::chrono::microseconds(37 * i), [&, i] { launch(static_cast<uint64_t>(i)); });
  }
  world.RunUntil(std::chrono::seconds(10));
  std::vector<double> rates;
  for (int i = 1; i <= clients; ++i) rates.push_back(static_cast<double>(done[static_cast<size_t>(i)]) / 10);
  return rates;
}

}  // namespace gpumux::sim
