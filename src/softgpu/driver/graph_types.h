// SPDX-License-Identifier: Apache-2.0
//
// What programs hand to the driver's graph, copy and stream-memory entry
// points, with the layout of the binary interface on 64-bit Linux. Types that
// gpumux itself decides on are in gpumux/abi/cuda/driver.h; layout_test.cc
// compares those here with NVIDIA's header where one is installed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpumux/abi/cuda/driver.h"

namespace gpumux::softgpu {

enum NodeType : int {
  kKernelNode = 0,
  kMemcpyNode = 1,
  kMemsetNode = 2,
  kHostNode = 3,
  kGraphNode = 4,
  kEmptyNode = 5,
  kEventWaitNode = 6,
  kEventRecordNode = 7,
  kSemaphoreSignalNode = 8,
  kSemaphoreWaitNode = 9,
  kMemAllocNode = 10,
  kMemFreeNode = 11,
  kBatchMemOpNode = 12,
  kConditionalNode = 13,
};

enum MemoryType : int { kHostMemory = 1, kDeviceMemory = 2, kArrayMemory = 3, kUnifiedMemory = 4 };

using HostFunction = void (*)(void*);

// CUDA_KERNEL_NODE_PARAMS; version 1 ends before `kernel`.
struct KernelNodeParams {
  cuda::CUfunction function;
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  void** params;
  void** extra;
  cuda::CUkernel kernel;
  cuda::CUcontext context;
};
inline constexpr size_t kKernelNodeParamsV1 = offsetof(KernelNodeParams, kernel);

// CUDA_MEMSET_NODE_PARAMS; version 1 ends before `context`.
struct MemsetNodeParams {
  cuda::CUdeviceptr to;
  size_t pitch;
  unsigned value;
  unsigned element_bytes;
  size_t width;  // in elements
  size_t height;
  cuda::CUcontext context;
};
inline constexpr size_t kMemsetNodeParamsV1 = offsetof(MemsetNodeParams, context);

struct HostNodeParams {
  HostFunction function;
  void* data;
};

// One side of CUDA_MEMCPY3D.
struct CopySide {
  size_t x_bytes, y, z, level;
  int type;  // MemoryType
  const void* host;
  cuda::CUdeviceptr device;
  cuda::CUarray array;
  void* context;  // CUDA_MEMCPY3D_PEER alone
  size_t pitch, height;
};
struct Copy3D {
  CopySide from, to;
  size_t width_bytes, height, depth;
};

// One side of CUDA_MEMCPY2D, version 2.
struct CopySide2D {
  size_t x_bytes, y;
  int type;
  const void* host;
  cuda::CUdeviceptr device;
  cuda::CUarray array;
  size_t pitch;
};
struct Copy2D {
  CopySide2D from, to;
  size_t width_bytes, height;
};

struct MemcpyNodeParams {
  int flags;
  int reserved;
  cuda::CUcontext context;
  Copy3D copy;
};

struct MemAllocNodeParams {
  cuda::CUmemPoolProps pool;
  const cuda::CUmemAccessDesc* access;
  size_t access_count;
  size_t bytes;
  cuda::CUdeviceptr address;  // out
};

// CUstreamBatchMemOpParams.
union StreamMemoryOp {
  int operation;
  struct {
    int operation;
    cuda::CUdeviceptr address;
    uint64_t value;  // its low half for 32-bit operations
    unsigned flags;
    cuda::CUdeviceptr alias;
  } value;
  uint64_t pad[6];
};
enum StreamMemoryOpType : int {
  kWaitValue32 = 1,
  kWriteValue32 = 2,
  kFlushRemoteWrites = 3,
  kWaitValue64 = 4,
  kWriteValue64 = 5,
  kMemoryBarrier = 6,
};

struct BatchMemOpNodeParams {
  cuda::CUcontext context;
  unsigned count;
  StreamMemoryOp* operations;
  unsigned flags;
};

// CUgraphNodeParams.
struct GraphNodeParams {
  int type;
  int reserved0[3];
  union {
    long long reserved1[29];
    KernelNodeParams kernel;
    MemcpyNodeParams memcpy;
    MemsetNodeParams memset;
    HostNodeParams host;
    struct {
      cuda::CUgraph graph;
      int ownership;
    } graph;
    cuda::CUevent event;
    MemAllocNodeParams alloc;
    cuda::CUdeviceptr free;
    BatchMemOpNodeParams mem_op;
  };
  long long reserved2;
};

// CUgraphEdgeData.
struct EdgeData {
  unsigned char from_port;
  unsigned char to_port;
  unsigned char type;
  unsigned char reserved[5];
};

struct InstantiateParams {
  uint64_t flags;
  cuda::CUstream upload_stream;
  cuda::CUgraphNode error_node;
  int result;
};
enum InstantiateFlags : unsigned {
  kAutoFreeOnLaunch = 1,
  kUploadAtOnce = 2,
  kDeviceLaunch = 4,
  kUseNodePriority = 8,
};
enum InstantiateResult : int { kInstantiated = 0, kInstantiateError = 1, kInvalidStructure = 2 };

struct ExecUpdateResult {
  int result;
  cuda::CUgraphNode error_node;
  cuda::CUgraphNode error_from_node;
};
enum ExecUpdate : int {
  kUpdated = 0,
  kUpdateError = 1,
  kTopologyChanged = 2,
  kNodeTypeChanged = 3,
  kUpdateNotSupported = 6,
};

static_assert(sizeof(KernelNodeParams) == 72 && kKernelNodeParamsV1 == 56);
static_assert(sizeof(MemsetNodeParams) == 48 && kMemsetNodeParamsV1 == 40);
static_assert(sizeof(Copy3D) == 200 && sizeof(Copy2D) == 128);
static_assert(sizeof(MemAllocNodeParams) == 120);
static_assert(sizeof(StreamMemoryOp) == 48);
static_assert(sizeof(GraphNodeParams) == 256);
static_assert(sizeof(EdgeData) == 8);
static_assert(sizeof(InstantiateParams) == 32);

}  // namespace gpumux::softgpu
