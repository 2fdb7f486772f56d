// SPDX-License-Identifier: Apache-2.0
//
// Arrays. How much an array takes depends on tiling that is the driver's secret,
// but the driver tells: the same array with its mapping deferred takes nothing
// and states its requirement. So each creation is preceded by such a twin.
#include "guard/allocations.h"
#include "guard/credit.h"
#include "guard/current_context.h"
#include "guard/driver.h"
#include "guard/rounding.h"
#include "guard/session.h"
#include "guard/small_objects.h"
#include "guard/virtual_memory.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

constinit SmallObjects g_small_objects;

namespace {

constexpr unsigned kWithoutMemory = kArraySparse | kArrayDeferredMapping;

// `n` in whole steps of the least power of two times `unit` that holds it, of
// `most` at most.
uint64_t Padded(uint64_t n, uint64_t unit, uint64_t most) {
  uint64_t step = unit;
  while (step < n && step < most) step *= 2;
  return RoundUp(n ? n : 1, step);
}

// No smaller than any array of this shape: every element 16 bytes, every row and
// plane padded as tiles are stacked (measured). For drivers that do not know
// deferred mapping (before 11.3), or do not answer.
uint64_t Estimate(const CUDA_ARRAY3D_DESCRIPTOR& d, unsigned levels) {
  if (d.Width >= kAbsurdBytes || d.Height >= kAbsurdBytes || d.Depth >= kAbsurdBytes) return kAbsurdBytes;
  const uint64_t w = Padded(d.Width, 4, 4), h = Padded(d.Height, 8, 128), z = Padded(d.Depth, 1, 16);
  if (w >= kAbsurdBytes / 16 || h >= kAbsurdBytes / 16 / w || z >= kAbsurdBytes / 16 / w / h)
    return kAbsurdBytes;
  return w * h * z * 16 * (levels > 1 ? 2 : 1);
}

uint64_t Requirement(const CUDA_ARRAY3D_DESCRIPTOR& desc, CUdevice device) {
  CUDA_ARRAY3D_DESCRIPTOR twin = desc;
  twin.Flags |= kArrayDeferredMapping;
  CUarray array = nullptr;
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {};
  if (!Real().cuArrayGetMemoryRequirements || !Real().cuArray3DCreate_v2 || !Real().cuArrayDestroy ||
      Real().cuArray3DCreate_v2(&array, &twin) != CUDA_SUCCESS) {
    return Estimate(desc, 1);
  }
  const CUresult r = Real().cuArrayGetMemoryRequirements(&needs, array, device);
  Real().cuArrayDestroy(array);
  return r == CUDA_SUCCESS ? needs.size : Estimate(desc, 1);
}

uint64_t Requirement(const CUDA_ARRAY3D_DESCRIPTOR& desc, unsigned levels, CUdevice device) {
  CUDA_ARRAY3D_DESCRIPTOR twin = desc;
  twin.Flags |= kArrayDeferredMapping;
  CUmipmappedArray array = nullptr;
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {};
  if (!Real().cuMipmappedArrayGetMemoryRequirements || !Real().cuMipmappedArrayDestroy ||
      Real().cuMipmappedArrayCreate(&array, &twin, levels) != CUDA_SUCCESS) {
    return Estimate(desc, levels);
  }
  const CUresult r = Real().cuMipmappedArrayGetMemoryRequirements(&needs, array, device);
  Real().cuMipmappedArrayDestroy(array);
  return r == CUDA_SUCCESS ? needs.size : Estimate(desc, levels);
}

// `needs(device)` gives the bytes, `create` calls the driver, `*handle` is the result.
template <typename Handle, typename Needs, typename Create>
CUresult CreateArray(Handle* handle, unsigned flags, Needs&& needs, Create&& create) {
  if (!InForce() || !handle || (flags & kWithoutMemory)) return create();
  CUdevice device;
  if (!CurrentDevice(&device)) return create();
  const int slot = SlotOfDevice(device);
  if (slot == kNoDevice) return create();
  if (slot == kNotOurs) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t bytes = needs(device);
  if (bytes == 0 || bytes >= kAbsurdBytes) return create();
  const CUcontext context = CurrentContext();
  if (bytes <= kLargestPieceBytes) {
    const CUresult r = g_small_objects.Add(slot, create);
    if (r == CUDA_SUCCESS) {
      Remember(reinterpret_cast<uint64_t>(*handle),
               {0, 0, context, static_cast<int16_t>(slot), Family::kSmallObject});
    }
    return r;
  }
  const uint64_t charge = RoundUp(bytes, kDevicePageBytes);
  if (!Reserve(slot, charge)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult r = create();
  if (r != CUDA_SUCCESS) {
    Cancel(slot, charge);
    if (r == CUDA_ERROR_OUT_OF_MEMORY) CountDeviceFull(slot, charge);
    return r;
  }
  Commit(slot, charge);
  Remember(reinterpret_cast<uint64_t>(*handle),
           {charge, 0, context, static_cast<int16_t>(slot), Family::kWhole});
  return r;
}

template <typename Handle, typename Destroy>
CUresult DestroyArray(Handle handle, Destroy&& destroy) {
  Allocation allocation;
  if (!InForce()) return destroy();
  if (!Take(reinterpret_cast<uint64_t>(handle), &allocation)) {
    // Perhaps one without memory of its own (sparse, deferred).
    const CUresult r = destroy();
    if (r == CUDA_SUCCESS) ArrayUsesNothing(reinterpret_cast<uint64_t>(handle));
    return r;
  }
  const CUresult r = allocation.family == Family::kSmallObject
                         ? g_small_objects.Remove(allocation.slot, destroy)
                         : destroy();
  if (r != CUDA_SUCCESS) {
    Remember(reinterpret_cast<uint64_t>(handle), allocation);
  } else if (allocation.bytes) {
    Release(allocation.slot, allocation.bytes);
  }
  return r;
}

CUDA_ARRAY3D_DESCRIPTOR Widen(const CUDA_ARRAY_DESCRIPTOR& d) {
  return {d.Width, d.Height, 0, d.Format, d.NumChannels, 0};
}
CUDA_ARRAY3D_DESCRIPTOR Widen(const CUDA_ARRAY_DESCRIPTOR_v1& d) {
  return {d.Width, d.Height, 0, d.Format, d.NumChannels, 0};
}
CUDA_ARRAY3D_DESCRIPTOR Widen(const CUDA_ARRAY3D_DESCRIPTOR& d) { return d; }
CUDA_ARRAY3D_DESCRIPTOR Widen(const CUDA_ARRAY3D_DESCRIPTOR_v1& d) {
  return {d.Width, d.Height, d.Depth, d.Format, d.NumChannels, d.Flags};
}

template <typename Desc>
CUresult Create(CUresult (*real)(CUarray*, const Desc*), CUarray* array, const Desc* desc) {
  auto call = [&] { return Through(real, array, desc); };
  if (!desc) return call();
  const CUDA_ARRAY3D_DESCRIPTOR wide = Widen(*desc);
  return CreateArray(array, wide.Flags, [&](CUdevice device) { return Requirement(wide, device); }, call);
}

}  // namespace

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuArrayCreate(CUarray* array, const CUDA_ARRAY_DESCRIPTOR_v1* desc) {
  return Create(Real().cuArrayCreate, array, desc);
}

CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* desc) {
  return Create(Real().cuArrayCreate_v2, array, desc);
}

CUresult cuArray3DCreate(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR_v1* desc) {
  return Create(Real().cuArray3DCreate, array, desc);
}

CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* desc) {
  return Create(Real().cuArray3DCreate_v2, array, desc);
}

CUresult cuArrayDestroy(CUarray array) {
  return DestroyArray(array, [&] { return Through(Real().cuArrayDestroy, array); });
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* desc,
                                unsigned levels) {
  auto call = [&] { return Through(Real().cuMipmappedArrayCreate, array, desc, levels); };
  if (!desc) return call();
  return CreateArray(
      array, desc->Flags, [&](CUdevice device) { return Requirement(*desc, levels, device); }, call);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  return DestroyArray(array, [&] { return Through(Real().cuMipmappedArrayDestroy, array); });
}

}  // extern "C"
