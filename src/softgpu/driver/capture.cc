// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/capture.h"

#include <algorithm>
#include <set>
#include <utility>

#include "softgpu/driver/context.h"
#include "softgpu/driver/error_codes.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

uint64_t ThisThread() {
  static std::atomic<uint64_t> next{1};
  thread_local const uint64_t id = next++;
  return id;
}

using Lock = std::lock_guard<std::recursive_mutex>;

void AddUnique(std::vector<CUgraphNode>* to, const std::vector<CUgraphNode>& nodes) {
  for (CUgraphNode node : nodes) {
    if (std::find(to->begin(), to->end(), node) == to->end()) to->push_back(node);
  }
}

}  // namespace

std::atomic<int> Captures::active_{0};

Captures& Captures::Get() {
  static Captures* captures = new Captures;
  return *captures;
}

CUstreamCaptureMode Captures::ExchangeThreadMode(CUstreamCaptureMode mode) {
  return std::exchange(thread_mode, mode);
}

std::shared_ptr<Capture> Captures::Of(Stream* stream) {
  Lock lock(Graphs::Get().mutex());
  auto it = streams_.find(stream);
  return it != streams_.end() ? it->second : nullptr;
}

bool Captures::BlocksLegacy(const Stream* legacy) {
  Lock lock(Graphs::Get().mutex());
  return std::any_of(streams_.begin(), streams_.end(), [&](const auto& entry) {
    return entry.first->owner() == legacy->owner() && entry.first->blocking();
  });
}

