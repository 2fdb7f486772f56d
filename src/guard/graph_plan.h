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

// Where a graph is cut, so that no part of it is much longer than a budget: the nodes of
// a part all come after those of the parts before it. Pure; nodes and edges by number.
//
//   part 0    │ part 1       │ part 2          A cut waits for the nodes of the part before it that
//   a ─▶ b ──▶│ d ─▶ e ────▶ │ f              nothing of that part waits for (Ends), and the nodes of
//   └──▶ c ──▶│              │                the next part that wait for nothing in it wait for the cut
//   (Begins).
class GraphPlan {
 public:
  struct Edge {
    uint32_t from, to;
  };

  // `ns`: of each node, what it takes; 0 of one that takes nothing. False: no memory, or these are
  // no edges of an acyclic graph of so many nodes.
  bool Make(size_t nodes, const Edge* edges, size_t edge_count, const int64_t* ns, int64_t budget_ns);

  // At least 1.
  uint32_t parts() const { return parts_; }
  uint32_t PartOf(uint32_t node) const { return part_[node]; }

  // The nodes at the end (at the beginning) of `part`, into `out`, which has room for all nodes of the graph.
  // Returns how many. Parts in ascending order, each once: the work of all calls together is one pass.
  size_t Ends(uint32_t part, uint32_t* out) const { return Pick(part, out, kHasNext); }
  size_t Begins(uint32_t part, uint32_t* out) const { return Pick(part, out, kHasBefore); }

 private:
  enum Flag : uint8_t { kHasNext = 1, kHasBefore = 2 };  // inside its part
  size_t Pick(uint32_t part, uint32_t* out, Flag without) const;

  MappedArray<uint32_t> order_, part_, starts_;  // starts_: of each part, in order_; one more at the end
  MappedArray<uint8_t> flags_;
  uint32_t parts_ = 0;
};

}  // namespace gpumux::guard
