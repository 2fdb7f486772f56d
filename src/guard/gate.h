// SPDX-License-Identifier: Apache-2.0
//
// The guard's side of the gate (docs/design/gate.md, gpumux/abi/gate.h): what a launch and
// a call that waits have to do beside what they are, in a process that is gated, that
// takes turns or that is latency-critical. For all others LaunchWord() is 0 and nothing of
// this is called.
#pragma once

#include <stdint.h>

#include "gpumux/abi/cuda/driver.h"
#include "guard/session.h"

namespace gpumux::guard {

// What is launched: by it durations are learnt.
struct Work {
  uint64_t function = 0;  // or executable graph
  uint64_t blocks = 0;
  uint64_t threads = 0;
  uint64_t ns = 0;  // of a copy: what it takes at the least, and nothing is learnt
};

// One launch into a stream. `per_thread`: the null stream is the calling thread's own.
class GatedLaunch {
 public:
  GatedLaunch(uint32_t word, cuda::CUstream stream, bool per_thread, const Work& work);
  ~GatedLaunch();
  GatedLaunch(const GatedLaunch&) = delete;
  GatedLaunch& operator=(const GatedLaunch&) = delete;

 private:
  void Enter(uint32_t word, cuda::CUstream stream, bool per_thread, const Work& work);

  int sample_ = -1;
  cuda::CUstream stream_;
};

// Around a call that waits for work of this process. `stream`: for that stream alone;
// kAnyStream: for something else.
// kAllStreams: for all of the current context.
inline cuda::CUstream const kAnyStream = reinterpret_cast<cuda::CUstream>(~uintptr_t{0});
inline cuda::CUstream const kAllStreams = reinterpret_cast<cuda::CUstream>(~uintptr_t{1});
class GateWait {
 public:
  GateWait(cuda::CUstream stream, bool per_thread);
  ~GateWait();
  // What came of the wait.
  cuda::CUresult Over(cuda::CUresult r) {
    if (r != cuda::CUDA_SUCCESS) id_ = 0, all_ = false;
    return r;
  }
  GateWait(const GateWait&) = delete;
  GateWait& operator=(const GateWait&) = delete;

 private:
  uint64_t id_ = 0;        // of the stream
  uint64_t launched_ = 0;  // into it; with all_: of the process
  bool all_ = false;
  bool counts_;
};

// A capture begins in a stream, or ends somewhere: no stream is asked for anything meanwhile.
// `stream`: where it began.
void CaptureBegins(cuda::CUstream stream, bool per_thread);
void CaptureEnds(cuda::CUstream stream, bool per_thread);
// Before the driver destroys it.
void StreamGone(cuda::CUstream stream);
// How long it takes, as far as that was learnt; else 0.
uint64_t PredictWorkNs(const Work& work);
// What was learnt of a graph, or of all functions, is of others from now on.
void ForgetGraphWork(cuda::CUgraphExec exec);
void ForgetFunctionWork();
// There is a context that was not there before; it may be destroyed by the next call; it is gone.
void GateContextMade(cuda::CUcontext context);
void GateContextEnds(cuda::CUcontext context);
void GateContextGone(cuda::CUcontext context);
// The program says that what it does now must not wait. False: nobody waits for it, since
// its tenant is not latency-critical.
bool GateHint(bool on);
// In the child of a fork.
void ForgetGate();

}  // namespace gpumux::guard
