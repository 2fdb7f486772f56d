// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "gpumux/abi/cuda/driver.h"
#include "softgpu/protocol.h"

namespace gpumux::softgpu {

struct CapturedPoint;
class SharedEvent;
struct Context;
struct Stream;

// One thing that a stream does.
struct Work {
  enum class Kind {
    kKernel,  // takes the time that the server says; then `effect`
    kEffect,  // copies, fills: `effect` on the engine's thread
    kCall,    // a function of the program, on a thread of its own
    kRecord,  // marks a point; takes no time
    kWait,    // for `after` alone
    kPoll,    // until `poll` says so
  };
  enum class Poll { kNotYet, kDone, kFault };
  Kind kind = Kind::kRecord;
  Stream* stream = nullptr;
  std::vector<std::shared_ptr<Work>> after;  // in other streams
  Launch launch;                             // kKernel
  // What it does to memory. False: an illegal address, which ends the context.
  std::function<bool()> effect;
  std::function<Poll()> poll;  // kPoll
  bool submitted = false;      // kKernel: the server has it
  bool started = false;        // the rest: somebody runs it
  bool done = false;
  int64_t end_ns = 0;  // CLOCK_MONOTONIC; the end of what came before, for kRecord
};
using WorkPtr = std::shared_ptr<Work>;

struct Stream {
  Context* context = nullptr;
  Context* green = nullptr;  // the green context that it was made in
  uint64_t id = 0;
  unsigned flags = 0;
  int priority = 0;
  bool legacy = false;
  bool destroyed = false;  // goes when it has nothing left to do
  std::deque<WorkPtr> pending;
  int64_t last_end_ns = 0;

  bool blocking() const { return (flags & cuda::CU_STREAM_NON_BLOCKING) == 0; }
  // Whose default stream it minds.
  Context* owner() const { return green != nullptr ? green : context; }
  // A primary context has the streams of its green contexts too.
  bool BelongsTo(const Context* other) const { return context == other || green == other; }
};

struct Event {
  Context* context = nullptr;
  unsigned flags = 0;
  WorkPtr recorded;                     // the latest; null: never
  std::shared_ptr<SharedEvent> shared;  // other processes may use it
  // Where a stream that was being captured recorded it, if that came later; the
  // graphs' mutex guards it.
  std::shared_ptr<CapturedPoint> captured;
  std::atomic<bool> was_captured{false};
};

// Streams, events and what is on its way to the GPU, of this process. Kernels
// go to the server as early as their order allows, so that it never waits for
// us between two kernels of a stream; everything else happens here. One thread
// of ours receives completions and does copies and fills; another calls the
// program's host functions, which may block.
class Engine {
 public:
  static Engine& Get();

  // Opens the work connection and starts the thread, once.
  bool Start();

  void AddContext(Context* context);
  // Waits for its work, then forgets its streams and events; of a green context
  // its default stream alone.
  void RemoveContext(Context* context);

  Stream* CreateStream(Context* context, unsigned flags, int priority);
  cuda::CUresult DestroyStream(cuda::CUstream handle);
  // A stream handle as `context`'s thread means it; null if there is none.
  Stream* FindStream(Context* context, cuda::CUstream handle);

  // Puts work into the stream, in the order of the legacy stream's rules;
  // waits while too much is pending already.
  WorkPtr Enqueue(Stream* stream, std::shared_ptr<Work> work);
  // The same; runs an effect in the calling thread if it is due at once.
  void EnqueueOrRun(Stream* stream, std::shared_ptr<Work> work);
  // The same and waits for its end; runs it in the calling thread if it can.
  cuda::CUresult EnqueueAndWait(Stream* stream, std::shared_ptr<Work> work);

  cuda::CUresult SynchronizeStream(Stream* stream);
  cuda::CUresult SynchronizeContext(Context* context);
  cuda::CUresult QueryStream(Stream* stream);
  bool IsIdle(uint64_t stream_id);

  Event* CreateEvent(Context* context, unsigned flags);
  Event* FindEvent(cuda::CUevent handle);
  cuda::CUresult DestroyEvent(cuda::CUevent handle);
  void Record(Event* event, Stream* stream);
  void Wait(Stream* stream, Event* event);
  // The same for all streams of a context: its work so far, and its work from now on.
  void RecordAll(Event* event, Context* context);
  void WaitAll(Context* context, Event* event);
  // For graphs: the work that stands for the event's latest record.
  WorkPtr Recorded(Event* event);
  void SetRecorded(Event* event, WorkPtr work);
  cuda::CUresult SynchronizeEvent(Event* event);
  cuda::CUresult QueryEvent(Event* event);
  cuda::CUresult Elapsed(Event* start, Event* end, float* ms);

  // The context is beyond use: every later call answers `error`.
  void Fail(Context* context, cuda::CUresult error);

 private:
  using Lock = std::unique_lock<std::mutex>;

  Stream* MakeStream(Context* context, unsigned flags, int priority);
  void PushAlone(Context* context, const WorkPtr& work, Lock& lock);
  void Push(Stream* stream, const WorkPtr& work, Lock& lock);
  void PushOrRun(Stream* stream, const WorkPtr& work, Lock& lock);
  void Pump(Stream* stream);
  void PumpBlocked();
  bool Ready(Work& work);
  void Finish(const WorkPtr& work, int64_t end_ns);
  void RunEffect(const WorkPtr& work, Lock& lock);
  void FailLocked(Context* context, cuda::CUresult error);
  // An illegal address: fails the context, and tells the server, which knows who
  // else has to hear of it.
  void FaultLocked(Context* context);
  cuda::CUresult WaitFor(const std::vector<WorkPtr>& works, Context* context, Lock& lock);
  void Loop();
  void CallLoop();
  void Wake();
  bool Receive(Lock& lock);
  void RunPolls(Lock& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable calls_changed_;
  bool started_ = false;
  bool calls_started_ = false;
  int fd_ = -1;
  int wake_ = -1;
  uint64_t next_id_ = 1;
  std::set<Context*> contexts_;  // without green ones
  std::unordered_map<Stream*, std::unique_ptr<Stream>> streams_;
  std::unordered_map<Event*, std::unique_ptr<Event>> events_;
  std::set<Stream*> blocked_;  // their next work waits for another stream
  std::unordered_map<uint64_t, WorkPtr> in_flight_;
  std::deque<WorkPtr> effects_;  // ready to run
  std::deque<WorkPtr> calls_;
  std::vector<WorkPtr> polls_;  // that wait for memory
};

int64_t NowNs();

}  // namespace gpumux::softgpu
