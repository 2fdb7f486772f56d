// SPDX-License-Identifier: Apache-2.0
#include "scene.h"

#include <gtest/gtest.h>

#include <fstream>

namespace gpumux::test {

namespace {
using Clock = std::chrono::steady_clock;
}

GateBox::GateBox(const std::string& max_closed, int min_open_percent) {
  std::ofstream(ConfigFile()) << "gate.max_closed = \"" << max_closed
                              << "\"\ngate.min_open_percent = " << min_open_percent << "\n";
}

GateTenant GateBox::Start(const std::string& priority, const std::string& role, bool waits,
                          const std::string& argument) {
  const std::string name = role + "-" + std::to_string(++number_), path = dir() + "/" + name;
  std::vector<std::string> argv = {
      Program("gpumux"),         "run", "--priority", priority, "--name", name, "--mem", "4GiB", "--",
      TestProgram("gate_probe"), path,  role};
  if (!argument.empty()) argv.push_back(argument);
  GateTenant tenant{name, path, MapState(path), Sandbox::Start(argv)};
  EXPECT_TRUE(WaitUntil(name + " is ready", [&] { return tenant.IsReady() || tenant.run.Ended(); }));
  EXPECT_TRUE(tenant.IsReady()) << tenant.run.Out() << tenant.run.Err();
  if (!waits) tenant.Go();
  return tenant;
}

pid_t GateBox::ProgramOf(const GateTenant& tenant) {
  pid_t pid = 0;
  EXPECT_TRUE(WaitUntil("the program of " + tenant.name + " is known", [&] {
    const auto status = StatusData();
    for (const auto& each : status["tenants"]) {
      if (each["name"] == tenant.name && each["pid"].is_number()) pid = each["pid"];
    }
    return pid != 0;
  }));
  return pid;
}

nlohmann::json GateBox::Gate(const GateTenant& tenant) {
  const auto status = StatusData();
  for (const auto& each : status["tenants"]) {
    if (each["name"] == tenant.name) return each["gate"];
  }
  return nullptr;
}

bool IsHeld(const GateTenant& tenant) {
  uint64_t done = tenant.state->done;
  auto since = Clock::now();
  return WaitUntil(tenant.name + " is held back", [&] {
    if (const uint64_t now = tenant.state->done; now != done) {
      done = now;
      since = Clock::now();
    }
    return Clock::now() - since > std::chrono::milliseconds(300);
  });
}

bool GoesOn(const GateTenant& tenant, uint64_t kernels) {
  const uint64_t enough = tenant.state->done + kernels;
  return WaitUntil(tenant.name + " goes on", [&] { return tenant.state->done >= enough; });
}

void ExpectEnds(GateTenant& tenant) {
  tenant.Stop();
  const Outcome o = tenant.run.Wait();
  EXPECT_EQ(o.exit_code, 0) << tenant.name << ": " << o.out << o.err;
}

}  // namespace gpumux::test
