// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "gpumux/abi/cuda/driver.h"

namespace gpumux::guard {

// A map from a 64-bit key (never 0) to a small value, on memory of its own:
// the guard calls no malloc, which a program may have replaced. Open addressing
// with linear probing and backward-shift deletion; grows by doubling at 3/4.
// Not synchronised.
template <typename V>
class KeyMap {
 public:
  V* Find(uint64_t key);
  // The value of `key`, made from `initial` if it was absent; null when memory
  // ran out.
  V* Insert(uint64_t key, const V& initial);
  bool Erase(uint64_t key, V* erased);
  template <typename F>
  void EraseIf(F&& predicate);  // predicate(key, V&) -> bool
  template <typename F>
  bool Any(F&& predicate) const;  // predicate(const V&) -> bool
  // Forgets the content without returning the memory: for the child of a fork.
  void Forget() { *this = KeyMap(); }
  size_t size() const { return size_; }

 private:
  struct Cell {
    uint64_t key;
    V value;
  };
  static size_t Hash(uint64_t key) { return (key ^ (key >> 21)) * 0x9e3779b97f4a7c15u >> 20; }
  bool Grow();

  Cell* cells_ = nullptr;
  size_t capacity_ = 0;  // a power of two
  size_t size_ = 0;
};

enum class Family : uint8_t {
  kWhole,        // plain or pitched, address range of its own; also managed
  kPiece,        // small, inside a slab of 2 MiB that is charged as a whole
  kStream,       // stream-ordered: charged through its pool
  kSmallObject,  // an array or a module that shares slabs (small_objects.h)
};

struct Allocation {
  uint64_t bytes;  // charged for it alone (kWhole); asked for (kStream); else 0
  uint64_t pool;   // kStream: the pool's handle
  cuda::CUcontext context;
  int16_t slot;
  Family family;
};

// Everything that this process allocated by address. Thread-safe.
void Remember(cuda::CUdeviceptr ptr, const Allocation& allocation);
// Takes the entry out before the driver is asked to free it: as soon as it is
// free, another thread may be given the same address.
bool Take(cuda::CUdeviceptr ptr, Allocation* allocation);

// Slabs. True: this piece is the first of its slab, which is charged now.
bool AddPiece(cuda::CUdeviceptr ptr, cuda::CUcontext context, int slot);
// Whether any slab of the context is charged.
bool HasSlab(cuda::CUcontext context, int slot);
// True: it was the last piece, the slab went back to the device.
bool DropPiece(cuda::CUdeviceptr ptr);

// The driver freed what was in a context that is gone: returns the bytes that
// were charged for it on `slot`. `last`: no context is left there.
uint64_t DropContext(cuda::CUcontext context, int slot, bool last);

// In the child of a fork.
void ForgetAllAllocations();

}  // namespace gpumux::guard

#include "guard/key_map.h"
