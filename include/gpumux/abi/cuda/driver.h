// SPDX-License-Identifier: Apache-2.0
//
// Our own declarations of what gpumux uses of the CUDA driver API: types,
// values and structures with the layout that the driver's binary interface has
// on 64-bit Linux (CUDA 11.8 to 13.x). Building needs no CUDA toolkit; where one
// is installed, test/abi/cuda_headers_test.cc compares every size, offset, value
// and signature here with NVIDIA's headers.
//
// Names are the driver's, in namespace gpumux::cuda, so that a file can include
// both. No function is declared here: they are looked up by name, and their
// types are in functions.inc.
#ifndef GPUMUX_ABI_CUDA_DRIVER_H_
#define GPUMUX_ABI_CUDA_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

namespace gpumux::cuda {

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUdeviceptr_v1 = unsigned;  // of entry points older than CUDA 3.2
using CUmemGenericAllocationHandle = unsigned long long;
using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;

using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUlibrary = struct CUlib_st*;
using CUkernel = struct CUkern_st*;
using CUarray = struct CUarray_st*;
using CUmipmappedArray = struct CUmipmappedArray_st*;
using CUevent = struct CUevent_st*;
using CUstream = struct CUstream_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphNode = struct CUgraphNode_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUmemoryPool = struct CUmemPoolHandle_st*;
using CUgreenCtx = struct CUgreenCtx_st*;
using CUdevResourceDesc = struct CUdevResourceDesc_st*;
using CUlinkState = struct CUlinkState_st*;

// The two streams that every context has without creating them.
inline CUstream const kLegacyStream = reinterpret_cast<CUstream>(0x1);
inline CUstream const kPerThreadStream = reinterpret_cast<CUstream>(0x2);

enum CUresult : int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_STUB_LIBRARY = 34,
  CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_MAP_FAILED = 205,
  CUDA_ERROR_UNMAP_FAILED = 206,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_INVALID_PTX = 218,
  CUDA_ERROR_INVALID_SOURCE = 300,
  CUDA_ERROR_FILE_NOT_FOUND = 301,
  CUDA_ERROR_OPERATING_SYSTEM = 304,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_ILLEGAL_STATE = 401,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
  CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_SYSTEM_NOT_READY = 802,
  CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
  CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_UNKNOWN = 999,
};

struct CUuuid {
  char bytes[16];
};

enum CUmemLocationType : int {
  CU_MEM_LOCATION_TYPE_INVALID = 0,
  CU_MEM_LOCATION_TYPE_DEVICE = 1,
  CU_MEM_LOCATION_TYPE_HOST = 2,
  CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
  CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4,
};

struct CUmemLocation {
  CUmemLocationType type;
  int id;
};

enum CUmemAllocationType : int {
  CU_MEM_ALLOCATION_TYPE_INVALID = 0,
  CU_MEM_ALLOCATION_TYPE_PINNED = 1,
};

enum CUmemAllocationHandleType : int {
  CU_MEM_HANDLE_TYPE_NONE = 0,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
};

struct CUmemAllocationProp {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
};

enum CUmemAllocationGranularity_flags : int {
  CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
};

enum CUmemAccess_flags : int {
  CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
  CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
};

struct CUmemAccessDesc {
  CUmemLocation location;
  CUmemAccess_flags flags;
};

struct CUmemPoolProps {
  CUmemAllocationType allocType;
  CUmemAllocationHandleType handleTypes;
  CUmemLocation location;
  void* win32SecurityAttributes;
  size_t maxSize;
  unsigned short usage;
  unsigned char reserved[54];
};

enum CUmemPool_attribute : int {
  CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
  CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2,
  CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
  CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
  CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
  CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
  CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
  CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8,
};

enum CUmemAttach_flags : unsigned {
  CU_MEM_ATTACH_GLOBAL = 1,
  CU_MEM_ATTACH_HOST = 2,
  CU_MEM_ATTACH_SINGLE = 4,
};

enum CUgraphMem_attribute : int {
  CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
  CU_GRAPH_MEM_ATTR_USED_MEM_HIGH = 1,
  CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
  CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH = 3,
};

