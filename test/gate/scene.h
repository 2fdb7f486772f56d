// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../support/sandbox.h"
#include "state.h"

namespace gpumux::test {

// A tenant whose program is gate_probe, and what they have both mapped.
struct GateTenant {
  std::string name, path;
  ProgramState* state;
  Process run;

  void Go() const { state->command = kGo; }
  void Stop() const { state->command = kStop; }
  bool IsReady() const { return state->ready >= kReady; }
};

// A machine on which a latency-critical tenant holds best-effort ones back.
class GateBox : public Sandbox {
 public:
  // What the gate is forced open for: "600s" and 0: for nothing.
  GateBox(const std::string& max_closed, int min_open_percent);
  // Whose gate opens by its owners alone: nothing here is a matter of luck.
  GateBox() : GateBox("600s", 0) {}

  // `best-effort` or `latency`; ready, and told to go unless `waits`.
  GateTenant Start(const std::string& priority, const std::string& role, bool waits = false,
                   const std::string& argument = "");
  GateTenant BestEffort(const std::string& role = "works", bool waits = false) {
    return Start("best-effort", role, waits);
  }
  GateTenant Latency(const std::string& role = "busy", bool waits = false) {
    return Start("latency", role, waits);
  }
  pid_t ProgramOf(const GateTenant& tenant);
  void Kill(const GateTenant& tenant, int signal) {
    if (const pid_t pid = ProgramOf(tenant)) kill(pid, signal);
  }
  // `gate` of the tenant in `gpumux explain` and status.
  nlohmann::json Gate(const GateTenant& tenant);

 private:
  int number_ = 0;
};

// It makes no progress, and did not for 300 ms.
bool IsHeld(const GateTenant& tenant);
bool GoesOn(const GateTenant& tenant, uint64_t kernels = 50);
// It ends by itself, with 0, after it was told to.
void ExpectEnds(GateTenant& tenant);

}  // namespace gpumux::test
