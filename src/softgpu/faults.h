// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpumux::softgpu {

// Trouble on order: GPUMUX_SOFTGPU_FAULTS holds a script, or "@" and the path of
// a file with one (docs/reference/software-gpu-faults.md). Each exported name of
// both libraries asks it first (front.S).

// Which calls, counted from one, a rule means.
struct FaultWhen {
  uint64_t first = 1;
  uint64_t last = ~0ULL;
  uint64_t every = 1;  // of those from first on
  bool Means(uint64_t call) const;
};

struct FaultRule {
  enum class Kind { kFail, kSlow, kLack, kLost, kOff };
  Kind kind = Kind::kFail;
  std::string function;                           // of kLost empty; may end in '*', or be a word for several
  int code = 0;                                   // kFail
  unsigned gpu = 0;                               // kOff
  FaultWhen when;                                 // kFail, kSlow; kLost if it counts calls
  bool timed = false;                             // kLost: by the clock instead
  std::chrono::nanoseconds delay{0};              // kSlow
  std::chrono::nanoseconds after{0}, lasting{0};  // kLost, timed; lasting 0: for good
  bool Covers(std::string_view name) const;
};

struct FaultScript {
  std::vector<FaultRule> rules;
  std::string driver_version;  // empty: as it is
  int cuda_version = 0;
  bool mps_hangs = false;  // the control daemon of MPS answers nobody
};

inline constexpr size_t kMaxFaultScript = 64 << 10;
inline constexpr size_t kMaxFaultRules = 1000;

// For text of any origin. An error names the line.
Result<FaultScript> ParseFaults(std::string_view text);

// A script in force: its rules with the calls they have counted.
class FaultRun {
 public:
  FaultRun(FaultScript script, std::chrono::steady_clock::time_point begin);

  struct Verdict {
    int code = -1;  // what the call returns at once; -1: it goes on
    std::chrono::nanoseconds delay{0};
  };
  // Counts the call.
  Verdict OnCall(std::string_view name, std::chrono::steady_clock::time_point now);
  bool Lacks(std::string_view name) const;
  // The GPU, by its place in the machine, is off the bus.
  bool IsOff(unsigned gpu) const;
  const FaultScript& script() const { return script_; }

 private:
  FaultScript script_;
  std::chrono::steady_clock::time_point begin_;
  std::unique_ptr<std::atomic<uint64_t>[]> calls_;  // a rule
};

// The script of this process, read again when its file has changed; null while
// there is none. It is never destroyed: a call may still be in it.
FaultRun* CurrentFaults();

// Whether `symbol` was taken out of this copy of the library. A library that
// lacks names is a copy with these undefined and written, one a line, behind
// the words "gpumux software GPU lacks:" in the copy's own text.
bool TakenOut(std::string_view symbol);
inline constexpr size_t kLackingBytes = 4096;

}  // namespace gpumux::softgpu
