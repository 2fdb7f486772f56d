// SPDX-License-Identifier: Apache-2.0
// Programs for mps.py: one that dies or faults while its kernels run, and a neighbour that checks every result.
//
//   mps_victims neighbour                              until it is ended; a line every 100 ms, and one at an error
//   mps_victims victim HOW KIND COUNT MILLISECONDS     COUNT kernels of that length in flight, then the death
//                HOW   kill segv exit return; wait, deaf: until a signal, deaf ignores SIGTERM
//                KIND  plain managed pinned async ipc-stays ipc-leaves
//   mps_victims fault WHAT                             illegal assert misaligned trap
//   mps_victims owner SECONDS                          for victim: shares memory by its handle, stays so long after it
#include <cuda_runtime.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr size_t kWords = 16u << 20;

double Now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

void Fail(const char* what, cudaError_t error) {
  std::printf("{\"event\":\"error\",\"what\":\"%s\",\"code\":%d,\"name\":\"%s\",\"at\":%.6f,\"pid\":%d}\n", what, static_cast<int>(error), cudaGetErrorName(error), Now(), getpid());
  std::fflush(stdout);
}

void Check(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return;
  Fail(what, error);
  std::_Exit(3);
}

void Say(const char* event) {
  std::printf("{\"event\":\"%s\",\"at\":%.6f,\"pid\":%d}\n", event, Now(), getpid());
  std::fflush(stdout);
}

__global__ void Step(unsigned* a, size_t n) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x) a[i] = a[i] * 1664525u + 1013904223u;
}

__global__ void Count(const unsigned* a, size_t n, unsigned want, unsigned* wrong) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x)
    if (a[i] != want) atomicAdd(wrong, 1u);
}

__global__ void Work(float* p, size_t n, long long cycles) {
  const long long start = clock64();
  const size_t first = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  while (clock64() - start < cycles)
    for (size_t j = first; j < n && clock64() - start < cycles; j += static_cast<size_t>(gridDim.x) * blockDim.x) p[j] = p[j] * 1.0001f + 1.f;
}

__global__ void Illegal() { *reinterpret_cast<volatile int*>(0x10) = 1; }
__global__ void Misaligned(char* p) { *reinterpret_cast<volatile int*>(p + 1) = 1; }
__global__ void Trap() { asm volatile("trap;"); }
__global__ void Assert(int x) { assert(x == 7); }

int Neighbour() {
  unsigned* a = nullptr;
  unsigned* wrong = nullptr;
  Check("context", cudaFree(nullptr));
  Check("alloc", cudaMalloc(&a, kWords * sizeof(unsigned)));
  Check("alloc", cudaMalloc(&wrong, sizeof(unsigned)));
  Check("clear", cudaMemset(a, 0, kWords * sizeof(unsigned)));
  Check("clear", cudaMemset(wrong, 0, sizeof(unsigned)));
  unsigned want = 0;
  unsigned bad = 0;
  long steps = 0;
  double worst = 0;
  double told = Now();
  for (double start = told;;) {
    Step<<<132, 512>>>(a, kWords);
    want = want * 1664525u + 1013904223u;
    Count<<<132, 512>>>(a, kWords, want, wrong);
    Check("step", cudaMemcpy(&bad, wrong, sizeof(bad), cudaMemcpyDeviceToHost));
    const double end = Now();
    if (++steps == 1) Say("first");
    worst = std::max(worst, end - start);
    start = end;
    if (end - told < 0.1) continue;
    std::printf("{\"at\":%.6f,\"steps\":%ld,\"wrong\":%u,\"worst_ms\":%.3f}\n", end, steps, bad, 1e3 * worst);
    std::fflush(stdout);
    worst = 0;
    told = end;
  }
}

int Owner(double seconds) {
  float* p = nullptr;
  cudaIpcMemHandle_t handle;
  Check("alloc", cudaMalloc(&p, kWords * sizeof(float)));
  Check("clear", cudaMemset(p, 0, kWords * sizeof(float)));
  Check("handle", cudaDeviceSynchronize());
  Check("handle", cudaIpcGetMemHandle(&handle, p));
  if (write(STDOUT_FILENO, &handle, sizeof(handle)) != static_cast<ssize_t>(sizeof(handle))) return 1;
  char c;
  while (read(STDIN_FILENO, &c, 1) > 0) {
  }
  usleep(static_cast<useconds_t>(seconds * 1e6));
  return 0;
}

