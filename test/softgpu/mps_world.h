// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "child.h"
#include "cuda_functions.h"

namespace gpumux::test {

// A software GPU with a control daemon of MPS on demand, in directories of the
// test's own; at the end it and its servers are gone.
class MpsTest : public SoftGpuTest {
 protected:
  MpsTest();
  ~MpsTest() override;

  // What a program of MPS printed, and its exit status.
  struct Printed {
    std::string text;
    int status = 0;
  };
  // `nvidia-cuda-mps-control OPTIONS`, with `input` as its standard input.
  static Printed Control(const std::string& options, const std::string& input = "");
  void StartDaemon(const std::string& options = "-d");
  // One command; the daemon must be there.
  static std::string Command(const std::string& line);
  // Of the one server there is, or of a daemon; 0: none.
  static pid_t ServerPid();
  pid_t DaemonPid() const;
  static std::string ServerState();
  std::string ServerLog() const;
  std::string ControlLog() const;

  const std::string& pipes() const { return pipes_; }
  // The process that is the GPU.
  pid_t SoftgpudPid() const;

 private:
  std::string pipes_, logs_;
};

std::string ReadFile(const std::string& path);
// Whether the process is there and no zombie.
bool IsAlive(pid_t pid);

// Device attribute 133, the SMs of attribute 16, and free memory in MiB.
int MpsAttribute();
int Sms();
unsigned long long FreeMiB();

// Duplicates of all descriptors of a process that stand for /dev/nvidia*, found
// by their links as one would find the real ones.
class HeldDevices {
 public:
  explicit HeldDevices(pid_t pid);
  ~HeldDevices() { Close(); }
  HeldDevices(const HeldDevices&) = delete;
  HeldDevices& operator=(const HeldDevices&) = delete;
  size_t size() const { return held_.size(); }
  const std::vector<std::string>& links() const { return links_; }
  void Close();

 private:
  std::vector<int> held_;
  std::vector<std::string> links_;
};

}  // namespace gpumux::test
