// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../support/sandbox.h"

namespace gpumux::test {

// A machine whose tenants are clients of one control daemon of MPS, which is
// started by hand. Descriptors are held for all of them.
class MpsBox : public Sandbox {
 public:
  // `hold`: GPUMUX_HOLD_DESCRIPTORS; empty: unset.
  explicit MpsBox(const std::string& hold = "", const std::string& spec = "H200");

  // One that works already, and until End() says how it went.
  Process Neighbour();
  // It noticed nothing.
  void ExpectUnharmed(Process& neighbour);
  // It got error 700.
  void ExpectHarmed(Process& neighbour);
  // A tenant that is "busy".
  Process Dying(const std::vector<std::string>& arguments);
  // The program of the tenant `name`.
  void Kill(const std::string& name, int signal);
  // The texts of events of this kind so far, those that are about tenants of `name` alone.
  std::vector<std::string> Events(const std::string& kind);
  // Bytes that NVML shows in use.
  uint64_t UsedBytes();
  // Of the dead, all is free again.
  void ExpectFreed(uint64_t used_before);

 private:
  std::string stop_;
};

void Touch(const std::string& path);

}  // namespace gpumux::test
