// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/engine.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <thread>
#include <utility>

#include "softgpu/driver/context.h"
#include "softgpu/driver/shared_event.h"
#include "softgpu/driver/thread_state.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

// As the driver: a launch waits when a stream has this much to do.
constexpr size_t kMaxPending = 1024;
constexpr size_t kMaxSubmitted = kMaxInFlight - 1024;

// The calling thread's own stream in each context, by the context's id. The
// stream's id tells whether the pointer still means it: a reset of the context
// ends its streams, and addresses are used again.
struct OwnStream {
  Stream* stream = nullptr;
  uint64_t id = 0;
};
using OwnStreams = std::unordered_map<uint64_t, OwnStream>;

// Threads of the library take no signals of the program.
template <typename Body>
void StartThread(Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(body).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

int64_t NowNs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * 1'000'000'000 + ts.tv_nsec;
}

Engine& Engine::Get() {
  static Engine* engine = new Engine;
  return *engine;
}

bool Engine::Start() {
  Lock lock(mutex_);
  if (started_) return true;
  fd_ = Driver::Get().OpenWork();
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd_ < 0 || wake_ < 0) return false;
  started_ = true;
  StartThread([this] { Loop(); });
  return true;
}

void Engine::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_, &one, sizeof(one));
}

// --- contexts and streams

void Engine::AddContext(Context* context) {
  Lock lock(mutex_);
  if (context->base != nullptr) {
    context->green_stream = MakeStream(context, CU_STREAM_DEFAULT, 0);
    context->green_stream->legacy = true;
    return;
  }
  contexts_.insert(context);
  context->legacy = std::make_unique<Stream>();
  context->legacy->context = context;
  context->legacy->legacy = true;
  context->legacy->id = next_id_++;
}

