// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "gpu/nvml.h"
#include "gpu/source.h"

namespace gpumux::cli::doctor {

// The GPUs as they can be reached, or why not.
struct GpuView {
  Result<gpu::GpuSource> source = Fail(Code::kUnavailable, "not looked for");
  std::unique_ptr<gpu::Nvml> nvml;  // null: `error`
  Error error;
  bool simulated() const { return source && source->simulated; }
};

// The CUDA driver's library that a program of this user would get.
struct CudaView {
  std::string file;      // links resolved: ".../libcuda.so.580.159.04"
  int cuda_version = 0;  // 13000: CUDA 13.0; 0: it does not say
};

// One place where a daemon may be.
struct DaemonView {
  enum class State {
    kAbsent,      // no socket
    kStale,       // a socket that nobody listens on
    kNotAllowed,  // we may not connect
    kSilent,      // somebody listens and does not answer
    kAnswers
  };
  RuntimePaths paths;
  State state = State::kAbsent;
  Error error;          // of kNotAllowed and kSilent
  std::string version;  // bodies of /v1/version and /v1/status, kAnswers alone
  std::string status;
};

struct Limit {
  uint64_t soft = 0, hard = 0;  // UINT64_MAX: none
};

// Of a file system.
struct Space {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;  // for this user
  uint64_t free_files = 0;
  bool read_only = false;
};

// Everything that checks look at. A test plants faults by giving some of it
// itself; RealEnvironment is the machine.
struct Environment {
  std::string root;  // stands in front of /proc, /sys, /dev, /etc and /run; "" is the machine itself
  std::map<std::string, std::string> variables;
  uid_t uid = 0;
  std::vector<gid_t> groups;
  std::string user;
  std::chrono::system_clock::time_point now;
  std::string version;        // of this command
  std::string guard_library;  // where it has to be
  std::string c_library;      // that of this command
  Result<std::string> runtime_dir = Fail(Code::kInternal, "not looked for");
  std::optional<pid_t> pid;  // the process in question
  // What is expensive to look at, each looked at once, when a check first asks.
  std::function<const GpuView&()> gpus;
  std::function<const Result<CudaView>&()> cuda;
  std::function<const std::vector<DaemonView>&()> daemons;
  std::function<Limit(int resource)> limit;
  std::function<Result<Space>(const std::string& path)> space;

  // A variable that is set, to "" as well.
  std::optional<std::string> Variable(const std::string& name) const;
  // A file of the machine by its usual name.
  std::string At(const std::string& path) const { return root + path; }
  std::string Proc() const { return root + "/proc"; }
  // Whether `user` may read and write (and, of a folder, enter) the file by its mode.
  bool MayUse(const std::string& path) const;
};

Environment RealEnvironment();

// Asks whoever listens at these places; `patience` bounds each answer.
std::vector<DaemonView> LookAtDaemons(const std::vector<RuntimePaths>& places,
                                      std::chrono::milliseconds patience);

}  // namespace gpumux::cli::doctor
