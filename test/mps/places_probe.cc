// SPDX-License-Identifier: Apache-2.0
//
// Processes that become clients of MPS, and stay until a signal ends them.
//
//   pair          a process says "first in" with its context; then its child says "second in"
//   late GO       says "here", makes its context when the file GO is there, and says "in"
//   joined GO     the same, but joins the server at once
//   crowd GO      four such processes, with GO0 to GO3; they say "0 in" to "3 in"
//   many N        N children; says "N in"
//
// Who is refused says "error E" instead.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "../softgpu/cuda_functions.h"

namespace gpumux::test {
namespace {

using namespace cuda;

// True: the context is there.
bool ComeIn(const char* prefix) {
  const CUresult r = InitWithContext();
  if (r == CUDA_SUCCESS)
    printf("%sin\n", prefix);
  else
    printf("%serror %d\n", prefix, static_cast<int>(r));
  return r == CUDA_SUCCESS;
}

[[noreturn]] void Stay() {
  for (;;) pause();
}

// In the child: reads a byte of `fd`.
void AwaitByte(int fd) {
  char byte;
  if (read(fd, &byte, 1) != 1) _exit(2);
}

int Pair() {
  int go[2];
  if (pipe(go) != 0) return 2;
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    AwaitByte(go[0]);
    if (!ComeIn("second ")) _exit(1);
    Stay();
  }
  if (!ComeIn("first ") || write(go[1], "x", 1) != 1) return 1;
  Stay();
}

int Many(int count) {
  int done[2];
  if (pipe(done) != 0) return 2;
  for (int i = 0; i < count; ++i) {
    if (fork() != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const CUresult r = InitWithContext();
    if (r != CUDA_SUCCESS) printf("error %d\n", static_cast<int>(r));
    if (r != CUDA_SUCCESS || write(done[1], "x", 1) != 1) _exit(1);
    Stay();
  }
  for (int i = 0; i < count; ++i) AwaitByte(done[0]);
  printf("%d in\n", count);
  Stay();
}

void AwaitFile(const std::string& path) {
  while (access(path.c_str(), F_OK) != 0) usleep(5000);
}

int Crowd(const std::string& go) {
  for (int i = 0; i < 4; ++i) {
    if (fork() != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const std::string number = std::to_string(i);
    AwaitFile(go + number);
    if (!ComeIn((number + " ").c_str())) _exit(1);
    Stay();
  }
  Stay();
}

int Main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "pair") return Pair();
  if (argc != 3) return 2;
  if (command == "many") return Many(atoi(argv[2]));
  if (command == "crowd") return Crowd(argv[2]);
  if (command != "late" && command != "joined") return 2;
  if (command == "joined" && CU(cuInit, unsigned)(0) != CUDA_SUCCESS) return 1;
  puts("here");
  AwaitFile(argv[2]);
  if (!ComeIn("")) return 1;
  Stay();
}

}  // namespace
}  // namespace gpumux::test

int main(int argc, char** argv) { return gpumux::test::Main(argc, argv); }
