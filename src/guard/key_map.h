// SPDX-License-Identifier: Apache-2.0
#pragma once

// The members of KeyMap (allocations.h).
#include <sys/mman.h>

#include "guard/allocations.h"

namespace gpumux::guard {

template <typename V>
V* KeyMap<V>::Find(uint64_t key) {
  if (capacity_ == 0 || key == 0) return nullptr;
  for (size_t i = Hash(key) & (capacity_ - 1);; i = (i + 1) & (capacity_ - 1)) {
    if (cells_[i].key == key) return &cells_[i].value;
    if (cells_[i].key == 0) return nullptr;
  }
}

template <typename V>
V* KeyMap<V>::Insert(uint64_t key, const V& initial) {
  if (key == 0) return nullptr;
  if (V* found = Find(key)) return found;
  if ((size_ + 1) * 4 > capacity_ * 3 && !Grow()) return nullptr;
  size_t i = Hash(key) & (capacity_ - 1);
  while (cells_[i].key != 0) i = (i + 1) & (capacity_ - 1);
  cells_[i] = {key, initial};
  size_++;
  return &cells_[i].value;
}

template <typename V>
bool KeyMap<V>::Erase(uint64_t key, V* erased) {
  V* found = Find(key);
  if (!found) return false;
  if (erased) *erased = *found;
  const size_t mask = capacity_ - 1;
  size_t hole = static_cast<size_t>(
      reinterpret_cast<Cell*>(reinterpret_cast<char*>(found) - offsetof(Cell, value)) - cells_);
  for (size_t i = (hole + 1) & mask; cells_[i].key != 0; i = (i + 1) & mask) {
    // A cell may move into the hole if its own place is not between the two.
    const size_t home = Hash(cells_[i].key) & mask;
    if (((i - home) & mask) >= ((i - hole) & mask)) {
      cells_[hole] = cells_[i];
      hole = i;
    }
  }
  cells_[hole].key = 0;
  size_--;
  return true;
}

template <typename V>
template <typename F>
void KeyMap<V>::EraseIf(F&& predicate) {
  for (size_t i = 0; i < capacity_;) {
    // An erasure may move another entry here: look at the cell again.
    if (cells_[i].key != 0 && predicate(cells_[i].key, cells_[i].value)) {
      Erase(cells_[i].key, nullptr);
    } else {
      i++;
    }
  }
}

template <typename V>
template <typename F>
bool KeyMap<V>::Any(F&& predicate) const {
  for (size_t i = 0; i < capacity_; i++) {
    if (cells_[i].key != 0 && predicate(cells_[i].value)) return true;
  }
  return false;
}

template <typename V>
bool KeyMap<V>::Grow() {
  const size_t capacity = capacity_ == 0 ? 1024 : capacity_ * 2;
  void* memory =
      mmap(nullptr, capacity * sizeof(Cell), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  KeyMap bigger;
  bigger.cells_ = static_cast<Cell*>(memory);
  bigger.capacity_ = capacity;
  for (size_t i = 0; i < capacity_; i++) {
    if (cells_[i].key != 0) bigger.Insert(cells_[i].key, cells_[i].value);
  }
  if (cells_) munmap(cells_, capacity_ * sizeof(Cell));
  *this = bigger;
  return true;
}

}  // namespace gpumux::guard
