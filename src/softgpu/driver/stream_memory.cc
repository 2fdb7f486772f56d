// SPDX-License-Identifier: Apache-2.0
//
// Stream memory operations: a stream that writes a word, or waits until a word
// has a value.
#include <cstring>

#include "softgpu/driver/api.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/error_codes.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/operation.h"
#include "softgpu/driver/streams.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

enum Wait : unsigned { kGreaterEqual = 0, kEqual = 1, kAnd = 2, kNor = 3 };
constexpr unsigned kFlush = 1u << 30;
constexpr unsigned kNoBarrier = 1;

bool IsWait(int operation) { return operation == kWaitValue32 || operation == kWaitValue64; }
bool IsWord(int operation) {
  return IsWait(operation) || operation == kWriteValue32 || operation == kWriteValue64;
}
uint64_t WordBytes(int operation) { return operation == kWaitValue64 || operation == kWriteValue64 ? 8 : 4; }

template <typename Word>
bool Holds(Word now, Word wanted, unsigned how) {
  switch (how) {
    case kGreaterEqual: {
      // A difference, so that a counter may run over.
      using Signed = std::make_signed_t<Word>;
      return static_cast<Signed>(static_cast<Word>(now - wanted)) >= 0;
    }
    case kEqual:
      return now == wanted;
    case kAnd:
      return (now & wanted) != 0;
    default:
      return static_cast<Word>(~(now | wanted)) != 0;
  }
}

CUresult Check(const StreamMemoryOp& op) {
  if (op.operation == kMemoryBarrier) return CUDA_SUCCESS;
  if (op.operation == kFlushRemoteWrites) return CUDA_ERROR_NOT_SUPPORTED;
  if (!IsWord(op.operation)) return CUDA_ERROR_INVALID_VALUE;
  const auto& word = op.value;
  const uint64_t bytes = WordBytes(op.operation);
  if (IsWait(op.operation)) {
    if ((word.flags & kFlush) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    if (word.flags > kNor) return CUDA_ERROR_INVALID_VALUE;
  } else if ((word.flags & ~kNoBarrier) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (word.address == 0 || word.address % bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto range = Memory::Get().Find(word.address);
  if (!range || word.address + bytes > range->base + range->size) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

WorkPtr Make(const StreamMemoryOp& op) {
  auto work = std::make_shared<Work>();
  if (op.operation == kMemoryBarrier) {
    work->kind = Work::Kind::kWait;  // the order of the stream is all the order there is
    return work;
  }
  const auto word = op.value;
  const uint64_t bytes = WordBytes(op.operation);
  if (IsWait(op.operation)) {
    work->kind = Work::Kind::kPoll;
    work->poll = [word, bytes] {
      bool holds = false;
      Memory& memory = Memory::Get();
      const bool ok = memory.WithAccess(word.address, bytes, word.address, 0, [&] {
        if (bytes == 4) {
          const auto* at = reinterpret_cast<const uint32_t*>(word.address);
          holds = Holds(__atomic_load_n(at, __ATOMIC_ACQUIRE), static_cast<uint32_t>(word.value), word.flags);
        } else {
          const auto* at = reinterpret_cast<const uint64_t*>(word.address);
          holds = Holds(__atomic_load_n(at, __ATOMIC_ACQUIRE), word.value, word.flags);
        }
      });
      return !ok ? Work::Poll::kFault : holds ? Work::Poll::kDone : Work::Poll::kNotYet;
    };
    return work;
  }
  work->kind = Work::Kind::kEffect;
  work->effect = [word, bytes] {
    Memory& memory = Memory::Get();
    memory.Touch(word.address, bytes);
    return memory.WithAccess(word.address, bytes, word.address, 0, [&] {
      if (bytes == 4) {
        __atomic_store_n(reinterpret_cast<uint32_t*>(word.address), static_cast<uint32_t>(word.value),
                         __ATOMIC_RELEASE);
      } else {
        __atomic_store_n(reinterpret_cast<uint64_t*>(word.address), word.value, __ATOMIC_RELEASE);
      }
    });
  };
  return work;
}

constexpr unsigned kMaxOperations = 256;

CUresult Batch(CUstream handle, unsigned count, const StreamMemoryOp* operations, unsigned flags) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  if (flags != 0 || count > kMaxOperations || (count > 0 && operations == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  if (count == 0) return CUDA_SUCCESS;
  MemoryOpsOperation operation{{operations, operations + count}, flags};
  std::vector<WorkPtr> works;
  if (CUresult error = PrepareMemoryOps(operation, &works); error != CUDA_SUCCESS) return error;
  if (auto captured = Captures::Take(stream, [&] { return std::move(operation); })) return *captured;
  for (WorkPtr& work : works) Engine::Get().Enqueue(stream, std::move(work));
  return CUDA_SUCCESS;
}

CUresult One(CUstream stream, int operation, CUdeviceptr address, uint64_t value, unsigned flags) {
  StreamMemoryOp op = {};
  op.value = {operation, address, value, flags, 0};
  return Batch(stream, 1, &op, 0);
}

}  // namespace

CUresult CheckMemoryOps(const MemoryOpsOperation& operation) {
  for (const auto& op : operation.operations) {
    if (CUresult error = Check(op); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult PrepareMemoryOps(const MemoryOpsOperation& operation, std::vector<WorkPtr>* out) {
  if (CUresult error = CheckMemoryOps(operation); error != CUDA_SUCCESS) return error;
  for (const auto& op : operation.operations) out->push_back(Make(op));
  return CUDA_SUCCESS;
}

// Version 1 of these had to be allowed on the driver's command line; where it
// was, it did the same.
#define WORD(name, type, operation)                                                            \
  GPUMUX_CU name(CUstream stream, CUdeviceptr address, type value, unsigned flags) {           \
    return One(stream, operation, address, value, flags);                                      \
  }                                                                                            \
  GPUMUX_CU name##_ptsz(CUstream stream, CUdeviceptr address, type value, unsigned flags) {    \
    return One(PerThread(stream), operation, address, value, flags);                           \
  }                                                                                            \
  GPUMUX_CU name##_v2(CUstream stream, CUdeviceptr address, type value, unsigned flags) {      \
    return One(stream, operation, address, value, flags);                                      \
  }                                                                                            \
  GPUMUX_CU name##_v2_ptsz(CUstream stream, CUdeviceptr address, type value, unsigned flags) { \
    return One(PerThread(stream), operation, address, value, flags);                           \
  }
WORD(cuStreamWaitValue32, cuuint32_t, kWaitValue32)
WORD(cuStreamWaitValue64, cuuint64_t, kWaitValue64)
WORD(cuStreamWriteValue32, cuuint32_t, kWriteValue32)
WORD(cuStreamWriteValue64, cuuint64_t, kWriteValue64)

GPUMUX_CU cuStreamBatchMemOp(CUstream stream, unsigned count, StreamMemoryOp* operations, unsigned flags) {
  return Batch(stream, count, operations, flags);
}
GPUMUX_CU cuStreamBatchMemOp_ptsz(CUstream stream, unsigned count, StreamMemoryOp* operations,
                                  unsigned flags) {
  return Batch(PerThread(stream), count, operations, flags);
}
GPUMUX_CU cuStreamBatchMemOp_v2(CUstream stream, unsigned count, StreamMemoryOp* operations, unsigned flags) {
  return Batch(stream, count, operations, flags);
}
GPUMUX_CU cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned count, StreamMemoryOp* operations,
                                     unsigned flags) {
  return Batch(PerThread(stream), count, operations, flags);
}

}  // namespace gpumux::softgpu
