// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/units.h"

namespace gpumux::workload {

enum class AllocApi {
  kPlain,
  kPitch,
  kAsync,
  kPool,
  kVmm,
  kManaged,
  kArray,
  kGraph,
  kIpc,
  kLocal,
  kHeap,
  kModule
};
enum class Framework { kNone, kTensorFlow, kJax, kPyTorch };
enum class Ending { kReturn, kExit, kSegv, kKill, kFault, kHang };

const char* Name(AllocApi api);
const char* Name(Framework framework);
const char* Name(Ending ending);

struct Options {
  std::string name = "workload";
  int device = 0;
  bool json = false;

  // Load
  bool load = false;  // any option of this group was given
  uint64_t kernel_us = 500;
  unsigned blocks = 33;
  unsigned threads = 256;
  uint64_t gap_us = 0;
  double seconds = 1;
  unsigned streams = 1;
  bool poll = false;           // asks whether its work has ended, and does not wait for it
  unsigned graph = 0;          // kernels a graph; 0: launched one by one
  std::optional<double> rate;  // requests a second; unset: closed loop
  unsigned kernels = 1;        // a request
  uint64_t seed = 1;
  std::optional<double> start_at;  // seconds since 1970

  // Memory
  std::optional<MemorySize> alloc;
  AllocApi alloc_api = AllocApi::kPlain;
  unsigned alloc_count = 1;
  Framework like = Framework::kNone;
  bool touch = false;
  bool verify = false;
  bool report_memory = false;

  double hold_seconds = 0;
  Ending end = Ending::kReturn;
  std::string ready_file;  // created when memory is taken and the load begins

  // The process that `--alloc-api ipc` starts to open what it allocated.
  std::string ipc_open;
};

// What the command line asks for: Options, or the text of --help, or an error
// (kInvalid) that names option, value and an example.
struct CommandLine {
  Options options;
  std::string help;  // not empty: print it and end with 0
};
Result<CommandLine> ParseCommandLine(int argc, const char* const* argv);

}  // namespace gpumux::workload
