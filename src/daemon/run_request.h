// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/change.h"
#include "core/promise.h"

namespace gpumux::daemon {

// A RunRequest as `run` sent it (JSON, see gpumux/abi/session.h), checked.
struct RunRequest {
  core::Request ask;    // `ask.id` is not set
  std::string command;  // argv joined for people, at most kMaxCommandBytes
  std::string cwd;
  bool strict = false;
  bool wait = true;
  bool near_gpu = false;  // its program is bound to the processors near its GPUs, by `run`
  std::optional<std::chrono::nanoseconds> wait_limit;
  std::map<std::string, std::string> labels;
  std::string after;  // the tenant that it was, when its program is started again; empty: it is new
  std::string text;   // as it came

  static constexpr size_t kMaxCommandBytes = 4096;
};

// kInvalid names the member that is wrong; kUnsupported: a mode that is not
// built. Any bytes may come.
Result<RunRequest> ParseRunRequest(std::string_view json);

// The body of a stop request: {"signal":15,"grace_seconds":10}, both optional.
struct StopRequest {
  int signal = 15;
  std::chrono::nanoseconds grace = core::kUsualGrace;
};
Result<StopRequest> ParseStopRequest(std::string_view json);
// The body of a change: {"mem":SIZE,"mem_limit":SIZE,"time_seconds":N,"as_it_frees":true},
// all optional, `mem` or `time_seconds` must be there.
Result<core::Change> ParseChange(std::string_view json);
// {"mode": "turns"}
Result<core::Mode> ParseModeRequest(std::string_view json);
// The request's text as it would be with the memory and the time of `request.ask`.
std::string ChangedText(const RunRequest& request);
// {"pid":N,"mem":{...},"gpus":{...},"name":...}: the last two as of a RunRequest, and optional.
struct ReserveRequest {
  int pid = 0;
  RunRequest run;
};
// `command`: the process's, which names it if nobody else does.
Result<ReserveRequest> ParseReserveRequest(std::string_view json, const std::vector<std::string>& command);
Result<int> ParseReservePid(std::string_view json);

// {"pid":N} and {"exit_code":N|null,"signal":N|null}.
Result<int> ParseRunStarted(std::string_view json);
// {"tenant":ID,"pid":N}.
struct RunResume {
  std::string tenant;
  std::optional<int> pid;
};
Result<RunResume> ParseRunResume(std::string_view json);
struct RunEnded {
  std::optional<int> exit_code;
  std::optional<int> signal;
};
Result<RunEnded> ParseRunEnded(std::string_view json);

}  // namespace gpumux::daemon
