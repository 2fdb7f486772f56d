// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace gpumux::guard {

// An array of its own pages: the guard uses no allocator of the program's.
template <typename T>
class MappedArray {
 public:
  MappedArray() = default;
  ~MappedArray() { Unmap(data_, count_ * sizeof(T)); }
  MappedArray(const MappedArray&) = delete;
  MappedArray& operator=(const MappedArray&) = delete;
  // Zeroed. Once. False: there is no memory.
  bool Make(size_t count) {
    data_ = static_cast<T*>(Map(count * sizeof(T)));
    count_ = data_ ? count : 0;
    return data_ != nullptr;
  }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* data() { return data_; }
  size_t size() const { return count_; }

 private:
  static void* Map(size_t bytes);
  static void Unmap(void* data, size_t bytes);
  T* data_ = nullptr;
  size_t count_ = 0;
};

// Where a graph may be cut, so that no part of it is much longer than a budget. Pure; nodes and edges by
// number.
//
// A cut is before one node on which all depend that has not been reached: whatever runs beside goes on, and
// nothing waits for more than before, but for the time that the cut is closed. So of branches side by side
// none is cut: one may wait for what another does.
//
//   a ─▶ b ─▶ c ──┬─▶ d ─┬─▶ f ─▶ g        may be cut before b, c, f and g, and before the one of d and e
//   that comes
//                 └─▶ e ─┘                 last in the order that was chosen; the other one runs on meanwhile
class GraphPlan {
 public:
  struct Edge {
    uint32_t from, to;
  };

  // `ns`: of each node, what it takes; 0 of one that takes nothing. False: no memory, or these are
  // no edges of an acyclic graph of so many nodes.
  bool Make(size_t nodes, const Edge* edges, size_t edge_count, const int64_t* ns, int64_t budget_ns);

  size_t cuts() const { return cuts_; }
  // The node that waits at the cut.
  uint32_t NodeAt(size_t cut) const { return nodes_[cut]; }
  // What that node comes after, into `out`, which has room for all nodes. Returns how many.
  size_t Before(size_t cut, const Edge* edges, size_t edge_count, uint32_t* out) const;

 private:
  MappedArray<uint32_t> nodes_, next_edge_,
      first_edge_;  // first_edge_: of each node, among those that lead to it
  size_t cuts_ = 0;
};

}  // namespace gpumux::guard
