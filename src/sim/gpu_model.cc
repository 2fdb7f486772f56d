// SPDX-License-Identifier: Apache-2.0
#include "sim/gpu_model.h"

#include <algorithm>
#include <utility>

namespace gpumux::sim {

namespace {
// The least common multiple of 1 to 32, so that an SM divides evenly into any
// number of blocks that it can hold.
constexpr uint64_t kUnitsPerSm = 144'403'552'893'600;
constexpr GpuModel::Time kBusyHistory = std::chrono::seconds(1);
}  // namespace

uint64_t GpuModel::Units(uint32_t threads_per_block) const {
  const int threads = std::clamp<int>(static_cast<int>(threads_per_block), 1, spec_.threads_per_sm);
  const int blocks = std::clamp(spec_.threads_per_sm / threads, 1, spec_.blocks_per_sm);
  return kUnitsPerSm / static_cast<uint64_t>(blocks);
}

void GpuModel::Step(Time t) {
  if (t <= clock_) return;
  if (phase_ == Phase::kRunning) {
    processes_.at(*holder_).local += t - clock_;
    if (!busy_.empty() && busy_.back().end == clock_ && busy_.back().process == *holder_) {
      busy_.back().end = t;
    } else {
      busy_.push_back({clock_, t, *holder_});
    }
    while (busy_.front().end + kBusyHistory < t) busy_.pop_front();
  }
  clock_ = t;
}

std::optional<GpuModel::Time> GpuModel::NextEventTime() const {
  switch (phase_) {
    case Phase::kIdle:
      return std::nullopt;
    case Phase::kSwitching:
      return phase_end_;
    case Phase::kRunning:
      break;
  }
  const ProcessState& process = processes_.at(*holder_);
  const Time finish = clock_ + (process.cohorts.begin()->end - process.local);
  return NextReady(*holder_) ? std::min(finish, phase_end_) : finish;
}

void GpuModel::Advance(Time now) {
  while (auto next = NextEventTime()) {
    if (*next > now) break;
    Step(*next);
    HandleEvents();
  }
  Step(now);
}

void GpuModel::HandleEvents() {
  if (phase_ == Phase::kSwitching) {
    auto target = processes_.find(target_);
    if (target != processes_.end() && target->second.has_work()) {
      Hold(target_);
    } else {
      phase_ = Phase::kIdle;
      if (target != processes_.end()) holder_ = target_;
      Reschedule();
    }
    return;
  }
  FinishCohorts();
  if (phase_ == Phase::kRunning && phase_end_ <= clock_) {
    if (auto next = NextReady(*holder_)) BeginSwitch(*next);
  }
}

void GpuModel::FinishCohorts() {
  ProcessState& process = processes_.at(*holder_);
  while (!process.cohorts.empty() && process.cohorts.begin()->end <= process.local) {
    const Cohort cohort = *process.cohorts.begin();
    process.cohorts.erase(process.cohorts.begin());
    process.free_units += cohort.units;
    auto stream = process.streams.find(cohort.stream);
    Running& kernel = stream->second.front();
    kernel.in_flight -= cohort.blocks;
    if (kernel.undispatched > 0 || kernel.in_flight > 0) continue;
    completions_.push_back({*holder_, kernel.kernel.id, *kernel.start, clock_});
    stream->second.pop_front();
    if (stream->second.empty()) {
      process.streams.erase(stream);
    } else {
      StartHead(process, cohort.stream);
    }
  }
  Dispatch(process);
  if (!process.has_work()) {
    phase_ = Phase::kIdle;
    Reschedule();
  }
}

void GpuModel::StartHead(ProcessState& process, Stream stream) {
  Running& kernel = process.streams.at(stream).front();
  kernel.order = next_order_++;
  kernel.undispatched = kernel.kernel.blocks;
  process.heads.emplace(kernel.order, stream);
}

void GpuModel::Dispatch(ProcessState& process) {
  for (auto head = process.heads.begin(); head != process.heads.end();) {
    Running& kernel = process.streams.at(head->second).front();
    const uint64_t units = Units(kernel.kernel.threads_per_block);
    const uint64_t blocks = std::min(kernel.undispatched, process.free_units / units);
    if (blocks > 0) {
      kernel.undispatched -= blocks;
      kernel.in_flight += blocks;
      process.free_units -= blocks * units;
      if (!kernel.start) kernel.start = clock_;
      process.cohorts.insert(
          {process.local + kernel.kernel.duration, kernel.order, head->second, blocks, blocks * units});
    }
    head = kernel.undispatched == 0 ? process.heads.erase(head) : std::next(head);
  }
}

void GpuModel::Launch(Time now, Process id, Stream stream, const Kernel& kernel) {
  Advance(now);
  auto [it, added] = processes_.try_emplace(id);
  ProcessState& process = it->second;
  if (added) process.free_units = kUnitsPerSm * static_cast<uint64_t>(spec_.sms);
  auto& queue = process.streams[stream];
  queue.emplace_back().kernel = kernel;
  queue.back().kernel.blocks = std::max<uint64_t>(kernel.blocks, 1);
  if (queue.size() > 1) return;
  StartHead(process, stream);
  if (phase_ == Phase::kRunning && holder_ == id) {
    Dispatch(process);
  } else if (phase_ == Phase::kIdle) {
    Reschedule();
  } else if (phase_ == Phase::kRunning && phase_end_ <= clock_) {
    // The holder was alone and its slices followed one another: the newcomer
    // waits for the rest of the present one.
    phase_end_ += ((clock_ - phase_end_) / spec_.slice + 1) * spec_.slice;
  }
}

void GpuModel::RemoveProcess(Time now, Process id) {
  Advance(now);
  if (processes_.erase(id) == 0) return;
  if (holder_ == id) {
    holder_.reset();
    if (phase_ == Phase::kRunning) {
      phase_ = Phase::kIdle;
      Reschedule();
    }
  }
}

std::optional<GpuModel::Process> GpuModel::NextReady(Process after) const {
  auto it = processes_.upper_bound(after);
  for (size_t i = 0; i < processes_.size(); ++i, ++it) {
    if (it == processes_.end()) it = processes_.begin();
    if (it->first != after && it->second.has_work()) return it->first;
  }
  return std::nullopt;
}

void GpuModel::Reschedule() {
  if (holder_ && processes_.at(*holder_).has_work()) {
    Hold(*holder_);
    return;
  }
  const auto next = NextReady(holder_.value_or(0));
  if (!next) return;
  if (holder_) {
    BeginSwitch(*next);
  } else {
    Hold(*next);  // the GPU holds no other process's state
  }
}

void GpuModel::BeginSwitch(Process to) {
  phase_ = Phase::kSwitching;
  target_ = to;
  phase_end_ = clock_ + spec_.switch_cost;
  ++switches_;
}

void GpuModel::Hold(Process id) {
  phase_ = Phase::kRunning;
  holder_ = id;
  phase_end_ = clock_ + spec_.slice;
  Dispatch(processes_.at(id));
}

std::vector<GpuModel::Completion> GpuModel::TakeCompletions() { return std::exchange(completions_, {}); }

double GpuModel::BusyShare(Time now, Time window) { return BusyShareOf(now, window, std::nullopt); }

double GpuModel::BusyShare(Time now, Time window, Process process) {
  return BusyShareOf(now, window, process);
}

double GpuModel::BusyShareOf(Time now, Time window, std::optional<Process> process) {
  Advance(now);
  window = std::min(window, kBusyHistory);
  Time busy{};
  for (const Busy& span : busy_) {
    if (process && span.process != *process) continue;
    const Time from = std::max(span.begin, clock_ - window);
    if (span.end > from) busy += span.end - from;
  }
  return static_cast<double>(busy.count()) / static_cast<double>(window.count());
}

}  // namespace gpumux::sim
