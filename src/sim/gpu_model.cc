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

GpuModel::ProcessState& GpuModel::StateOf(Process process) {
  if (auto it = processes_.find(process); it != processes_.end()) return it->second;
  SetSharing(process, {});
  return processes_.at(process);
}

void GpuModel::SetSharing(Process process, const Sharing& sharing) {
  const uint64_t all = kUnitsPerSm * static_cast<uint64_t>(spec_.sms);
  ProcessState state;
  state.group = sharing.group != 0 ? Group{true, sharing.group} : Group{false, process};
  state.below_normal = sharing.below_normal;
  state.most_units = sharing.sms > 0 ? std::min(all, kUnitsPerSm * static_cast<uint64_t>(sharing.sms)) : all;
  auto [group, added] = groups_.try_emplace(state.group);
  if (added) group->second.free_units = all;
  group->second.members.insert(process);
  processes_.insert_or_assign(process, std::move(state));
  SetMostSms(process, sharing.sms);
}

void GpuModel::SetMostSms(Process process, int sms) {
  StateOf(process).most_units =
      kUnitsPerSm * static_cast<uint64_t>(sms > 0 ? std::min(sms, spec_.sms) : spec_.sms);
}

bool GpuModel::HasWork(Process process) const {
  auto it = processes_.find(process);
  return it != processes_.end() && it->second.kernels > 0;
}

void GpuModel::Extend(Spans& spans, Time until) {
  if (!spans.empty() && spans.back().end == clock_) {
    spans.back().end = until;
  } else {
    spans.push_back({clock_, until});
  }
  while (spans.front().end + kBusyHistory < until) spans.pop_front();
}

void GpuModel::Step(Time t) {
  if (t <= clock_) return;
  if (phase_ == Phase::kRunning) {
    GroupState& group = groups_.at(*holder_);
    group.local += t - clock_;
    Extend(busy_, t);
    for (Process member : group.members) {
      ProcessState& process = processes_.at(member);
      if (process.units > 0) Extend(process.busy, t);
    }
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
  const GroupState& group = groups_.at(*holder_);
  const Time finish = clock_ + (group.cohorts.begin()->end - group.local);
  return NextReady(holder_) ? std::min(finish, phase_end_) : finish;
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
    auto target = groups_.find(target_);
    if (target != groups_.end() && target->second.has_work()) {
      Hold(target_);
    } else {
      phase_ = Phase::kIdle;
      if (target != groups_.end()) holder_ = target_;
      Reschedule();
    }
    return;
  }
  FinishCohorts();
  if (phase_ == Phase::kRunning && phase_end_ <= clock_) {
    if (auto next = NextReady(holder_)) BeginSwitch(*next);
  }
}

void GpuModel::FinishCohorts() {
  GroupState& group = groups_.at(*holder_);
  std::vector<StreamOf> started;
  while (!group.cohorts.empty() && group.cohorts.begin()->end <= group.local) {
    const Cohort cohort = *group.cohorts.begin();
    group.cohorts.erase(group.cohorts.begin());
    group.free_units += cohort.units;
    ProcessState& process = processes_.at(cohort.stream.first);
    process.units -= cohort.units;
    auto stream = group.streams.find(cohort.stream);
    Running& kernel = stream->second.front();
    kernel.in_flight -= cohort.blocks;
    if (kernel.undispatched > 0 || kernel.in_flight > 0) continue;
    completions_.push_back({cohort.stream.first, kernel.kernel.id, *kernel.start, clock_});
    --process.kernels;
    stream->second.pop_front();
    if (stream->second.empty()) {
      group.streams.erase(stream);
    } else {
      started.push_back(cohort.stream);
    }
  }
  Dispatch(group);
  for (const StreamOf& stream : started) {
    StartHead(group, stream);
    Dispatch(group);
  }
  if (!group.has_work()) {
    phase_ = Phase::kIdle;
    Reschedule();
  }
}

void GpuModel::StartHead(GroupState& group, StreamOf stream) {
  Running& kernel = group.streams.at(stream).front();
  kernel.order = next_order_++;
  kernel.undispatched = kernel.kernel.blocks;
  group.heads.emplace(std::pair(processes_.at(stream.first).below_normal, kernel.order), stream);
}

