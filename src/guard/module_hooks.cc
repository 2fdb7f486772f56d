// SPDX-License-Identifier: Apache-2.0
//
// Modules and libraries. Their global variables are device memory: a program can
// take gigabytes by loading a module. What the image says openly is charged
// before it is loaded; where it does not (compressed fat binaries), the daemon
// looks at the device afterwards, and a module that broke the limit is unloaded
// again. Code itself is small, loaded when a kernel is first used, and found by
// the daemon as overhead.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guard/allocations.h"
#include "guard/credit.h"
#include "guard/current_context.h"
#include "guard/descriptors.h"
#include "guard/driver.h"
#include "guard/gate.h"
#include "guard/image_globals.h"
#include "guard/local_memory.h"
#include "guard/rounding.h"
#include "guard/session.h"
#include "guard/small_objects.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

// A library's variables exist once a context uses them, on the device of that
// context: charged to the tenant's first GPU if none is current.
int SlotFor(const CUlibrary*) {
  const int slot = SlotOfCurrentContext();
  return slot == kNoDevice && Limits()->gpu_count > 0 ? 0 : slot;
}
// A module goes into the current context.
int SlotFor(const CUmodule*) { return SlotOfCurrentContext(); }

// Has this process broken the tenant's limit? Asks the daemon to look at the
// device now; the reply to the second request comes after it has looked.
bool AboveLimit(int slot) {
  NoticeContexts(slot, static_cast<uint32_t>(__atomic_load_n(&Counters(slot)->contexts, __ATOMIC_RELAXED)));
  MemoryAnswer answer;
  return RequestMemoryInfo(slot, &answer) && answer.used > answer.total;
}

template <typename Handle, typename Load, typename Unload>
CUresult LoadImage(Handle* handle, ImageGlobals globals, Load&& load, Unload&& unload) {
  if (!InForce() || !handle) return load();
  const LookAfter look;
  const int slot = SlotFor(handle);
  if (slot == kNoDevice) return load();
  if (slot == kNotOurs) return CUDA_ERROR_OUT_OF_MEMORY;
  if (globals.bytes >= kAbsurdBytes) return load();
  const CUcontext context = CurrentContext();

  if (globals.bytes > 0 && globals.bytes <= kLargestPieceBytes && context) {
    const CUresult r = g_small_objects.Add(slot, load);
    if (r == CUDA_SUCCESS) {
      Remember(reinterpret_cast<uint64_t>(*handle),
               {0, 0, context, static_cast<int16_t>(slot), Family::kSmallObject});
    }
    return r;
  }
  const uint64_t charge = RoundUp(globals.bytes, kDevicePageBytes);
  if (charge && !Reserve(slot, charge)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult r = load();
  if (r != CUDA_SUCCESS) {
    if (charge) Cancel(slot, charge);
    if (r == CUDA_ERROR_OUT_OF_MEMORY) CountDeviceFull(slot, charge);
    return r;
  }
  if (charge) {
    Commit(slot, charge);
    Remember(reinterpret_cast<uint64_t>(*handle),
             {charge, 0, context, static_cast<int16_t>(slot), Family::kWhole});
  }
  if (!globals.known && AboveLimit(slot)) {
    unload(*handle);
    Allocation allocation;
    if (Take(reinterpret_cast<uint64_t>(*handle), &allocation)) Release(slot, allocation.bytes);
    CountRefused(slot, 0, Refusal::kOwnLimit);
    AboveLimit(slot);  // the daemon shall see that it is gone
    *handle = nullptr;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return r;
}

template <typename Handle, typename Unload>
CUresult UnloadImage(Handle handle, Unload&& unload) {
  ForgetSmallKernels();  // their handles may become others'
  ForgetFunctionWork();
  Allocation allocation;
  if (!InForce() || !Take(reinterpret_cast<uint64_t>(handle), &allocation)) return unload();
  const CUresult r =
      allocation.family == Family::kSmallObject ? g_small_objects.Remove(allocation.slot, unload) : unload();
  if (r != CUDA_SUCCESS) {
    Remember(reinterpret_cast<uint64_t>(handle), allocation);
  } else if (allocation.bytes) {
    Release(allocation.slot, allocation.bytes);
  }
  return r;
}

// The image in a file.
ImageGlobals GlobalsOfFile(const char* path) {
  if (!path) return {false, 0};
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {false, 0};
  const off_t size = lseek(fd, 0, SEEK_END);
  ImageGlobals globals = {false, 0};
  constexpr off_t kSmallest = 64, kLargest = 1ll << 31;
  if (size >= kSmallest && size < kLargest) {
    void* image = mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_PRIVATE, fd, 0);
    if (image != MAP_FAILED) {
      globals = GlobalsOf(image, static_cast<uint64_t>(size));
      munmap(image, static_cast<size_t>(size));
    }
  }
  close(fd);
  return globals;
}

}  // namespace

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuModuleLoad(CUmodule* module, const char* file) {
  return LoadImage(
      module, InForce() ? GlobalsOfFile(file) : ImageGlobals{true, 0},
      [&] { return Through(Real().cuModuleLoad, module, file); },
      [](CUmodule m) { Through(Real().cuModuleUnload, m); });
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return LoadImage(
      module, InForce() ? GlobalsOf(image) : ImageGlobals{true, 0},
      [&] { return Through(Real().cuModuleLoadData, module, image); },
      [](CUmodule m) { Through(Real().cuModuleUnload, m); });
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, CUjit_option* options,
                            void** values) {
  return LoadImage(
      module, InForce() ? GlobalsOf(image) : ImageGlobals{true, 0},
      [&] { return Through(Real().cuModuleLoadDataEx, module, image, count, options, values); },
      [](CUmodule m) { Through(Real().cuModuleUnload, m); });
}

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return LoadImage(
      module, InForce() ? GlobalsOf(image) : ImageGlobals{true, 0},
      [&] { return Through(Real().cuModuleLoadFatBinary, module, image); },
      [](CUmodule m) { Through(Real().cuModuleUnload, m); });
}

CUresult cuModuleUnload(CUmodule module) {
  return UnloadImage(module, [&] { return Through(Real().cuModuleUnload, module); });
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option* jit, void** jit_values,
                           unsigned jit_count, CUlibraryOption* options, void** values, unsigned count) {
  return LoadImage(
      library, InForce() ? GlobalsOf(image) : ImageGlobals{true, 0},
      [&] {
        return Through(Real().cuLibraryLoadData, library, image, jit, jit_values, jit_count, options, values,
                       count);
      },
      [](CUlibrary l) { Through(Real().cuLibraryUnload, l); });
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* file, CUjit_option* jit, void** jit_values,
                               unsigned jit_count, CUlibraryOption* options, void** values, unsigned count) {
  return LoadImage(
      library, InForce() ? GlobalsOfFile(file) : ImageGlobals{true, 0},
      [&] {
        return Through(Real().cuLibraryLoadFromFile, library, file, jit, jit_values, jit_count, options,
                       values, count);
      },
      [](CUlibrary l) { Through(Real().cuLibraryUnload, l); });
}

CUresult cuLibraryUnload(CUlibrary library) {
  return UnloadImage(library, [&] { return Through(Real().cuLibraryUnload, library); });
}

}  // extern "C"
