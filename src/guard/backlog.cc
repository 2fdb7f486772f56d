// SPDX-License-Identifier: Apache-2.0
#include "guard/backlog.h"

#include "guard/clock.h"
#include "guard/session.h"

namespace gpumux::guard {

namespace {

// A program that works beside the GPU waits for less than its work takes: four
// times as long counts, and never more than the time since it had none.
constexpr uint64_t kBeside = 4;
constexpr uint64_t kLegacyStream = 1;  // CU_STREAM_LEGACY

struct Backlog {
  uint64_t done;      // launches that have ended
  uint64_t idle_ns;   // when the last of them was seen to have
  uint32_t contexts;  // atomic
  uint32_t streams;   // atomic; that were ever made
};
constinit Backlog b = {};

}  // namespace

Wait::Wait(bool all)
    : counts_(all && ToBeMpsClient() && __atomic_load_n(&b.contexts, __ATOMIC_RELAXED) == 1) {
  if (!counts_) return;
  since_ns_ = NowNs();
  const uint64_t* launches = __atomic_load_n(&g_launches, __ATOMIC_ACQUIRE);
  if (launches) launches_ = __atomic_load_n(launches, __ATOMIC_RELAXED);
}

// Threads that wait at the same time may overwrite each other's figures with ones
// that are as true.
cuda::CUresult Wait::Over(cuda::CUresult r) {
  if (!counts_ || r != cuda::CUDA_SUCCESS) return r;
  const uint64_t now = NowNs();
  const uint64_t done = __atomic_load_n(&b.done, __ATOMIC_RELAXED);
  const uint64_t idle = __atomic_load_n(&b.idle_ns, __ATOMIC_RELAXED);
  uint64_t longest = 0;
  if (launches_ > done) {
    uint64_t took = (now - since_ns_) * kBeside;
    if (idle != 0 && took > now - idle) took = now - idle;
    longest = took / (launches_ - done) + 1;
  }
  __atomic_store_n(&b.done, launches_ > done ? launches_ : done, __ATOMIC_RELAXED);
  __atomic_store_n(&b.idle_ns, now, __ATOMIC_RELAXED);
  TellBacklog(launches_, longest);
  return r;
}

bool IsOnlyStream(cuda::CUstream stream) {
  return reinterpret_cast<uintptr_t>(stream) <= kLegacyStream &&
         __atomic_load_n(&b.streams, __ATOMIC_RELAXED) == 0;
}

void CountStream() { __atomic_add_fetch(&b.streams, 1, __ATOMIC_RELAXED); }

void CountContexts(int change) {
  __atomic_add_fetch(&b.contexts, static_cast<uint32_t>(change), __ATOMIC_RELAXED);
}

void ForgetBacklog() { b = {}; }

}  // namespace gpumux::guard
