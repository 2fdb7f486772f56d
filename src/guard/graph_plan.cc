// SPDX-License-Identifier: Apache-2.0
#include "guard/graph_plan.h"

#include <sys/mman.h>

#include "guard/segment_budget.h"

namespace gpumux::guard {

template <typename T>
void* MappedArray<T>::Map(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

template <typename T>
void MappedArray<T>::Unmap(void* data, size_t bytes) {
  if (data) munmap(data, bytes);
}

template class MappedArray<uint32_t>;
template class MappedArray<int64_t>;
template class MappedArray<void*>;
template class MappedArray<GraphPlan::Edge>;

bool GraphPlan::Make(size_t nodes, const Edge* edges, size_t edge_count, const int64_t* ns,
                     int64_t budget_ns) {
  MappedArray<uint32_t> first, next, waits, order;
  if (nodes == 0 || nodes >= UINT32_MAX || edge_count >= UINT32_MAX || !order.Make(nodes) ||
      !nodes_.Make(nodes) || !first_edge_.Make(nodes) || !next_edge_.Make(edge_count + 1) ||
      !first.Make(nodes + 1) || !next.Make(edge_count + 1) || !waits.Make(nodes)) {
    return false;
  }
  for (size_t i = 0; i < edge_count; i++) {
    if (edges[i].from >= nodes || edges[i].to >= nodes) return false;
    first[edges[i].from + 1]++;
    waits[edges[i].to]++;
    // Lists of edges by where they lead to; an edge's number is one more than its index.
    next_edge_[i + 1] = first_edge_[edges[i].to];
    first_edge_[edges[i].to] = static_cast<uint32_t>(i + 1);
  }
  for (size_t i = 0; i < nodes; i++) first[i + 1] += first[i];
  for (size_t i = edge_count; i-- > 0;) next[first[edges[i].from]++] = edges[i].to;
  // Each `first` is now the end of its own, which is the beginning of the one after it.
  size_t ready = 0;
  for (uint32_t i = 0; i < nodes; i++)
    if (waits[i] == 0) order[ready++] = i;
  SegmentBudget budget;
  bool due = false;
  cuts_ = 0;
  size_t done = 0;
  for (; done < ready; done++) {
    const uint32_t node = order[done];
    // Nothing else can go on: all that is left comes after it.
    const bool alone = ready - done == 1;
    if (ns[node] > 0) due |= budget.TakesWait(budget_ns, ns[node], /*latency=*/true);
    if (done == 0) {
      due = false;  // the graph waits before it runs
    } else if (due && alone && first_edge_[node] != 0) {
      due = false;
      nodes_[cuts_++] = node;
    }
    for (uint32_t i = node == 0 ? 0 : first[node - 1]; i < first[node]; i++)
      if (--waits[next[i]] == 0) order[ready++] = next[i];
  }
  return done == nodes;
}

size_t GraphPlan::Before(size_t cut, const Edge* edges, size_t edge_count, uint32_t* out) const {
  size_t count = 0;
  for (uint32_t edge = first_edge_[nodes_[cut]]; edge != 0 && edge <= edge_count; edge = next_edge_[edge])
    out[count++] = edges[edge - 1].from;
  return count;
}

}  // namespace gpumux::guard
