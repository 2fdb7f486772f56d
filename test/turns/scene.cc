// SPDX-License-Identifier: Apache-2.0
#include "scene.h"

#include <gtest/gtest.h>

#include <chrono>

namespace gpumux::test {

namespace {

using Json = nlohmann::json;

constexpr double kKernelSeconds = 0.005;

Json Find(Sandbox& box, const std::string& name) {
  const Json status = box.StatusData();
  for (const Json& tenant : status["tenants"]) {
    if (tenant["name"] == name) return tenant;
  }
  return nullptr;
}

}  // namespace

Process TurnsBox::Tenant(const std::string& name, const std::string& share,
                         const std::vector<std::string>& load) {
  std::vector<std::string> args{"run", "--mode", "turns", "--name", name, "--mem", "2GiB"};
  if (!share.empty()) args.insert(args.end(), {"--share", share});
  args.insert(args.end(), {"--", Program("gpumux-workload"), "--kernel-us", "5000", "--blocks", "132",
                           "--threads", "1024", "--json"});
  args.insert(args.end(), load.begin(), load.end());
  return Gpumux(std::move(args));
}

std::vector<double> TurnsBox::PartsOf(const std::vector<Load>& loads, double run_for_s) {
  // Time for all to make their contexts.
  const auto start = std::chrono::system_clock::now() + std::chrono::milliseconds(1500);
  const double epoch = std::chrono::duration<double>(start.time_since_epoch()).count();
  std::vector<Process> processes;
  for (const Load& load : loads) {
    std::vector<std::string> args{"--start-at", std::to_string(epoch), "--seconds",
                                  std::to_string(run_for_s)};
    args.insert(args.end(), load.arguments.begin(), load.arguments.end());
    processes.push_back(Tenant(load.name, load.share, args));
  }
  std::vector<double> parts;
  p50_us.clear();
  for (Process& process : processes) {
    const Outcome outcome = process.Wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const Json report = Json::parse(outcome.out, nullptr, false);
    parts.push_back(report.is_object() ? report["rate_per_s"].get<double>() * kKernelSeconds : 0);
    p50_us.push_back(report.is_object() ? report["p50_us"].get<double>() : 0);
  }
  return parts;
}

Json TurnsBox::Turns(const std::string& tenant) {
  const Json found = Find(*this, tenant);
  return found.is_null() ? Json() : found["turns"];
}

uint64_t TurnsBox::Ended(const std::string& tenant) {
  const Json turns = Turns(tenant);
  return turns.is_null() ? 0 : turns["turns"].get<uint64_t>();
}

double TurnsBox::GpuSeconds(const std::string& tenant) {
  const Json turns = Turns(tenant);
  return turns.is_null() ? 0 : turns["gpu_seconds"].get<double>();
}

pid_t TurnsBox::ProgramOf(const std::string& tenant) {
  const Json found = Find(*this, tenant);
  return found.is_null() || found["pid"].is_null() ? 0 : found["pid"].get<pid_t>();
}

void TurnsBox::WaitUntilTheyTakeTurns(const std::vector<std::string>& tenants) {
  for (const std::string& tenant : tenants)
    WaitUntil(tenant + " takes turns", [&] { return Ended(tenant) >= 3; });
}

}  // namespace gpumux::test