enum CUstream_flags : unsigned {
  CU_STREAM_DEFAULT = 0,
  CU_STREAM_NON_BLOCKING = 1,
};

enum CUevent_flags : unsigned {
  CU_EVENT_DEFAULT = 0,
  CU_EVENT_BLOCKING_SYNC = 1,
  CU_EVENT_DISABLE_TIMING = 2,
  CU_EVENT_INTERPROCESS = 4,
};

enum CUstreamCaptureStatus : int {
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
  CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
};

enum CUstreamCaptureMode : int {
  CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

enum CUstreamBatchMemOpType : int {
  CU_STREAM_MEM_OP_WAIT_VALUE_64 = 4,
  CU_STREAM_MEM_OP_WRITE_VALUE_64 = 5,
};

enum CUstreamWaitValue_flags : unsigned {
  CU_STREAM_WAIT_VALUE_EQ = 1,
};

// An element of cuStreamBatchMemOp, as far as it is used: waitValue and writeValue have one layout.
union CUstreamBatchMemOpParams_union {
  CUstreamBatchMemOpType operation;
  struct {
    CUstreamBatchMemOpType operation;
    CUdeviceptr address;
    cuuint64_t value64;
    unsigned flags;
    CUdeviceptr alias;
  } waitValue;
  cuuint64_t pad[6];
};
using CUstreamBatchMemOpParams = CUstreamBatchMemOpParams_union;

enum CUlimit : int {
  CU_LIMIT_STACK_SIZE = 0,
  CU_LIMIT_PRINTF_FIFO_SIZE = 1,
  CU_LIMIT_MALLOC_HEAP_SIZE = 2,
};

enum CUdriverProcAddressQueryResult : int {
  CU_GET_PROC_ADDRESS_SUCCESS = 0,
  CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
  CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
};

enum CUdriverProcAddress_flags : int {
  CU_GET_PROC_ADDRESS_DEFAULT = 0,
  CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
  CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
};

// The attributes that gpumux itself reads or answers; a program may ask for any.
enum CUdevice_attribute : int {
  CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
  CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
  CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13,
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
  CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20,
  CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
  CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
  CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133,
};

// Flags of array creation; macros in NVIDIA's header, hence the other names.
inline constexpr unsigned kArraySparse = 0x40;           // CUDA_ARRAY3D_SPARSE: mapped later
inline constexpr unsigned kArrayDeferredMapping = 0x80;  // CUDA_ARRAY3D_DEFERRED_MAPPING: likewise

// With 32-bit sizes: entry points from before CUDA 3.2.
struct CUDA_ARRAY_DESCRIPTOR_v1 {
  unsigned Width;
  unsigned Height;
  int Format;
  unsigned NumChannels;
};

struct CUDA_ARRAY3D_DESCRIPTOR_v1 {
  unsigned Width;
  unsigned Height;
  unsigned Depth;
  int Format;
  unsigned NumChannels;
  unsigned Flags;
};

struct CUDA_ARRAY_MEMORY_REQUIREMENTS {
  size_t size;
  size_t alignment;
  unsigned reserved[4];
};

struct CUDA_ARRAY_DESCRIPTOR {
  size_t Width;
  size_t Height;
  int Format;
  unsigned NumChannels;
};

struct CUDA_ARRAY3D_DESCRIPTOR {
  size_t Width;
  size_t Height;
  size_t Depth;
  int Format;
  unsigned NumChannels;
  unsigned Flags;
};

struct CUlaunchAttribute {
  int id;
  char pad[4];
  union {
    char pad[64];
    uint64_t align;
  } value;
};

struct CUlaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;
  unsigned numAttrs;
};

enum CUgraphNodeType : int {
  CU_GRAPH_NODE_TYPE_KERNEL = 0,
  CU_GRAPH_NODE_TYPE_MEMCPY = 1,
  CU_GRAPH_NODE_TYPE_MEMSET = 2,
  CU_GRAPH_NODE_TYPE_HOST = 3,
  CU_GRAPH_NODE_TYPE_GRAPH = 4,
  CU_GRAPH_NODE_TYPE_EMPTY = 5,
  CU_GRAPH_NODE_TYPE_WAIT_EVENT = 6,
  CU_GRAPH_NODE_TYPE_EVENT_RECORD = 7,
  CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
};

