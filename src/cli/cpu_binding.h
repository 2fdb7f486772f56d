// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/cpu_list.h"

namespace gpumux::cli {

// What of the machine is near a tenant's GPUs, as the daemon said.
struct NearGpu {
  CpuList cpus;
  CpuList memory_nodes;
  std::string unknown;  // why `cpus` is empty
};

// This process on the processors near its GPUs for as long as the object lives:
// a program that is forked meanwhile stays there. Processors that this process
// may not use are left out. With one memory node it is preferred, not required: a
// program that has filled it goes on elsewhere instead of being killed.
class CpuBinding {
 public:
  explicit CpuBinding(const NearGpu& near);
  ~CpuBinding();
  CpuBinding(const CpuBinding&) = delete;
  CpuBinding& operator=(const CpuBinding&) = delete;

  // Empty: it is bound.
  const std::string& not_bound() const { return not_bound_; }

 private:
  CpuList before_;  // empty: nothing to restore
  bool prefers_node_ = false;
  std::string not_bound_;
};

}  // namespace gpumux::cli
