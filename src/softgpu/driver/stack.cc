// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/stack.h"

#include <algorithm>
#include <mutex>

#include "sim/gpu_spec.h"
#include "sim/slab_layout.h"

namespace gpumux::softgpu {

namespace {

std::mutex& Mutex() {
  static std::mutex* mutex = new std::mutex;
  return *mutex;
}

uint64_t Need(const Device& device, uint64_t bytes_per_thread) {
  const uint64_t base = sim::kH200.default_stack_bytes;
  if (bytes_per_thread <= base) return 0;
  const uint64_t threads = static_cast<uint64_t>(device.description.sms) *
                           static_cast<uint64_t>(device.description.threads_per_sm);
  // Whole pages that the stacks of all threads fill, as measured.
  const auto pages = [&](uint64_t bytes) { return bytes * threads / sim::kPageBytes; };
  return (pages(bytes_per_thread) - pages(base)) * sim::kPageBytes;
}

bool Resize(Context* context, uint64_t need) {
  Driver& driver = Driver::Get();
  if (need > context->stack_taken) {
    if (need > sim::kMaxAllocationBytes ||
        driver.Change(*context->device, Op::kTake, need - context->stack_taken) != Answer::kOk) {
      return false;
    }
  } else if (need < context->stack_taken) {
    driver.Change(*context->device, Op::kGive, context->stack_taken - need);
  }
  context->stack_taken = need;
  return true;
}

}  // namespace

bool SetStack(Context* context, uint64_t bytes_per_thread) {
  std::lock_guard lock(Mutex());
  if (!Resize(context, Need(*context->device, bytes_per_thread))) return false;
  context->stack_bytes = bytes_per_thread;
  return true;
}

bool GrowStack(Context* context, uint64_t bytes_per_thread) {
  std::lock_guard lock(Mutex());
  if (bytes_per_thread <= context->stack_bytes) return true;
  const uint64_t rounded = sim::RoundUp(bytes_per_thread, 16);
  const uint64_t need = Need(*context->device, rounded);
  if (need > context->stack_taken && !Resize(context, need)) return false;
  context->stack_bytes = rounded;  // the limit moves with it
  return true;
}

bool TakeHeap(Context* context) {
  std::lock_guard lock(Mutex());
  if (context->heap_taken > 0) return true;
  const uint64_t need = sim::RoundUp(context->heap_bytes, sim::kPageBytes);
  if (need > sim::kMaxAllocationBytes ||
      Driver::Get().Change(*context->device, Op::kTake, need) != Answer::kOk) {
    return false;
  }
  context->heap_taken = need;
  return true;
}

void GiveStackAndHeap(Context* context) {
  std::lock_guard lock(Mutex());
  const uint64_t bytes = context->stack_taken + context->heap_taken;
  if (bytes > 0) Driver::Get().Change(*context->device, Op::kGive, bytes);
  context->stack_taken = context->heap_taken = 0;
}

}  // namespace gpumux::softgpu
