// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/graph_exec.h"

#include <algorithm>
#include <map>
#include <utility>

#include "softgpu/driver/context.h"
#include "softgpu/driver/driver_objects.h"
#include "softgpu/driver/engine.h"
#include "softgpu/driver/error_codes.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

// Adds the graph's steps, all of them after `after`; `ends` are those that
// nothing of the graph comes after. False: there is a cycle.
bool Flatten(const Graph& graph, const std::vector<size_t>& after, std::vector<GraphExec::Step>* steps,
             std::vector<size_t>* ends) {
  std::vector<Node*> order;
  if (!graph.Order(&order)) return false;
  std::map<const Node*, size_t> last;  // the step with which a node is done
  std::set<const Node*> inner;
  for (Node* node : order) {
    GraphExec::Step step;
    step.node = node->id;
    step.after = after;
    for (Node* dependency : node->dependencies) {
      step.after.push_back(last.at(dependency));
      inner.insert(dependency);
    }
    if (const auto* child = std::get_if<ChildOperation>(&node->operation)) {
      std::vector<size_t> child_ends;
      if (!Flatten(*child->graph, step.after, steps, &child_ends)) return false;
      step.operation = EmptyOperation{};  // where the child ends
      if (!child_ends.empty()) step.after = std::move(child_ends);
    } else {
      step.operation = node->operation;
    }
    last[node] = steps->size();
    steps->push_back(std::move(step));
  }
  for (Node* node : order) {
    if (!inner.contains(node)) ends->push_back(last.at(node));
  }
  return true;
}

// One launch: steps in lanes, streams of their own that live as long as it does.
// The first lane is the stream that it is launched into.
class Launcher {
 public:
  Launcher(GraphExec& exec, Stream* stream) : exec_(exec), stream_(stream) {}

  CUresult Run() {
    const std::vector<GraphExec::Step>& steps = exec_.steps;
    // All that can be refused is refused before anything starts.
    std::vector<std::vector<WorkPtr>> works(steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      if (!steps[i].enabled) continue;
      if (CUresult error = Prepare(steps[i].operation, &works[i]); error != CUDA_SUCCESS) return error;
    }
    if (CUresult error = TakeMemory(); error != CUDA_SUCCESS) return error;
    Engine& engine = Engine::Get();
    auto start = std::make_shared<Work>();
    start->kind = Work::Kind::kWait;
    if (exec_.last != nullptr) start->after.push_back(exec_.last);
    engine.Enqueue(stream_, start);
    std::vector<WorkPtr> done(steps.size());
    std::vector<Stream*> lane_of(steps.size());
    std::map<Stream*, WorkPtr> ends;  // of lanes
    ends[stream_] = start;
    for (size_t i = 0; i < steps.size(); ++i) {
      Stream* lane = nullptr;
      for (size_t before : steps[i].after) {
        if (ends[lane_of[before]] == done[before]) lane = lane_of[before];
      }
      if (lane == nullptr && steps[i].after.empty() && ends[stream_] == start) lane = stream_;
      if (lane == nullptr) {
        lane = engine.CreateStream(stream_->context, CU_STREAM_NON_BLOCKING, stream_->priority);
        lanes_.push_back(lane);
      }
      lane_of[i] = lane;
      if (works[i].empty()) {
        auto nothing = std::make_shared<Work>();
        nothing->kind = Work::Kind::kWait;
        works[i].push_back(std::move(nothing));
      }
      WorkPtr& first = works[i].front();
      if (lane != stream_) first->after.push_back(start);
      for (size_t before : steps[i].after) {
        if (lane_of[before] != lane) first->after.push_back(done[before]);
      }
      for (const WorkPtr& work : works[i]) engine.Enqueue(lane, work);
      if (steps[i].enabled) {
        if (const auto* record = std::get_if<EventRecordOperation>(&steps[i].operation)) {
          if (Event* event = engine.FindEvent(record->event)) engine.SetRecorded(event, works[i].back());
        }
      }
      done[i] = works[i].back();
      ends[lane] = done[i];
    }
    auto end = std::make_shared<Work>();
    end->kind = Work::Kind::kEffect;
    for (const auto& [lane, work] : ends) {
      if (lane != stream_) end->after.push_back(work);
    }
    end->effect = [arenas = arenas_] {
      for (const auto& arena : arenas) GraphMemory::Get().EndLaunch(*arena);
      return true;
    };
    exec_.last = end;
    engine.Enqueue(stream_, std::move(end));
    for (Stream* lane : lanes_) engine.DestroyStream(reinterpret_cast<CUstream>(lane));
    return CUDA_SUCCESS;
  }

