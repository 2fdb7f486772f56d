// SPDX-License-Identifier: Apache-2.0
#include "guard/gate.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "gpumux/abi/gate.h"
#include "guard/capturing.h"
#include "guard/clock.h"
#include "guard/current_context.h"
#include "guard/driver.h"
#include "guard/durations.h"
#include "guard/gap_window.h"
#include "guard/gate_pages.h"
#include "guard/gate_threads.h"
#include "guard/gate_waits.h"
#include "guard/graph_segments.h"
#include "guard/lock.h"
#include "guard/segment_budget.h"

namespace gpumux::guard {

namespace {

constexpr uint64_t kTurnBudgetNs = 500'000;       // of predicted work between two waits of a stream
constexpr uint64_t kHintLastsNs = 1'000'000'000;  // without any work: a hint that was not taken back
constexpr unsigned kOrigins = 16;
constexpr uint32_t kHashSize = 1024;  // a power of two, above GPUMUX_GATE_STREAMS

// A stream that work was launched into. Its index is that of its segments in the page.
struct Stream {
  uint64_t id;  // 0: free
  cuda::CUstream handle;
  cuda::CUcontext context;
  int thread;  // of a thread's own default stream; else 0
  bool dirty;  // not known to be complete
  SegmentBudget budget;
  uint64_t launched;  // count
  uint64_t segments;  // that were begun
};

struct Gate {
  Lock lock;
  Stream streams[GPUMUX_GATE_STREAMS];
  uint32_t high;               // streams below it were used
  uint16_t hash[kHashSize];    // index + 1
  uint32_t dirty;              // streams
  uint32_t captures;           // atomic; under way
  uint64_t origins[kOrigins];  // of these, as far as they fit: where each began
  uint64_t launches;           // atomic count
  uint32_t entering;           // atomic; launches that may not have reached the driver yet
  uint32_t epoch;              // atomic; another one when a stream is clean, or gone
  bool busy;                   // as an owner
  bool hinted;
  uint64_t busy_since_ns;
  uint64_t hint_used_ns;  // said, or work ended, last
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

void AllClean(bool exact) {
  SetWants(false);
  if (g.hinted) {
    g.hint_used_ns = NowNs();
  } else {
    BecomeIdle(exact);
  }
}

void MarkClean(Stream* stream, bool exact = false) {
  if (!stream->dirty) return;
  // First, so that whoever enters from now on looks for itself; then those on their way, of which
  // one may be into this stream.
  __atomic_store_n(&g.epoch, g.epoch + 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&g.entering, __ATOMIC_SEQ_CST) > 0) return;
  stream->dirty = false;
  // What was begun has ended: nothing of it is on the GPU, whether the next wait says so or not.
  if (gpumux_gate_page* page = OwnGate()) {
    gpumux_gate_segments& told = page->segments[stream - g.streams];
    __atomic_store_n(&told.entered, stream->segments, __ATOMIC_RELAXED);
    __atomic_store_n(&told.passed, stream->segments, __ATOMIC_RELAXED);
  }
  if (--g.dirty > 0) return;
  AllClean(exact);
}

void Forget(Stream* stream) {
  // A launch on its way, into a stream that is gone, is nobody's any more.
  if (stream->dirty) {
    stream->dirty = false;
    if (--g.dirty == 0) AllClean(/*exact=*/false);
  }
  stream->id = 0;
  __atomic_store_n(&g.epoch, g.epoch + 1, __ATOMIC_SEQ_CST);
}

Stream* Add(const StreamName& name, cuda::CUcontext context) {
  uint32_t at = 0;
  while (at < GPUMUX_GATE_STREAMS && g.streams[at].id != 0) at++;
  // Streams are told apart as long as they have work.
  if (at == GPUMUX_GATE_STREAMS) {
    for (at = 0; at < GPUMUX_GATE_STREAMS && g.streams[at].dirty;) at++;
    if (at < GPUMUX_GATE_STREAMS) Forget(&g.streams[at]);
  }
  gpumux_gate_page* page = OwnGate();
  if (at == GPUMUX_GATE_STREAMS) {
    if (page) __atomic_store_n(&page->untracked, 1, __ATOMIC_RELAXED);
    return nullptr;
  }
  Stream& stream = g.streams[at];
  // The segments of the stream that had the index before count on.
  const uint64_t segments = stream.segments;
  stream = {name.id, name.handle, context, name.thread, false, {}, 0, segments};
  if (at >= g.high) g.high = at + 1;
  if (page) __atomic_store_n(&page->streams, g.high, __ATOMIC_RELAXED);
  BuildHash();
  return &stream;
}

// Under the lock. Whether what was launched into it has ended.
bool IsComplete(const Stream& stream) {
  if (g.captures > 0 || !Real().cuStreamQuery) return false;
  // Another thread's own stream cannot be asked for; of a thread that has ended it is gone.
  if (stream.thread != 0 && stream.thread != ThreadId())
    return syscall(SYS_tgkill, getpid(), stream.thread, 0) != 0;
  return Real().cuStreamQuery(stream.handle) != cuda::CUDA_ERROR_NOT_READY;
}

uint64_t KeyOf(const Work& work) { return Mix(work.function, Mix(work.blocks, work.threads)) | 1; }

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
  // Its first context was made before anybody needed a gate. Nobody waits for a daemon here.
  if (!page) return StartGateThreads();
  const cuda::CUcontext context = CurrentContext();
  const StreamName name = NameOf(handle, per_thread, context);
  stream_ = name.handle;
  // Without somebody who opens it nothing is to wait at it.
  const bool gated = (word & (GPUMUX_LAUNCH_GATED | GPUMUX_LAUNCH_TURNS)) != 0 && OpenerRuns();
  bool wait = false;
  size_t index = 0;
  uint64_t segment = 0;
  {
    Held held(g.lock);
    __atomic_store_n(&g.launches, g.launches + 1, __ATOMIC_RELAXED);
    if (g.captures > 0 && IsCapturing(name.handle, /*per_thread=*/false)) return;
    Stream* stream = Find(name.id);
    if (!stream) stream = Add(name, context);
    if (stream && (word & (GPUMUX_LAUNCH_LATENCY | GPUMUX_LAUNCH_TURNS))) MarkDirty(stream);
    if (word & GPUMUX_LAUNCH_LATENCY) BecomeBusy();
    if (!gated) {
      if (stream && g.busy) t_recent = {handle, g.epoch, &stream->launched};
    }
    if (gated) {
      const bool latency = (word & GPUMUX_LAUNCH_GATED) != 0;
      const uint64_t key = KeyOf(work);
      // Events are not asked for while anybody captures: that would end the capture.
      const bool learns = work.ns == 0 && g.captures == 0;
      if (learns) TakeSamples(context);
      const uint64_t takes = work.ns ? work.ns : PredictNs(key);
      static_assert(kUnknownNs == 0);
      wait =
          !stream || stream->budget.TakesWait(static_cast<int64_t>(latency ? GateBudgetNs() : kTurnBudgetNs),
                                              static_cast<int64_t>(takes), latency);
      if (wait && stream) {
        index = static_cast<size_t>(stream - g.streams);
        segment = ++stream->segments;
      }
      if (learns) sample_ = ReserveSample(key, context);
    }
  }
  if (!gated) return LaunchesOn();
  if (wait) {
    const bool tell = (word & GPUMUX_LAUNCH_TURNS) && segment > 0;
    WaitAtGate(page, name.handle, tell ? &page->segments[index] : nullptr, segment,
               /*may_ask=*/__atomic_load_n(&g.captures, __ATOMIC_RELAXED) == 0);
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
  all_ = stream == kAllStreams;
  if (all_) launched_ = g.launches;
  if (stream == kAnyStream || all_) return;
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
  const bool all = all_ && launched_ == g.launches;
  for (uint32_t i = 0; i < g.high && g.dirty > 0; i++) {
    Stream& stream = g.streams[i];
    if (!stream.dirty || stream.context != context) continue;
    if (all || IsComplete(stream)) MarkClean(&stream, /*exact=*/true);
  }
}

uint64_t GateLaunches() { return __atomic_load_n(&g.launches, __ATOMIC_RELAXED); }
bool GateIsDirty() { return __atomic_load_n(&g.dirty, __ATOMIC_RELAXED) != 0; }

bool LookAtStreams() {
  Held held(g.lock);
  if (GateHasEnded()) return false;
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

bool NobodyInStreams() {
  if (!g.lock.TryAcquire()) return false;
  g.lock.Release();
  return true;
}

void DropStaleHint() {
  if (!__atomic_load_n(&g.hinted, __ATOMIC_RELAXED)) return;
  Held held(g.lock);
  if (!g.hinted || g.dirty > 0 || NowNs() - g.hint_used_ns < kHintLastsNs) return;
  BecomeIdle(/*exact=*/false);
  g.hinted = false;
}

void CaptureBegins(cuda::CUstream stream, bool per_thread) {
  const uint64_t id = NameOf(stream, per_thread, CurrentContext()).id;
  Held held(g.lock);
  __atomic_store_n(&g.captures, g.captures + 1, __ATOMIC_RELAXED);
  for (uint64_t& origin : g.origins) {
    if (origin != 0) continue;
    origin = id;
    return;
  }
}

namespace {
// Under the lock. Of a stream in which none began nothing ends.
void EndCaptureOf(uint64_t id) {
  for (uint64_t& origin : g.origins) {
    if (origin != id) continue;
    origin = 0;
    __atomic_store_n(&g.captures, g.captures - 1, __ATOMIC_RELAXED);
    return;
  }
}
}  // namespace

void CaptureEnds(cuda::CUstream stream, bool per_thread) {
  const uint64_t id = NameOf(stream, per_thread, CurrentContext()).id;
  Held held(g.lock);
  unsigned known = 0;
  for (const uint64_t origin : g.origins) known += origin != 0;
  const uint32_t before = g.captures;
  EndCaptureOf(id);
  // One of those that did not fit.
  if (g.captures == before && before > known) __atomic_store_n(&g.captures, before - 1, __ATOMIC_RELAXED);
}

uint64_t PredictWorkNs(const Work& work) {
  Held held(g.lock);
  return PredictNs(KeyOf(work));
}

void ForgetGraphWork(cuda::CUgraphExec exec) {
  if (!OwnGate()) return;
  Held held(g.lock);
  ForgetWork(KeyOf({.function = reinterpret_cast<uint64_t>(exec)}));
}

void ForgetFunctionWork() {
  if (!OwnGate()) return;
  Held held(g.lock);
  ForgetAllWork();
}

void StreamGone(cuda::CUstream handle) {
  const bool any =
      __atomic_load_n(&g.high, __ATOMIC_RELAXED) != 0 || __atomic_load_n(&g.captures, __ATOMIC_RELAXED) != 0;
  if (IsDefault(handle) || !any) return;
  cuda::CUdeviceptr told = 0;
  uint64_t segments = 0;
  {
    Held held(g.lock);
    EndCaptureOf(reinterpret_cast<uint64_t>(handle));
    Stream* stream = Find(reinterpret_cast<uint64_t>(handle));
    if (!stream) return;
    if (stream->dirty && stream->segments > 0 && g.captures == 0)
      told = offsetof(gpumux_gate_page, segments) +
             static_cast<size_t>(stream - g.streams) * sizeof(gpumux_gate_segments) +
             offsetof(gpumux_gate_segments, passed);
    segments = stream->segments;
    MarkClean(stream);
    Forget(stream);
    BuildHash();
  }
  // What it has queued still tells of segments: the last word is that all have ended.
  const cuda::CUdeviceptr base = told ? GateAddress() : 0;
  if (base && Real().cuStreamWriteValue64_v2)
    Real().cuStreamWriteValue64_v2(handle, base + told, segments, 0);
}

void GateContextMade(cuda::CUcontext context) {
  if (!ToHaveGate()) return;
  FetchGates();
  StartGateThreads();
  if (!OwnGate()) return;
  // Now, rather than at a launch: nothing is captured yet, and nothing waits.
  if (IsOwner() || Real().cuCtxPushCurrent_v2(context) != cuda::CUDA_SUCCESS) return;
  GateAddress();
  cuda::CUcontext before;
  Real().cuCtxPopCurrent_v2(&before);
}

// Its streams are nobody's to ask for any more. If it lives on, they are known again with their next launch.
void GateContextEnds(cuda::CUcontext context) {
  if (!OwnGate() || !context) return;
  Held held(g.lock);
  for (uint32_t i = 0; i < g.high; i++) {
    Stream& stream = g.streams[i];
    if (stream.id == 0 || stream.context != context) continue;
    MarkClean(&stream);
    Forget(&stream);
  }
  BuildHash();
}

void GateContextGone(cuda::CUcontext context) {
  if (!OwnGate()) return;
  GateContextEnds(context);
  ForgetGraphsOf(context);
  bool elsewhere = false;
  {
    Held held(g.lock);
    ForgetSamples(context);
    elsewhere = GateAddressGone(context);
  }
  if (elsewhere) DropGraphCopies();
}

bool GateHint(bool on) {
  if (!ToHaveGate() || (!OwnGate() && !FetchGates()) || !IsOwner()) return false;
  StartGateThreads();
  Held held(g.lock);
  if (!on && g.dirty == 0) BecomeIdle(/*exact=*/false);
  g.hinted = on;
  g.hint_used_ns = NowNs();
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
  ForgetGraphSegments();
}

}  // namespace gpumux::guard