/** Memory of another process, which notices by its input's end that this one has gone. */
float* Shared(const char* self, const char* seconds) {
  int down[2];
  int up[2];
  if (pipe(down) || pipe(up)) std::exit(1);
  if (fork() == 0) {
    dup2(down[0], STDIN_FILENO);
    dup2(up[1], STDOUT_FILENO);
    for (int fd : {down[0], down[1], up[0], up[1]}) close(fd);
    execl(self, self, "owner", seconds, nullptr);
    std::_Exit(127);
  }
  close(down[0]);
  close(up[1]);
  cudaIpcMemHandle_t handle;
  size_t got = 0;
  while (got < sizeof(handle)) {
    const ssize_t n = read(up[0], reinterpret_cast<char*>(&handle) + got, sizeof(handle) - got);
    if (n <= 0) {
      std::printf("{\"event\":\"error\",\"what\":\"owner\",\"code\":-1,\"pid\":%d}\n", getpid());
      std::exit(3);
    }
    got += static_cast<size_t>(n);
  }
  void* p = nullptr;
  Check("open handle", cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess));
  return static_cast<float*>(p);
}

float* Memory(const char* self, const std::string& kind) {
  const size_t bytes = kWords * sizeof(float);
  float* p = nullptr;
  if (kind == "ipc-stays") return Shared(self, "5");
  if (kind == "ipc-leaves") return Shared(self, "0");
  Check("context", cudaFree(nullptr));
  if (kind == "plain") Check("alloc", cudaMalloc(&p, bytes));
  if (kind == "managed") Check("alloc", cudaMallocManaged(&p, bytes));
  if (kind == "pinned") Check("alloc", cudaMallocHost(&p, bytes));
  if (kind == "async") Check("alloc", cudaMallocAsync(&p, bytes, nullptr));
  Check("alloc", cudaDeviceSynchronize());
  if (kind == "managed" || kind == "pinned") std::memset(p, 0, bytes);
  return p;
}

int Victim(const char* self, const std::string& how, const std::string& kind, int count, int milliseconds) {
  if (how == "deaf") signal(SIGTERM, SIG_IGN);
  float* p = Memory(self, kind);
  if (p == nullptr) return 2;
  int khz = 0;
  Check("clock", cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
  const long long cycles = static_cast<long long>(khz) * milliseconds;
  Work<<<132, 1024>>>(p, kWords, 1000000);
  Check("warm", cudaDeviceSynchronize());
  const double start = Now();
  Work<<<132, 1024>>>(p, kWords, cycles);
  Check("warm", cudaDeviceSynchronize());
  std::printf("{\"event\":\"ready\",\"kernel_ms\":%.3f,\"pid\":%d}\n", 1e3 * (Now() - start), getpid());
  for (int i = 0; i < count; i++) Work<<<132, 1024>>>(p, kWords, cycles);
  usleep(50000);
  Check("launch", cudaGetLastError());
  std::printf("{\"event\":\"in flight\",\"unfinished\":%s,\"at\":%.6f,\"pid\":%d}\n", cudaStreamQuery(nullptr) == cudaErrorNotReady ? "true" : "false", Now(), getpid());
  std::fflush(stdout);
  if (how == "kill") kill(getpid(), SIGKILL);
  if (how == "segv") raise(SIGSEGV);
  if (how == "exit") _exit(0);
  if (how == "return") return 0;
  sleep(60);
  return 1;
}

int Fault(const std::string& what) {
  char* p = nullptr;
  Check("context", cudaMalloc(reinterpret_cast<void**>(&p), 1 << 20));
  Check("clear", cudaMemset(p, 0, 1 << 20));
  Check("clear", cudaDeviceSynchronize());
  usleep(300000);
  Say("faulting");
  if (what == "illegal") Illegal<<<1, 1>>>();
  if (what == "misaligned") Misaligned<<<1, 1>>>(p);
  if (what == "trap") Trap<<<1, 1>>>();
  if (what == "assert") Assert<<<1, 1>>>(getpid() == 7 ? 7 : 8);
  const cudaError_t error = cudaDeviceSynchronize();
  Fail("fault", error);
  return error == cudaSuccess ? 0 : 3;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "neighbour") return Neighbour();
  if (what == "owner" && argc == 3) return Owner(std::atof(argv[2]));
  if (what == "victim" && argc == 6) return Victim(argv[0], argv[2], argv[3], std::atoi(argv[4]), std::atoi(argv[5]));
  if (what == "fault" && argc == 3) return Fault(argv[2]);
  std::fprintf(stderr, "usage: mps_victims neighbour | victim HOW KIND COUNT MILLISECONDS | fault WHAT\n");
  return 2;
}
