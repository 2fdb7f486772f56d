// SPDX-License-Identifier: Apache-2.0
#include "guard/current_context.h"

#include "guard/contexts.h"
#include "guard/driver.h"
#include "guard/session.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

struct Told {
  CUcontext context;
  CUdevice device;
  bool device_known;
};
__thread Told t_told = {nullptr, 0, false};

bool SaysNone(CUresult r) {
  return r == CUDA_ERROR_NOT_INITIALIZED || r == CUDA_ERROR_DEINITIALIZED ||
         r == CUDA_ERROR_INVALID_CONTEXT || r == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUdevice FirstOfTheTenant() {
  constexpr CUdevice kMostDevices = 64;
  for (CUdevice device = 0; device < kMostDevices; device++) {
    if (SlotOfDevice(device) == 0) return device;
  }
  return 0;
}

}  // namespace

bool CurrentDevice(CUdevice* device) {
  if (!Real().cuCtxGetDevice) return false;
  const CUresult r = Real().cuCtxGetDevice(device);
  if (r == CUDA_SUCCESS) {
    t_told.device = *device;
    t_told.device_known = true;
    return true;
  }
  if (SaysNone(r)) return false;
  *device = t_told.device_known ? t_told.device : FirstOfTheTenant();
  return true;
}

bool DeviceOfStream(CUstream stream, CUdevice* device) {
  if (!CurrentDevice(device)) return false;
  const bool own = reinterpret_cast<uintptr_t>(stream) <= 2;  // the default streams, of any context
  CUcontext context = nullptr, current = nullptr;
  if (own || VisibleDevices() < 2 || !Real().cuStreamGetCtx || !Real().cuCtxPushCurrent_v2 ||
      !Real().cuCtxPopCurrent_v2 || Real().cuCtxGetCurrent(&current) != CUDA_SUCCESS ||
      Real().cuStreamGetCtx(stream, &context) != CUDA_SUCCESS || context == current ||
      Real().cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) {
    return true;
  }
  Real().cuCtxGetDevice(device);
  Real().cuCtxPopCurrent_v2(&context);
  return true;
}

CUcontext CurrentContext() {
  CUcontext context = nullptr;
  if (Real().cuCtxGetCurrent && Real().cuCtxGetCurrent(&context) == CUDA_SUCCESS) {
    t_told.context = BaseOf(context);
  }
  return t_told.context;
}

}  // namespace gpumux::guard
