// SPDX-License-Identifier: Apache-2.0
// The parameter lists of hooks.inc and uses.inc name the driver's types without
// their namespace; this brings the types in and expands both lists. Included by
// driver.h inside a struct, where a using-directive is not allowed.
using CUdevice = cuda::CUdevice;
using CUdeviceptr = cuda::CUdeviceptr;
using CUdeviceptr_v1 = cuda::CUdeviceptr_v1;
using CUcontext = cuda::CUcontext;
using CUgreenCtx = cuda::CUgreenCtx;
using CUdevResourceDesc = cuda::CUdevResourceDesc;
using CUfunction = cuda::CUfunction;
using CUstream = cuda::CUstream;
using CUevent = cuda::CUevent;
using CUgraphExec = cuda::CUgraphExec;
using CUmemoryPool = cuda::CUmemoryPool;
using CUmemPoolProps = cuda::CUmemPoolProps;
using CUmemPool_attribute = cuda::CUmemPool_attribute;
using CUmemGenericAllocationHandle = cuda::CUmemGenericAllocationHandle;
using CUmemAllocationProp = cuda::CUmemAllocationProp;
using CUmemAllocationHandleType = cuda::CUmemAllocationHandleType;
using CUexecAffinityParam = cuda::CUexecAffinityParam;
using CUctxCreateParams = cuda::CUctxCreateParams;
using CUdriverProcAddressQueryResult = cuda::CUdriverProcAddressQueryResult;
using CUlaunchConfig = cuda::CUlaunchConfig;
using CUuuid = cuda::CUuuid;
using CUstreamBatchMemOpParams = cuda::CUstreamBatchMemOpParams;
using CUstreamCaptureMode = cuda::CUstreamCaptureMode;
using CUstreamCaptureStatus = cuda::CUstreamCaptureStatus;
using CUarray = cuda::CUarray;
using CUmipmappedArray = cuda::CUmipmappedArray;
using CUDA_ARRAY_DESCRIPTOR = cuda::CUDA_ARRAY_DESCRIPTOR;
using CUDA_ARRAY_DESCRIPTOR_v1 = cuda::CUDA_ARRAY_DESCRIPTOR_v1;
using CUDA_ARRAY3D_DESCRIPTOR = cuda::CUDA_ARRAY3D_DESCRIPTOR;
using CUDA_ARRAY3D_DESCRIPTOR_v1 = cuda::CUDA_ARRAY3D_DESCRIPTOR_v1;
using CUDA_ARRAY_MEMORY_REQUIREMENTS = cuda::CUDA_ARRAY_MEMORY_REQUIREMENTS;
using CUgraph = cuda::CUgraph;
using CUgraphNode = cuda::CUgraphNode;
using CUgraphNodeType = cuda::CUgraphNodeType;
using CUgraphNodeParams = cuda::CUgraphNodeParams;
using CUgraphEdgeData = cuda::CUgraphEdgeData;
using CUgraphMem_attribute = cuda::CUgraphMem_attribute;
using CUDA_KERNEL_NODE_PARAMS_v1 = cuda::CUDA_KERNEL_NODE_PARAMS_v1;
using CUDA_KERNEL_NODE_PARAMS_v2 = cuda::CUDA_KERNEL_NODE_PARAMS_v2;
using CUgraphExecUpdateResult = cuda::CUgraphExecUpdateResult;
using CUgraphExecUpdateResultInfo = cuda::CUgraphExecUpdateResultInfo;
using CUDA_LAUNCH_PARAMS = cuda::CUDA_LAUNCH_PARAMS;
using CUfunction_attribute = cuda::CUfunction_attribute;
using CUkernel = cuda::CUkernel;
using CUDA_BATCH_MEM_OP_NODE_PARAMS = cuda::CUDA_BATCH_MEM_OP_NODE_PARAMS;
using CUDA_MEMCPY3D = cuda::CUDA_MEMCPY3D;
using CUDA_MEMSET_NODE_PARAMS = cuda::CUDA_MEMSET_NODE_PARAMS;
using CUDA_HOST_NODE_PARAMS = cuda::CUDA_HOST_NODE_PARAMS;
using CUDA_EXT_SEM_SIGNAL_NODE_PARAMS = cuda::CUDA_EXT_SEM_SIGNAL_NODE_PARAMS;
using CUDA_EXT_SEM_WAIT_NODE_PARAMS = cuda::CUDA_EXT_SEM_WAIT_NODE_PARAMS;
using CUDA_MEM_ALLOC_NODE_PARAMS = cuda::CUDA_MEM_ALLOC_NODE_PARAMS;
using CUDA_GRAPH_INSTANTIATE_PARAMS = cuda::CUDA_GRAPH_INSTANTIATE_PARAMS;
using CUmodule = cuda::CUmodule;
using CUlibrary = cuda::CUlibrary;
using CUjit_option = cuda::CUjit_option;
using CUlibraryOption = cuda::CUlibraryOption;
using CUarrayMapInfo = cuda::CUarrayMapInfo;
using CUmulticastObjectProp = cuda::CUmulticastObjectProp;
using CUlimit = cuda::CUlimit;
using CUdevice_attribute = cuda::CUdevice_attribute;
using cuuint64_t = cuda::cuuint64_t;
#include "guard/hooks.inc"
#include "guard/uses.inc"
