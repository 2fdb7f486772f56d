// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../support/sandbox.h"

namespace gpumux::test {

// A machine whose tenants are clients of MPS.
class MpsBox : public Sandbox {
 public:
  // `hold`: GPUMUX_HOLD_DESCRIPTORS; empty: unset.
  explicit MpsBox(const std::string& hold = "", const std::string& spec = "H200");

  // A tenant of mode mps: `options` of `run`, and its program.
  Process Tenant(const std::string& name, const std::vector<std::string>& options,
                 const std::vector<std::string>& program);
  // That tenants are started with from now on, instead of the build's.
  void UseProgram(const std::string& gpumux) { gpumux_ = gpumux; }
  // One that works already, until it is asked how it went.
  Process Neighbour(const std::string& name = "neighbour");
  // It noticed nothing.
  void ExpectUnharmed(Process& neighbour);
  // It got this error of the driver's.
  void ExpectHarmed(Process& neighbour, int error = 700);
  // A strict tenant starts, is a client, and computes right.
  void ExpectANewcomerIsServed();
  // A tenant that is "busy".
  Process Dying(const std::vector<std::string>& arguments);
  // Pid of the tenant's program, once it is known.
  pid_t ProgramOf(const std::string& name);
  void Kill(const std::string& name, int signal);
  // The texts of events of this kind so far.
  std::vector<std::string> Events(const std::string& kind);
  // Bytes that NVML shows in use.
  uint64_t UsedBytes();
  // Processes of MPS; 0: there is none.
  pid_t ServerPid() const { return PidOf("nvidia-cuda-mps-server"); }
  pid_t ControlPid() const;
  // Of the dead, all is free again.
  void ExpectFreed(uint64_t used_before);

 private:
  std::string stop_, gpumux_ = Program("gpumux");
};

void Touch(const std::string& path);
// How many descriptors of GPUs a process has; of all whose path has this in it.
size_t Devices(pid_t pid, const std::string& path = "/dev/nvidia");

}  // namespace gpumux::test