 private:
  CUresult Prepare(const Operation& operation, std::vector<WorkPtr>* out) {
    WorkPtr work;
    CUresult result = CUDA_SUCCESS;
    if (const auto* kernel = std::get_if<KernelOperation>(&operation)) {
      result = PrepareKernel(stream_->context, *kernel, &work);
    } else if (const auto* copy = std::get_if<CopyOperation>(&operation)) {
      result = PrepareCopy(*copy, &work);
    } else if (const auto* fill = std::get_if<FillOperation>(&operation)) {
      result = PrepareFill(*fill, &work);
    } else if (const auto* host = std::get_if<HostOperation>(&operation)) {
      work = PrepareHost(*host);
    } else if (const auto* ops = std::get_if<MemoryOpsOperation>(&operation)) {
      return PrepareMemoryOps(*ops, out);
    } else if (const auto* record = std::get_if<EventRecordOperation>(&operation)) {
      if (Engine::Get().FindEvent(record->event) == nullptr) return CUDA_ERROR_INVALID_VALUE;
      work = std::make_shared<Work>();
      work->kind = Work::Kind::kRecord;
    } else if (const auto* wait = std::get_if<EventWaitOperation>(&operation)) {
      Event* event = Engine::Get().FindEvent(wait->event);
      if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
      work = std::make_shared<Work>();
      work->kind = Work::Kind::kWait;
      if (WorkPtr recorded = Engine::Get().Recorded(event)) work->after.push_back(std::move(recorded));
    }
    if (result == CUDA_SUCCESS && work != nullptr) out->push_back(std::move(work));
    return result;
  }

  // Memory for the nodes that allocate; what stays allocated after the launch is
  // so from now on, as addresses may be freed in the order of the stream.
  CUresult TakeMemory() {
    GraphMemory& memory = GraphMemory::Get();
    std::vector<std::shared_ptr<GraphPiece>> kept, freed;
    for (const auto& step : exec_.steps) {
      if (const auto* alloc = std::get_if<AllocOperation>(&step.operation)) {
        const auto& piece = alloc->piece;
        if (piece->live && (exec_.flags & kAutoFreeOnLaunch) == 0) return CUDA_ERROR_INVALID_VALUE;
        if (piece->freed_by == 0) kept.push_back(piece);
      } else if (const auto* free = std::get_if<FreeOperation>(&step.operation)) {
        if (free->piece->arena == exec_.arena) continue;
        if (!free->piece->live) return CUDA_ERROR_INVALID_VALUE;
        freed.push_back(free->piece);
      }
    }
    if (exec_.arena != nullptr) {
      if (CUresult error = memory.BeginLaunch(*exec_.arena); error != CUDA_SUCCESS) return error;
      arenas_.push_back(exec_.arena);
    }
    for (const auto& piece : kept) {
      // Freed and made again, under the flag.
      if (memory.BeginFree(*piece)) memory.EndLaunch(*piece->arena);
      memory.SetLive(*piece);
    }
    for (const auto& piece : freed) {
      if (memory.BeginFree(*piece)) arenas_.push_back(piece->arena);
    }
    return CUDA_SUCCESS;
  }

  GraphExec& exec_;
  Stream* stream_;
  std::vector<Stream*> lanes_;
  std::vector<std::shared_ptr<GraphArena>> arenas_;  // that are busy until the end
};

}  // namespace

