// SPDX-License-Identifier: Apache-2.0
#include "gpu/nvml_xids.h"

#include <algorithm>
#include <climits>

namespace gpumux::gpu {

using namespace gpumux::nvml;  // NOLINT: the binary interface's own names

namespace {

// A GPU that reports without end keeps nobody here.
constexpr int kMostAtOnce = 64;

}  // namespace

NvmlXids::NvmlXids(const std::function<void*(const char* name)>& find) {
  create_ = reinterpret_cast<decltype(create_)>(find("nvmlEventSetCreate"));
  free_ = reinterpret_cast<decltype(free_)>(find("nvmlEventSetFree"));
  register_ = reinterpret_cast<decltype(register_)>(find("nvmlDeviceRegisterEvents"));
  // The older one does not tell instances, which nobody here asks about.
  void* wait = find("nvmlEventSetWait_v2");
  wait_ = reinterpret_cast<decltype(wait_)>(wait ? wait : find("nvmlEventSetWait"));
}

bool NvmlXids::Begin(const std::vector<nvmlDevice_t>& handles) {
  if (begun_) return set_ != nullptr;
  begun_ = true;
  if (!create_ || !free_ || !register_ || !wait_) return false;
  if (create_(&set_) != NVML_SUCCESS) set_ = nullptr;
  if (!set_) return false;
  // One that refuses keeps the others from nothing.
  for (nvmlDevice_t gpu : handles) register_(gpu, kEventTypeXidCriticalError, set_);
  return true;
}

void NvmlXids::End() {
  if (set_) free_(set_);
  set_ = nullptr;
  begun_ = false;
}

std::vector<Xid> NvmlXids::Take(const std::vector<Device>& gpus, const std::vector<nvmlDevice_t>& handles) {
  std::vector<Xid> found;
  if (!Begin(handles)) return found;
  for (int i = 0; i < kMostAtOnce; ++i) {
    nvmlEventData_t event{};
    if (wait_(set_, &event, 0) != NVML_SUCCESS) break;
    if (event.eventType != kEventTypeXidCriticalError || event.eventData > UINT_MAX) continue;
    const auto at = std::find(handles.begin(), handles.end(), event.device) - handles.begin();
    if (static_cast<size_t>(at) == handles.size()) continue;
    found.push_back({gpus[static_cast<size_t>(at)].uuid, static_cast<unsigned>(event.eventData)});
  }
  return found;
}

}  // namespace gpumux::gpu
