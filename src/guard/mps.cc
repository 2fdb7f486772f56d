// SPDX-License-Identifier: Apache-2.0
#include "guard/mps.h"

#include "guard/driver.h"
#include "guard/session.h"

namespace gpumux::guard {

namespace {

bool IsForMps() { return (__atomic_load_n(&Limits()->flags, __ATOMIC_RELAXED) & GPUMUX_LIMITS_MPS) != 0; }

int Attribute(cuda::CUdevice device, cuda::CUdevice_attribute attribute) {
  int value = 0;
  const bool told = Real().cuDeviceGetAttribute &&
                    Real().cuDeviceGetAttribute(&value, attribute, device) == cuda::CUDA_SUCCESS;
  return told ? value : 0;
}

}  // namespace

bool MayRunUnderMps(int slot, cuda::CUdevice device) {
  if (!IsForMps()) return true;
  const bool attached = Attribute(device, cuda::CU_DEVICE_ATTRIBUTE_MPS_ENABLED) != 0;
  __atomic_store_n(&Counters(slot)->mps, attached ? GPUMUX_MPS_ATTACHED : GPUMUX_MPS_NOT_ATTACHED,
                   __ATOMIC_RELAXED);
  return attached || !Limits()->strict;
}

void ReadBackMps(int slot, cuda::CUdevice device, cuda::CUcontext context) {
  if (!IsForMps()) return;
  gpumux_process_gpu* counters = Counters(slot);
  if (__atomic_load_n(&counters->mps_sms, __ATOMIC_RELAXED) != 0) return;
  size_t free = 0, total = 0;
  cuda::CUcontext popped = nullptr;
  if (Real().cuMemGetInfo_v2 && Real().cuCtxPushCurrent_v2 &&
      Real().cuCtxPushCurrent_v2(context) == cuda::CUDA_SUCCESS) {
    if (Real().cuMemGetInfo_v2(&free, &total) == cuda::CUDA_SUCCESS)
      __atomic_store_n(&counters->mps_free_bytes, free, __ATOMIC_RELAXED);
    Real().cuCtxPopCurrent_v2(&popped);
  }
  __atomic_store_n(&counters->mps_sms,
                   static_cast<uint32_t>(Attribute(device, cuda::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)),
                   __ATOMIC_RELAXED);
}

}  // namespace gpumux::guard
