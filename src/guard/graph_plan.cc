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

template class MappedArray<uint8_t>;
template class MappedArray<uint32_t>;
template class MappedArray<int64_t>;
template class MappedArray<void*>;
template class MappedArray<GraphPlan::Edge>;

bool GraphPlan::Make(size_t nodes, const Edge* edges, size_t edge_count, const int64_t* ns,
                     int64_t budget_ns) {
  MappedArray<uint32_t> first, next, waits;
  if (nodes == 0 || nodes >= UINT32_MAX || edge_count >= UINT32_MAX || !order_.Make(nodes) ||
      !part_.Make(nodes) || !starts_.Make(nodes + 1) || !flags_.Make(nodes) || !first.Make(nodes + 1) ||
      !next.Make(edge_count + 1) || !waits.Make(nodes)) {
    return false;
  }
  for (size_t i = 0; i < edge_count; i++) {
    if (edges[i].from >= nodes || edges[i].to >= nodes) return false;
    first[edges[i].from + 1]++;
    waits[edges[i].to]++;
  }
  for (size_t i = 0; i < nodes; i++) first[i + 1] += first[i];
  for (size_t i = edge_count; i-- > 0;) next[first[edges[i].from]++] = edges[i].to;
  // Each `first` is now the end of its own, which is the beginning of the one after it.
  size_t ready = 0;
  for (uint32_t i = 0; i < nodes; i++)
    if (waits[i] == 0) order_[ready++] = i;
  for (size_t done = 0; done < ready; done++) {
    const uint32_t node = order_[done];
    for (uint32_t i = node == 0 ? 0 : first[node - 1]; i < first[node]; i++)
      if (--waits[next[i]] == 0) order_[ready++] = next[i];
  }
  if (ready != nodes) return false;

  SegmentBudget budget;
  parts_ = 0;
  for (size_t i = 0; i < nodes; i++) {
    const int64_t takes = ns[order_[i]];
    const bool cuts = takes > 0 && budget.TakesWait(budget_ns, takes, /*latency=*/true);
    if (i == 0 || (cuts && i > starts_[parts_ - 1])) starts_[parts_++] = static_cast<uint32_t>(i);
    part_[order_[i]] = parts_ - 1;
  }
  starts_[parts_] = static_cast<uint32_t>(nodes);
  for (size_t i = 0; i < edge_count; i++) {
    if (part_[edges[i].from] != part_[edges[i].to]) continue;
    flags_[edges[i].from] |= kHasNext;
    flags_[edges[i].to] |= kHasBefore;
  }
  return true;
}

size_t GraphPlan::Pick(uint32_t part, uint32_t* out, Flag without) const {
  size_t count = 0;
  for (uint32_t i = starts_[part]; i < starts_[part + 1]; i++)
    if (!(flags_[order_[i]] & without)) out[count++] = order_[i];
  return count;
}

}  // namespace gpumux::guard
