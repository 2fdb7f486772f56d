// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace gpumux::test {

struct Outcome {
  int exit_code = -1;  // 128+N when killed by signal N
  std::string out;
  std::string err;
};

// A started program. Its output is collected in files of the sandbox.
class Process {
 public:
  Process(pid_t pid, std::string out_path, std::string err_path)
      : pid_(pid), out_path_(std::move(out_path)), err_path_(std::move(err_path)) {}
  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // Waits for the end; fails the test and kills the program after `limit`.
  Outcome Wait(std::chrono::seconds limit = std::chrono::seconds(60));
  bool Ended();
  std::string Out() const;
  std::string Err() const;

 private:
  std::optional<int> status_;
  pid_t pid_;
  std::string out_path_;
  std::string err_path_;
};

// A software GPU, a runtime directory and the programs of this build, all of
// their own: sandboxes run side by side. On destruction every process that was
// started in it is killed and its directory removed.
class Sandbox {
 public:
  // `spec` as GPUMUX_SOFTGPU takes it.
  explicit Sandbox(const std::string& spec = "H200");
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  const std::string& dir() const { return dir_; }
  std::string runtime_dir() const { return runtime_dir_; }
  std::string softgpu_dir() const { return softgpu_dir_; }
  // The one file of configuration that programs here read; empty at first.
  std::string ConfigFile() const { return dir_ + "/config.toml"; }

  // Programs of the build: "gpumux", "gpumuxd", "gpumux-workload"; test
  // programs by TestProgram("probe").
  static std::string Program(const std::string& name);
  static std::string TestProgram(const std::string& name);

  void SetEnv(const std::string& key, const std::string& value) { env_[key] = value; }
  // Further programs run as this user (needs root), from a copy of the build
  // that this user can reach wherever the build is; the directories are made theirs.
  void SetUser(uid_t uid);
  // Path of a program of the build for those that run here.
  std::string Path(const std::string& program) const;
  // Shares another sandbox's software GPU, but no daemon.
  void ShareGpuOf(const Sandbox& other);

  Process Start(const std::vector<std::string>& argv);
  Outcome Run(const std::vector<std::string>& argv, std::chrono::seconds limit = std::chrono::seconds(60));
  Process Gpumux(std::vector<std::string> args);
  Outcome RunGpumux(std::vector<std::string> args, std::chrono::seconds limit = std::chrono::seconds(60));

  // `gpumux status --json`, its `data`.
  nlohmann::json StatusData();
  // Pid of the daemon that serves this sandbox; 0 if none.
  pid_t DaemonPid() { return PidOf("gpumuxd"); }
  pid_t KeeperPid() { return PidOf("gpumux-keeper"); }
  // By the name of the program's file; 0 if none runs here.
  pid_t PidOf(const std::string& program) const;
  // All that run here: the environment of each names the sandbox.
  std::vector<pid_t> Processes() const;

 private:
  std::string dir_;
  std::string runtime_dir_;
  std::string softgpu_dir_;
  std::map<std::string, std::string> env_;
  uid_t uid_ = 0;
  std::string copy_;  // of the build, for another user
  int next_output_ = 0;
};

// Polls until `condition` holds. Fails the test with `what` after `limit`.
bool WaitUntil(const std::string& what, const std::function<bool()>& condition,
               std::chrono::milliseconds limit = std::chrono::seconds(20));

}  // namespace gpumux::test
