// SPDX-License-Identifier: Apache-2.0
//
// A tenant under MPS.
//
//   neighbour STOP           kernels whose result it checks, one after another, until the file
//                            STOP is there; says "works" after the first. Ends with 0, or says
//                            which error or wrong value it got and ends with 1
//   dies HOW KERNELS MS      launches so many kernels of so many ms, says "busy" and dies: HOW is
//                            wait (for a signal), return, _exit, abort, segv, exec, late (a second
//                            context's descriptors after the first's); after exec a program and
//                            its arguments may follow
//   idle HOW                 as dies, with no kernel left
//   often MS                 a short kernel, waited for with all else, each so many ms; says "busy"
//                            after the first
//   keeps MS                 two kernels of so many ms under way at any moment, until it is killed;
//                            says "busy" when it is so
//   notices FILE LAUNCHED    a context, and with LAUNCHED 1 a kernel that has ended; says "busy", and works
//                            on when the file is there
//   stays waiting MS         waits for a kernel of so many ms; says "busy" before, and what the
//                            driver said after; then stays
//   stays launching MS       launches such kernels until the driver refuses one, says which error
//                            that was, and whether all before it have ended; then stays
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../softgpu/cuda_functions.h"

namespace gpumux::test {
namespace {

using namespace cuda;

void Must(CUresult r, const char* what) {
  if (r == CUDA_SUCCESS) return;
  printf("%s: error %d\n", what, static_cast<int>(r));
  fflush(stdout);
  // As programs do that clean up: the guard sees no error of a launch, but of any other call.
  (void)Synchronize();
  _exit(1);
}

int Neighbour(const std::string& stop) {
  constexpr unsigned kWords = 1024;
  Must(InitWithContext(), "context");
  CUdeviceptr p;
  Must(Alloc(&p, kWords * 4), "memory");
  CUfunction fill = GetFunction("fill");
  for (unsigned round = 1; access(stop.c_str(), F_OK) != 0; ++round) {
    unsigned value = round;
    unsigned long long count = kWords;
    void* params[] = {&p, &value, &count};
    Must(Launch(fill, 1, 256, nullptr, params), "launch");
    Must(Spin(2'000'000), "spin");
    Must(Synchronize(), "synchronise");
    std::vector<unsigned> words(kWords);
    Must(FromDevice(words.data(), p, kWords * 4), "copy");
    for (const unsigned word : words) {
      if (word == value) continue;
      printf("wrong value %u, not %u\n", word, value);
      return 1;
    }
    if (round == 1) puts("works");
  }
  return 0;
}

int Die(const std::string& how, char** program) {
  puts("busy");
  if (how == "_exit") _exit(0);
  if (how == "abort") abort();
  if (how == "segv") {
    signal(SIGSEGV, SIG_DFL);
    *static_cast<volatile int*>(nullptr) = 0;
  }
  if (how == "exec") execv(program[0], program);
  if (how == "wait") {
    for (;;) pause();
  }
  return 0;  // from main
}

// The one that is waited for has the other behind it.
int Keep(uint64_t ns) {
  CUevent ended[2];
  for (CUevent& event : ended) Must(CU(cuEventCreate, CUevent*, unsigned)(&event, 0), "event");
  const auto launch = [&](CUevent event) {
    Must(Spin(ns), "spin");
    Must(CU(cuEventRecord, CUevent, CUstream)(event, nullptr), "record");
  };
  for (const CUevent event : ended) launch(event);
  puts("busy");
  for (unsigned i = 0;; i ^= 1) {
    Must(CU(cuEventSynchronize, CUevent)(ended[i]), "wait");
    launch(ended[i]);
  }
}

[[noreturn]] void Often(uint64_t ms) {
  for (unsigned round = 0;; ++round) {
    Must(Spin(100'000), "spin");
    Must(Synchronize(), "synchronise");
    if (round == 0) puts("busy");
    usleep(static_cast<useconds_t>(ms * 1000));
  }
}

[[noreturn]] void Stay() {
  for (;;) pause();
}

[[noreturn]] void StayWaiting(uint64_t ns) {
  Must(Spin(ns), "spin");
  puts("busy");
  printf("synchronise: %d\n", static_cast<int>(Synchronize()));
  Stay();
}

// Each kernel is followed by one that writes its number where the host sees it.
[[noreturn]] void StayLaunching(uint64_t ns) {
  constexpr unsigned kBetweenWaits = 5;
  unsigned* seen = nullptr;
  Must(CU(cuMemHostAlloc, void**, size_t, unsigned)(reinterpret_cast<void**>(&seen), 4096, 0),
       "pinned memory");
  CUdeviceptr p = reinterpret_cast<CUdeviceptr>(seen);
  CUfunction fill = GetFunction("fill");
  CUresult r = CUDA_SUCCESS;
  unsigned launched = 0;
  for (unsigned i = 1; r == CUDA_SUCCESS; ++i) {
    unsigned long long count = 1;
    void* params[] = {&p, &i, &count};
    r = Spin(ns);
    if (r == CUDA_SUCCESS) r = Launch(fill, 1, 32, nullptr, params);
    if (r == CUDA_SUCCESS) launched = i;
    if (r == CUDA_SUCCESS && i % kBetweenWaits == 0) r = Synchronize();
    if (i == kBetweenWaits) puts("busy");
  }
  printf("launch: %d, %s\n", static_cast<int>(r),
         *static_cast<volatile unsigned*>(seen) == launched ? "all before have ended" : "work was lost");
  Stay();
}

int Main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string command = argc > 2 ? argv[1] : "";
  if (command == "neighbour") return Neighbour(argv[2]);
  Must(InitWithContext(), "context");
  CUdeviceptr p;
  Must(Alloc(&p, 64 << 20), "memory");
  if (command == "idle") {
    for (int i = 0; i < 3; ++i) Must(Spin(1'000'000), "spin");
    Must(Synchronize(), "synchronise");
    return Die(argv[2], argv + 3);
  }
  if (command == "notices" && argc == 4) {
    if (strcmp(argv[3], "1") == 0) Must(Spin(1'000'000), "spin");
    Must(Synchronize(), "synchronise");
    puts("busy");
    while (access(argv[2], F_OK) != 0) usleep(10'000);
    Must(Spin(1'000'000), "spin");
    Must(Synchronize(), "synchronise");
    return 0;
  }
  if (command == "often") Often(strtoull(argv[2], nullptr, 10));
  const bool keeps = command == "keeps" && argc == 3, stays = command == "stays" && argc == 4;
  if (!keeps && !stays && (command != "dies" || argc < 5)) return 2;
  // Known kernels: how long one takes is learnt from these.
  const uint64_t ns = strtoull(argv[keeps ? 2 : stays ? 3 : 4], nullptr, 10) * 1'000'000;
  for (int i = 0; i < 2; ++i) Must(Spin(ns), "spin");
  Must(Synchronize(), "synchronise");
  if (keeps) return Keep(ns);
  if (stays) strcmp(argv[2], "waiting") == 0 ? StayWaiting(ns) : StayLaunching(ns);
  for (int i = 0; i < atoi(argv[3]); ++i) Must(Spin(ns), "spin");
  return Die(argv[2], argv + 5);
}

}  // namespace
}  // namespace gpumux::test

int main(int argc, char** argv) { return gpumux::test::Main(argc, argv); }
