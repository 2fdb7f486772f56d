// SPDX-License-Identifier: Apache-2.0
#include "child.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "cuda_functions.h"

namespace gpumux::test {

SoftGpuTest::SoftGpuTest() {
  char name[] = "/tmp/gpumux-softgpu.XXXXXX";
  dir_ = mkdtemp(name);
  setenv("GPUMUX_SOFTGPU_DIR", dir_.c_str(), 1);
  unsetenv("GPUMUX_SOFTGPU");
  unsetenv("CUDA_VISIBLE_DEVICES");
}

SoftGpuTest::~SoftGpuTest() {
  // The next test may run in the same process and means another directory.
  while (NVML(nvmlShutdown, )() == nvml::NVML_SUCCESS) continue;
  std::filesystem::remove_all(dir_);
}

Child::Child(const std::function<void(const Step&)>& body) {
  int up[2], down[2];
  if (pipe(up) != 0 || pipe(down) != 0) abort();
  fflush(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(up[0]);
    close(down[1]);
    body(Step(down[0], up[1]));
    fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  close(up[1]);
  close(down[0]);
  from_ = up[0];
  to_ = down[1];
}

Child::~Child() {
  if (!joined_) {
    Kill();
    Join();
  }
  close(from_);
  close(to_);
}

void Child::Step::Report() const {
  if (write(out_, "x", 1) != 1) _exit(2);
}
void Child::Step::Wait() const {
  char byte;
  if (read(in_, &byte, 1) != 1) _exit(2);
}
bool Child::WaitReport() {
  char byte;
  return read(from_, &byte, 1) == 1;
}
void Child::Continue() {
  if (write(to_, "x", 1) != 1) ADD_FAILURE() << "the child has gone";
}
void Child::Kill() { kill(pid_, SIGKILL); }

int Child::Join() {
  int status = 0;
  waitpid(pid_, &status, 0);
  joined_ = true;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void InChild(const std::function<void()>& body) {
  Child child([&](const Child::Step&) { body(); });
  EXPECT_EQ(child.Join(), 0);
}

bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    poll(nullptr, 0, 2);
  }
  return true;
}

}  // namespace gpumux::test
