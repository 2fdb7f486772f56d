// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "gpumux/abi/cuda/driver.h"
#include "sim/slab_layout.h"
#include "softgpu/driver/driver.h"

namespace gpumux::softgpu {

struct Stream;
struct Work;

// Objects for which the driver keeps device memory (driver_objects.h).
struct ObjectCount {
  uint64_t live = 0, most = 0;
  uint64_t taken = 0;  // bytes
};

// A context. Never freed, because programs hold pointers to it after they have
// destroyed it; `alive` says whether it can be used.
struct Context {
  static constexpr uint32_t kMagic = 0x43545831;

  uint32_t magic = kMagic;
  Device* device = nullptr;
  bool primary = false;
  unsigned users = 1;  // cuCtxAttach and cuCtxDetach count them; guarded by LifeMutex
  std::atomic<bool> alive{false};
  unsigned flags = 0;
  unsigned api_version = 0;
  uint64_t id = 0;
  // What every call answers once a kernel has gone wrong.
  std::atomic<cuda::CUresult> sticky{cuda::CUDA_SUCCESS};
  // The limits: defaults again with each life of a primary context.
  static constexpr size_t kDefaultPrintfBytes = 8650752, kDefaultPendingLaunches = 2048;
  static constexpr size_t kDefaultL2Granularity = 64, kDefaultPersistingL2 = 11796480;
  size_t stack_bytes = 1024;
  size_t printf_bytes = kDefaultPrintfBytes;
  size_t heap_bytes = 8388608;
  size_t pending_launches = kDefaultPendingLaunches;
  size_t l2_granularity = kDefaultL2Granularity;
  size_t persisting_l2 = kDefaultPersistingL2;
  uint64_t stack_taken = 0;  // device memory for stacks above the default
  uint64_t heap_taken = 0;   // and for the device heap (stack.h guards both)
  ObjectCount stream_objects, graph_nodes, green_pages;
  sim::SlabLayout slabs;  // guarded by the memory's mutex
  // Guarded by the engine's mutex, as are its streams.
  std::unique_ptr<Stream> legacy;
  std::vector<std::shared_ptr<Work>> after;  // what its later work waits for

  // A green context: the primary context `base` with `sms` of its SMs and a
  // default stream of its own. Memory, modules and limits are the base's.
  Context* base = nullptr;
  unsigned sms = 0;
  Stream* green_stream = nullptr;
  std::vector<Context*> green_contexts;  // of a primary context, alive; guarded by its life's mutex
};

// Another address in the same object: no CUcontext.
inline cuda::CUgreenCtx GreenHandle(Context* green) {
  return green != nullptr ? reinterpret_cast<cuda::CUgreenCtx>(&green->magic + 1) : nullptr;
}

inline Context* Base(Context* context) { return context->base != nullptr ? context->base : context; }
inline cuda::CUcontext Handle(Context* context) { return reinterpret_cast<cuda::CUcontext>(context); }
// Null for anything that is not, or no longer, a context of this library.
Context* FromHandle(cuda::CUcontext handle);
Context* FromGreenHandle(cuda::CUgreenCtx handle);

// The calling thread's current context, of a green one its base; checks
// initialisation, presence, life and sticky errors, in that order, as the driver does.
cuda::CUresult CurrentContext(Context** context);
// The same without an error for its absence or state; null if there is none.
Context* CurrentOrNull();
// The green context that is current, or null.
Context* CurrentGreen();

// One user more of the device's primary context, which is made for the first.
cuda::CUresult RetainPrimary(Device* device, Context** out);
cuda::CUresult ReleasePrimary(Device* device);
// Green contexts of a primary context that is retained for each. The second
// waits for its work; false: it had ended before.
Context* AddGreenContext(Context* primary, unsigned sms);
bool EndGreenContext(Context* green);

}  // namespace gpumux::softgpu