CUresult Captures::Begin(Stream* stream, int mode, Graph* into, const std::vector<CUgraphNode>& after) {
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  Lock lock(Graphs::Get().mutex());
  if (streams_.contains(stream)) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = next_id_++;
  capture->mode = static_cast<CUstreamCaptureMode>(mode);
  capture->thread = ThisThread();
  capture->origin = stream;
  capture->own_graph = into == nullptr;
  capture->graph = into != nullptr ? into : Graphs::Get().Create().get();
  if (capture->graph->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  capture->graph->capture = capture.get();
  capture->leaves[stream] = after;
  streams_.emplace(stream, std::move(capture));
  ++active_;
  return CUDA_SUCCESS;
}

CUresult Captures::End(Stream* stream, CUgraph* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(Graphs::Get().mutex());
  auto it = streams_.find(stream);
  if (it == streams_.end()) return CUDA_ERROR_ILLEGAL_STATE;
  const std::shared_ptr<Capture> capture = it->second;
  if (capture->origin != stream) {
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != ThisThread()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  CUresult result = capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS) {
    // All that was forked off has to have come back to this stream.
    const auto& mine = capture->leaves[stream];
    for (const auto& [other, leaves] : capture->leaves) {
      for (CUgraphNode leaf : leaves) {
        const bool joined = std::any_of(mine.begin(), mine.end(), [&](CUgraphNode node) {
          return node == leaf ||
                 capture->graph->DependsOn(reinterpret_cast<Node*>(node), reinterpret_cast<Node*>(leaf));
        });
        if (!joined) result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
      }
    }
  }
  capture->ended = true;
  capture->graph->capture = nullptr;
  std::erase_if(streams_, [&](const auto& entry) { return entry.second == capture; });
  --active_;
  if (result == CUDA_SUCCESS) {
    *out = Handle(capture->graph);
  } else {
    *out = nullptr;
    if (capture->own_graph) Graphs::Get().Destroy(capture->graph);
  }
  return result;
}

void Captures::RemoveStream(Stream* stream) {
  if (!Any()) return;
  Lock lock(Graphs::Get().mutex());
  auto it = streams_.find(stream);
  if (it == streams_.end()) return;
  const std::shared_ptr<Capture> capture = it->second;
  capture->invalidated = true;
  if (capture->origin == stream) {
    capture->ended = true;
    capture->graph->capture = nullptr;
    std::erase_if(streams_, [&](const auto& entry) { return entry.second == capture; });
    --active_;
    if (capture->own_graph) Graphs::Get().Destroy(capture->graph);
    return;
  }
  capture->leaves.erase(stream);
  streams_.erase(it);
}

std::optional<CUresult> Captures::ImplicitLocked(Stream* stream) {
  if (!stream->legacy) return std::nullopt;
  bool found = false;
  for (const auto& [other, capture] : streams_) {
    if (other->owner() != stream->owner() || !other->blocking()) continue;
    capture->invalidated = true;
    found = true;
  }
  if (!found) return std::nullopt;
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

std::optional<CUresult> Captures::Add(Stream* stream, const std::function<Operation()>& make, Node** out) {
  Lock lock(Graphs::Get().mutex());
  if (auto implicit = ImplicitLocked(stream)) return implicit;
  auto it = streams_.find(stream);
  if (it == streams_.end()) return std::nullopt;
  Capture& capture = *it->second;
  if (capture.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::vector<Node*> dependencies;
  for (CUgraphNode leaf : capture.leaves[stream]) dependencies.push_back(reinterpret_cast<Node*>(leaf));
  Node* node = nullptr;
  if (CUresult error = Graphs::Get().AddNode(capture.graph, dependencies, make(), &node);
      error != CUDA_SUCCESS)
    return error;
  capture.leaves[stream] = {Handle(node)};
  if (out != nullptr) *out = node;
  return CUDA_SUCCESS;
}

std::optional<CUresult> Captures::ForbidStream(Stream* stream) {
  Lock lock(Graphs::Get().mutex());
  if (auto implicit = ImplicitLocked(stream)) return implicit;
  auto it = streams_.find(stream);
  if (it == streams_.end()) return std::nullopt;
  if (it->second->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  it->second->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult Captures::CheckUnsafe() {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  Lock lock(Graphs::Get().mutex());
  bool found = false;
  for (const auto& [stream, capture] : streams_) {
    const bool mine = capture->thread == ThisThread() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool others =
        thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!mine && !others) continue;
    capture->invalidated = true;
    found = true;
  }
  return found ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult Captures::CheckContext(Context* context) {
  Lock lock(Graphs::Get().mutex());
  bool found = false;
  for (const auto& [stream, capture] : streams_) {
    if (!stream->BelongsTo(context)) continue;
    capture->invalidated = true;
    found = true;
  }
  return found ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult Captures::UpdateDependencies(Stream* stream, const std::vector<CUgraphNode>& nodes, bool replace) {
  Lock lock(Graphs::Get().mutex());
  auto it = streams_.find(stream);
  if (it == streams_.end()) return CUDA_ERROR_ILLEGAL_STATE;
  Capture& capture = *it->second;
  if (capture.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  for (CUgraphNode handle : nodes) {
    Node* node = Graphs::Get().FindNode(handle);
    if (node == nullptr || node->graph != capture.graph) return CUDA_ERROR_INVALID_VALUE;
  }
  if (replace) capture.leaves[stream].clear();
  AddUnique(&capture.leaves[stream], nodes);
  return CUDA_SUCCESS;
}

std::optional<CUresult> Captures::RecordEvent(Event* event, Stream* stream, bool external) {
  Lock lock(Graphs::Get().mutex());
  if (auto implicit = ImplicitLocked(stream)) return implicit;
  auto it = streams_.find(stream);
  if (it == streams_.end()) {
    event->captured = nullptr;
    event->was_captured = false;
    return std::nullopt;
  }
  if (it->second->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (external) {
    return Add(stream, [&] { return EventRecordOperation{reinterpret_cast<CUevent>(event)}; }, nullptr);
  }
  auto point = std::make_shared<CapturedPoint>();
  point->capture = it->second;
  point->nodes = it->second->leaves[stream];
  event->captured = std::move(point);
  event->was_captured = true;
  return CUDA_SUCCESS;
}

std::optional<CUresult> Captures::WaitEvent(Stream* stream, Event* event, bool external) {
  Lock lock(Graphs::Get().mutex());
  if (auto implicit = ImplicitLocked(stream)) return implicit;
  auto it = streams_.find(stream);
  const std::shared_ptr<Capture> mine = it != streams_.end() ? it->second : nullptr;
  if (mine != nullptr && mine->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (mine != nullptr && external) {
    return Add(stream, [&] { return EventWaitOperation{reinterpret_cast<CUevent>(event)}; }, nullptr);
  }
  if (event->captured == nullptr) {
    if (mine == nullptr) return std::nullopt;
    // An event that was never recorded is no dependency on anything.
    if (event->recorded == nullptr) return CUDA_SUCCESS;
    mine->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  const std::shared_ptr<Capture>& theirs = event->captured->capture;
  if (theirs->ended) return CUDA_ERROR_INVALID_VALUE;
  if (theirs->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (mine != nullptr && mine != theirs) {
    mine->invalidated = theirs->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (stream->legacy) {
    theirs->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (mine == nullptr) streams_.emplace(stream, theirs);
  AddUnique(&theirs->leaves[stream], event->captured->nodes);
  return CUDA_SUCCESS;
}

CUresult Captures::CheckEvent(Event* event) {
  Lock lock(Graphs::Get().mutex());
  if (event->captured == nullptr) return CheckUnsafe();
  if (event->captured->capture->ended) return CUDA_ERROR_INVALID_VALUE;
  event->captured->capture->invalidated = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

}  // namespace gpumux::softgpu
