// SPDX-License-Identifier: Apache-2.0
//
// The engine's events.
#include <poll.h>

#include <memory>
#include <utility>

#include "softgpu/driver/context.h"
#include "softgpu/driver/engine.h"
#include "softgpu/driver/shared_event.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

Event* Engine::CreateEvent(Context* context, unsigned flags) {
  auto event = std::make_unique<Event>();
  event->context = context;
  event->flags = flags;
  Event* raw = event.get();
  Lock lock(mutex_);
  events_.emplace(raw, std::move(event));
  return raw;
}

Event* Engine::FindEvent(CUevent handle) {
  Lock lock(mutex_);
  auto it = events_.find(reinterpret_cast<Event*>(handle));
  return it != events_.end() ? it->first : nullptr;
}

CUresult Engine::DestroyEvent(CUevent handle) {
  Lock lock(mutex_);
  return events_.erase(reinterpret_cast<Event*>(handle)) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void Engine::Record(Event* event, Stream* stream) {
  auto work = std::make_shared<Work>();
  work->kind = Work::Kind::kRecord;
  Lock lock(mutex_);
  event->recorded = work;
  // An idle stream reaches the point at once, whenever its last work ended.
  if (stream->pending.empty()) stream->last_end_ns = NowNs();
  Push(stream, work, lock);
  if (event->shared == nullptr) return;
  auto tell = std::make_shared<Work>();
  tell->kind = Work::Kind::kEffect;
  tell->effect = [shared = event->shared, number = event->shared->Record()] {
    shared->Complete(number);
    return true;
  };
  Push(stream, tell, lock);
}

void Engine::Wait(Stream* stream, Event* event) {
  auto work = std::make_shared<Work>();
  work->kind = Work::Kind::kWait;
  Lock lock(mutex_);
  if (event->shared != nullptr) {
    const uint64_t number = event->shared->Recorded();
    if (event->shared->IsComplete(number)) return;
    work->kind = Work::Kind::kPoll;
    work->poll = [shared = event->shared, number] {
      return shared->IsComplete(number) ? Work::Poll::kDone : Work::Poll::kNotYet;
    };
    Push(stream, work, lock);
    return;
  }
  if (event->recorded == nullptr || event->recorded->done) return;
  work->after.push_back(event->recorded);
  Push(stream, work, lock);
}

// In a stream of its own, which ends with it.
void Engine::PushAlone(Context* context, const WorkPtr& work, Lock& lock) {
  Stream* stream = MakeStream(context, CU_STREAM_NON_BLOCKING, 0);
  Push(stream, work, lock);
  stream->destroyed = true;
  if (stream->pending.empty()) streams_.erase(stream);  // its context has failed
}

void Engine::RecordAll(Event* event, Context* context) {
  auto work = std::make_shared<Work>();
  work->kind = Work::Kind::kEffect;
  const uint64_t number = event->shared != nullptr ? event->shared->Record() : 0;
  work->effect = [shared = event->shared, number] {
    if (shared != nullptr) shared->Complete(number);
    return true;
  };
  Lock lock(mutex_);
  for (const auto& [stream, owned] : streams_) {
    if (stream->BelongsTo(context) && !stream->pending.empty()) work->after.push_back(stream->pending.back());
  }
  if (context->legacy != nullptr && !context->legacy->pending.empty()) {
    work->after.push_back(context->legacy->pending.back());
  }
  event->recorded = work;
  PushAlone(context, work, lock);
}

void Engine::WaitAll(Context* context, Event* event) {
  auto work = std::make_shared<Work>();
  Lock lock(mutex_);
  if (event->shared != nullptr) {
    work->kind = Work::Kind::kPoll;
    work->poll = [shared = event->shared, number = event->shared->Recorded()] {
      return shared->IsComplete(number) ? Work::Poll::kDone : Work::Poll::kNotYet;
    };
    PushAlone(context, work, lock);
  } else {
    work = event->recorded;
  }
  if (work != nullptr && !work->done) context->after.push_back(work);
}

WorkPtr Engine::Recorded(Event* event) {
  Lock lock(mutex_);
  return event->recorded;
}

void Engine::SetRecorded(Event* event, WorkPtr work) {
  Lock lock(mutex_);
  event->recorded = std::move(work);
}

CUresult Engine::SynchronizeEvent(Event* event) {
  Lock lock(mutex_);
  if (const auto shared = event->shared) {
    const uint64_t number = shared->Recorded();
    while (!shared->IsComplete(number)) {
      if (CUresult error = event->context->sticky; error != CUDA_SUCCESS) return error;
      lock.unlock();
      poll(nullptr, 0, 1);
      lock.lock();
    }
    return event->context->sticky;
  }
  if (event->recorded == nullptr) return CUDA_SUCCESS;
  return WaitFor({event->recorded}, event->context, lock);
}

CUresult Engine::QueryEvent(Event* event) {
  Lock lock(mutex_);
  if (CUresult error = event->context->sticky; error != CUDA_SUCCESS) return error;
  if (event->shared != nullptr) {
    return event->shared->IsComplete(event->shared->Recorded()) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  }
  return event->recorded == nullptr || event->recorded->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult Engine::Elapsed(Event* start, Event* end, float* ms) {
  Lock lock(mutex_);
  if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0 || start->recorded == nullptr ||
      end->recorded == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!start->recorded->done || !end->recorded->done) return CUDA_ERROR_NOT_READY;
  *ms = static_cast<float>(static_cast<double>(end->recorded->end_ns - start->recorded->end_ns) / 1e6);
  return CUDA_SUCCESS;
}

}  // namespace gpumux::softgpu
