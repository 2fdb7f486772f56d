// SPDX-License-Identifier: Apache-2.0
// Plain, pitched and managed memory: reserve, call, commit.
#include "guard/allocations.h"
#include "guard/credit.h"
#include "guard/current_context.h"
#include "guard/driver.h"
#include "guard/rounding.h"
#include "guard/session.h"
#include "guard/streams.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

// At the cap, where no slab more can be had: a small piece may still fit into one
// that is charged, which its address alone tells.
template <typename Call, typename FreeCall>
CUresult AllocateInSlab(int slot, CUcontext context, Refusal refusal, CUdeviceptr* address, Call&& call,
                        FreeCall&& free_call) {
  const CUdeviceptr before = *address;
  const CUresult r = call();
  if (r != CUDA_SUCCESS) {
    if (r == CUDA_ERROR_OUT_OF_MEMORY) CountDeviceFull(slot, kSlabBytes);
    return r;
  }
  const CUdeviceptr piece = *address;
  if (AddPiece(piece, context, slot)) {
    if (free_call(piece) == CUDA_SUCCESS) {
      DropPiece(piece);
      *address = before;
      CountRefused(slot, kSlabBytes, refusal);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    ForceCommit(slot, kSlabBytes);
  }
  Remember(piece, {0, 0, context, static_cast<int16_t>(slot), Family::kPiece});
  return r;
}

// `bytes` is what the program asks for; `share_slab`: whether small requests of
// this family share slabs. `call` asks the driver and gives the address.
template <typename Call, typename FreeCall>
CUresult Allocate(uint64_t bytes, bool share_slab, CUdeviceptr* address, Call&& call, FreeCall&& free_call) {
  // What the driver refuses by itself keeps the driver's own code.
  if (!InForce() || bytes == 0 || bytes >= kAbsurdBytes) return call();
  const int slot = SlotOfCurrentContext();
  if (slot == kNoDevice) return call();
  if (slot == kNotOurs) return CUDA_ERROR_OUT_OF_MEMORY;

  const bool piece = share_slab && bytes <= kLargestPieceBytes;
  const uint64_t charge = piece ? kSlabBytes : RoundUp(bytes, kDevicePageBytes);
  const CUcontext context = CurrentContext();
  Refusal refusal;
  if (!TryReserve(slot, charge, &refusal)) {
    if (piece && HasSlab(context, slot))
      return AllocateInSlab(slot, context, refusal, address, call, free_call);
    CountRefused(slot, charge, refusal);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult r = call();
  if (r != CUDA_SUCCESS) {
    Cancel(slot, charge);
    if (r == CUDA_ERROR_OUT_OF_MEMORY) CountDeviceFull(slot, charge);
    return r;
  }
  if (piece) {
    // The address says which slab the driver chose; one that is charged already
    // costs nothing more.
    if (AddPiece(*address, context, slot)) {
      Commit(slot, charge);
    } else {
      Cancel(slot, charge);
    }
    Remember(*address, {0, 0, context, static_cast<int16_t>(slot), Family::kPiece});
  } else {
    Commit(slot, charge);
    Remember(*address, {charge, 0, context, static_cast<int16_t>(slot), Family::kWhole});
  }
  return r;
}

CUresult Undo(CUdeviceptr ptr) { return Through(Real().cuMemFree_v2, ptr); }

// The same for an address of 32 bits.
template <typename Call>
CUresult AllocateNarrow(CUdeviceptr_v1* ptr, uint64_t bytes, Call&& call) {
  const CUdeviceptr_v1 before = *ptr;
  CUdeviceptr wide = before;
  const CUresult r = Allocate(
      bytes, true, &wide,
      [&] {
        const CUresult from_driver = call();
        wide = *ptr;
        return from_driver;
      },
      [](CUdeviceptr p) { return Through(Real().cuMemFree, static_cast<CUdeviceptr_v1>(p)); });
  if (r != CUDA_SUCCESS && wide == before) *ptr = before;
  return r;
}

template <typename Call>
CUresult Free(CUdeviceptr ptr, Call&& call) {
  Allocation allocation;
  if (!InForce() || !Take(ptr, &allocation)) return call();
  if (allocation.family == Family::kStream) return FreeStreamOrdered(ptr, allocation, call());
  const CUresult r = call();
  if (r != CUDA_SUCCESS) {
    Remember(ptr, allocation);
    return r;
  }
  if (allocation.family == Family::kPiece) {
    if (DropPiece(ptr)) Release(allocation.slot, kSlabBytes);
  } else {
    Release(allocation.slot, allocation.bytes);
  }
  return r;
}

}  // namespace

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* ptr, size_t bytes) {
  if (!ptr) return Through(Real().cuMemAlloc_v2, ptr, bytes);
  return Allocate(bytes, true, ptr, [&] { return Through(Real().cuMemAlloc_v2, ptr, bytes); }, Undo);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* ptr, size_t* pitch, size_t width, size_t height, unsigned element) {
  auto call = [&] { return Through(Real().cuMemAllocPitch_v2, ptr, pitch, width, height, element); };
  if (!ptr || !pitch) return call();
  // Rows are padded to the pitch, which only the driver knows: 512 bytes on
  // every part so far. The surplus, if the pitch is larger, is charged after.
  const uint64_t rows = height;
  const uint64_t padded = RoundUp(width, 512);
  if (width >= kAbsurdBytes || (rows != 0 && padded > kAbsurdBytes / rows)) return call();
  const uint64_t expected = padded * rows;
  const CUresult r = Allocate(expected, true, ptr, call, Undo);
  if (r == CUDA_SUCCESS && InForce() && *pitch > padded) {
    Allocation a;
    const uint64_t actual = RoundUp(*pitch * rows, kDevicePageBytes);
    if (Take(*ptr, &a)) {
      if (a.family == Family::kWhole && actual > a.bytes) {
        ForceCommit(a.slot, actual - a.bytes);
        a.bytes = actual;
      }
      Remember(*ptr, a);
    }
  }
  return r;
}

// Managed memory is charged whole when it is allocated: the device takes it as
// it is touched, and no call is left then that could be refused.
CUresult cuMemAllocManaged(CUdeviceptr* ptr, size_t bytes, unsigned flags) {
  if (!ptr) return Through(Real().cuMemAllocManaged, ptr, bytes, flags);
  return Allocate(
      bytes, false, ptr, [&] { return Through(Real().cuMemAllocManaged, ptr, bytes, flags); }, Undo);
}

CUresult cuMemFree_v2(CUdeviceptr ptr) {
  return Free(ptr, [&] { return Through(Real().cuMemFree_v2, ptr); });
}

// Entry points from before CUDA 3.2, with 32-bit sizes and addresses; drivers
// still export them.
CUresult cuMemAlloc(CUdeviceptr_v1* ptr, unsigned bytes) {
  if (!ptr) return Through(Real().cuMemAlloc, ptr, bytes);
  return AllocateNarrow(ptr, bytes, [&] { return Through(Real().cuMemAlloc, ptr, bytes); });
}

CUresult cuMemAllocPitch(CUdeviceptr_v1* ptr, unsigned* pitch, unsigned width, unsigned height,
                         unsigned element) {
  auto call = [&] { return Through(Real().cuMemAllocPitch, ptr, pitch, width, height, element); };
  if (!ptr || !pitch) return call();
  return AllocateNarrow(ptr, RoundUp(width, 512) * height, call);
}

CUresult cuMemFree(CUdeviceptr_v1 ptr) {
  return Free(ptr, [&] { return Through(Real().cuMemFree, ptr); });
}

}  // extern "C"
