// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/driver_objects.h"

#include <algorithm>
#include <mutex>

#include "sim/driver_objects.h"

namespace gpumux::softgpu {

namespace {

std::mutex& Mutex() {
  static std::mutex* mutex = new std::mutex;
  return *mutex;
}

bool Add(Context* context, ObjectCount Context::* kind, uint64_t count, uint64_t (*bytes_of)(uint64_t)) {
  std::lock_guard lock(Mutex());
  ObjectCount& objects = context->*kind;
  const uint64_t most = std::max(objects.most, objects.live + count);
  const uint64_t bytes = bytes_of(most);
  if (bytes > objects.taken &&
      Driver::Get().Change(*context->device, Op::kTake, bytes - objects.taken) != Answer::kOk) {
    return false;
  }
  objects = {objects.live + count, most, std::max(bytes, objects.taken)};
  return true;
}

void Remove(Context* context, ObjectCount Context::* kind, uint64_t count) {
  std::lock_guard lock(Mutex());
  ObjectCount& objects = context->*kind;
  objects.live -= std::min(count, objects.live);
}

}  // namespace

bool AddStream(Context* context) { return Add(context, &Context::stream_objects, 1, sim::BytesOfStreams); }
void RemoveStream(Context* context) { Remove(context, &Context::stream_objects, 1); }

bool AddGraphNodes(Context* context, uint64_t count) {
  return Add(context, &Context::graph_nodes, count, sim::BytesOfGraphNodes);
}
void RemoveGraphNodes(Context* context, uint64_t count) { Remove(context, &Context::graph_nodes, count); }

bool AddGreenMemory(Context* primary, unsigned sms) {
  return Add(primary, &Context::green_pages, sim::PagesOfGreenContext(sms),
             [](uint64_t pages) { return pages * sim::kPageBytes; });
}
void GiveDriverObjects(Context* context) {
  std::lock_guard lock(Mutex());
  const uint64_t bytes =
      context->stream_objects.taken + context->graph_nodes.taken + context->green_pages.taken;
  if (bytes > 0) Driver::Get().Change(*context->device, Op::kGive, bytes);
  context->stream_objects = context->graph_nodes = context->green_pages = {};
}

}  // namespace gpumux::softgpu
