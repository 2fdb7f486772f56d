// SPDX-License-Identifier: Apache-2.0
#include "scene.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

namespace gpumux::test {

void Touch(const std::string& path) { std::ofstream(path) << ""; }

MpsBox::MpsBox(const std::string& hold, const std::string& spec) : Sandbox(spec), stop_(dir() + "/stop") {
  if (!hold.empty()) SetEnv("GPUMUX_HOLD_DESCRIPTORS", hold);
}

Process MpsBox::Neighbour() {
  Process p = Gpumux({"run", "--mode", "mps", "--name", "neighbour", "--mem", "4GiB", "--",
                      TestProgram("mps_probe"), "neighbour", stop_});
  EXPECT_TRUE(WaitUntil("the neighbour works", [&] { return p.Out().find("works") != std::string::npos; }))
      << p.Err();
  return p;
}

void MpsBox::ExpectUnharmed(Process& neighbour) {
  EXPECT_FALSE(neighbour.Ended()) << neighbour.Out();
  Touch(stop_);
  const Outcome o = neighbour.Wait();
  EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
}

void MpsBox::ExpectHarmed(Process& neighbour) {
  const Outcome o = neighbour.Wait();
  EXPECT_EQ(o.exit_code, 1) << o.out;
  EXPECT_NE(o.out.find("error 700"), std::string::npos) << o.out;
}

Process MpsBox::Dying(const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {
      "run", "--mode", "mps", "--name", "dying", "--mem", "4GiB", "--", TestProgram("mps_probe")};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  Process p = Gpumux(argv);
  EXPECT_TRUE(WaitUntil("it is busy", [&] { return p.Out().find("busy") != std::string::npos; }))
      << p.Out() << p.Err();
  return p;
}

void MpsBox::Kill(const std::string& name, int signal) {
  pid_t pid = 0;
  EXPECT_TRUE(WaitUntil("the program of " + name + " is known", [&] {
    const auto status = StatusData();
    for (const auto& tenant : status["tenants"]) {
      if (tenant["name"] == name && tenant["pid"].is_number()) pid = tenant["pid"];
    }
    return pid != 0;
  }));
  if (pid > 0) kill(pid, signal);
}

std::vector<std::string> MpsBox::Events(const std::string& kind) {
  std::vector<std::string> texts;
  const Outcome o = RunGpumux({"events", "--json"});
  const auto document = nlohmann::json::parse(o.out, nullptr, false);
  if (!document.is_object()) return texts;
  for (const auto& event : document["data"]["events"]) {
    if (event.value("kind", "") == kind) texts.push_back(event.value("text", ""));
  }
  return texts;
}

uint64_t MpsBox::UsedBytes() { return StatusData()["gpus"][0]["mem_used_bytes"]; }

void MpsBox::ExpectFreed(uint64_t used_before) {
  EXPECT_TRUE(WaitUntil("its memory is free again", [&] { return UsedBytes() <= used_before; }));
}

}  // namespace gpumux::test
