// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "softgpu/driver/graph.h"

namespace gpumux::softgpu {

// A capture: what its streams are asked to do becomes nodes of a graph.
struct Capture {
  uint64_t id = 0;
  cuda::CUstreamCaptureMode mode = cuda::CU_STREAM_CAPTURE_MODE_GLOBAL;
  uint64_t thread = 0;
  Stream* origin = nullptr;
  Graph* graph = nullptr;
  bool own_graph = true;  // made for the capture
  bool invalidated = false;
  bool ended = false;
  // What the next node of each stream depends on.
  std::map<Stream*, std::vector<cuda::CUgraphNode>> leaves;
  std::vector<EdgeData> edges;  // zeros, for queries
};

// Where an event was recorded by a capturing stream.
struct CapturedPoint {
  std::shared_ptr<Capture> capture;
  std::vector<cuda::CUgraphNode> nodes;
};

// All captures of this process; guarded by the graphs' mutex.
class Captures {
 public:
  // One load: nothing captures, nearly always.
  static bool Any() { return active_.load(std::memory_order_acquire) != 0; }

  // What the capture makes of an operation that `stream` is asked for; nothing:
  // the stream is not captured, and does it.
  template <typename Make>
  static std::optional<cuda::CUresult> Take(Stream* stream, Make make, Node** node = nullptr) {
    if (!Any()) return std::nullopt;
    return Get().Add(stream, [&]() -> Operation { return make(); }, node);
  }
  // For what cannot be captured: an error if `stream` is being captured, or is
  // the legacy stream while one that waits for it is.
  static std::optional<cuda::CUresult> Forbid(Stream* stream) {
    if (!Any()) return std::nullopt;
    return Get().ForbidStream(stream);
  }
  // For calls that may synchronise behind the program's back.
  static cuda::CUresult ForbidUnsafe() { return Any() ? Get().CheckUnsafe() : cuda::CUDA_SUCCESS; }
  // For calls that wait for a whole context.
  static cuda::CUresult ForbidContext(Context* context) {
    return Any() ? Get().CheckContext(context) : cuda::CUDA_SUCCESS;
  }

  static Captures& Get();
  cuda::CUresult Begin(Stream* stream, int mode, Graph* into, const std::vector<cuda::CUgraphNode>& after);
  cuda::CUresult End(Stream* stream, cuda::CUgraph* out);
  std::shared_ptr<Capture> Of(Stream* stream);
  // Whether a stream that this legacy stream waits for is captured.
  bool BlocksLegacy(const Stream* legacy);
  // The stream is being destroyed.
  void RemoveStream(Stream* stream);
  cuda::CUresult UpdateDependencies(Stream* stream, const std::vector<cuda::CUgraphNode>& nodes,
                                    bool replace);

  // Nothing: neither side has to do with a capture.
  std::optional<cuda::CUresult> RecordEvent(Event* event, Stream* stream, bool external);
  std::optional<cuda::CUresult> WaitEvent(Stream* stream, Event* event, bool external);
  // Whether a query or a wait for the event is an error.
  cuda::CUresult CheckEvent(Event* event);

  static cuda::CUstreamCaptureMode ExchangeThreadMode(cuda::CUstreamCaptureMode mode);

 private:
  std::optional<cuda::CUresult> Add(Stream* stream, const std::function<Operation()>& make, Node** node);
  std::optional<cuda::CUresult> ForbidStream(Stream* stream);
  std::optional<cuda::CUresult> ImplicitLocked(Stream* stream);
  cuda::CUresult CheckUnsafe();
  cuda::CUresult CheckContext(Context* context);

  static std::atomic<int> active_;
  std::map<Stream*, std::shared_ptr<Capture>> streams_;
  uint64_t next_id_ = 1;
};

}  // namespace gpumux::softgpu

// Returns from an entry point that must not be called while something is being
// captured.
#define GPUMUX_REQUIRE_NO_CAPTURE()                                                                \
  do {                                                                                             \
    if (CUresult captured = ::gpumux::softgpu::Captures::ForbidUnsafe(); captured != CUDA_SUCCESS) \
      return captured;                                                                             \
  } while (0)
