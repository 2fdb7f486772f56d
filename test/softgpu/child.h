// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <string>

namespace gpumux::test {

// A directory of its own for each test, named in GPUMUX_SOFTGPU_DIR; at the end
// the server in it is gone (it ends by itself soon after its last client).
class SoftGpuTest : public ::testing::Test {
 protected:
  SoftGpuTest();
  ~SoftGpuTest() override;
  const std::string& dir() const { return dir_; }

 private:
  std::string dir_;
};

// A forked process that runs `body`, which may use EXPECT: its failures are
// printed there and make the child exit with 1. The libraries are first opened
// in it, so it is a program of its own to them.
class Child {
 public:
  // What the child uses to keep step with its parent.
  class Step {
   public:
    Step(int in, int out) : in_(in), out_(out) {}
    void Report() const;  // one step is done
    void Wait() const;    // for the parent's Continue

   private:
    int in_, out_;
  };
  explicit Child(const std::function<void(const Step&)>& body);
  ~Child();  // kills it if it still runs
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  bool WaitReport();  // false: it ended instead
  void Continue();
  void Kill();
  // The exit code, or -signal.
  int Join();

 private:
  pid_t pid_;
  int from_ = -1, to_ = -1;
  bool joined_ = false;
};

// Runs `body` in a child and expects it to succeed.
void InChild(const std::function<void()>& body);

// Polls until `condition` holds; false after ten seconds.
bool Eventually(const std::function<bool()>& condition);

}  // namespace gpumux::test
