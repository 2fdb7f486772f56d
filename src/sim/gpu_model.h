// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "sim/gpu_spec.h"

namespace gpumux::sim {

// A discrete-event model of the compute side of one GPU that several processes
// share. Pure: time is passed in (any clock that does not run backwards), so
// that the software GPU runs it on the real clock and the advisor in virtual
// time. Not thread-safe.
//
//   * Kernels of one stream run one after another; kernels of one process's
//     streams run together while SMs last. A kernel's blocks are handed out in
//     the order in which kernels reached the head of their stream; each block
//     occupies its part of an SM for the kernel's duration, so that a grid
//     larger than the GPU takes several waves.
//   * Only one process has the GPU at a time. A process with work keeps it for
//     a slice when another waits, else for as long as it likes; it loses it at
//     once when it has nothing to run. Each change of process costs switch_cost.
//     Blocks that are interrupted go on where they were.
//   * Processes of one group (the clients of one MPS server) count as one in
//     that: their kernels run side by side while SMs last, and each may be held
//     to a number of SMs. Priority decides alone which of the blocks that wait
//     already get the SMs that become free; a kernel that is launched, or whose
//     stream reaches it, at that instant comes after them. So a low priority
//     helps no neighbour with a chain of short kernels, as measured.
class GpuModel {
 public:
  using Time = std::chrono::nanoseconds;
  using Process = uint64_t;  // > 0
  using Stream = uint64_t;

  struct Kernel {
    uint64_t id = 0;  // the caller's
    Time duration{};  // of one block
    uint64_t blocks = 1;
    uint32_t threads_per_block = 1;
  };
  struct Completion {
    Process process = 0;
    uint64_t kernel = 0;
    Time start{};  // its first block
    Time end{};
  };

  struct Sharing {
    uint64_t group = 0;  // 0: of its own
    int sms = 0;         // at most; 0: all
    bool below_normal = false;
  };

  explicit GpuModel(const GpuSpec& spec) : spec_(spec) {}

  // Before the process's first launch.
  void SetSharing(Process process, const Sharing& sharing);
  // Of what was set the SMs alone: from now on.
  void SetMostSms(Process process, int sms);

  // Everything that happens up to and including `now`. Every call below does
  // this first; `now` must not be before an earlier one (then it counts as that).
  void Advance(Time now);
  void Launch(Time now, Process process, Stream stream, const Kernel& kernel);
  // The process has ended: its kernels vanish without completions.
  void RemoveProcess(Time now, Process process);

  // Whether it has kernels that have not ended.
  bool HasWork(Process process) const;

  // When the model has something to do by itself; nothing while it is idle.
  std::optional<Time> NextEventTime() const;
  // Kernels that have ended since the last call, in the order of their ends.
  std::vector<Completion> TakeCompletions();

  // How much of the window that ends at `now` a kernel was running, 0 to 1. Of
  // the last second at most.
  double BusyShare(Time now, Time window);
  // The same of one process's kernels.
  double BusyShare(Time now, Time window, Process process);

  uint64_t switches() const { return switches_; }

 private:
  // A lone process is a group as well.
  using Group = std::pair<bool, uint64_t>;  // shared; the group's number or the process's
  using StreamOf = std::pair<Process, Stream>;
  struct Running {
    Kernel kernel;
    uint64_t undispatched = 0;
    uint64_t in_flight = 0;  // blocks
    uint64_t order = 0;
    std::optional<Time> start{};
  };
  struct Cohort {  // blocks that were handed out together
    Time end;      // in the group's own time
    uint64_t order;
    StreamOf stream;
    uint64_t blocks;
    uint64_t units;
    bool operator<(const Cohort& other) const {
      return end != other.end ? end < other.end : order < other.order;
    }
  };
  struct Span {
    Time begin, end;
  };
  using Spans = std::deque<Span>;  // of the last second
  struct ProcessState {
    Group group;
    bool below_normal = false;
    uint64_t most_units = 0;
    uint64_t units = 0;  // occupied
    uint64_t kernels = 0;
    Spans busy;
  };
  // A group's own time runs only while it has the GPU.
  struct GroupState {
    std::set<Process> members;
    std::map<StreamOf, std::deque<Running>> streams;      // without empty ones
    std::map<std::pair<bool, uint64_t>, StreamOf> heads;  // by priority and order; with undispatched blocks
    std::multiset<Cohort> cohorts;
    uint64_t free_units = 0;
    Time local{};
    bool has_work() const { return !streams.empty(); }
  };
  enum class Phase { kIdle, kSwitching, kRunning };

  uint64_t Units(uint32_t threads_per_block) const;
  ProcessState& StateOf(Process process);
  void Step(Time t);    // moves the clock to t, before anything else happens then
  void HandleEvents();  // everything due at the clock
  void Dispatch(GroupState& group);
  void StartHead(GroupState& group, StreamOf stream);
  void FinishCohorts();
  void Reschedule();
  void BeginSwitch(Group to);
  void Hold(Group group);
  void Extend(Spans& spans, Time until);
  double ShareOf(const Spans& spans, Time window) const;
  std::optional<Group> NextReady(std::optional<Group> after) const;

  GpuSpec spec_;
  std::map<Process, ProcessState> processes_;
  std::map<Group, GroupState> groups_;
  Time clock_{};
  Phase phase_ = Phase::kIdle;
  std::optional<Group> holder_;  // has the GPU, or had it last
  Group target_{};               // while switching
  Time phase_end_{};             // of the switch or of the slice
  uint64_t next_order_ = 0;
  uint64_t switches_ = 0;
  std::vector<Completion> completions_;
  Spans busy_;
};

}  // namespace gpumux::sim
