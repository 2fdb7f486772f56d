// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/copy.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "softgpu/driver/api.h"
#include "softgpu/driver/array.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/operation.h"
#include "softgpu/driver/streams.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

// What an asynchronous copy from pageable memory may set aside of it; a larger
// one waits, as in the driver.
constexpr uint64_t kMaxStaged = 1 << 20;
// From here on a fill with zero gives the memory back instead of writing it.
constexpr uint64_t kForgetBytes = 1 << 20;
// Larger than any device: keeps products of sizes from running over.
constexpr uint64_t kMaxBytes = 1ULL << 46;

struct Side {
  uint64_t base = 0, pitch = 0, slice = 0;
  uint64_t bytes = 0;     // from the first byte to the last
  bool pageable = false;  // host memory that the driver does not know
};
struct Plan {
  Side to, from;
  uint64_t width = 0, rows = 0, slices = 0;
  bool nothing = false;
};

uint64_t Extent(uint64_t pitch, uint64_t width, uint64_t rows) {
  return rows == 0 ? 0 : pitch * (rows - 1) + width;
}

CUresult PlanSide(const CopySide& side, const Plan& plan, Side* out) {
  if (side.type == kArrayMemory) {
    Array array;
    if (!Arrays::Get().Find(side.array, &array)) return CUDA_ERROR_INVALID_VALUE;
    // Nothing of an array without memory can be read or written.
    if (array.base == 0 || side.level != 0) return CUDA_ERROR_INVALID_VALUE;
    if (side.x_bytes > array.row_bytes || plan.width > array.row_bytes - side.x_bytes ||
        side.y > array.rows || plan.rows > array.rows - side.y || side.z > array.slices ||
        plan.slices > array.slices - side.z) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    out->pitch = array.row_bytes;
    out->slice = array.row_bytes * array.rows;
    out->base = array.base + side.z * out->slice + side.y * out->pitch + side.x_bytes;
    return CUDA_SUCCESS;
  }
  if (side.type < kHostMemory || side.type > kUnifiedMemory) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t start = side.type == kHostMemory ? reinterpret_cast<uint64_t>(side.host) : side.device;
  const uint64_t height = side.height != 0 ? side.height : plan.rows;
  out->pitch = side.pitch != 0 ? side.pitch : plan.width;
  if (start == 0 || (plan.rows > 1 && out->pitch < plan.width) || height < plan.rows ||
      out->pitch > kMaxBytes || height > kMaxBytes / out->pitch || side.z > kMaxBytes || side.y > kMaxBytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  out->slice = out->pitch * height;
  out->base = start + side.z * out->slice + side.y * out->pitch + side.x_bytes;
  out->bytes = Extent(out->slice, Extent(out->pitch, plan.width, plan.rows), plan.slices);
  if (side.type == kDeviceMemory && !Memory::Get().IsDevice(out->base, out->bytes))
    return CUDA_ERROR_INVALID_VALUE;
  out->pageable = !Memory::Get().Find(out->base);
  return CUDA_SUCCESS;
}

CUresult MakePlan(const Copy3D& copy, Plan* plan) {
  plan->width = copy.width_bytes;
  plan->rows = copy.height;
  plan->slices = copy.depth;
  if (plan->width == 0 || plan->rows == 0 || plan->slices == 0) {
    plan->nothing = true;
    return CUDA_SUCCESS;
  }
  if (plan->width > kMaxBytes || plan->rows > kMaxBytes || plan->slices > kMaxBytes)
    return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = PlanSide(copy.to, *plan, &plan->to); error != CUDA_SUCCESS) return error;
  return PlanSide(copy.from, *plan, &plan->from);
}

void Move(const Plan& plan, uint64_t to, uint64_t from) {
  for (uint64_t slice = 0; slice < plan.slices; ++slice) {
    for (uint64_t row = 0; row < plan.rows; ++row) {
      memmove(reinterpret_cast<void*>(to + slice * plan.to.slice + row * plan.to.pitch),
              reinterpret_cast<const void*>(from + slice * plan.from.slice + row * plan.from.pitch),
              plan.width);
    }
  }
}

