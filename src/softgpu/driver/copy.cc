// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/copy.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "softgpu/driver/api.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/streams.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

// What an asynchronous copy from pageable memory may set aside of it; a larger
// one waits, as in the driver.
constexpr uint64_t kMaxStaged = 1 << 20;
// From here on a fill with zero gives the memory back instead of writing it.
constexpr uint64_t kForgetBytes = 1 << 20;

uint64_t Extent(uint64_t pitch, uint64_t width, uint64_t rows) {
  return rows == 0 ? 0 : pitch * (rows - 1) + width;
}

void Move(uint64_t to, uint64_t from, const CopyShape& shape) {
  for (uint64_t row = 0; row < shape.rows; ++row) {
    memmove(reinterpret_cast<void*>(to + row * shape.to_pitch),
            reinterpret_cast<const void*>(from + row * shape.from_pitch), shape.width);
  }
}

void Zero(uint64_t begin, uint64_t bytes, bool shared) {
  constexpr uint64_t kPage = 4096;
  const uint64_t first = (begin + kPage - 1) / kPage * kPage;
  const uint64_t last = (begin + bytes) / kPage * kPage;
  if (bytes < kForgetBytes ||
      madvise(reinterpret_cast<void*>(first), last - first, shared ? MADV_REMOVE : MADV_DONTNEED) != 0) {
    memset(reinterpret_cast<void*>(begin), 0, bytes);
    return;
  }
  memset(reinterpret_cast<void*>(begin), 0, first - begin);
  memset(reinterpret_cast<void*>(last), 0, begin + bytes - last);
}

}  // namespace

CUresult Copy(uint64_t to, Side to_side, uint64_t from, Side from_side, const CopyShape& shape,
              CUstream handle, bool wait) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  if (shape.width == 0 || shape.rows == 0) return CUDA_SUCCESS;
  if (shape.rows > 1 && (shape.to_pitch < shape.width || shape.from_pitch < shape.width))
    return CUDA_ERROR_INVALID_VALUE;
  Memory& memory = Memory::Get();
  const uint64_t to_bytes = Extent(shape.to_pitch, shape.width, shape.rows);
  const uint64_t from_bytes = Extent(shape.from_pitch, shape.width, shape.rows);
  const auto to_range = memory.Find(to);
  const auto from_range = memory.Find(from);
  if (to_side == Side::kDevice && !memory.IsDevice(to, to_bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (from_side == Side::kDevice && !memory.IsDevice(from, from_bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (to == 0 || from == 0) return CUDA_ERROR_INVALID_VALUE;

  auto work = std::make_shared<Work>();
  work->kind = Work::Kind::kEffect;
  std::shared_ptr<std::vector<char>> staged;
  if (!to_range) wait = true;
  if (!from_range && !wait) {
    if (from_bytes <= kMaxStaged) {
      const auto* bytes = reinterpret_cast<const char*>(from);
      staged = std::make_shared<std::vector<char>>(bytes, bytes + from_bytes);
    } else {
      wait = true;
    }
  }
  work->effect = [=, &memory] {
    memory.Touch(to, to_bytes);
    memory.Touch(from, from_bytes);
    if (staged != nullptr) {
      return memory.WithAccess(to, to_bytes, to, 0,
                               [&] { Move(to, reinterpret_cast<uint64_t>(staged->data()), shape); });
    }
    return memory.WithAccess(to, to_bytes, from, from_bytes, [&] { Move(to, from, shape); });
  };
  if (wait) return Engine::Get().EnqueueAndWait(stream, std::move(work));
  Engine::Get().Enqueue(stream, std::move(work));
  return CUDA_SUCCESS;
}

CUresult Fill(uint64_t to, uint64_t pitch, unsigned element, uint32_t value, uint64_t count, uint64_t rows,
              CUstream handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  if (count == 0 || rows == 0) return CUDA_SUCCESS;
  if (to % element != 0 || count > (1ULL << 46) / element) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t width = count * element;
  if (rows > 1 && pitch < width) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t bytes = Extent(pitch, width, rows);
  Memory& memory = Memory::Get();
  if (!memory.IsDevice(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto range = memory.Find(to);
  const bool shared = range && range->kind == Range::Kind::kMapped;
  auto work = std::make_shared<Work>();
  work->kind = Work::Kind::kEffect;
  work->effect = [=, &memory] {
    memory.Touch(to, bytes);
    return memory.WithAccess(to, bytes, to, 0, [&] {
      for (uint64_t row = 0; row < rows; ++row) {
        const uint64_t begin = to + row * pitch;
        if (value == 0) {
          Zero(begin, width, shared);
        } else if (element == 1) {
          memset(reinterpret_cast<void*>(begin), static_cast<int>(value), width);
        } else if (element == 2) {
          std::fill_n(reinterpret_cast<uint16_t*>(begin), count, static_cast<uint16_t>(value));
        } else {
          std::fill_n(reinterpret_cast<uint32_t*>(begin), count, value);
        }
      }
    });
  };
  Engine::Get().EnqueueOrRun(stream, std::move(work));
  return CUDA_SUCCESS;
}

}  // namespace gpumux::softgpu
