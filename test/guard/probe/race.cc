// SPDX-License-Identifier: Apache-2.0
//
// Many processes of one tenant at the cap.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "commands.h"
#include "driver.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

// Allocates `bytes` at a time by a family of its own until it is refused, and
// prints each call: start, end (CLOCK_MONOTONIC ns), code.
int RaceMember(int index, uint64_t bytes, uint64_t start_ns) {
  StartUp();
  CUmemAllocationProp prop = DeviceProp();
  std::printf("ready\n");
  std::fflush(stdout);
  while (NowNs() < start_ns) {
  }
  for (;;) {
    CUdeviceptr p = 0;
    CUmemGenericAllocationHandle h;
    CUresult r;
    const uint64_t begin = NowNs();
    switch (index % 4) {
      case 0:
        r = api.cuMemAlloc_v2(&p, bytes);
        break;
      case 1:
        r = api.cuMemCreate(&h, bytes, &prop, 0);
        break;
      case 2:
        r = api.cuMemAllocAsync(&p, bytes, nullptr);
        break;
      default:
        r = api.cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL);
        break;
    }
    const uint64_t end = NowNs();
    std::printf("call %" PRIu64 " %" PRIu64 " %d\n", begin, end, r);
    if (r != CUDA_SUCCESS) break;
  }
  // Not before all siblings are at the end: the figures are of one moment then.
  char c;
  std::printf("refused\n");
  std::fflush(stdout);
  if (read(0, &c, 1) != 1) return 0;
  std::printf("told %" PRIu64 "\n", Free());
  std::printf("own %" PRIu64 "\n", Truth().Own());
  std::fflush(stdout);
  // Keeps what it has until the parent has read all figures.
  while (read(0, &c, 1) > 0) {
  }
  return 0;
}

// Starts `count` members of the same tenant and prints all they say.
int Race(const char* self, int count, uint64_t bytes) {
  struct Member {
    pid_t pid;
    int in;
    FILE* out;
  };
  std::vector<Member> members;
  const uint64_t start = NowNs() + 1'500'000'000;
  for (int i = 0; i < count; i++) {
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) return 9;
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(to[0], 0);
      dup2(from[1], 1);
      const std::string index = std::to_string(i), size = std::to_string(bytes), at = std::to_string(start);
      execl(self, self, "race-member", index.c_str(), size.c_str(), at.c_str(), nullptr);
      _exit(9);
    }
    close(to[0]);
    close(from[1]);
    members.push_back({pid, to[1], fdopen(from[0], "r")});
  }
  auto read_until = [&](const char* last) {
    for (size_t i = 0; i < members.size(); i++) {
      char line[256];
      while (fgets(line, sizeof line, members[i].out)) {
        std::printf("%zu %s", i, line);
        if (strncmp(line, last, strlen(last)) == 0 || strncmp(line, "retain ", 7) == 0) break;
      }
    }
  };
  read_until("refused");
  for (auto& m : members) {
    if (write(m.in, "x", 1) != 1) return 9;
  }
  read_until("own ");
  std::fflush(stdout);
  // Everything is read while every member still holds its memory; the test may
  // look at the ledger now, until our own input ends.
  std::printf("all done\n");
  std::fflush(stdout);
  if (const char* hold = getenv("PROBE_HOLD_FILE")) {
    while (access(hold, F_OK) != 0) usleep(5000);
  }
  for (auto& m : members) close(m.in);
  for (auto& m : members) waitpid(m.pid, nullptr, 0);
  return 0;
}

}  // namespace gpumux::probe
