// SPDX-License-Identifier: Apache-2.0
//
// The structures of graph_types.h and resources.h against NVIDIA's header, where a toolkit is installed.
#include <cuda.h>
#include <gtest/gtest.h>

#include "softgpu/driver/graph_types.h"
#include "softgpu/driver/resources.h"

namespace gpumux::softgpu {
namespace {

#define SAME(ours, field, theirs, their_field)                            \
  static_assert(offsetof(ours, field) == offsetof(theirs, their_field) && \
                sizeof(ours::field) == sizeof(theirs::their_field))

static_assert(sizeof(KernelNodeParams) == sizeof(CUDA_KERNEL_NODE_PARAMS_v2));
static_assert(kKernelNodeParamsV1 == sizeof(CUDA_KERNEL_NODE_PARAMS_v1));
SAME(KernelNodeParams, shared_bytes, CUDA_KERNEL_NODE_PARAMS_v2, sharedMemBytes);
SAME(KernelNodeParams, params, CUDA_KERNEL_NODE_PARAMS_v2, kernelParams);
SAME(KernelNodeParams, kernel, CUDA_KERNEL_NODE_PARAMS_v2, kern);
static_assert(sizeof(MemsetNodeParams) == sizeof(CUDA_MEMSET_NODE_PARAMS_v2));
static_assert(kMemsetNodeParamsV1 == sizeof(CUDA_MEMSET_NODE_PARAMS_v1));
SAME(MemsetNodeParams, element_bytes, CUDA_MEMSET_NODE_PARAMS_v2, elementSize);
static_assert(sizeof(Copy3D) == sizeof(CUDA_MEMCPY3D) && sizeof(Copy3D) == sizeof(CUDA_MEMCPY3D_PEER));
SAME(Copy3D, width_bytes, CUDA_MEMCPY3D, WidthInBytes);
static_assert(offsetof(Copy3D, to) == offsetof(CUDA_MEMCPY3D, dstXInBytes));
static_assert(offsetof(Copy3D, from.array) == offsetof(CUDA_MEMCPY3D, srcArray));
static_assert(offsetof(Copy3D, to.height) == offsetof(CUDA_MEMCPY3D, dstHeight));
static_assert(sizeof(Copy2D) == sizeof(CUDA_MEMCPY2D));
static_assert(offsetof(Copy2D, to.pitch) == offsetof(CUDA_MEMCPY2D, dstPitch));
SAME(Copy2D, height, CUDA_MEMCPY2D, Height);
static_assert(sizeof(MemcpyNodeParams) == sizeof(CUDA_MEMCPY_NODE_PARAMS));
static_assert(sizeof(MemAllocNodeParams) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS));
SAME(MemAllocNodeParams, bytes, CUDA_MEM_ALLOC_NODE_PARAMS, bytesize);
SAME(MemAllocNodeParams, address, CUDA_MEM_ALLOC_NODE_PARAMS, dptr);
static_assert(sizeof(StreamMemoryOp) == sizeof(CUstreamBatchMemOpParams));
static_assert(offsetof(StreamMemoryOp, value.flags) == offsetof(CUstreamBatchMemOpParams, waitValue.flags));
static_assert(offsetof(StreamMemoryOp, value.address) ==
              offsetof(CUstreamBatchMemOpParams, writeValue.address));
static_assert(sizeof(BatchMemOpNodeParams) == sizeof(CUDA_BATCH_MEM_OP_NODE_PARAMS));
SAME(BatchMemOpNodeParams, operations, CUDA_BATCH_MEM_OP_NODE_PARAMS, paramArray);
static_assert(sizeof(GraphNodeParams) == sizeof(CUgraphNodeParams));
SAME(GraphNodeParams, alloc, CUgraphNodeParams, alloc);
SAME(GraphNodeParams, reserved2, CUgraphNodeParams, reserved2);
static_assert(sizeof(EdgeData) == sizeof(CUgraphEdgeData));
static_assert(sizeof(InstantiateParams) == sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS));
static_assert(sizeof(ExecUpdateResult) == sizeof(CUgraphExecUpdateResultInfo));
static_assert(kConditionalNode == static_cast<int>(CU_GRAPH_NODE_TYPE_CONDITIONAL));
static_assert(kMemoryBarrier == static_cast<int>(CU_STREAM_MEM_OP_BARRIER));
static_assert(kArrayMemory == static_cast<int>(CU_MEMORYTYPE_ARRAY));

static_assert(sizeof(Resource) == sizeof(CUdevResource));
static_assert(offsetof(Resource, sms) == offsetof(CUdevResource, sm.smCount));
static_assert(offsetof(Resource, min_sms) == offsetof(CUdevResource, sm.minSmPartitionSize));
static_assert(offsetof(Resource, alignment) == offsetof(CUdevResource, sm.smCoscheduledAlignment));
static_assert(kSmResource == static_cast<int>(CU_DEV_RESOURCE_TYPE_SM));

// Nothing happens at run time: that this file compiles is the test.
TEST(SoftGpuLayout, AsInNvidiasHeader) { SUCCEED(); }

}  // namespace
}  // namespace gpumux::softgpu
