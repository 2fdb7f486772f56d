// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <vector>

#include "gpumux/abi/cuda/driver.h"
#include "sim/pool_layout.h"
#include "softgpu/driver/driver.h"

namespace gpumux::softgpu {

// What an address of the process belongs to.
struct Range {
  enum class Kind {
    kSmall,   // a piece of a slab
    kPlain,   // a plain allocation of its own
    kPooled,  // stream-ordered
    kManaged,
    kMapped,      // a mapping of a virtual-memory handle
    kGlobal,      // a module's variables
    kGraph,       // an extent of a graph's memory
    kImported,    // another process's, opened
    kHost,        // page-locked host memory from the driver
    kRegistered,  // the program's own memory, registered
  };
  uint64_t base = 0;
  uint64_t size = 0;  // as asked for
  Kind kind = Kind::kPlain;
  Context* context = nullptr;
  Device* device = nullptr;
  Pool* pool = nullptr;
  unsigned flags = 0;
  bool file_backed = false;                       // others may map it
  uint64_t taken = 0;                             // bytes taken from the device for it alone
  std::vector<bool> touched;                      // kManaged: which 2 MiB pages are on the device
  cuda::CUmemGenericAllocationHandle handle = 0;  // kMapped
  unsigned access = 0;                            // kMapped: CUmemAccess_flags
  uint64_t id = 0;                                // unique in the process
  bool freed = false;                             // goes with the next synchronising call

  bool on_device() const { return kind < Kind::kHost; }
  // Behind it are pages that others may map too.
  bool shared() const { return kind == Kind::kMapped || kind == Kind::kImported || file_backed; }
};

// A stream-ordered memory pool.
struct Pool {
  static constexpr uint64_t kRangeBytes = 512ULL << 30;
  Device* device = nullptr;
  bool is_default = false;
  bool destroyed = false;  // goes when its last allocation does
  cuda::CUmemPoolProps props = {};
  uint64_t base = 0;  // of its address range; 0 until first used
  sim::PoolLayout layout{kRangeBytes};
  uint64_t threshold = 0;
  uint64_t used = 0, used_high = 0, reserved_high = 0;
  int file = -1;                       // behind its addresses, if it can be exported
  uint64_t key = 0;                    // of the share, once it was exported or is imported
  bool imported = false;               // another process allocates in it
  uint64_t imported_live = 0;          // pointers of it that were imported
  std::map<uint64_t, uint64_t> opens;  // of them, by address
  int reuse_follow_event = 1, reuse_opportunistic = 1, reuse_internal = 1;
  // Freed in the order of a stream that has not got there yet: its place can
  // be had again on the same stream alone.
  struct Pending {
    uint64_t offset;
    uint64_t stream;  // its id
  };
  std::map<uint64_t, Pending> pending;  // by ticket
};

// All memory of this process that the driver knows. Safe to call from any
// thread. Sizes and addresses as in the driver's interface.
class Memory {
 public:
  static Memory& Get();

  // --- plain (memory.cc)
  cuda::CUresult AllocPlain(Context* context, uint64_t bytes, cuda::CUdeviceptr* out);
  // cuMemFree: any device pointer that starts an allocation; 0 is allowed.
  cuda::CUresult Free(cuda::CUdeviceptr pointer);
  // A module's variables: device memory, all or nothing.
  cuda::CUresult AllocGlobals(Context* context, uint64_t bytes, uint64_t* base);
  void FreeGlobals(uint64_t base);

  // --- graphs (graph_memory.h keeps the books)
  void AddGraphRange(uint64_t base, uint64_t bytes, Device* device);
  void RemoveGraphRange(uint64_t base);
  bool TakeForGraphs(Device* device, uint64_t bytes);
  void GiveForGraphs(Device* device, uint64_t bytes);

  // --- managed (managed.cc)
  cuda::CUresult AllocManaged(Context* context, uint64_t bytes, unsigned flags, cuda::CUdeviceptr* out);
  // The device is about to use these addresses; false if it has no room.
  bool Touch(uint64_t address, uint64_t bytes);

  // --- host memory (host_memory.cc)
  cuda::CUresult AllocHost(Context* context, uint64_t bytes, unsigned flags, void** out);
  cuda::CUresult FreeHost(void* pointer);
  cuda::CUresult Register(Context* context, void* pointer, uint64_t bytes, unsigned flags);
  cuda::CUresult Unregister(void* pointer);

  // --- stream-ordered (pool.cc)
  Pool* DefaultPool(Device* device);
  Pool* CurrentPool(Device* device);
  cuda::CUresult SetCurrentPool(Device* device, Pool* pool);
  Pool* FindPool(cuda::CUmemoryPool handle);
  cuda::CUresult CreatePool(const cuda::CUmemPoolProps& props, Pool** out);
  cuda::CUresult DestroyPool(Pool* pool);
  cuda::CUresult AllocFromPool(Pool* pool, Context* context, uint64_t stream_id, uint64_t bytes,
                               cuda::CUdeviceptr* out);
  // Starts a free in stream order; FinishFree when the stream has got there.
  cuda::CUresult BeginFree(cuda::CUdeviceptr pointer, uint64_t stream_id, uint64_t* ticket, Pool** pool);
  void FinishFree(Pool* pool, uint64_t ticket);
  // Plain memory that is freed in stream order: the device has it until the next
  // synchronising call (documented by NVIDIA, not measured).
  cuda::CUresult FreeAtSynchronize(cuda::CUdeviceptr pointer);
  cuda::CUresult TrimPool(Pool* pool, uint64_t keep);
  cuda::CUresult GetPoolAttribute(Pool* pool, int attribute, void* value);
  cuda::CUresult SetPoolAttribute(Pool* pool, int attribute, const void* value);
  // A synchronising call returned: pools go down to their thresholds, and what
  // waited for it goes.
  void OnSynchronize(Device* device);

