// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../support/sandbox.h"

namespace gpumux::test {

// A machine whose tenants take turns.
class TurnsBox : public Sandbox {
 public:
  // A tenant of mode turns that launches kernels of 5 ms and waits for each; `share` may be empty.
  Process Tenant(const std::string& name, const std::string& share, const std::vector<std::string>& load);
  // Of the last PartsOf: the usual time of a kernel, by tenant.
  std::vector<double> p50_us;
  // They begin together, and run for so long: what each got of the GPU's time.
  struct Load {
    std::string name, share;
    std::vector<std::string> arguments = {};
  };
  std::vector<double> PartsOf(const std::vector<Load>& loads, double run_for_s);

  // `turns` of the tenant; null: there is none.
  nlohmann::json Turns(const std::string& tenant);
  uint64_t Ended(const std::string& tenant);  // turns
  double GpuSeconds(const std::string& tenant);
  pid_t ProgramOf(const std::string& tenant);
  // Each of them has had several turns.
  void WaitUntilTheyTakeTurns(const std::vector<std::string>& tenants);
};

}  // namespace gpumux::test
