// SPDX-License-Identifier: Apache-2.0
#include "guard/mps.h"

#include <time.h>

#include "guard/clock.h"
#include "guard/driver.h"
#include "guard/session.h"

namespace gpumux::guard {

namespace {

// What an H200 says to client 49 (driver 580), and what the documentation has for it.
constexpr uint32_t kDeviceUnavailable = 46, kMaxClients = 808, kMaxConnections = 809;
constexpr uint32_t kServerNotReady = 807;
// For a server that recovers, or where no daemon says how long to wait.
constexpr uint64_t kPatienceNs = 30'000'000'000;
// Who was told to wait waits so long for the next daemon's word.
constexpr uint64_t kNextDaemonNs = 5'000'000'000;
constexpr long kNapNs = 100'000'000;
constexpr uint32_t kNobody = 0;  // instead of an answer

bool IsForMps() { return (__atomic_load_n(&Limits()->flags, __ATOMIC_RELAXED) & GPUMUX_LIMITS_MPS) != 0; }

bool MayPass(uint32_t error) {
  return error == kDeviceUnavailable || error == kMaxClients || error == kMaxConnections ||
         error == kServerNotReady;
}

// Whoever the fault has hit is what the server waits for.
bool IsHitByAFault() {
  if (__atomic_load_n(&OwnPage()->first_error, __ATOMIC_RELAXED) != 0) return true;
  for (uint32_t slot = 0; slot < Limits()->gpu_count; slot++) {
    if (__atomic_load_n(&Counters(static_cast<int>(slot))->contexts, __ATOMIC_RELAXED) != 0) return true;
  }
  return false;
}

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

ClientPlace::ClientPlace(int slot) : applies_(ToBeMpsClient()), slot_(slot) {
  // With a context there it has its place.
  if (applies_) applies_ = __atomic_load_n(&Counters(slot)->contexts, __ATOMIC_RELAXED) == 0;
}

void ClientPlace::Ask(uint32_t driver_error) {
  const uint64_t now = NowNs();
  if (RequestMpsPlace(slot_, driver_error, &answer_)) {
    answered_ns_ = now;
  } else if (answer_ != GPUMUX_MPS_PLACE_WAIT || now - answered_ns_ >= kNextDaemonNs) {
    answer_ = kNobody;
  }
}

bool ClientPlace::MayTry() {
  if (!applies_) return true;
  Ask(0);
  tried_ = answer_ != GPUMUX_MPS_PLACE_WAIT && answer_ != GPUMUX_MPS_PLACE_NO;
  return tried_;
}

bool ClientPlace::Again(cuda::CUresult r) {
  if (!applies_ || r == cuda::CUDA_SUCCESS) return false;
  const auto error = static_cast<uint32_t>(r);
  const bool passes = MayPass(error) && !(error == kServerNotReady && IsHitByAFault());
  // Also of what does not pass: it gives the place back.
  if (tried_) Ask(passes ? error : uint32_t{cuda::CUDA_ERROR_UNKNOWN});
  if (answer_ == GPUMUX_MPS_PLACE_NO || !passes) return false;
  const uint64_t now = NowNs();
  if (error != kServerNotReady && answer_ != kNobody) {
    bounded_since_ns_ = 0;
  } else if (bounded_since_ns_ == 0) {
    bounded_since_ns_ = now;
  } else if (now - bounded_since_ns_ >= kPatienceNs) {
    return false;
  }
  const timespec nap = {0, kNapNs};
  nanosleep(&nap, nullptr);
  return true;
}

bool MayBeReadyLater(cuda::CUresult r) {
  return MayPass(static_cast<uint32_t>(r)) && Attach() == State::kInForce && ToBeMpsClient();
}

}  // namespace gpumux::guard
