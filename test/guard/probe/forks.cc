// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "commands.h"
#include "driver.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

// A fork before CUDA is used: both sides are processes of the tenant.
int ForkBefore(uint64_t bytes) {
  int result[2];
  if (pipe(result) != 0) return 9;
  const pid_t pid = fork();
  StartUp();
  CUdeviceptr p = 0;
  const int r = api.cuMemAlloc_v2(&p, bytes);
  if (pid == 0) {
    if (write(result[1], &r, sizeof r) < 0) return 9;
    pause();
  }
  int childs = -1;
  if (read(result[0], &childs, sizeof childs) < 0) return 9;
  std::printf("both %d\n", (r == 0) + (childs == 0));
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return 0;
}

// A fork after: the child ends without CUDA; the parent's ledger stays right.
int ForkAfter() {
  StartUp();
  CUdeviceptr p = 0;
  Check(api.cuMemAlloc_v2(&p, 100 * kMiB), "alloc");
  const uint64_t before = Free();
  const pid_t pid = fork();
  if (pid == 0) {
    CUdeviceptr q = 0;
    _exit(api.cuMemAlloc_v2(&q, kMiB) == CUDA_SUCCESS ? 1 : 0);  // CUDA does not work in this child
  }
  int status = 0;
  waitpid(pid, &status, 0);
  std::printf("child allocated %d\nsame %d\n", WEXITSTATUS(status), Free() == before);
  Check(api.cuMemFree_v2(p), "free");
  std::printf("back %d\n", Free() == before + 100 * kMiB);
  return 0;
}

}  // namespace gpumux::probe
