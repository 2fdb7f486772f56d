// SPDX-License-Identifier: Apache-2.0
#include "guard/gate.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "gpumux/abi/gate.h"
#include "guard/clock.h"
#include "guard/current_context.h"
#include "guard/driver.h"
#include "guard/durations.h"
#include "guard/gap_window.h"
#include "guard/gate_pages.h"
#include "guard/gate_threads.h"
#include "guard/lock.h"

namespace gpumux::guard {

namespace {

// Predicted work between two waits of a stream.
constexpr int64_t kGateBudgetNs = 100'000;
constexpr int64_t kTurnBudgetNs = 500'000;
constexpr uint64_t kHintLastsNs = 1'000'000'000;  // without any work: a hint that was not taken back
constexpr uint32_t kHashSize = 1024;              // a power of two, above GPUMUX_GATE_STREAMS

// A stream that work was launched into. Its index is that of its segments in the page.
struct Stream {
  uint64_t id;  // 0: free
  cuda::CUstream handle;
  cuda::CUcontext context;
  int thread;         // of a thread's own default stream; else 0
  bool dirty;         // not known to be complete
  int64_t left_ns;    // of the budget, until the next wait
  uint64_t launched;  // count
  uint64_t segments;  // that were begun
};

struct Gate {
  Lock lock;
  Stream streams[GPUMUX_GATE_STREAMS];
  uint32_t high;             // streams below it were used
  uint16_t hash[kHashSize];  // index + 1
  uint32_t dirty;            // streams
  uint32_t captures;         // under way
  uint64_t launches;         // atomic count
  uint32_t entering;         // atomic; launches that may not have reached the driver yet
  uint32_t epoch;            // atomic; another one when a stream is clean, or gone
  bool busy;                 // as an owner
  bool hinted;
  uint64_t busy_since_ns;
  GapWindow window;
  uint64_t close_at_ns;  // atomic; others' gates are open until then; 0: they are not, or nobody is busy
  bool watched;          // atomic; the window wants to know of each launch
};
constinit Gate g = {};

// What a thread launched into last: as long as the epoch is the same, the stream is dirty
// and the process busy, and one more launch changes nothing.
struct Recent {
  cuda::CUstream handle;
  uint32_t epoch;
  uint64_t* launched;
};
thread_local Recent t_recent = {};

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccdu;
  return x ^ (x >> 32);
}

int ThreadId() {
  static thread_local int id = 0;
  if (id == 0) id = static_cast<int>(syscall(SYS_gettid));
  return id;
}

struct StreamName {
  uint64_t id;
  cuda::CUstream handle;
  int thread;
};

// A handle is one stream; the default streams are one a context, or one a thread and context.
StreamName NameOf(cuda::CUstream stream, bool per_thread, cuda::CUcontext context) {
  if (!stream) stream = per_thread ? cuda::kPerThreadStream : cuda::kLegacyStream;
  const auto handle = reinterpret_cast<uint64_t>(stream);
  if (stream == cuda::kLegacyStream) return {Mix(handle, reinterpret_cast<uint64_t>(context)) | 1, stream, 0};
  if (stream != cuda::kPerThreadStream) return {handle, stream, 0};
  const int thread = ThreadId();
  return {Mix(Mix(handle, reinterpret_cast<uint64_t>(context)), static_cast<uint64_t>(thread)) | 1, stream,
          thread};
}

bool IsDefault(cuda::CUstream stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

// Under the lock.
Stream* Find(uint64_t id) {
  for (uint32_t i = static_cast<uint32_t>(Mix(id, 0)) & (kHashSize - 1);; i = (i + 1) & (kHashSize - 1)) {
    if (g.hash[i] == 0) return nullptr;
    Stream& stream = g.streams[g.hash[i] - 1];
    if (stream.id == id) return &stream;
  }
}

void BuildHash() {
  for (uint16_t& cell : g.hash) cell = 0;
  for (uint32_t at = 0; at < g.high; at++) {
    if (g.streams[at].id == 0) continue;
    uint32_t i = static_cast<uint32_t>(Mix(g.streams[at].id, 0)) & (kHashSize - 1);
    while (g.hash[i] != 0) i = (i + 1) & (kHashSize - 1);
    g.hash[i] = static_cast<uint16_t>(at + 1);
  }
}

Stream* Add(const StreamName& name, cuda::CUcontext context) {
  uint32_t at = 0;
  while (at < GPUMUX_GATE_STREAMS && g.streams[at].id != 0) at++;
  gpumux_gate_page* page = OwnGate();
  if (at == GPUMUX_GATE_STREAMS) {
    if (page) __atomic_store_n(&page->untracked, 1, __ATOMIC_RELAXED);
    return nullptr;
  }
  Stream& stream = g.streams[at];
  // The segments of the stream that had the index before count on.
  const uint64_t segments = stream.segments;
  stream = {name.id, name.handle, context, name.thread, false, 0, 0, segments};
  if (at >= g.high) g.high = at + 1;
  if (page) __atomic_store_n(&page->streams, g.high, __ATOMIC_RELAXED);
  BuildHash();
  return &stream;
}

void SetWants(bool wants) {
  if (gpumux_gate_page* page = OwnGate()) __atomic_store_n(&page->wants, wants, __ATOMIC_SEQ_CST);
}

void SetCloseAt(uint64_t ns) { __atomic_store_n(&g.close_at_ns, ns, __ATOMIC_RELAXED); }

// Under the lock. The program says that it is urgent, or waits: no window any more.
void CloseNow() {
  if (g.close_at_ns == 0) return;
  SetCloseAt(0);
  CloseGates();
}

// Under the lock.
void BecomeBusy() {
  if (g.busy || !IsOwner()) return;
  g.busy = true;
  g.busy_since_ns = NowNs();
  const uint64_t close_at = g.hinted ? 0 : g.window.Begin(g.busy_since_ns);
  if (close_at > g.busy_since_ns) {
    SetCloseAt(close_at);
  } else {
    CloseGates();
  }
  __atomic_store_n(&g.watched, !g.hinted && g.window.Watches(), __ATOMIC_RELAXED);
}

// `exact`: seen at once, by a call of the program that waited.
void BecomeIdle(bool exact) {
  if (!g.busy) return;
  const uint64_t now = NowNs();
  if (!exact || g.hinted) g.window.Abandon();
  g.window.End(now);
  SetCloseAt(0);
  __atomic_store_n(&g.watched, false, __ATOMIC_RELAXED);
  OpenGates();
  g.busy = false;
  gpumux_gate_page* page = OwnGate();
  __atomic_store_n(&page->busy_periods, page->busy_periods + 1, __ATOMIC_RELAXED);
  __atomic_store_n(&page->busy_ns, page->busy_ns + (now - g.busy_since_ns), __ATOMIC_RELAXED);
  __atomic_store_n(&page->window_ns, g.window.window_ns(), __ATOMIC_RELAXED);
  __atomic_store_n(&page->windows, g.window.windows(), __ATOMIC_RELAXED);
}

// At a launch of a process that is busy already, without the lock.
void LaunchesOn() {
  if (!__atomic_load_n(&g.watched, __ATOMIC_RELAXED)) return;
  const uint64_t now = NowNs();
  g.window.Launched(now);
  const uint64_t close_at = __atomic_load_n(&g.close_at_ns, __ATOMIC_RELAXED);
  if (close_at == 0 || now < close_at) return;
  Held held(g.lock);
  CloseNow();
}

void MarkDirty(Stream* stream) {
  stream->launched++;
  if (stream->dirty) return;
  stream->dirty = true;
  if (g.dirty++ == 0) SetWants(true);
}

void MarkClean(Stream* stream, bool exact = false) {
  // A launch that is on its way may be into this one.
  if (!stream->dirty || __atomic_load_n(&g.entering, __ATOMIC_SEQ_CST) > 0) return;
  stream->dirty = false;
  __atomic_store_n(&g.epoch, g.epoch + 1, __ATOMIC_SEQ_CST);
  // What was begun has ended: nothing of it is on the GPU, whether the next wait says so or not.
  if (gpumux_gate_page* page = OwnGate()) {
    gpumux_gate_segments& told = page->segments[stream - g.streams];
    __atomic_store_n(&told.entered, stream->segments, __ATOMIC_RELAXED);
    __atomic_store_n(&told.passed, stream->segments, __ATOMIC_RELAXED);
  }
  if (--g.dirty > 0) return;
  SetWants(false);
  if (!g.hinted) BecomeIdle(exact);
}

void Forget(Stream* stream) {
  // A launch on its way, into a stream that is gone, is nobody's any more.
  if (stream->dirty) {
    stream->dirty = false;
    if (--g.dirty == 0) SetWants(false);
  }
  stream->id = 0;
  __atomic_store_n(&g.epoch, g.epoch + 1, __ATOMIC_SEQ_CST);
}

bool Captures(cuda::CUstream stream) {
  if (!Real().cuStreamIsCapturing) return false;
  cuda::CUstreamCaptureStatus status = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
  const cuda::CUresult r = Real().cuStreamIsCapturing(stream, &status);
  return r == cuda::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
         (r == cuda::CUDA_SUCCESS && status != cuda::CU_STREAM_CAPTURE_STATUS_NONE);
}

// Under the lock. Whether what was launched into it has ended.
bool IsComplete(const Stream& stream) {
  if (g.captures > 0 || !Real().cuStreamQuery) return false;
  if (stream.thread != 0 && stream.thread != ThreadId()) return false;
  return Real().cuStreamQuery(stream.handle) != cuda::CUDA_ERROR_NOT_READY;
}

void NoteHow(gpumux_gate_page* page, uint32_t how) {
  if (__atomic_load_n(&page->how, __ATOMIC_RELAXED) != how)
    __atomic_store_n(&page->how, how, __ATOMIC_RELAXED);
}

// Where the driver refuses waits: the stream is empty, and the gate open, before anything more goes there.
void WaitHere(gpumux_gate_page* page, cuda::CUstream stream) {
  NoteHow(page, GPUMUX_GATE_ON_CPU);
  if (Real().cuStreamSynchronize) Real().cuStreamSynchronize(stream);
  constexpr uint64_t kLookNs = 50'000;
  while (__atomic_load_n(&page->closed, __ATOMIC_SEQ_CST) != 0) Nap(kLookNs);
}

bool PutWait(gpumux_gate_page* page, cuda::CUdeviceptr base, cuda::CUstream stream) {
  const cuda::CUdeviceptr closed = base + offsetof(gpumux_gate_page, closed);
  auto* wait = Real().cuStreamWaitValue64_v2 ? Real().cuStreamWaitValue64_v2 : Real().cuStreamWaitValue64;
  if (!wait) return false;
  const cuda::CUresult r = wait(stream, closed, 0, cuda::CU_STREAM_WAIT_VALUE_EQ);
  if (r == cuda::CUDA_SUCCESS) {
    NoteHow(page, GPUMUX_GATE_ON_GPU);
    __atomic_add_fetch(&page->waits, 1, __ATOMIC_RELAXED);
  }
  // Any other error is what the launch will meet too.
  return r != cuda::CUDA_ERROR_NOT_SUPPORTED;
}

// Between two segments: the one before has ended, the gate, the next has begun.
bool PutBoundary(gpumux_gate_page* page, cuda::CUdeviceptr base, cuda::CUstream stream, size_t index,
                 uint64_t segment) {
  auto* batch = Real().cuStreamBatchMemOp_v2;
  if (!batch) return PutWait(page, base, stream);
  const cuda::CUdeviceptr told =
      base + offsetof(gpumux_gate_page, segments) + index * sizeof(gpumux_gate_segments);
  cuda::CUstreamBatchMemOpParams steps[3] = {};
  steps[0].waitValue = {cuda::CU_STREAM_MEM_OP_WRITE_VALUE_64, told + offsetof(gpumux_gate_segments, passed),
                        segment - 1, 0, 0};
  steps[1].waitValue = {cuda::CU_STREAM_MEM_OP_WAIT_VALUE_64, base + offsetof(gpumux_gate_page, closed), 0,
                        cuda::CU_STREAM_WAIT_VALUE_EQ, 0};
  steps[2].waitValue = {cuda::CU_STREAM_MEM_OP_WRITE_VALUE_64, told + offsetof(gpumux_gate_segments, entered),
                        segment, 0, 0};
  const cuda::CUresult r = batch(stream, 3, steps, 0);
  if (r == cuda::CUDA_SUCCESS) {
    NoteHow(page, GPUMUX_GATE_ON_GPU);
    __atomic_add_fetch(&page->waits, 1, __ATOMIC_RELAXED);
  }
  return r != cuda::CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

GatedLaunch::GatedLaunch(uint32_t word, cuda::CUstream stream, bool per_thread, const Work& work) {
  __atomic_add_fetch(&g.entering, 1, __ATOMIC_SEQ_CST);
  const Recent& recent = t_recent;
  if (word == GPUMUX_LAUNCH_LATENCY && stream == recent.handle && !IsDefault(stream) &&
      recent.epoch == __atomic_load_n(&g.epoch, __ATOMIC_SEQ_CST) &&
      __atomic_load_n(&g.captures, __ATOMIC_RELAXED) == 0) {
    __atomic_add_fetch(recent.launched, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&g.launches, g.launches + 1, __ATOMIC_RELAXED);
    LaunchesOn();
    return;
  }
  Enter(word, stream, per_thread, work);
}

void GatedLaunch::Enter(uint32_t word, cuda::CUstream handle, bool per_thread, const Work& work) {
  gpumux_gate_page* page = OwnGate();
  if (!page) {
    // Its first context was made before anybody needed a gate.
    if (!FetchGates()) return;
    page = OwnGate();
    StartGateThreads();
  }
  const cuda::CUcontext context = CurrentContext();
  const StreamName name = NameOf(handle, per_thread, context);
  stream_ = name.handle;
  const bool gated = (word & (GPUMUX_LAUNCH_GATED | GPUMUX_LAUNCH_TURNS)) != 0;
  bool wait = false;
  size_t index = 0;
  uint64_t segment = 0;
  {
    Held held(g.lock);
    __atomic_store_n(&g.launches, g.launches + 1, __ATOMIC_RELAXED);
    if (g.captures > 0 && Captures(name.handle)) return;
    Stream* stream = Find(name.id);
    if (!stream) stream = Add(name, context);
    if (stream && (word & (GPUMUX_LAUNCH_LATENCY | GPUMUX_LAUNCH_TURNS))) MarkDirty(stream);
    if (word & GPUMUX_LAUNCH_LATENCY) BecomeBusy();
    if (!gated) {
      if (stream && g.busy) t_recent = {handle, g.epoch, &stream->launched};
    }
    if (gated) {
      const int64_t budget = (word & GPUMUX_LAUNCH_GATED) ? kGateBudgetNs : kTurnBudgetNs;
      const uint64_t key = Mix(work.function, Mix(work.blocks, work.threads)) | 1;
      if (work.ns == 0) TakeSamples(context);
      const uint64_t predicted = work.ns ? work.ns : PredictNs(key);
      const int64_t takes = predicted == kUnknownNs ? budget : static_cast<int64_t>(predicted);
      if (stream && stream->left_ns >= takes) {
        stream->left_ns -= takes;
      } else {
        wait = true;
      }
      if (wait && stream) {
        stream->left_ns = budget > takes ? budget - takes : 0;
        index = static_cast<size_t>(stream - g.streams);
        segment = ++stream->segments;
      }
      if (work.ns == 0) sample_ = ReserveSample(key, context);
    }
  }
  if (!gated) return LaunchesOn();
  if (wait) {
    const cuda::CUdeviceptr base = GateAddress();
    const bool tell = (word & GPUMUX_LAUNCH_TURNS) && segment > 0;
    const bool put = base != 0 && (tell ? PutBoundary(page, base, name.handle, index, segment)
                                        : PutWait(page, base, name.handle));
    if (!put) WaitHere(page, name.handle);
  }
  if (sample_ >= 0 && !StartSample(sample_, name.handle)) sample_ = -1;
}

GatedLaunch::~GatedLaunch() {
  if (sample_ >= 0) EndSample(sample_, stream_);
  __atomic_sub_fetch(&g.entering, 1, __ATOMIC_SEQ_CST);
}

GateWait::GateWait(cuda::CUstream stream, bool per_thread)
    : counts_((LaunchWord() & (GPUMUX_LAUNCH_LATENCY | GPUMUX_LAUNCH_TURNS)) != 0 &&
              __atomic_load_n(&g.dirty, __ATOMIC_RELAXED) != 0) {
  if (!counts_) return;
  Held held(g.lock);
  CloseNow();
  if (stream == kAnyStream) return;
  const Stream* known = Find(NameOf(stream, per_thread, CurrentContext()).id);
  if (!known) return;
  id_ = known->id;
  launched_ = known->launched;
}

GateWait::~GateWait() {
  if (!counts_) return;
  Held held(g.lock);
  Stream* waited = id_ ? Find(id_) : nullptr;
  // Nothing was launched meanwhile: it is complete without being asked.
  if (waited && waited->launched == launched_) MarkClean(waited, /*exact=*/true);
  const cuda::CUcontext context = g.dirty > 0 ? CurrentContext() : nullptr;
  for (uint32_t i = 0; i < g.high && g.dirty > 0; i++) {
    Stream& stream = g.streams[i];
    if (stream.dirty && stream.context == context && IsComplete(stream)) MarkClean(&stream, /*exact=*/true);
  }
}

uint64_t GateLaunches() { return __atomic_load_n(&g.launches, __ATOMIC_RELAXED); }
bool GateIsDirty() { return __atomic_load_n(&g.dirty, __ATOMIC_RELAXED) != 0; }

bool LookAtStreams() {
  Held held(g.lock);
  cuda::CUcontext current = nullptr;
  for (uint32_t i = 0; i < g.high && g.dirty > 0; i++) {
    Stream& stream = g.streams[i];
    if (!stream.dirty) continue;
    if (stream.context != current) {
      cuda::CUcontext before;
      if (current) Real().cuCtxPopCurrent_v2(&before);
      current = Real().cuCtxPushCurrent_v2(stream.context) == cuda::CUDA_SUCCESS ? stream.context : nullptr;
      if (!current) {
        MarkClean(&stream);
        continue;
      }
    }
    if (IsComplete(stream)) MarkClean(&stream);
  }
  cuda::CUcontext before;
  if (current) Real().cuCtxPopCurrent_v2(&before);
  return g.dirty == 0;
}

void DropStaleHint() {
  if (!__atomic_load_n(&g.hinted, __ATOMIC_RELAXED)) return;
  Held held(g.lock);
  if (!g.hinted || g.dirty > 0 || NowNs() - g.busy_since_ns < kHintLastsNs) return;
  BecomeIdle(/*exact=*/false);
  g.hinted = false;
}

void CaptureBegins() {
  if (LaunchWord() == 0 && !OwnGate()) {
    __atomic_add_fetch(&g.captures, 1, __ATOMIC_RELAXED);
    return;
  }
  Held held(g.lock);
  __atomic_add_fetch(&g.captures, 1, __ATOMIC_RELAXED);
}

void CaptureEnds() {
  uint32_t captures = __atomic_load_n(&g.captures, __ATOMIC_RELAXED);
  while (captures > 0 && !__atomic_compare_exchange_n(&g.captures, &captures, captures - 1, false,
                                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

void StreamGone(cuda::CUstream handle) {
  if (IsDefault(handle) || __atomic_load_n(&g.high, __ATOMIC_RELAXED) == 0) return;
  Held held(g.lock);
  Stream* stream = Find(reinterpret_cast<uint64_t>(handle));
  if (!stream) return;
  MarkClean(stream);
  Forget(stream);
  BuildHash();
}

void GateContextMade(cuda::CUcontext context) {
  if (!ToHaveGate() || !FetchGates()) return;
  StartGateThreads();
  // Now, rather than at a launch: nothing is captured yet, and nothing waits.
  if (IsOwner() || Real().cuCtxPushCurrent_v2(context) != cuda::CUDA_SUCCESS) return;
  GateAddress();
  cuda::CUcontext before;
  Real().cuCtxPopCurrent_v2(&before);
}

void GateContextGone(cuda::CUcontext context, bool last) {
  if (!OwnGate()) return;
  Held held(g.lock);
  for (uint32_t i = 0; i < g.high; i++) {
    Stream& stream = g.streams[i];
    if (stream.id == 0 || stream.context != context) continue;
    MarkClean(&stream);
    Forget(&stream);
  }
  BuildHash();
  ForgetSamples(context);
  if (last) GateAddressGone();
}

bool GateHint(bool on) {
  if (!ToHaveGate() || !FetchGates() || !IsOwner()) return false;
  StartGateThreads();
  Held held(g.lock);
  if (!on && g.dirty == 0) BecomeIdle(/*exact=*/false);
  g.hinted = on;
  if (!on) return true;
  BecomeBusy();
  CloseNow();
  return true;
}

void ForgetGate() {
  g = {};
  ForgetDurations();
  ForgetGatePages();
  ForgetGateThreads();
}

}  // namespace gpumux::guard
