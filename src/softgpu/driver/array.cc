// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/array.h"

#include <algorithm>
#include <bit>

#include "sim/slab_layout.h"
#include "softgpu/driver/error_codes.h"
#include "softgpu/driver/memory.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

enum Flags : unsigned {
  kLayered = 0x01,
  kSurface = 0x02,
  kCubeMap = 0x04,
  kGather = 0x08,
  kColorAttachment = 0x20,
  kSparse = 0x40,
  kDeferred = 0x80,
  kKnown = kLayered | kSurface | kCubeMap | kGather | kColorAttachment | kSparse | kDeferred,
};

struct Format {
  uint64_t element_bytes;  // of all channels; of a block where block > 1
  uint64_t block = 1;      // elements of a block, each way
};

// Nothing to do for formats of several planes: they are refused.
bool ReadFormat(int format, unsigned channels, Format* out) {
  const auto plain = [&](uint64_t bytes) {
    if (channels != 1 && channels != 2 && channels != 4) return false;
    *out = {bytes * channels};
    return true;
  };
  switch (format) {
    case 0x01:  // unsigned and signed 8 bits
    case 0x08:
      return plain(1);
    case 0x02:  // 16 bits, half
    case 0x09:
    case 0x10:
      return plain(2);
    case 0x03:  // 32 bits, float
    case 0x0a:
    case 0x20:
      return plain(4);
    default:
      break;
  }
  if (format >= 0xc0 && format <= 0xcb) {  // normalised: 8 and 16 bits, 1, 2 and 4 channels
    const int kind = (format - 0xc0) % 6;
    const unsigned wanted = 1u << (kind % 3);
    *out = {(kind < 3 ? 1u : 2u) * wanted};
    return channels == wanted;
  }
  if (format >= 0x91 && format <= 0x9e) {  // BC1 and BC4 have blocks of 8 bytes, the others of 16
    const bool small = format == 0x91 || format == 0x92 || format == 0x97 || format == 0x98;
    *out = {small ? 8u : 16u, 4};
    return channels == 1 || channels == 2 || channels == 3 || channels == 4;
  }
  return false;
}

uint64_t Blocks(uint64_t elements, uint64_t block) { return (elements + block - 1) / block; }

// The device stores tiles of 64 bytes by 8 rows, stacked by powers of two up to
// 16; with a depth, tiles are lower and stacked in depth too. Agrees with every
// size that was measured.
uint64_t DeviceBytes(uint64_t row_bytes, uint64_t rows, uint64_t depth, bool volume) {
  constexpr uint64_t kTileBytes = 64, kTileRows = 8;
  const auto step = [](uint64_t n, uint64_t unit, uint64_t most) {
    return std::min(std::bit_ceil(Blocks(n, unit)) * unit, most);
  };
  const uint64_t row_step = step(rows, kTileRows, volume ? 16 : 128);
  const uint64_t depth_step = volume ? step(depth, 1, 16) : 1;
  return sim::RoundUp(row_bytes, kTileBytes) * sim::RoundUp(rows, row_step) * sim::RoundUp(depth, depth_step);
}

CUresult Shape(const CUDA_ARRAY3D_DESCRIPTOR& d, Array* out) {
  Format format{};
  if (d.Width == 0 || (d.Flags & ~unsigned{kKnown}) != 0 || !ReadFormat(d.Format, d.NumChannels, &format)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool layered = (d.Flags & kLayered) != 0, cube = (d.Flags & kCubeMap) != 0;
  const uint64_t height = std::max<uint64_t>(d.Height, 1), depth = std::max<uint64_t>(d.Depth, 1);
  // The device's limits (attributes 21 to 30).
  bool fits;
  if (cube) {
    fits = d.Width == d.Height && d.Width <= 32768 &&
           (layered ? d.Depth > 0 && d.Depth % 6 == 0 && d.Depth <= 2046 : d.Depth == 6);
  } else if (layered) {
    fits = d.Depth > 0 && d.Depth <= 2048 && d.Width <= 32768 && height <= 32768;
  } else if (d.Depth > 0) {
    fits = d.Height > 0 && d.Width <= 16384 && height <= 16384 && depth <= 16384;
  } else {
    fits = d.Width <= 131072 && height <= 65536;
  }
  if (!fits || ((d.Flags & kGather) != 0 && (d.Height == 0 || d.Depth > 0))) return CUDA_ERROR_INVALID_VALUE;
  out->descriptor = d;
  out->element_bytes = format.element_bytes;
  out->row_bytes = Blocks(d.Width, format.block) * format.element_bytes;
  out->rows = Blocks(height, format.block);
  out->slices = depth;
  const bool volume = d.Depth > 1 && !layered && !cube;
  out->device_bytes = DeviceBytes(out->row_bytes, out->rows, depth, volume);
  return CUDA_SUCCESS;
}

constexpr bool HasMemory(unsigned flags) { return (flags & (kSparse | kDeferred)) == 0; }

}  // namespace

Arrays& Arrays::Get() {
  static Arrays* arrays = new Arrays;
  return *arrays;
}

