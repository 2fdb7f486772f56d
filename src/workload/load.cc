// SPDX-License-Identifier: Apache-2.0
#include "workload/load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

namespace gpumux::workload {
namespace {

using Steady = std::chrono::steady_clock;
using cuda::CUDA_SUCCESS;
using cuda::CUresult;

// Sleeping overshoots by 50 us and more; the last part is spent spinning so
// that an arrival is not late by the clock's fault.
void WaitUntil(Steady::time_point when) {
  constexpr auto kSpin = std::chrono::microseconds(100);
  if (Steady::now() + kSpin < when) std::this_thread::sleep_until(when - kSpin);
  while (Steady::now() < when) {
  }
}

Steady::time_point StartTime(const Options& options) {
  const auto now = Steady::now();
  if (!options.start_at) return now + std::chrono::milliseconds(1);
  const double wall =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return now + std::chrono::duration_cast<Steady::duration>(
                   std::chrono::duration<double>(std::max(0.0, *options.start_at - wall)));
}

struct Shared {
  Shared(const Driver& d, cuda::CUcontext c, const Kernels& k, const Options& o)
      : driver(d), context(c), kernels(k), options(o) {}

  const Driver& driver;
  cuda::CUcontext context;
  const Kernels& kernels;
  const Options& options;
  Steady::time_point start;
  Steady::time_point end;
  std::vector<int64_t> arrivals;  // open loop
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};

  std::mutex mutex;
  std::vector<int64_t> latencies, services;
  Steady::time_point last_end{};
  Status status;

  void Fail(const char* call, CUresult result) {
    failed = true;
    const std::lock_guard lock(mutex);
    if (status) status = DriverError(driver, call, result);
  }
};

// One stream with its thread.
class Lane {
 public:
  explicit Lane(Shared& shared) : s_(shared) {}

  void Run() {
    if (!Prepare()) return;
    s_.options.rate ? OpenLoop() : ClosedLoop();
    Finish();
  }

 private:
  bool Check(const char* call, CUresult result) {
    if (result != CUDA_SUCCESS) s_.Fail(call, result);
    return result == CUDA_SUCCESS;
  }

  bool Prepare() {
    if (!Check("cuCtxSetCurrent", s_.driver.CtxSetCurrent(s_.context))) return false;
    if (!Check("cuStreamCreate", s_.driver.StreamCreate(&stream_, cuda::CU_STREAM_NON_BLOCKING)))
      return false;
    if (s_.options.graph == 0) return true;
    if (!Check("cuStreamBeginCapture",
               s_.driver.StreamBeginCapture(stream_, cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))) {
      return false;
    }
    for (unsigned i = 0; i < s_.options.graph; ++i) {
      if (!Launch()) return false;
    }
    if (!Check("cuStreamEndCapture", s_.driver.StreamEndCapture(stream_, &graph_))) return false;
    return Check("cuGraphInstantiateWithFlags", s_.driver.GraphInstantiateWithFlags(&exec_, graph_, 0));
  }

  bool Launch() {
    uint64_t ns = s_.options.kernel_us * 1000;
    void* arguments[] = {&ns};
    return Check("cuLaunchKernel",
                 s_.driver.LaunchKernel(s_.kernels.spin, s_.options.blocks, 1, 1, s_.options.threads, 1, 1, 0,
                                        stream_, arguments, nullptr));
  }

  bool Request() {
    for (unsigned i = 0; i < s_.options.kernels; ++i) {
      if (exec_ ? !Check("cuGraphLaunch", s_.driver.GraphLaunch(exec_, stream_)) : !Launch()) return false;
    }
    if (!s_.options.poll) return Check("cuStreamSynchronize", s_.driver.StreamSynchronize(stream_));
    CUresult r;
    while ((r = s_.driver.StreamQuery(stream_)) == cuda::CUDA_ERROR_NOT_READY) {
    }
    return Check("cuStreamQuery", r);
  }

  // Its arrival, and when it was begun.
  void Record(Steady::time_point from, Steady::time_point begun) {
    const auto since = [this](Steady::time_point then) {
      return std::chrono::duration_cast<std::chrono::nanoseconds>(last_end_ - then).count();
    };
    last_end_ = Steady::now();
    latencies_.push_back(since(from));
    services_.push_back(since(begun));
  }

  void ClosedLoop() {
    WaitUntil(s_.start);
    while (!s_.failed && Steady::now() < s_.end) {
      const auto from = Steady::now();
      if (!Request()) return;
      Record(from, from);
      if (s_.options.gap_us > 0) WaitUntil(last_end_ + std::chrono::microseconds(s_.options.gap_us));
    }
  }

  void OpenLoop() {
    for (size_t i; !s_.failed && (i = s_.next++) < s_.arrivals.size();) {
      const auto arrival = s_.start + std::chrono::nanoseconds(s_.arrivals[i]);
      WaitUntil(arrival);
      const auto begun = Steady::now();
      if (!Request()) return;
      Record(arrival, begun);
    }
  }

  void Finish() {
    if (exec_) s_.driver.GraphExecDestroy(exec_);
    if (graph_) s_.driver.GraphDestroy(graph_);
    s_.driver.StreamDestroy(stream_);
    const std::lock_guard lock(s_.mutex);
    s_.latencies.insert(s_.latencies.end(), latencies_.begin(), latencies_.end());
    s_.services.insert(s_.services.end(), services_.begin(), services_.end());
    s_.last_end = std::max(s_.last_end, last_end_);
  }

  Shared& s_;
  cuda::CUstream stream_ = nullptr;
  cuda::CUgraph graph_ = nullptr;
  cuda::CUgraphExec exec_ = nullptr;
  std::vector<int64_t> latencies_, services_;
  Steady::time_point last_end_{};
};

}  // namespace

Result<Summary> RunLoad(const Driver& driver, cuda::CUcontext context, const Kernels& kernels,
                        const Options& options) {
  // Before the clock starts: the first launch of a kernel loads its code.
  uint64_t no_time = 0;
  void* arguments[] = {&no_time};
  auto r = driver.LaunchKernel(kernels.spin, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr);
  if (r != CUDA_SUCCESS) return DriverError(driver, "cuLaunchKernel", r);
  r = driver.CtxSynchronize();
  if (r != CUDA_SUCCESS) return DriverError(driver, "cuCtxSynchronize", r);

  Shared shared(driver, context, kernels, options);
  if (options.rate) shared.arrivals = PoissonArrivals(*options.rate, options.seconds, options.seed);
  shared.start = StartTime(options);
  shared.end = shared.start +
               std::chrono::duration_cast<Steady::duration>(std::chrono::duration<double>(options.seconds));
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < options.streams; ++i) threads.emplace_back([&shared] { Lane(shared).Run(); });
  for (std::thread& thread : threads) thread.join();
  if (!shared.status) return tl::unexpected(shared.status.error());
  const double seconds = std::max(options.rate ? options.seconds : 0.0,
                                  std::chrono::duration<double>(shared.last_end - shared.start).count());
  Summary summary = Summarise(shared.latencies, seconds);
  const Summary service = Summarise(shared.services, seconds);
  summary.service_p50_us = service.p50_us;
  summary.service_p99_us = service.p99_us;
  return summary;
}

}  // namespace gpumux::workload
