// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/child_command.h"

namespace gpumux::daemon {

// What every control daemon of this machine is started with.
struct MpsPrograms {
  std::string control;           // path of nvidia-cuda-mps-control; empty: not installed
  std::vector<std::string> env;  // "NAME=value": the software GPU's, and what programs need at all
  bool every_user = false;       // one server for the programs of all users; needs root
};
// Where it is: beside the software GPU's libraries, else on PATH.
std::string FindMpsControl(const std::string& softgpu_libraries_dir);

// NVIDIA's control program for one pair of directories: its commands one after
// the other, each a process of its own with a limit of time.
class MpsControl {
 public:
  // Of the answers: kUnavailable: no control daemon, or it refuses; kTimeout: it does not answer.
  using Answer = std::function<void(Result<std::string>)>;

  MpsControl(EventLoop& loop, const MpsPrograms& programs, std::string pipe_dir, std::string log_dir);

  // `line`: one command of version 2 of the protocol.
  void Ask(std::string line, Answer answer);
  // Starts the control daemon in the background for these GPUs alone.
  void StartDaemon(const std::string& visible, Answer answer);

  const std::string& pipe_dir() const { return pipe_dir_; }
  const std::string& log_dir() const { return log_dir_; }
  // By its file in the pipe directory; 0: none that lives.
  pid_t DaemonPid() const;

 private:
  struct Asked {
    ChildCommand::Spec spec;
    Answer answer;
  };
  std::vector<std::string> Environment() const;
  void Push(ChildCommand::Spec spec, Answer answer);
  void Next();

  EventLoop& loop_;
  const MpsPrograms& programs_;
  std::string pipe_dir_, log_dir_;
  std::deque<Asked> queue_;
  std::unique_ptr<ChildCommand> running_;
};

}  // namespace gpumux::daemon
