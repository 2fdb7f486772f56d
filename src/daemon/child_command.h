// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/event_loop.h"

namespace gpumux::daemon {

// Another program that is run for its answer, while the daemon goes on.
class ChildCommand {
 public:
  struct Spec {
    std::vector<std::string> argv;  // argv[0] is a path
    std::vector<std::string> env;   // "NAME=value", all of it
    std::string input;              // its standard input
    std::chrono::nanoseconds limit = std::chrono::seconds(5);
  };
  struct Outcome {
    std::string output;  // standard output and error, the first 64 KiB
    int exit_code = -1;  // 128+N when signal N ended it
    bool timed_out = false;
  };
  using Done = std::function<void(const Outcome&)>;

  // `done` is called once, from the loop; not if the object is destroyed before,
  // which ends the program. kUnavailable: it cannot be started.
  static Result<std::unique_ptr<ChildCommand>> Start(EventLoop& loop, const Spec& spec, Done done);
  ~ChildCommand();

 private:
  ChildCommand(EventLoop& loop, Done done) : loop_(loop), done_(std::move(done)) {}
  void Read();
  void Ended();

  EventLoop& loop_;
  Done done_;
  pid_t pid_ = 0;
  UniqueFd pidfd_, output_;
  EventLoop::Watch death_, readable_, deadline_;
  Outcome outcome_;
};

}  // namespace gpumux::daemon
