// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include "gpumux/abi/cuda/driver.h"
#include "guard/driver.h"

namespace gpumux::guard {

// What the driver takes for objects of its own: half a MiB and more a stream, 2 KiB
// a node of an executable graph, 4 or 6 MiB a green context by its SMs (measured). It tells no size, and
// keeps the memory for the next such object until the context ends. So a context is charged for the most that
// it had at once, by what the device's free memory falls. A neighbour's call at the same moment may hide that
// or feign it, within the bound of what such objects can take; the daemon finds the rest by NVML. Green
// contexts differ in size, so that each is watched, whether more of them were there before or not.
enum class Objects : unsigned { kStreams, kGraphNodes, kGreenContexts };

struct ObjectsCall {
  int slot = 0;
  uint64_t context = 0;
  uint64_t reserved = 0;
  uint64_t free_before = 0;
  bool grows = false;
};

// Before: `count` objects come into being in the current context. False: the
// promise does not allow what they may take.
bool BeginObjects(Objects kind, uint64_t count, ObjectsCall* call);
// The same for an object of the guard's own: nobody is asked for memory, and a refusal is none of the
// program's.
bool BeginOwnObjects(Objects kind, uint64_t count, ObjectsCall* call);
// The same in `context` of the GPU `slot`, which is current while this is under way.
bool BeginObjectsIn(cuda::CUcontext context, int slot, Objects kind, uint64_t count, ObjectsCall* call);
// After: `made` says whether they did, `other` how much device memory the same call
// took for something else. Ends what BeginObjects() began.
void EndObjects(Objects kind, uint64_t count, const ObjectsCall& call, bool made, uint64_t other = 0);
// They are gone; the driver keeps their memory for others.
void RemoveObjects(Objects kind, uint64_t count, cuda::CUcontext context);

// `context` is gone: returns the bytes that were charged for its objects.
uint64_t DropObjects(cuda::CUcontext context);

// In the child of a fork.
void ForgetObjects();

// Free memory of the current context's device, as the driver knows it; 0 where it
// does not say.
uint64_t DeviceFree();

}  // namespace gpumux::guard
