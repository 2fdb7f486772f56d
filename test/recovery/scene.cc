// SPDX-License-Identifier: Apache-2.0
#include "scene.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace gpumux::test {

Process Survivor(Sandbox& box, const std::string& name, uint64_t bytes, const std::string& stop) {
  return box.Gpumux({"run", "--mem", "8GiB", "--name", name, "--", Sandbox::TestProgram("guard_probe"),
                     "survive", std::to_string(bytes), stop});
}

bool Works(Process& survivor, uint64_t promised) {
  const std::string line = "working with " + std::to_string(promised) + "\n";
  if (WaitUntil("it works", [&] { return survivor.Out().find(line) != std::string::npos; })) return true;
  ADD_FAILURE() << survivor.Out() << survivor.Err();
  return false;
}

nlohmann::json Status(Sandbox& box) {
  const Outcome o = box.RunGpumux({"status", "--json"});
  const auto parsed = nlohmann::json::parse(o.out, nullptr, false);
  return o.exit_code == 0 && parsed.contains("data") ? parsed["data"] : nlohmann::json::object();
}

nlohmann::json StatusList(Sandbox& box, const std::string& key) {
  const auto status = Status(box);
  return status.contains(key) ? status[key] : nlohmann::json::array();
}

nlohmann::json Gpu(Sandbox& box, const std::string& key) {
  const auto status = Status(box);
  if (!status.contains("gpus") || status["gpus"].empty() || !status["gpus"][0].contains(key)) return nullptr;
  return status["gpus"][0][key];
}

std::map<std::string, std::string> Tenants(Sandbox& box) {
  std::map<std::string, std::string> ids;
  const nlohmann::json status = Status(box);
  if (!status.contains("tenants")) return ids;
  for (const auto& tenant : status["tenants"]) {
    if (tenant["state"] != "ended" && !tenant["id"].is_null()) ids[tenant["name"]] = tenant["id"];
  }
  return ids;
}

bool IsWhole(Sandbox& box, pid_t not_this_daemon, const std::map<std::string, std::string>& tenants) {
  const pid_t daemon = box.DaemonPid();
  if (daemon == 0 || daemon == not_this_daemon || Tenants(box) != tenants) return false;
  // The GPU is ours again when a `run` has handed its lock over.
  const auto promisable = Gpu(box, "mem_promisable_bytes");
  return promisable.is_number_unsigned() && promisable > 0;
}

void ExpectEverythingFree(Sandbox& box) {
  // A daemon to ask: the last may have died with the last of them.
  const Outcome o = box.RunGpumux({"run", "--", "/bin/true"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_TRUE(WaitUntil("everything is free again", [&] {
    const auto status = Status(box);
    if (!status.contains("gpus")) return false;
    const auto& gpu = status["gpus"][0];
    return gpu["mem_guaranteed_bytes"] == 0 && gpu["mem_used_bytes"] == 0 && gpu["mem_unmanaged_bytes"] == 0;
  }));
}

std::string DaemonLog(Sandbox& box) {
  std::ostringstream text;
  text << std::ifstream(box.runtime_dir() + "/sim/gpumuxd.log").rdbuf();
  return text.str();
}

void Touch(const std::string& path) { std::ofstream(path).put('\n'); }

}  // namespace gpumux::test
