// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../support/sandbox.h"

namespace gpumux::test {

// A program that works until it is stopped.
inline const std::vector<std::string> kBusy{"--kernel-us", "1000", "--seconds", "60"};

inline constexpr uint64_t kGiB = uint64_t{1} << 30;

// A machine with one H200 on which MIG is on.
class MigScene : public ::testing::Test, public Sandbox {
 protected:
  void SetUp() override {
    if (getuid() != 0) GTEST_SKIP() << "needs root, as whoever makes an instance";
    const std::string spec = dir() + "/gpus.json";
    std::ofstream(spec) << R"({"gpus": [{"model": "H200", "mig": true}]})";
    SetEnv("GPUMUX_SOFTGPU", spec);
  }
  // 1g.18gb at 0 and 1, 3g.71gb at 4.
  void MakeInstances() { Tool({"create", "19:0", "19:1", "9:4"}); }
  void Tool(std::vector<std::string> args) {
    args.insert(args.begin(), TestProgram("mig_tool"));
    const Outcome outcome = Sandbox::Run(args);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  Process Tenant(const std::string& name, std::vector<std::string> options,
                 std::vector<std::string> program) {
    std::vector<std::string> args{"run", "--name", name, "--summary"};
    args.insert(args.end(), options.begin(), options.end());
    args.insert(args.end(), {"--", Program("gpumux-workload"), "--json"});
    args.insert(args.end(), program.begin(), program.end());
    return Gpumux(args);
  }
  nlohmann::json TenantOf(const std::string& name) {
    const nlohmann::json status = StatusData();
    for (const nlohmann::json& tenant : status["tenants"]) {
      if (tenant["name"] == name) return tenant;
    }
    return nullptr;
  }
  nlohmann::json GpuOf(const std::string& label) {
    const nlohmann::json status = StatusData();
    for (const nlohmann::json& gpu : status["gpus"]) {
      if (gpu["label"] == label) return gpu;
    }
    return nullptr;
  }
  bool AtWork(const std::string& name) {
    const nlohmann::json tenant = TenantOf(name);
    return tenant.is_object() && tenant["launches"] > 0;
  }
  // A tenant that is at work already.
  Process Worker(const std::string& name, const std::vector<std::string>& options) {
    Process process = Tenant(name, options, kBusy);
    WaitUntil(name + " works", [&] { return AtWork(name); });
    return process;
  }
  void StopAndWait(Process& process, const std::string& name) {
    (void)RunGpumux({"stop", name});
    process.Wait();
  }
};

}  // namespace gpumux::test