WorkPtr MakeWork(const Plan& plan, std::shared_ptr<std::vector<char>> staged) {
  auto work = std::make_shared<Work>();
  work->kind = Work::Kind::kEffect;
  if (plan.nothing) {
    work->effect = [] { return true; };
    return work;
  }
  work->effect = [plan, staged = std::move(staged)] {
    Memory& memory = Memory::Get();
    memory.Touch(plan.to.base, plan.to.bytes);
    if (staged != nullptr) {
      return memory.WithAccess(plan.to.base, plan.to.bytes, plan.to.base, 0,
                               [&] { Move(plan, plan.to.base, reinterpret_cast<uint64_t>(staged->data())); });
    }
    memory.Touch(plan.from.base, plan.from.bytes);
    return memory.WithAccess(plan.to.base, plan.to.bytes, plan.from.base, plan.from.bytes,
                             [&] { Move(plan, plan.to.base, plan.from.base); });
  };
  return work;
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

CopySide HostSide(const void* pointer) {
  CopySide side = {};
  side.type = kHostMemory;
  side.host = pointer;
  return side;
}
CopySide DeviceSide(CUdeviceptr pointer) {
  CopySide side = {};
  side.type = kDeviceMemory;
  side.device = pointer;
  return side;
}
CopySide UnifiedSide(CUdeviceptr pointer) {
  CopySide side = DeviceSide(pointer);
  side.type = kUnifiedMemory;
  return side;
}
CopySide ArraySide(CUarray array, size_t offset) {
  CopySide side = {};
  side.type = kArrayMemory;
  side.array = array;
  side.x_bytes = offset;
  return side;
}

CUresult CheckCopy(const CopyOperation& operation) {
  Plan plan;
  return MakePlan(operation.copy, &plan);
}

CUresult PrepareCopy(const CopyOperation& operation, WorkPtr* out) {
  Plan plan;
  if (CUresult error = MakePlan(operation.copy, &plan); error != CUDA_SUCCESS) return error;
  *out = MakeWork(plan, nullptr);
  return CUDA_SUCCESS;
}

CUresult Copy(const Copy3D& copy, CUstream handle, bool wait) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  Plan plan;
  if (CUresult error = MakePlan(copy, &plan); error != CUDA_SUCCESS) return error;
  if (auto captured = Captures::Take(stream, [&] { return CopyOperation{copy}; })) return *captured;
  if (plan.nothing) return CUDA_SUCCESS;
  std::shared_ptr<std::vector<char>> staged;
  if (plan.to.pageable) wait = true;
  if (plan.from.pageable && !wait) {
    if (plan.from.bytes <= kMaxStaged) {
      const auto* bytes = reinterpret_cast<const char*>(plan.from.base);
      staged = std::make_shared<std::vector<char>>(bytes, bytes + plan.from.bytes);
    } else {
      wait = true;
    }
  }
  WorkPtr work = MakeWork(plan, std::move(staged));
  if (wait) return Engine::Get().EnqueueAndWait(stream, std::move(work));
  Engine::Get().Enqueue(stream, std::move(work));
  return CUDA_SUCCESS;
}

CUresult CopyBytes(const CopySide& to, const CopySide& from, uint64_t bytes, CUstream stream, bool wait) {
  Copy3D copy = {};
  copy.to = to;
  copy.from = from;
  copy.width_bytes = bytes;
  copy.height = copy.depth = 1;
  return Copy(copy, stream, wait);
}

CUresult CheckFill(const FillOperation& operation) {
  const MemsetNodeParams& fill = operation.fill;
  if (fill.width == 0 || fill.height == 0) return CUDA_SUCCESS;
  const unsigned element = fill.element_bytes;
  if ((element != 1 && element != 2 && element != 4) || fill.to % element != 0 ||
      fill.width > kMaxBytes / element || fill.height > kMaxBytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t width = fill.width * element;
  if (fill.height > 1 && (fill.pitch < width || fill.pitch > kMaxBytes / fill.height))
    return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().IsDevice(fill.to, Extent(fill.pitch, width, fill.height)) ? CUDA_SUCCESS
                                                                                 : CUDA_ERROR_INVALID_VALUE;
}

CUresult PrepareFill(const FillOperation& operation, WorkPtr* out) {
  if (CUresult error = CheckFill(operation); error != CUDA_SUCCESS) return error;
  const MemsetNodeParams fill = operation.fill;
  auto work = std::make_shared<Work>();
  work->kind = Work::Kind::kEffect;
  work->effect = [fill] {
    if (fill.width == 0 || fill.height == 0) return true;
    Memory& memory = Memory::Get();
    const uint64_t width = fill.width * fill.element_bytes;
    const uint64_t bytes = Extent(fill.pitch, width, fill.height);
    const auto range = memory.Find(fill.to);
    const bool shared = range && range->shared();
    memory.Touch(fill.to, bytes);
    return memory.WithAccess(fill.to, bytes, fill.to, 0, [&] {
      for (uint64_t row = 0; row < fill.height; ++row) {
        const uint64_t begin = fill.to + row * fill.pitch;
        if (fill.value == 0) {
          Zero(begin, width, shared);
        } else if (fill.element_bytes == 1) {
          memset(reinterpret_cast<void*>(begin), static_cast<int>(fill.value), width);
        } else if (fill.element_bytes == 2) {
          std::fill_n(reinterpret_cast<uint16_t*>(begin), fill.width, static_cast<uint16_t>(fill.value));
        } else {
          std::fill_n(reinterpret_cast<uint32_t*>(begin), fill.width, fill.value);
        }
      }
    });
  };
  *out = std::move(work);
  return CUDA_SUCCESS;
}

CUresult Fill(uint64_t to, uint64_t pitch, unsigned element, uint32_t value, uint64_t count, uint64_t rows,
              CUstream handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  const FillOperation operation{{to, pitch, value, element, count, rows, nullptr}};
  WorkPtr work;
  if (CUresult error = PrepareFill(operation, &work); error != CUDA_SUCCESS) return error;
  if (auto captured = Captures::Take(stream, [&] { return operation; })) return *captured;
  if (count == 0 || rows == 0) return CUDA_SUCCESS;
  Engine::Get().EnqueueOrRun(stream, std::move(work));
  return CUDA_SUCCESS;
}

}  // namespace gpumux::softgpu