struct CUDA_KERNEL_NODE_PARAMS_v1 {
  CUfunction func;
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  void** kernelParams;
  void** extra;
};

// `kern` where `func` is null; both in the context `ctx`, or the current one.
struct CUDA_KERNEL_NODE_PARAMS_v2 {
  CUfunction func;
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  void** kernelParams;
  void** extra;
  CUkernel kern;
  CUcontext ctx;
};

struct CUDA_BATCH_MEM_OP_NODE_PARAMS {
  CUcontext ctx;
  unsigned count;
  CUstreamBatchMemOpParams* paramArray;
  unsigned flags;
};

struct CUDA_MEM_ALLOC_NODE_PARAMS {
  CUmemPoolProps poolProps;
  const CUmemAccessDesc* accessDescs;
  size_t accessDescCount;
  size_t bytesize;
  CUdeviceptr dptr;
};

enum CUfunction_attribute : int {
  CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
};

enum CUjit_option : int;
enum CUlibraryOption : int;
struct CUgraphNodeParams;  // starts with its CUgraphNodeType
struct CUDA_MEMCPY3D;
struct CUDA_MEMSET_NODE_PARAMS;
struct CUDA_HOST_NODE_PARAMS;
struct CUDA_EXT_SEM_SIGNAL_NODE_PARAMS;
struct CUDA_EXT_SEM_WAIT_NODE_PARAMS;
struct CUgraphEdgeData;
struct CUgraphExecUpdateResultInfo;
struct CUDA_LAUNCH_PARAMS {
  CUfunction function;
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  CUstream hStream;
  void** kernelParams;
};
enum CUgraphExecUpdateResult : int;
struct CUDA_GRAPH_INSTANTIATE_PARAMS;

enum CUresourcetype : int {
  CU_RESOURCE_TYPE_ARRAY = 0,
  CU_RESOURCE_TYPE_MIPMAPPED_ARRAY = 1,
};
enum CUarraySparseSubresourceType : int {
  CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL = 0,
  CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL = 1,
};
enum CUmemOperationType : int {
  CU_MEM_OPERATION_TYPE_MAP = 1,
  CU_MEM_OPERATION_TYPE_UNMAP = 2,
};
enum CUmemHandleType : int {
  CU_MEM_HANDLE_TYPE_GENERIC = 0,
};

struct CUarrayMapInfo {
  CUresourcetype resourceType;
  CUarray resource;  // or a CUmipmappedArray
  CUarraySparseSubresourceType subresourceType;
  // Of a sparse level: level, layer, offsets x y z, extents x y z in 32 bits each.
  // Of a mip tail: the layer in 32 bits, then offset and size in 64 bits each.
  unsigned long long subresource[4];
  CUmemOperationType memOperationType;
  CUmemHandleType memHandleType;
  CUmemGenericAllocationHandle memHandle;
  unsigned long long offset;
  unsigned deviceBitMask;
  unsigned flags;
  unsigned reserved[2];
};

struct CUmulticastObjectProp;
struct CUctxCreateParams;
struct CUexecAffinityParam;

static_assert(sizeof(CUmemAllocationProp) == 32);
static_assert(sizeof(CUmemPoolProps) == 88);
static_assert(sizeof(CUmemAccessDesc) == 12);
static_assert(sizeof(CUDA_ARRAY_DESCRIPTOR) == 24);
static_assert(sizeof(CUDA_ARRAY3D_DESCRIPTOR) == 40);
static_assert(sizeof(CUDA_ARRAY_DESCRIPTOR_v1) == 16);
static_assert(sizeof(CUDA_ARRAY3D_DESCRIPTOR_v1) == 24);
static_assert(sizeof(CUDA_ARRAY_MEMORY_REQUIREMENTS) == 32);
static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS_v1) == 56);
static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS_v2) == 72);
static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120);
static_assert(sizeof(CUlaunchAttribute) == 72);
static_assert(sizeof(CUlaunchConfig) == 56);

}  // namespace gpumux::cuda

#endif  // GPUMUX_ABI_CUDA_DRIVER_H_
