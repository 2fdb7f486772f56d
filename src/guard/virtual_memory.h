// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include "gpumux/abi/cuda/driver.h"
#include "guard/lock.h"

namespace gpumux::guard {

// Handles of physical memory (vmm_hooks.cc) have users besides their mappings
// (handle_users.cc): parts of arrays, multicast objects. The memory goes back when
// the last of all is gone. Everything under this lock, which is held across the
// driver's call: a handle's value may be reused at once.
Lock& HandlesLock();
// False: no handle that we know.
bool AddHandleUser(cuda::CUmemGenericAllocationHandle handle);
void RemoveHandleUser(cuda::CUmemGenericAllocationHandle handle);
// A handle without memory of its own, which others are bound to.
void AddBareHandle(cuda::CUmemGenericAllocationHandle handle);
// The handle that is mapped at this address and the slot of its memory; 0 if we know none.
cuda::CUmemGenericAllocationHandle HandleMappedAt(uint64_t address);
int SlotOfHandle(cuda::CUmemGenericAllocationHandle handle);

// An array, or an object with a handle, is gone: it uses nothing any more. The
// first takes the lock, the second is called under it.
void ArrayUsesNothing(uint64_t array);
void HandleUsesNothing(uint64_t handle);

// Ends what descriptors kept that have been closed since. Under the lock.
void LookAfterDescriptors();

// In the child of a fork.
void ForgetVirtualMemory();
void ForgetHandleUsers();

}  // namespace gpumux::guard
