// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "workload/driver.h"
#include "workload/options.h"

namespace gpumux::workload {

// What came of taking memory.
struct Outcome {
  cuda::CUresult result = cuda::CUDA_SUCCESS;
  const char* call = "";  // the one that gave `result`
  uint64_t bytes = 0;     // taken in all
  unsigned attempts = 0;
  unsigned granted = 0;  // attempts that succeeded
};

// True for the answers by which a driver says "no memory"; anything else that
// is not success is a failure of another kind.
bool IsRefusal(cuda::CUresult result);

// All that was taken, by whatever family. Needs the context to be current.
class Holdings {
 public:
  struct Range {
    cuda::CUdeviceptr ptr;
    uint64_t bytes;
  };

  Holdings(const Driver& driver, cuda::CUdevice device) : driver_(driver), device_(device) {}

  // Takes `bytes` by one family and adds to `outcome`. False when it was not granted.
  bool Take(AllocApi api, uint64_t bytes, Outcome& outcome);

  // What can be written by address (not arrays, local memory, heaps, graphs).
  const std::vector<Range>& ranges() const { return ranges_; }

  // Gives everything back, last first. The first failure, if any.
  Outcome FreeAll();

 private:
  struct Step {
    const char* call;
    cuda::CUresult result;
  };
  Step TakePitch(uint64_t bytes);
  Step TakePool(uint64_t bytes);
  Step TakeVmm(uint64_t bytes);
  Step TakeArray(uint64_t bytes);
  Step TakeGraph(uint64_t bytes);
  Step TakeIpc(uint64_t bytes);
  Step TakeLocal(uint64_t bytes);
  Step TakeHeap(uint64_t bytes);
  Step TakeModule(uint64_t bytes);
  Step RunOnce(cuda::CUmodule module, const char* kernel);
  void OnFree(const char* call, std::function<cuda::CUresult()> free);
  void Hold(cuda::CUdeviceptr ptr, uint64_t bytes) { ranges_.push_back({ptr, bytes}); }

  const Driver& driver_;
  cuda::CUdevice device_;
  std::vector<Range> ranges_;
  struct Undo {
    const char* call;
    std::function<cuda::CUresult()> free;
  };
  std::vector<Undo> undo_;
};

// The process that `--alloc-api ipc` starts: opens the handle (hexadecimal),
// prints the driver's answer as a number, and ends when its stdin does.
int OpenIpcHandle(const std::string& hex);

}  // namespace gpumux::workload