void GpuModel::Dispatch(GroupState& group) {
  for (auto head = group.heads.begin(); head != group.heads.end();) {
    Running& kernel = group.streams.at(head->second).front();
    ProcessState& process = processes_.at(head->second.first);
    const uint64_t units = Units(kernel.kernel.threads_per_block);
    const uint64_t room = process.units < process.most_units
                              ? std::min(group.free_units, process.most_units - process.units)
                              : 0;
    const uint64_t blocks = std::min(kernel.undispatched, room / units);
    if (blocks > 0) {
      kernel.undispatched -= blocks;
      kernel.in_flight += blocks;
      group.free_units -= blocks * units;
      process.units += blocks * units;
      if (!kernel.start) kernel.start = clock_;
      group.cohorts.insert(
          {group.local + kernel.kernel.duration, kernel.order, head->second, blocks, blocks * units});
    }
    head = kernel.undispatched == 0 ? group.heads.erase(head) : std::next(head);
  }
}

void GpuModel::Launch(Time now, Process id, Stream stream, const Kernel& kernel) {
  Advance(now);
  ProcessState& process = StateOf(id);
  GroupState& group = groups_.at(process.group);
  auto& queue = group.streams[{id, stream}];
  queue.emplace_back().kernel = kernel;
  queue.back().kernel.blocks = std::max<uint64_t>(kernel.blocks, 1);
  ++process.kernels;
  if (queue.size() > 1) return;
  StartHead(group, {id, stream});
  if (phase_ == Phase::kRunning && holder_ == process.group) {
    Dispatch(group);
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
  auto it = processes_.find(id);
  if (it == processes_.end()) return;
  const Group key = it->second.group;
  GroupState& group = groups_.at(key);
  std::erase_if(group.streams, [&](const auto& entry) { return entry.first.first == id; });
  std::erase_if(group.heads, [&](const auto& entry) { return entry.second.first == id; });
  std::erase_if(group.cohorts, [&](const Cohort& cohort) { return cohort.stream.first == id; });
  group.free_units += it->second.units;
  group.members.erase(id);
  processes_.erase(it);
  if (group.members.empty()) {
    groups_.erase(key);
    if (holder_ != key) return;
    holder_.reset();
  } else {
    if (holder_ != key) return;
    if (phase_ == Phase::kRunning) Dispatch(group);
    if (group.has_work()) return;
  }
  if (phase_ == Phase::kRunning) {
    phase_ = Phase::kIdle;
    Reschedule();
  }
}

std::optional<GpuModel::Group> GpuModel::NextReady(std::optional<Group> after) const {
  auto it = after ? groups_.upper_bound(*after) : groups_.begin();
  for (size_t i = 0; i < groups_.size(); ++i, ++it) {
    if (it == groups_.end()) it = groups_.begin();
    if (it->first != after && it->second.has_work()) return it->first;
  }
  return std::nullopt;
}

void GpuModel::Reschedule() {
  if (holder_ && groups_.at(*holder_).has_work()) {
    Hold(*holder_);
    return;
  }
  const auto next = NextReady(holder_);
  if (!next) return;
  if (holder_) {
    BeginSwitch(*next);
  } else {
    Hold(*next);  // the GPU holds no other process's state
  }
}

void GpuModel::BeginSwitch(Group to) {
  phase_ = Phase::kSwitching;
  target_ = to;
  phase_end_ = clock_ + spec_.switch_cost;
  ++switches_;
}

void GpuModel::Hold(Group group) {
  phase_ = Phase::kRunning;
  holder_ = group;
  phase_end_ = clock_ + spec_.slice;
  Dispatch(groups_.at(group));
}

std::vector<GpuModel::Completion> GpuModel::TakeCompletions() { return std::exchange(completions_, {}); }

double GpuModel::BusyShare(Time now, Time window) {
  Advance(now);
  return ShareOf(busy_, window);
}

double GpuModel::BusyShare(Time now, Time window, Process process) {
  Advance(now);
  auto it = processes_.find(process);
  return it != processes_.end() ? ShareOf(it->second.busy, window) : 0;
}

double GpuModel::ShareOf(const Spans& spans, Time window) const {
  window = std::min(window, kBusyHistory);
  Time busy{};
  for (const Span& span : spans) {
    const Time from = std::max(span.begin, clock_ - window);
    if (span.end > from) busy += span.end - from;
  }
  return static_cast<double>(busy.count()) / static_cast<double>(window.count());
}

}  // namespace gpumux::sim