CUresult Arrays::Create(Context* context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor, Array** out) {
  auto array = std::make_unique<Array>();
  array->context = context;
  if (CUresult error = Shape(descriptor, array.get()); error != CUDA_SUCCESS) return error;
  if (HasMemory(descriptor.Flags)) {
    if (CUresult error = Memory::Get().AllocGlobals(context, array->device_bytes, &array->base);
        error != CUDA_SUCCESS)
      return error;
  }
  std::lock_guard lock(mutex_);
  *out = array.get();
  arrays_.emplace(array.get(), std::move(array));
  return CUDA_SUCCESS;
}

CUresult Arrays::Destroy(CUarray handle) {
  std::lock_guard lock(mutex_);
  auto it = arrays_.find(reinterpret_cast<Array*>(handle));
  if (it == arrays_.end()) return CUDA_ERROR_INVALID_HANDLE;
  // A level goes with its mipmapped array.
  if (it->first->levels != nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (it->first->base != 0) Memory::Get().FreeGlobals(it->first->base);
  arrays_.erase(it);
  return CUDA_SUCCESS;
}

bool Arrays::Find(CUarray handle, Array* out) {
  std::lock_guard lock(mutex_);
  auto it = arrays_.find(reinterpret_cast<Array*>(handle));
  if (it == arrays_.end()) return false;
  *out = *it->first;
  return true;
}

CUresult Arrays::CreateMipmapped(Context* context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor, unsigned levels,
                                 MipmappedArray** out) {
  auto mipmapped = std::make_unique<MipmappedArray>();
  mipmapped->context = context;
  mipmapped->flags = descriptor.Flags;
  const bool volume = (descriptor.Flags & (kLayered | kCubeMap)) == 0;
  const uint64_t largest =
      std::max<uint64_t>({descriptor.Width, descriptor.Height, volume ? descriptor.Depth : 0, 1});
  // More levels than there can be are as many as there can be.
  levels = std::clamp(levels, 1u, static_cast<unsigned>(std::bit_width(largest)));
  std::vector<std::unique_ptr<Array>> made;
  std::vector<uint64_t> offsets;
  uint64_t offset = 0;
  CUDA_ARRAY3D_DESCRIPTOR level = descriptor;
  for (unsigned i = 0; i < levels; ++i) {
    auto array = std::make_unique<Array>();
    array->context = context;
    array->levels = mipmapped.get();
    if (CUresult error = Shape(level, array.get()); error != CUDA_SUCCESS) return error;
    offsets.push_back(offset);
    offset += std::max(array->device_bytes, array->row_bytes * array->rows * array->slices);
    made.push_back(std::move(array));
    const auto half = [](size_t n) { return n == 0 ? 0 : std::max<size_t>(n / 2, 1); };
    level.Width = half(level.Width);
    level.Height = half(level.Height);
    if (volume) level.Depth = half(level.Depth);
  }
  mipmapped->device_bytes = offset;
  if (HasMemory(descriptor.Flags)) {
    if (CUresult error = Memory::Get().AllocGlobals(context, offset, &mipmapped->base); error != CUDA_SUCCESS)
      return error;
  }
  std::lock_guard lock(mutex_);
  for (unsigned i = 0; i < levels; ++i) {
    if (mipmapped->base != 0) made[i]->base = mipmapped->base + offsets[i];
    mipmapped->levels.push_back(made[i].get());
    Array* raw = made[i].get();
    arrays_.emplace(raw, std::move(made[i]));
  }
  *out = mipmapped.get();
  mipmapped_.emplace(mipmapped.get(), std::move(mipmapped));
  return CUDA_SUCCESS;
}

void Arrays::DestroyLocked(MipmappedArray* mipmapped) {
  for (Array* level : mipmapped->levels) arrays_.erase(level);
  if (mipmapped->base != 0) Memory::Get().FreeGlobals(mipmapped->base);
  mipmapped_.erase(mipmapped);
}

CUresult Arrays::DestroyMipmapped(CUmipmappedArray handle) {
  std::lock_guard lock(mutex_);
  auto it = mipmapped_.find(reinterpret_cast<MipmappedArray*>(handle));
  if (it == mipmapped_.end()) return CUDA_ERROR_INVALID_HANDLE;
  DestroyLocked(it->first);
  return CUDA_SUCCESS;
}

CUresult Arrays::GetLevel(CUmipmappedArray handle, unsigned level, Array** out) {
  std::lock_guard lock(mutex_);
  auto it = mipmapped_.find(reinterpret_cast<MipmappedArray*>(handle));
  if (it == mipmapped_.end()) return CUDA_ERROR_INVALID_HANDLE;
  if (level >= it->first->levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *out = it->first->levels[level];
  return CUDA_SUCCESS;
}

bool Arrays::FindMipmapped(CUmipmappedArray handle, MipmappedArray* out) {
  std::lock_guard lock(mutex_);
  auto it = mipmapped_.find(reinterpret_cast<MipmappedArray*>(handle));
  if (it == mipmapped_.end()) return false;
  *out = *it->first;
  return true;
}

void Arrays::RemoveContext(Context* context) {
  std::lock_guard lock(mutex_);
  for (auto it = mipmapped_.begin(); it != mipmapped_.end();) {
    MipmappedArray* mipmapped = it->first;
    ++it;
    if (mipmapped->context == context) DestroyLocked(mipmapped);
  }
  std::erase_if(arrays_, [&](const auto& entry) {
    if (entry.first->context != context) return false;
    if (entry.first->base != 0) Memory::Get().FreeGlobals(entry.first->base);
    return true;
  });
}

}  // namespace gpumux::softgpu