  // --- virtual memory (virtual_memory.cc)
  cuda::CUresult CreateHandle(const cuda::CUmemAllocationProp& prop, uint64_t bytes,
                              cuda::CUmemGenericAllocationHandle* out);
  cuda::CUresult ReleaseHandle(cuda::CUmemGenericAllocationHandle handle);
  cuda::CUresult RetainHandle(uint64_t address, cuda::CUmemGenericAllocationHandle* out);
  cuda::CUresult HandleProperties(cuda::CUmemGenericAllocationHandle handle, cuda::CUmemAllocationProp* prop);
  cuda::CUresult Reserve(uint64_t bytes, uint64_t alignment, uint64_t hint, cuda::CUdeviceptr* out);
  cuda::CUresult FreeReservation(uint64_t base, uint64_t bytes);
  cuda::CUresult Map(uint64_t address, uint64_t bytes, cuda::CUmemGenericAllocationHandle handle);
  cuda::CUresult Unmap(uint64_t address, uint64_t bytes);
  cuda::CUresult SetAccess(uint64_t address, uint64_t bytes, unsigned flags);
  cuda::CUresult GetAccess(uint64_t address, unsigned long long* flags);

  // --- with other processes (sharing.cc)
  cuda::CUresult GetIpcHandle(uint64_t pointer, void* handle);
  cuda::CUresult OpenIpcHandle(Context* context, const void* handle, cuda::CUdeviceptr* out);
  cuda::CUresult CloseIpcHandle(uint64_t pointer);
  cuda::CUresult ExportHandle(cuda::CUmemGenericAllocationHandle handle, int* out);
  cuda::CUresult ImportHandle(int descriptor, cuda::CUmemGenericAllocationHandle* out);
  cuda::CUresult ExportPool(Pool* pool, int* out);
  cuda::CUresult ImportPool(int descriptor, Pool** out);
  cuda::CUresult ExportPointer(uint64_t pointer, void* data);
  cuda::CUresult ImportPointer(Pool* pool, const void* data, cuda::CUdeviceptr* out);

  // --- lookups
  std::optional<Range> Find(uint64_t address);
  // Whether [address, address + bytes) is device memory that can be used now.
  bool IsDevice(uint64_t address, uint64_t bytes);
  // Runs `use` while nothing is unmapped, if both ranges may be used (a range
  // that is no memory of the driver's is the program's own); false otherwise.
  template <typename Use>
  bool WithAccess(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes, Use use) {
    std::shared_lock lock(mapping_mutex_);
    if (!Usable(a, a_bytes) || !Usable(b, b_bytes)) return false;
    use();
    return true;
  }

  // Everything that lives in the context.
  void RemoveContext(Context* context);

 private:
  struct Physical {
    cuda::CUmemAllocationProp prop;
    Device* device;  // null: host memory
    uint64_t bytes;
    uint64_t file_offset;
    uint64_t references;  // handles
    uint64_t mappings;
    int file = -1;  // of its own, if it can be exported
    uint64_t key = 0;
    bool imported = false;
  };

  bool Take(Device* device, uint64_t bytes);
  void Give(Device* device, uint64_t bytes);
  bool TakeOrReclaim(Device* device, uint64_t bytes, std::unique_lock<std::mutex>& lock);
  uint64_t ReclaimPools(Device* device, const Pool* except);
  void TrimLocked(Pool* pool, uint64_t keep);
  void MaybeDeletePool(Pool* pool);
  bool Usable(uint64_t address, uint64_t bytes);
  Range* FindLocked(uint64_t address);
  void ReleasePhysical(std::map<uint64_t, Physical>::iterator it);
  void FreeWaiting(Device* device);
  void FreeLocked(std::map<uint64_t, Range>::iterator it);
  // A region of plain memory becomes a file that others can map.
  bool ShareRegion(Device* device, uint64_t base, uint64_t bytes);
  // Gives back a region of plain memory, shared or not.
  void GiveRegion(Device* device, uint64_t base, uint64_t bytes);
  bool TakeForPool(Pool* pool, uint64_t bytes);
  void GiveOfPool(Pool* pool, uint64_t bytes);

  std::mutex mutex_;                 // guards everything below
  std::shared_mutex mapping_mutex_;  // taken before mutex_: exclusively to unmap, shared to use
  std::atomic<uint64_t> freed_{0};   // ranges that wait for a synchronising call
  std::map<uint64_t, Range> ranges_;
  std::set<Pool*> pools_;
  std::map<uint64_t, Physical> physical_;      // by handle
  std::map<uint64_t, uint64_t> reservations_;  // base -> bytes
  std::map<uint64_t, uint64_t> file_holes_;    // of the file behind handles
  uint64_t file_end_ = 0;
  int file_ = -1;
  struct SharedRegion {
    uint64_t key;
    int file;
  };
  std::map<uint64_t, SharedRegion> shared_;  // by base
  struct Import {
    uint64_t base, bytes, opens;
  };
  std::map<uint64_t, Import> imports_;                              // by key
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> import_opens_;  // address -> key, opens
  uint64_t next_id_ = 1;
  uint64_t next_ticket_ = 1;
  uint64_t next_handle_ = 0x5000'0000'0010;
};

}  // namespace gpumux::softgpu