namespace {
CUresult MakeRoom(Context* context, const std::vector<GraphExec::Step>& steps) {
  for (const auto& step : steps) {
    const auto* kernel = std::get_if<KernelOperation>(&step.operation);
    if (kernel == nullptr) continue;
    if (CUresult error = MakeRoomForKernel(context, *kernel); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}
}  // namespace

GraphExecs& GraphExecs::Get() {
  static GraphExecs* execs = new GraphExecs;
  return *execs;
}

CUresult GraphExecs::Instantiate(const std::shared_ptr<Graph>& graph, uint64_t flags, Context* context,
                                 GraphExec** out) {
  constexpr uint64_t kKnown = kAutoFreeOnLaunch | kUploadAtOnce | kDeviceLaunch | kUseNodePriority;
  if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & kDeviceLaunch) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  const bool memory = graph->HasMemoryNodes();
  if (memory && graph->instantiated) return CUDA_ERROR_NOT_SUPPORTED;
  auto exec = std::make_shared<GraphExec>();
  std::vector<size_t> ends;
  if (!Flatten(*graph, {}, &exec->steps, &ends)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = MakeRoom(context, exec->steps); error != CUDA_SUCCESS) return error;
  if (!AddGraphNodes(context, exec->steps.size())) return CUDA_ERROR_OUT_OF_MEMORY;
  exec->flags = static_cast<unsigned>(flags);
  exec->context = context;
  exec->graph = graph;
  exec->arena = graph->arena;
  graph->instantiated = memory;
  *out = exec.get();
  execs_.emplace(exec.get(), std::move(exec));
  return CUDA_SUCCESS;
}

std::shared_ptr<GraphExec> GraphExecs::Find(CUgraphExec handle) {
  auto it = execs_.find(handle);
  return it != execs_.end() ? it->second : nullptr;
}

CUresult GraphExecs::Destroy(CUgraphExec handle) {
  auto it = execs_.find(handle);
  if (it == execs_.end()) return CUDA_ERROR_INVALID_VALUE;
  if (const auto graph = it->second->graph.lock()) graph->instantiated = false;
  RemoveGraphNodes(it->second->context, it->second->steps.size());
  execs_.erase(it);
  return CUDA_SUCCESS;
}

GraphExec::Step* GraphExecs::FindStep(GraphExec& exec, const Node* node) {
  for (auto& step : exec.steps) {
    if (step.node == node->id) return &step;
  }
  return nullptr;
}

CUresult GraphExecs::SetOperation(GraphExec& exec, Node* node, Operation operation) {
  std::lock_guard lock(exec.launching);
  GraphExec::Step* step = FindStep(exec, node);
  if (step == nullptr || step->operation.index() != operation.index()) return CUDA_ERROR_INVALID_VALUE;
  const int type = TypeOf(operation);
  if (type == kMemAllocNode || type == kMemFreeNode) return CUDA_ERROR_NOT_SUPPORTED;
  if (CUresult error = Graphs::Check(operation); error != CUDA_SUCCESS) return error;
  if (const auto* kernel = std::get_if<KernelOperation>(&operation)) {
    if (CUresult error = MakeRoomForKernel(exec.context, *kernel); error != CUDA_SUCCESS) return error;
  }
  step->operation = std::move(operation);
  return CUDA_SUCCESS;
}

namespace {
// Puts the operations of `from` in the place of those of `to`, if the two have
// the same shape; else says what differs.
int Replace(const std::vector<GraphExec::Step>& from, GraphExec::Step* to, size_t count, size_t* at) {
  if (from.size() != count) return kTopologyChanged;
  for (size_t i = 0; i < count; ++i) {
    *at = i;
    if (from[i].after != to[i].after) return kTopologyChanged;
    if (from[i].operation.index() != to[i].operation.index()) return kNodeTypeChanged;
    const int type = TypeOf(from[i].operation);
    if (type == kMemAllocNode || type == kMemFreeNode) return kUpdateNotSupported;
  }
  for (size_t i = 0; i < count; ++i) to[i].operation = from[i].operation;
  return kUpdated;
}
}  // namespace

CUresult GraphExecs::SetChild(GraphExec& exec, Node* node, const Graph& child) {
  const auto* operation = std::get_if<ChildOperation>(&node->operation);
  if (operation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(exec.launching);
  GraphExec::Step* end = FindStep(exec, node);
  if (end == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // The child's steps come right before the one that ends it.
  std::vector<GraphExec::Step> before, now;
  std::vector<size_t> ends;
  if (!Flatten(*operation->graph, {}, &before, &ends) || !Flatten(child, {}, &now, &ends)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult error = MakeRoom(exec.context, now); error != CUDA_SUCCESS) return error;
  size_t at = 0;
  if (Replace(now, before.data(), before.size(), &at) != kUpdated)
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  GraphExec::Step* first = end - static_cast<ptrdiff_t>(before.size());
  if (first < exec.steps.data()) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < now.size(); ++i) first[i].operation = now[i].operation;
  return CUDA_SUCCESS;
}

CUresult GraphExecs::Update(GraphExec& exec, const Graph& graph, ExecUpdateResult* result) {
  *result = {kUpdated, nullptr, nullptr};
  std::lock_guard lock(exec.launching);
  std::vector<GraphExec::Step> steps;
  std::vector<size_t> ends;
  size_t at = 0;
  const bool flat = Flatten(graph, {}, &steps, &ends);
  if (CUresult error = MakeRoom(exec.context, steps); error != CUDA_SUCCESS) return error;
  result->result = flat ? Replace(steps, exec.steps.data(), exec.steps.size(), &at) : kUpdateError;
  if (result->result == kUpdated) return CUDA_SUCCESS;
  if (result->result != kTopologyChanged && at < steps.size()) {
    for (const auto& node : graph.nodes) {
      if (node->id == steps[at].node) result->error_node = Handle(node.get());
    }
  }
  return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUresult GraphExecs::Launch(const std::shared_ptr<GraphExec>& exec, Stream* stream) {
  std::lock_guard lock(exec->launching);
  return Launcher(*exec, stream).Run();
}

CUresult GraphExecs::Upload(const std::shared_ptr<GraphExec>& exec) {
  return exec->arena != nullptr ? GraphMemory::Get().Upload(*exec->arena) : CUDA_SUCCESS;
}

}  // namespace gpumux::softgpu
