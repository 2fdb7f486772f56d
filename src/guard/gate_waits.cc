// SPDX-License-Identifier: Apache-2.0
#include "guard/gate_waits.h"

#include "guard/clock.h"
#include "guard/driver.h"
#include "guard/gate_pages.h"
#include "guard/graph_segments.h"
#include "guard/thread.h"

namespace gpumux::guard {

namespace {

void NoteHow(gpumux_gate_page* page, uint32_t how) {
  if (__atomic_load_n(&page->how, __ATOMIC_RELAXED) != how)
    __atomic_store_n(&page->how, how, __ATOMIC_RELAXED);
}

// Where the driver refuses waits: the stream is empty, and the gate open, before anything more goes
// there. Not for ever: the stream may wait for what this thread does next.
void WaitHere(gpumux_gate_page* page, cuda::CUstream stream, bool may_ask) {
  constexpr uint64_t kLookNs = 50'000, kPatienceNs = 50'000'000;
  NoteHow(page, GPUMUX_GATE_ON_CPU);
  const uint64_t until = NowNs() + kPatienceNs;
  while (may_ask && Real().cuStreamQuery && Real().cuStreamQuery(stream) == cuda::CUDA_ERROR_NOT_READY &&
         NowNs() < until) {
    Nap(kLookNs);
  }
  while (__atomic_load_n(&page->closed, __ATOMIC_SEQ_CST) != 0) Nap(kLookNs);
}

// What came of putting a wait.
enum class Put { kDone, kRefused, kNotThere };
Put Judge(gpumux_gate_page* page, cuda::CUresult r) {
  if (r == cuda::CUDA_SUCCESS) {
    NoteHow(page, GPUMUX_GATE_ON_GPU);
    __atomic_add_fetch(&page->waits, 1, __ATOMIC_RELAXED);
    return Put::kDone;
  }
  // The page's memory went with the context that it was registered in.
  if (r == cuda::CUDA_ERROR_INVALID_VALUE) return Put::kNotThere;
  // Any other error is what the launch will meet too.
  return r == cuda::CUDA_ERROR_NOT_SUPPORTED ? Put::kRefused : Put::kDone;
}

Put PutWait(gpumux_gate_page* page, cuda::CUdeviceptr base, cuda::CUstream stream) {
  const cuda::CUdeviceptr closed = base + offsetof(gpumux_gate_page, closed);
  auto* wait = Real().cuStreamWaitValue64_v2 ? Real().cuStreamWaitValue64_v2 : Real().cuStreamWaitValue64;
  if (!wait) return Put::kRefused;
  return Judge(page, wait(stream, closed, 0, cuda::CU_STREAM_WAIT_VALUE_EQ));
}

// Between two segments: the one before has ended, the gate, the next has begun.
Put PutBoundary(gpumux_gate_page* page, cuda::CUdeviceptr base, cuda::CUstream stream,
                const gpumux_gate_segments* segments, uint64_t segment) {
  auto* batch = Real().cuStreamBatchMemOp_v2;
  if (!batch) return PutWait(page, base, stream);
  const cuda::CUdeviceptr told =
      base + static_cast<cuda::CUdeviceptr>(reinterpret_cast<const char*>(segments) -
                                            reinterpret_cast<const char*>(page));
  cuda::CUstreamBatchMemOpParams steps[3] = {};
  steps[0].waitValue = {cuda::CU_STREAM_MEM_OP_WRITE_VALUE_64, told + offsetof(gpumux_gate_segments, passed),
                        segment - 1, 0, 0};
  steps[1].waitValue = {cuda::CU_STREAM_MEM_OP_WAIT_VALUE_64, base + offsetof(gpumux_gate_page, closed), 0,
                        cuda::CU_STREAM_WAIT_VALUE_EQ, 0};
  steps[2].waitValue = {cuda::CU_STREAM_MEM_OP_WRITE_VALUE_64, told + offsetof(gpumux_gate_segments, entered),
                        segment, 0, 0};
  return Judge(page, batch(stream, 3, steps, 0));
}

}  // namespace

void WaitAtGate(gpumux_gate_page* page, cuda::CUstream stream, const gpumux_gate_segments* told,
                uint64_t segment, bool may_ask) {
  const auto put = [&] {
    const cuda::CUdeviceptr base = GateAddress();
    if (base == 0) return Put::kRefused;
    return told ? PutBoundary(page, base, stream, told, segment) : PutWait(page, base, stream);
  };
  Put done = put();
  if (done == Put::kNotThere) {
    GateAddressGone(nullptr);
    DropGraphCopies();
    done = put();
  }
  if (done != Put::kDone) WaitHere(page, stream, may_ask);
}

}  // namespace gpumux::guard
