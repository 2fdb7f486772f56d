// SPDX-License-Identifier: Apache-2.0
//
// Contexts that are beyond use.
#include <sys/socket.h>

#include <cerrno>

#include "softgpu/driver/context.h"
#include "softgpu/driver/engine.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

void Engine::Fail(Context* context, CUresult error) {
  Lock lock(mutex_);
  FailLocked(context, error);
}

void Engine::FailLocked(Context* context, CUresult error) {
  if (context->sticky.load() == CUDA_SUCCESS) context->sticky.store(error);
  auto drop = [&](Stream& stream) {
    for (const WorkPtr& work : stream.pending) {
      work->done = true;
      if (work->submitted) in_flight_.erase(work->launch.kernel);
    }
    stream.pending.clear();
    blocked_.erase(&stream);
  };
  if (context->legacy != nullptr) drop(*context->legacy);
  for (const auto& [stream, owned] : streams_) {
    if (stream->context == context) drop(*stream);
  }
  PumpBlocked();
  changed_.notify_all();
}

void Engine::FaultLocked(Context* context) {
  const bool first = context->sticky.load() == CUDA_SUCCESS;
  FailLocked(context, CUDA_ERROR_ILLEGAL_ADDRESS);
  if (!first) return;
  Launch fault;
  fault.op = Op::kFault;
  fault.gpu = context->device->gpu;
  ssize_t n;
  do {
    n = send(fd_, &fault, sizeof(fault), MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
}

}  // namespace gpumux::softgpu
