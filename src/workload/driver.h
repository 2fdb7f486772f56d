// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "gpumux/abi/cuda/driver.h"

namespace gpumux::workload {

// Structures of allocation families whose other users arrive with the full
// guard; layouts as in CUDA 11.4 to 13.
struct IpcMemHandle {
  char reserved[64];
};

// The entry points that the workload uses, (member, exported symbol, arguments).
// clang-format off
#define GPUMUX_WORKLOAD_ENTRIES(X)                                                                              \
  X(Init, "cuInit", (unsigned))                                                                                 \
  X(DriverGetVersion, "cuDriverGetVersion", (int*))                                                             \
  X(GetErrorName, "cuGetErrorName", (cuda::CUresult, const char**))                                             \
  X(DeviceGet, "cuDeviceGet", (cuda::CUdevice*, int))                                                           \
  X(DeviceGetCount, "cuDeviceGetCount", (int*))                                                                 \
  X(DeviceGetName, "cuDeviceGetName", (char*, int, cuda::CUdevice))                                             \
  X(DeviceGetUuid, "cuDeviceGetUuid_v2", (cuda::CUuuid*, cuda::CUdevice))                                       \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", (int*, cuda::CUdevice_attribute, cuda::CUdevice))               \
  X(DeviceTotalMem, "cuDeviceTotalMem_v2", (size_t*, cuda::CUdevice))                                           \
  X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (cuda::CUcontext*, cuda::CUdevice))                     \
  X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (cuda::CUdevice))                                  \
  X(CtxSetCurrent, "cuCtxSetCurrent", (cuda::CUcontext))                                                        \
  X(CtxSynchronize, "cuCtxSynchronize", ())                                                                     \
  X(CtxSetLimit, "cuCtxSetLimit", (cuda::CUlimit, size_t))                                                      \
  X(CtxGetLimit, "cuCtxGetLimit", (size_t*, cuda::CUlimit))                                                     \
  X(MemGetInfo, "cuMemGetInfo_v2", (size_t*, size_t*))                                                          \
  X(MemAlloc, "cuMemAlloc_v2", (cuda::CUdeviceptr*, size_t))                                                    \
  X(MemAllocPitch, "cuMemAllocPitch_v2", (cuda::CUdeviceptr*, size_t*, size_t, size_t, unsigned))               \
  X(MemFree, "cuMemFree_v2", (cuda::CUdeviceptr))                                                               \
  X(MemAllocAsync, "cuMemAllocAsync", (cuda::CUdeviceptr*, size_t, cuda::CUstream))                             \
  X(MemFreeAsync, "cuMemFreeAsync", (cuda::CUdeviceptr, cuda::CUstream))                                        \
  X(MemPoolCreate, "cuMemPoolCreate", (cuda::CUmemoryPool*, const cuda::CUmemPoolProps*))                       \
  X(MemPoolDestroy, "cuMemPoolDestroy", (cuda::CUmemoryPool))                                                   \
  X(MemAllocFromPoolAsync, "cuMemAllocFromPoolAsync",                                                           \
    (cuda::CUdeviceptr*, size_t, cuda::CUmemoryPool, cuda::CUstream))                                           \
  X(MemGetAllocationGranularity, "cuMemGetAllocationGranularity",                                               \
    (size_t*, const cuda::CUmemAllocationProp*, cuda::CUmemAllocationGranularity_flags))                        \
  X(MemAddressReserve, "cuMemAddressReserve", (cuda::CUdeviceptr*, size_t, size_t, cuda::CUdeviceptr, uint64_t)) \
  X(MemAddressFree, "cuMemAddressFree", (cuda::CUdeviceptr, size_t))                                            \
  X(MemCreate, "cuMemCreate",                                                                                   \
    (cuda::CUmemGenericAllocationHandle*, size_t, const cuda::CUmemAllocationProp*, uint64_t))                  \
  X(MemMap, "cuMemMap", (cuda::CUdeviceptr, size_t, size_t, cuda::CUmemGenericAllocationHandle, uint64_t))      \
  X(MemSetAccess, "cuMemSetAccess", (cuda::CUdeviceptr, size_t, const cuda::CUmemAccessDesc*, size_t))          \
  X(MemUnmap, "cuMemUnmap", (cuda::CUdeviceptr, size_t))                                                        \
  X(MemRelease, "cuMemRelease", (cuda::CUmemGenericAllocationHandle))                                           \
  X(MemAllocManaged, "cuMemAllocManaged", (cuda::CUdeviceptr*, size_t, unsigned))                               \
  X(ArrayCreate, "cuArrayCreate_v2", (cuda::CUarray*, const cuda::CUDA_ARRAY_DESCRIPTOR*))                      \
  X(ArrayDestroy, "cuArrayDestroy", (cuda::CUarray))                                                            \
  X(GraphCreate, "cuGraphCreate", (cuda::CUgraph*, unsigned))                                                   \
  X(GraphDestroy, "cuGraphDestroy", (cuda::CUgraph))                                                            \
  X(GraphAddMemAllocNode, "cuGraphAddMemAllocNode",                                                             \
    (cuda::CUgraphNode*, cuda::CUgraph, const cuda::CUgraphNode*, size_t, cuda::CUDA_MEM_ALLOC_NODE_PARAMS*))                 \
  X(GraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", (cuda::CUgraphExec*, cuda::CUgraph, uint64_t))    \
  X(GraphLaunch, "cuGraphLaunch", (cuda::CUgraphExec, cuda::CUstream))                                          \
  X(GraphExecDestroy, "cuGraphExecDestroy", (cuda::CUgraphExec))                                                \
  X(IpcGetMemHandle, "cuIpcGetMemHandle", (IpcMemHandle*, cuda::CUdeviceptr))                                   \
  X(IpcOpenMemHandle, "cuIpcOpenMemHandle_v2", (cuda::CUdeviceptr*, IpcMemHandle, unsigned))                    \
  X(MemsetD8, "cuMemsetD8_v2", (cuda::CUdeviceptr, unsigned char, size_t))                                      \
  X(MemcpyHtoD, "cuMemcpyHtoD_v2", (cuda::CUdeviceptr, const void*, size_t))                                    \
  X(MemcpyDtoH, "cuMemcpyDtoH_v2", (void*, cuda::CUdeviceptr, size_t))                                          \
  X(ModuleLoadData, "cuModuleLoadData", (cuda::CUmodule*, const void*))                                         \
  X(ModuleGetFunction, "cuModuleGetFunction", (cuda::CUfunction*, cuda::CUmodule, const char*))                 \
  X(ModuleUnload, "cuModuleUnload", (cuda::CUmodule))                                                           \
  X(LaunchKernel, "cuLaunchKernel",                                                                             \
    (cuda::CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cuda::CUstream,    \
     void**, void**))                                                                                           \
  X(StreamCreate, "cuStreamCreate", (cuda::CUstream*, unsigned))                                                \
  X(StreamDestroy, "cuStreamDestroy_v2", (cuda::CUstream))                                                      \
  X(StreamSynchronize, "cuStreamSynchronize", (cuda::CUstream))                                                 \
  X(StreamQuery, "cuStreamQuery", (cuda::CUstream))                                                             \
  X(StreamBeginCapture, "cuStreamBeginCapture_v2", (cuda::CUstream, cuda::CUstreamCaptureMode))                 \
  X(StreamEndCapture, "cuStreamEndCapture", (cuda::CUstream, cuda::CUgraph*))
// clang-format on

// The driver, opened by name as any program opens it. An entry point that this
// driver does not have answers CUDA_ERROR_NOT_FOUND. Thread-safe as the driver is.
class Driver {
 public:
  // kUnavailable when there is no libcuda.so.1 or it has no cuInit.
  static Result<Driver> Open();

#define GPUMUX_WORKLOAD_MEMBER(member, symbol, arguments) cuda::CUresult(*member) arguments = nullptr;
  GPUMUX_WORKLOAD_ENTRIES(GPUMUX_WORKLOAD_MEMBER)
#undef GPUMUX_WORKLOAD_MEMBER

  // "CUDA_ERROR_OUT_OF_MEMORY"; the driver's own word, or the number.
  std::string Name(cuda::CUresult result) const;
};

// The driver's answer as an error: "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY".
tl::unexpected<Error> DriverError(const Driver& driver, const char* call, cuda::CUresult result);

}  // namespace gpumux::workload
