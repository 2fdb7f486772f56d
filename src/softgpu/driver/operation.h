// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "softgpu/driver/engine.h"
#include "softgpu/driver/graph_types.h"

namespace gpumux::softgpu {

struct Context;
struct Graph;
struct GraphPiece;

// What a stream can be asked to do, in a form that can be kept: done at once by
// a stream, or a node of a graph when the stream is being captured.

struct KernelOperation {
  cuda::CUfunction function = nullptr;  // a function, or a kernel in the place of one
  bool is_kernel = false;
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  bool cooperative = false;
  // One element a parameter, with its bytes.
  std::vector<std::vector<char>> arguments;
};
struct CopyOperation {
  Copy3D copy = {};
};
struct FillOperation {
  MemsetNodeParams fill = {};
};
struct HostOperation {
  HostNodeParams host = {};
};
struct ChildOperation {
  std::shared_ptr<Graph> graph;
};
struct EmptyOperation {};
struct EventWaitOperation {
  cuda::CUevent event = nullptr;
};
struct EventRecordOperation {
  cuda::CUevent event = nullptr;
};
struct AllocOperation {
  MemAllocNodeParams params = {};
  std::vector<cuda::CUmemAccessDesc> access;
  std::shared_ptr<GraphPiece> piece;
};
struct FreeOperation {
  cuda::CUdeviceptr address = 0;
  std::shared_ptr<GraphPiece> piece;
};
struct MemoryOpsOperation {
  std::vector<StreamMemoryOp> operations;
  unsigned flags = 0;
};

using Operation =
    std::variant<KernelOperation, CopyOperation, FillOperation, HostOperation, ChildOperation, EmptyOperation,
                 EventWaitOperation, EventRecordOperation, AllocOperation, FreeOperation, MemoryOpsOperation>;

int TypeOf(const Operation& operation);

// An executable graph gets this kernel: its local memory is taken now.
cuda::CUresult MakeRoomForKernel(Context* context, const KernelOperation& operation);

// Each checks the operation and makes the work of it; nothing runs yet.
cuda::CUresult PrepareKernel(Context* context, const KernelOperation& operation, WorkPtr* out);
cuda::CUresult PrepareCopy(const CopyOperation& operation, WorkPtr* out);
cuda::CUresult PrepareFill(const FillOperation& operation, WorkPtr* out);
WorkPtr PrepareHost(const HostOperation& operation);
cuda::CUresult PrepareMemoryOps(const MemoryOpsOperation& operation, std::vector<WorkPtr>* out);

// Only the checks, as when a node is made.
cuda::CUresult CheckKernel(Context* context, const KernelOperation& operation);
cuda::CUresult CheckCopy(const CopyOperation& operation);
cuda::CUresult CheckFill(const FillOperation& operation);
cuda::CUresult CheckMemoryOps(const MemoryOpsOperation& operation);

// A kernel as it is handed over, its arguments read.
cuda::CUresult ReadKernel(Context* context, const KernelNodeParams& params, KernelOperation* out);

}  // namespace gpumux::softgpu
