// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace gpumux::cli {

// Signals as file events for the life of `run`. Made before the first fork;
// the program gets the mask that was there before.
class Signals {
 public:
  static Result<Signals> Block();
  int fd() const { return fd_.get(); }
  const sigset_t& before() const { return before_; }

 private:
  UniqueFd fd_;
  sigset_t before_{};
};

// How the program ended. `status()` is what a shell shows.
struct ProgramEnd {
  std::optional<int> exit_code;
  std::optional<int> signal;
  int status() const { return exit_code ? *exit_code : 128 + signal.value_or(0); }
};

// What `run` watches beside its program.
class Companion {
 public:
  virtual ~Companion() = default;
  virtual int fd() const = 0;  // -1: nothing to watch now
  virtual void OnReadable() = 0;
  virtual void OnTick() = 0;  // some four times a second while there is nothing to watch
};

// A program that `run` started, on the same terminal.
class Program {
 public:
  // kOfRun: in the process group of `run`, as a shell has it. kOwn: for whoever sends
  // signals to all of `run`'s group, which the program would get twice; it gets each
  // as `run` passes it on, and is killed when `run` dies.
  enum class Group { kOfRun, kOwn };

  // Forks. The child waits until `Go` and then becomes `arguments` with
  // `environment`.
  static Result<Program> Prepare(const std::string& path, const std::vector<std::string>& arguments,
                                 const std::vector<std::string>& environment, const Signals& signals,
                                 Group group = Group::kOfRun);
  pid_t pid() const { return pid_; }

  // Lets it start. kNoCommand or kNotExecutable if it cannot be executed; it is
  // reaped then.
  Status Go();

  // Until the program ends: forwards signals, follows it into a stop and out of
  // it, and reaps descendants that came to us.
  ProgramEnd Wait(const Signals& signals, Companion& companion);

 private:
  void Forward(int signal, bool from_terminal) const;

  pid_t pid_ = -1;
  Group group_ = Group::kOfRun;
  UniqueFd go_;     // closing it lets the child go
  UniqueFd error_;  // errno of a failed exec
};

}  // namespace gpumux::cli