void Engine::RemoveContext(Context* context) {
  SynchronizeContext(context);
  Lock lock(mutex_);
  context->after.clear();
  if (context->base != nullptr) {
    blocked_.erase(context->green_stream);
    streams_.erase(context->green_stream);
    return;
  }
  FailLocked(context, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  contexts_.erase(context);
  std::erase_if(streams_, [&](const auto& entry) { return entry.first->context == context; });
  std::erase_if(events_, [&](const auto& entry) { return entry.first->context == context; });
  blocked_.clear();
  for (auto& [stream, owned] : streams_) {
    if (!stream->pending.empty()) blocked_.insert(stream);
  }
}

Stream* Engine::CreateStream(Context* context, unsigned flags, int priority) {
  Lock lock(mutex_);
  return MakeStream(context, flags, priority);
}

Stream* Engine::MakeStream(Context* context, unsigned flags, int priority) {
  auto stream = std::make_unique<Stream>();
  stream->context = Base(context);
  stream->green = context->base != nullptr ? context : nullptr;
  stream->flags = flags;
  stream->priority = priority;
  stream->id = next_id_++;
  Stream* raw = stream.get();
  streams_.emplace(raw, std::move(stream));
  return raw;
}

CUresult Engine::DestroyStream(CUstream handle) {
  Lock lock(mutex_);
  auto it = streams_.find(reinterpret_cast<Stream*>(handle));
  if (it == streams_.end() || it->first->destroyed) return CUDA_ERROR_INVALID_HANDLE;
  // Its work goes on; the stream goes with the last of it.
  it->first->destroyed = true;
  if (it->first->pending.empty()) streams_.erase(it);
  return CUDA_SUCCESS;
}

Stream* Engine::FindStream(Context* context, CUstream handle) {
  const Context* green = CurrentGreen();
  if (handle == nullptr || handle == kLegacyStream) {
    return green != nullptr && green->base == context ? green->green_stream : context->legacy.get();
  }
  if (handle == kPerThreadStream) {
    if (green != nullptr) return nullptr;
    OwnStream& own = OfThisThread<OwnStreams>()[context->id];
    {
      Lock lock(mutex_);
      auto it = streams_.find(own.stream);
      if (it != streams_.end() && it->first->id == own.id) return own.stream;
    }
    Stream* stream = CreateStream(context, CU_STREAM_DEFAULT, 0);
    own = {stream, stream->id};
    return stream;
  }
  Lock lock(mutex_);
  auto it = streams_.find(reinterpret_cast<Stream*>(handle));
  return it != streams_.end() && !it->first->destroyed ? it->first : nullptr;
}

// --- order

bool Engine::Ready(Work& work) {
  std::erase_if(work.after, [&](const WorkPtr& other) {
    if (other->done) work.end_ns = std::max(work.end_ns, other->end_ns);
    return other->done;
  });
  return work.after.empty();
}

void Engine::Push(Stream* stream, const WorkPtr& work, Lock& lock) {
  changed_.wait(lock, [&] {
    return stream->pending.size() < kMaxPending || stream->context->sticky.load() != CUDA_SUCCESS;
  });
  work->stream = stream;
  Context* context = stream->context;
  if (context->sticky.load() != CUDA_SUCCESS) {
    work->done = true;
    return;
  }
  // The legacy stream waits for all streams that block, and they for it.
  Context* owner = stream->owner();
  const Stream* legacy = owner->base != nullptr ? owner->green_stream : owner->legacy.get();
  if (stream->legacy) {
    for (const auto& [other, owned] : streams_) {
      if (other->owner() == owner && other->blocking() && !other->pending.empty()) {
        work->after.push_back(other->pending.back());
      }
    }
  } else if (stream->blocking() && !legacy->pending.empty()) {
    work->after.push_back(legacy->pending.back());
  }
  for (Context* of : {context, stream->green}) {
    if (of == nullptr || of->after.empty()) continue;
    std::erase_if(of->after, [](const WorkPtr& before) { return before->done; });
    work->after.insert(work->after.end(), of->after.begin(), of->after.end());
  }
  stream->pending.push_back(work);
  Pump(stream);
}

// Starts what can start. Passes over kernels that the server has already and
// over points that only mark or wait, so that kernels behind them go early.
void Engine::Pump(Stream* stream) {
  for (size_t i = 0; i < stream->pending.size(); ++i) {
    const WorkPtr& work = stream->pending[i];
    if (work->submitted) continue;
    if (!Ready(*work) || (work->kind == Work::Kind::kKernel && in_flight_.size() >= kMaxSubmitted)) {
      blocked_.insert(stream);
      return;
    }
    switch (work->kind) {
      case Work::Kind::kKernel: {
        work->submitted = true;
        in_flight_.emplace(work->launch.kernel, work);
        ssize_t n;
        do {
          n = send(fd_, &work->launch, sizeof(work->launch), MSG_NOSIGNAL);
        } while (n < 0 && errno == EINTR);
        continue;  // a server that is gone is noticed by the receiving side
      }
      case Work::Kind::kRecord:
      case Work::Kind::kWait:
        if (i != 0) continue;
        work->done = true;
        work->end_ns = std::max(work->end_ns, stream->last_end_ns);
        stream->last_end_ns = work->end_ns;
        stream->pending.pop_front();
        --i;
        changed_.notify_all();
        continue;
      case Work::Kind::kPoll:
        if (i != 0 || work->started) return;
        work->started = true;
        polls_.push_back(work);
        Wake();
        return;
      case Work::Kind::kEffect:
      case Work::Kind::kCall:
        if (i != 0 || work->started) return;
        work->started = true;
        if (work->kind == Work::Kind::kCall) {
          if (!calls_started_) {
            calls_started_ = true;
            StartThread([this] { CallLoop(); });
          }
          calls_.push_back(work);
          calls_changed_.notify_one();
        } else {
          effects_.push_back(work);
          Wake();
        }
        return;
    }
  }
}

void Engine::PumpBlocked() {
  while (!blocked_.empty()) {
    const std::set<Stream*> now = std::exchange(blocked_, {});
    size_t before = 0, after = 0;
    for (Stream* stream : now) {
      before += stream->pending.size();
      Pump(stream);
      after += stream->pending.size();
    }
    if (before == after) return;
  }
}

void Engine::Finish(const WorkPtr& work, int64_t end_ns) {
  if (work->done) return;  // its context failed meanwhile
  Stream* stream = work->stream;
  work->done = true;
  work->end_ns = end_ns;
  work->effect = nullptr;
  stream->last_end_ns = end_ns;
  stream->pending.pop_front();
  Pump(stream);
  PumpBlocked();
  if (stream->destroyed && stream->pending.empty()) {
    blocked_.erase(stream);
    streams_.erase(stream);
  }
  changed_.notify_all();
}

void Engine::RunEffect(const WorkPtr& work, Lock& lock) {
  lock.unlock();
  const bool ok = work->effect();
  lock.lock();
  if (work->done) return;
  Context* context = work->stream->context;
  if (ok) {
    Finish(work, NowNs());
  } else {
    FaultLocked(context);
  }
}

WorkPtr Engine::Enqueue(Stream* stream, WorkPtr work) {
  Lock lock(mutex_);
  if (work->kind == Work::Kind::kKernel) {
    work->launch.kernel = next_id_++;
    work->launch.stream = stream->id;
  }
  Push(stream, work, lock);
  return work;
}

void Engine::PushOrRun(Stream* stream, const WorkPtr& work, Lock& lock) {
  Push(stream, work, lock);
  auto mine = std::find(effects_.begin(), effects_.end(), work);
  if (mine == effects_.end()) return;
  effects_.erase(mine);
  RunEffect(work, lock);
}

void Engine::EnqueueOrRun(Stream* stream, WorkPtr work) {
  Lock lock(mutex_);
  PushOrRun(stream, work, lock);
}

CUresult Engine::EnqueueAndWait(Stream* stream, WorkPtr work) {
  Lock lock(mutex_);
  Context* context = stream->context;
  PushOrRun(stream, work, lock);
  return WaitFor({work}, context, lock);
}

// --- waiting

CUresult Engine::WaitFor(const std::vector<WorkPtr>& works, Context* context, Lock& lock) {
  for (const WorkPtr& work : works) {
    changed_.wait(lock, [&] { return work->done; });
  }
  return context->sticky.load();
}

CUresult Engine::SynchronizeStream(Stream* stream) {
  Lock lock(mutex_);
  Context* context = stream->context;
  std::vector<WorkPtr> works;
  if (!stream->pending.empty()) works.push_back(stream->pending.back());
  if (stream->legacy) {
    for (const auto& [other, owned] : streams_) {
      if (other->owner() == stream->owner() && other->blocking() && !other->pending.empty()) {
        works.push_back(other->pending.back());
      }
    }
  }
  return WaitFor(works, context, lock);
}

CUresult Engine::SynchronizeContext(Context* context) {
  Lock lock(mutex_);
  std::vector<WorkPtr> works;
  if (context->legacy != nullptr && !context->legacy->pending.empty()) {
    works.push_back(context->legacy->pending.back());
  }
  for (const auto& [stream, owned] : streams_) {
    if (stream->BelongsTo(context) && !stream->pending.empty()) works.push_back(stream->pending.back());
  }
  return WaitFor(works, Base(context), lock);
}

CUresult Engine::QueryStream(Stream* stream) {
  Lock lock(mutex_);
  if (CUresult error = stream->context->sticky; error != CUDA_SUCCESS) return error;
  return stream->pending.empty() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

bool Engine::IsIdle(uint64_t stream_id) {
  Lock lock(mutex_);
  for (const auto& [stream, owned] : streams_) {
    if (stream->id == stream_id) return stream->pending.empty();
  }
  return true;
}

// --- threads

bool Engine::Receive(Lock& lock) {
  for (;;) {
    Completion completion;
    const ssize_t n = recv(fd_, &completion, sizeof(completion), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (n != sizeof(completion)) return false;
    if (completion.op == Op::kFailed) {
      for (Context* context : contexts_) FailLocked(context, static_cast<CUresult>(completion.kernel));
      continue;
    }
    if (completion.op != Op::kCompletion) return false;
    auto it = in_flight_.find(completion.kernel);
    if (it == in_flight_.end()) continue;
    const WorkPtr work = it->second;
    in_flight_.erase(it);
    if (work->effect) {
      lock.unlock();
      const bool ok = work->effect();
      lock.lock();
      if (!ok && !work->done) {
        FaultLocked(work->stream->context);
        continue;
      }
    }
    Finish(work, completion.end_ns);
  }
}

void Engine::RunPolls(Lock& lock) {
  std::vector<WorkPtr> waiting = std::exchange(polls_, {});
  for (const WorkPtr& work : waiting) {
    if (work->done) continue;  // its context failed meanwhile
    lock.unlock();
    const Work::Poll state = work->poll();
    lock.lock();
    if (work->done) continue;
    switch (state) {
      case Work::Poll::kNotYet:
        polls_.push_back(work);
        break;
      case Work::Poll::kDone:
        Finish(work, NowNs());
        break;
      case Work::Poll::kFault:
        FaultLocked(work->stream->context);
        break;
    }
  }
}

void Engine::Loop() {
  bool polls = false;
  for (;;) {
    pollfd fds[2] = {{fd_, POLLIN, 0}, {wake_, POLLIN, 0}};
    // Memory that somebody else writes has no descriptor to wait for.
    const timespec interval = {0, 200'000};
    ppoll(fds, 2, polls ? &interval : nullptr, nullptr);
    uint64_t count;
    [[maybe_unused]] const ssize_t n = read(wake_, &count, sizeof(count));
    Lock lock(mutex_);
    const bool alive = Receive(lock);
    while (!effects_.empty()) {
      const WorkPtr work = effects_.front();
      effects_.pop_front();
      RunEffect(work, lock);
    }
    RunPolls(lock);
    polls = !polls_.empty();
    if (!alive) {
      // The server is gone, and with it the GPU: as one that fell off the bus.
      std::set<Context*> contexts;
      for (const auto& [stream, owned] : streams_) contexts.insert(stream->context);
      for (const auto& [id, work] : in_flight_) contexts.insert(work->stream->context);
      for (Context* context : contexts) FailLocked(context, CUDA_ERROR_DEVICE_UNAVAILABLE);
      return;
    }
  }
}

void Engine::CallLoop() {
  Lock lock(mutex_);
  for (;;) {
    calls_changed_.wait(lock, [&] { return !calls_.empty(); });
    const WorkPtr work = calls_.front();
    calls_.pop_front();
    RunEffect(work, lock);
  }
}

}  // namespace gpumux::softgpu
