// SPDX-License-Identifier: Apache-2.0
//
// What the program is told about memory: its limit is the total, in the driver
// API and in NVML alike. The driver is asked first, so that its error codes,
// and what it does with null pointers, stay its own.
#include <limits.h>
#include <string.h>

#include "guard/driver.h"
#include "guard/own_part.h"
#include "guard/session.h"
#include "guard/told.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

uint64_t Least(uint64_t a, uint64_t b) { return a < b ? a : b; }

// Without a daemon: from the pages. `granted_bytes` counts what siblings may
// take, so free is never told too large.
MemoryAnswer FromPages(int slot) {
  const gpumux_gpu_limit& limit = Limits()->gpus[slot];
  const uint64_t total = __atomic_load_n(&limit.limit_bytes, __ATOMIC_RELAXED);
  const uint64_t granted = __atomic_load_n(&limit.granted_bytes, __ATOMIC_RELAXED) +
                           __atomic_load_n(&TenantPage()->orphan_taken_bytes[slot], __ATOMIC_RELAXED);
  const int64_t own = __atomic_load_n(&Counters(slot)->credit_free_bytes, __ATOMIC_RELAXED);
  const uint64_t taken =
      own > 0 && static_cast<uint64_t>(own) < granted ? granted - static_cast<uint64_t>(own) : granted;
  return {total, Least(taken, total), total - Least(taken, total)};
}

// As if the part that the program set for this process were the limit.
MemoryAnswer WithinPart(int slot, const MemoryAnswer& answer) {
  const uint64_t part = PartBytes(slot);
  if (part >= answer.total) return answer;
  const uint64_t own = Least(OwnBytes(slot), part);
  return {part, own, Least(answer.free, part - own)};
}

// A device that the tenant has no promise on has nothing for it. NVML's total
// stays what it is there: monitors divide by it, and take 0 for a GPU without
// memory of its own.
MemoryAnswer AskOrNothing(int slot) { return slot == kNotOurs ? MemoryAnswer{0, 0, 0} : ToldMemory(slot); }

uint64_t TotalOf(int slot, uint64_t physical) {
  if (slot == kNotOurs) return 0;
  const uint64_t limit = __atomic_load_n(&Limits()->gpus[slot].limit_bytes, __ATOMIC_RELAXED);
  return Least(Least(limit, PartBytes(slot)), physical);
}

// The tenant's slot of an NVML device; a tenant's processes that use NVML alone
// (nvidia-smi, nvtop) have a session from here on.
int SlotOfNvmlDevice(nvmlDevice_t device) {
  Attach();
  if (!InForce() || !g_nvml.nvmlDeviceGetUUID) return kNoDevice;
  char text[96] = {};
  uint8_t uuid[16];
  if (g_nvml.nvmlDeviceGetUUID(device, text, sizeof text) != NVML_SUCCESS || !ParseUuid(text, uuid))
    return kNoDevice;
  return SlotOfUuid(uuid);
}

}  // namespace

MemoryAnswer ToldMemory(int slot) {
  MemoryAnswer answer;
  return WithinPart(slot, RequestMemoryInfo(slot, &answer) ? answer : FromPages(slot));
}

bool ParseUuid(const char* text, uint8_t uuid[16]) {
  if (strncmp(text, "GPU-", 4) != 0) return false;
  int digits = 0;
  memset(uuid, 0, 16);
  for (const char* c = text + 4; *c && digits < 32; c++) {
    int v;
    if (*c >= '0' && *c <= '9') {
      v = *c - '0';
    } else if (*c >= 'a' && *c <= 'f') {
      v = *c - 'a' + 10;
    } else if (*c >= 'A' && *c <= 'F') {
      v = *c - 'A' + 10;
    } else if (*c == '-') {
      continue;
    } else {
      return false;
    }
    uuid[digits / 2] = static_cast<uint8_t>(uuid[digits / 2] << 4 | v);
    digits++;
  }
  return digits == 32;
}

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  const CUresult r = Through(Real().cuMemGetInfo_v2, free, total);
  if (r != CUDA_SUCCESS || !InForce()) return r;
  const int slot = SlotOfCurrentContext();
  if (slot == kNoDevice) return r;
  const MemoryAnswer answer = AskOrNothing(slot);
  if (free) *free = Least(answer.free, *free);
  if (total) *total = Least(answer.total, *total);
  return r;
}

CUresult cuMemGetInfo(unsigned* free, unsigned* total) {
  const CUresult r = Through(Real().cuMemGetInfo, free, total);
  if (r != CUDA_SUCCESS || !InForce()) return r;
  const int slot = SlotOfCurrentContext();
  if (slot == kNoDevice) return r;
  const MemoryAnswer answer = AskOrNothing(slot);
  if (free) *free = static_cast<unsigned>(Least(answer.free, UINT_MAX));
  if (total) *total = static_cast<unsigned>(Least(answer.total, UINT_MAX));
  return r;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  const CUresult r = Through(Real().cuDeviceTotalMem_v2, bytes, dev);
  if (r != CUDA_SUCCESS || !InForce() || !bytes) return r;
  const int slot = SlotOfDevice(dev);
  if (slot != kNoDevice) *bytes = TotalOf(slot, *bytes);
  return r;
}

CUresult cuDeviceTotalMem(unsigned* bytes, CUdevice dev) {
  const CUresult r = Through(Real().cuDeviceTotalMem, bytes, dev);
  if (r != CUDA_SUCCESS || !InForce() || !bytes) return r;
  const int slot = SlotOfDevice(dev);
  if (slot != kNoDevice) *bytes = static_cast<unsigned>(Least(TotalOf(slot, ~0ull), UINT_MAX));
  return r;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  if (!BindNvml() || !g_nvml.nvmlDeviceGetMemoryInfo) return NVML_ERROR_FUNCTION_NOT_FOUND;
  const nvmlReturn_t r = g_nvml.nvmlDeviceGetMemoryInfo(device, memory);
  if (r != NVML_SUCCESS || !memory) return r;
  const int slot = SlotOfNvmlDevice(device);
  if (slot == kNoDevice) return r;
  if (slot == kNotOurs) {
    memory->used = memory->total;
    memory->free = 0;
    return r;
  }
  const MemoryAnswer answer = ToldMemory(slot);
  memory->total = answer.total;
  memory->used = Least(answer.used, answer.total);
  memory->free = answer.total - memory->used;
  return r;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  if (!BindNvml() || !g_nvml.nvmlDeviceGetMemoryInfo_v2) return NVML_ERROR_FUNCTION_NOT_FOUND;
  const nvmlReturn_t r = g_nvml.nvmlDeviceGetMemoryInfo_v2(device, memory);
  if (r != NVML_SUCCESS || !memory) return r;
  const int slot = SlotOfNvmlDevice(device);
  if (slot == kNoDevice) return r;
  if (slot == kNotOurs) {
    memory->used = memory->total - memory->reserved;
    memory->free = 0;
    return r;
  }
  const MemoryAnswer answer = ToldMemory(slot);
  memory->total = answer.total;
  memory->reserved = 0;  // the driver's own bytes are outside every promise
  memory->used = Least(answer.used, answer.total);
  memory->free = answer.total - memory->used;
  return r;
}

}  // extern "C"
