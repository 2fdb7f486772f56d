// SPDX-License-Identifier: Apache-2.0
#include "scene.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

namespace gpumux::test {

void Touch(const std::string& path) { std::ofstream(path) << ""; }

size_t Devices(pid_t pid, const std::string& path) {
  size_t count = 0;
  std::error_code none;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", none)) {
    std::error_code gone;
    count += std::filesystem::read_symlink(entry.path(), gone).string().find(path) != std::string::npos;
  }
  return count;
}

MpsBox::MpsBox(const std::string& hold, const std::string& spec) : Sandbox(spec), stop_(dir() + "/stop") {
  if (!hold.empty()) SetEnv("GPUMUX_HOLD_DESCRIPTORS", hold);
}

Process MpsBox::Tenant(const std::string& name, const std::vector<std::string>& options,
                       const std::vector<std::string>& program) {
  std::vector<std::string> argv = {gpumux_, "run",   "--mode", "mps",      "--name",
                                   name,    "--mem", "4GiB",   "--summary"};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.push_back("--");
  argv.insert(argv.end(), program.begin(), program.end());
  return Start(argv);
}

Process MpsBox::Neighbour(const std::string& name) {
  Process p = Tenant(name, {}, {TestProgram("mps_probe"), "neighbour", stop_});
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

void MpsBox::ExpectHarmed(Process& neighbour, int error) {
  const Outcome o = neighbour.Wait();
  EXPECT_EQ(o.exit_code, 1) << o.out;
  EXPECT_NE(o.out.find("error " + std::to_string(error)), std::string::npos) << o.out;
}

void MpsBox::ExpectANewcomerIsServed() {
  const Outcome o = Tenant("newcomer", {"--strict"},
                           {Program("gpumux-workload"), "--alloc", "64MiB", "--verify", "--kernel-us", "2000",
                            "--seconds", "0.05"})
                        .Wait();
  EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
}

Process MpsBox::Dying(const std::vector<std::string>& arguments) {
  std::vector<std::string> program = {TestProgram("mps_probe")};
  program.insert(program.end(), arguments.begin(), arguments.end());
  Process p = Tenant("dying", {}, program);
  EXPECT_TRUE(WaitUntil("it is busy", [&] { return p.Out().find("busy") != std::string::npos; }))
      << p.Out() << p.Err();
  return p;
}

pid_t MpsBox::ProgramOf(const std::string& name) {
  pid_t pid = 0;
  EXPECT_TRUE(WaitUntil("the program of " + name + " is known", [&] {
    const auto status = StatusData();
    for (const auto& tenant : status["tenants"]) {
      if (tenant["name"] == name && tenant["pid"].is_number()) pid = tenant["pid"];
    }
    return pid != 0;
  }));
  return pid;
}

void MpsBox::Kill(const std::string& name, int signal) {
  if (const pid_t pid = ProgramOf(name)) kill(pid, signal);
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

pid_t MpsBox::ControlPid() const {
  // Its commands are processes of the same program.
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(runtime_dir() + "/sim/mps", none)) {
    pid_t pid = 0;
    std::ifstream(entry.path() / "pipe/nvidia-cuda-mps-control.pid") >> pid;
    if (pid > 0 && kill(pid, 0) == 0) return pid;
  }
  return 0;
}

uint64_t MpsBox::UsedBytes() { return StatusData()["gpus"][0]["mem_device_used_bytes"]; }

void MpsBox::ExpectFreed(uint64_t used_before) {
  EXPECT_TRUE(WaitUntil("its memory is free again", [&] { return UsedBytes() <= used_before; }));
}

}  // namespace gpumux::test
