// SPDX-License-Identifier: Apache-2.0
//
// Which GPUs there are and what each is.
#include <cstdio>
#include <cstring>
#include <string>

#include "softgpu/names.h"
#include "softgpu/nvml/mig.h"
#include "softgpu/nvml/state.h"

namespace gpumux::nvml {

namespace {

template <typename Find>
nvmlReturn_t Lookup(nvmlDevice_t* out, nvmlReturn_t otherwise, Find matches) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  if (state.inits == 0) return NVML_ERROR_UNINITIALIZED;
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  for (uint32_t i = 0; i < state.count; ++i) {
    if (!state.devices[i].found || !matches(state.devices[i])) continue;
    *out = reinterpret_cast<nvmlDevice_t>(&state.devices[i]);
    return NVML_SUCCESS;
  }
  return otherwise;
}

nvmlReturn_t Number(nvmlDevice_t handle, unsigned* out, unsigned (*of)(const Device&)) {
  GPUMUX_NVML_DEVICE(device, handle, out);
  *out = of(*device);
  return NVML_SUCCESS;
}

unsigned PciDevice(const Device& device) {
  return device.description.pci_device != 0 ? device.description.pci_device << 16 | 0x10de : 0;
}
void BusId(const Device& device, char (&out)[32]) {
  snprintf(out, sizeof(out), "00000000:%02X:00.0", softgpu::PciBus(device.index) & 0xff);
}
void LegacyBusId(const Device& device, char (&out)[16]) {
  snprintf(out, sizeof(out), "0000:%02X:00.0", softgpu::PciBus(device.index) & 0xff);
}

// What nvmlPciInfo_t was before `busId` grew: the first version ends at
// pciDeviceId, the second at four more words, of which the last are reserved.
struct PciInfoV1 {
  char bus_id[16];
  unsigned domain, bus, device, pci_device;
};
struct PciInfoV2 {
  PciInfoV1 first;
  unsigned pci_subsystem;
  unsigned reserved[4];
};
static_assert(sizeof(PciInfoV1) == 32 && sizeof(PciInfoV2) == 52);

PciInfoV1 FirstPciInfo(const Device& device) {
  PciInfoV1 info = {};
  LegacyBusId(device, info.bus_id);
  info.bus = softgpu::PciBus(device.index);
  info.pci_device = PciDevice(device);
  return info;
}

}  // namespace

GPUMUX_NVML nvmlDeviceGetCount_v2(unsigned* count) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  if (state.inits == 0) return NVML_ERROR_UNINITIALIZED;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = state.found;
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

GPUMUX_NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* out) {
  return Lookup(out, NVML_ERROR_INVALID_ARGUMENT, [=](const Device& d) { return d.number == index; });
}
GPUMUX_NVML nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t* out) {
  return nvmlDeviceGetHandleByIndex_v2(index, out);
}
GPUMUX_NVML nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* out) {
  if (uuid == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (strncmp(uuid, "MIG-", 4) == 0) return FindMigDevice(uuid, out);
  return Lookup(out, NVML_ERROR_NOT_FOUND, [=](const Device& d) { return d.uuid == uuid; });
}
// No board here has a serial number.
GPUMUX_NVML nvmlDeviceGetHandleBySerial(const char* serial, nvmlDevice_t* out) {
  if (serial == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return Lookup(out, NVML_ERROR_NOT_FOUND, [](const Device&) { return false; });
}
GPUMUX_NVML nvmlDeviceGetHandleByPciBusId_v2(const char* text, nvmlDevice_t* out) {
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  if (text == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
    domain = 0;
    if (sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2) return NVML_ERROR_INVALID_ARGUMENT;
  }
  return Lookup(out, NVML_ERROR_NOT_FOUND,
                [=](const Device& d) { return domain == 0 && slot == 0 && bus == softgpu::PciBus(d.index); });
}
GPUMUX_NVML nvmlDeviceGetHandleByPciBusId(const char* text, nvmlDevice_t* out) {
  return nvmlDeviceGetHandleByPciBusId_v2(text, out);
}

GPUMUX_NVML nvmlDeviceGetName(nvmlDevice_t handle, char* out, unsigned length) {
  GPUMUX_NVML_ANY_DEVICE(device, handle, out);
  return CopyText(device->description.name, out, length);
}
GPUMUX_NVML nvmlDeviceGetUUID(nvmlDevice_t handle, char* out, unsigned length) {
  GPUMUX_NVML_ANY_DEVICE(device, handle, out);
  return CopyText(device->uuid, out, length);
}
GPUMUX_NVML nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned* index) {
  GPUMUX_NVML_ANY_DEVICE(device, handle, index);
  *index = device->number;
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned* minor) {
  return Number(handle, minor, [](const Device& d) { return d.index; });
}

GPUMUX_NVML nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t* pci) {
  GPUMUX_NVML_DEVICE(device, handle, pci);
  *pci = {};
  pci->bus = softgpu::PciBus(device->index);
  pci->pciDeviceId = PciDevice(*device);
  pci->pciSubSystemId = device->description.pci_subsystem;
  LegacyBusId(*device, pci->busIdLegacy);
  BusId(*device, pci->busId);
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, PciInfoV2* pci) {
  GPUMUX_NVML_DEVICE(device, handle, pci);
  *pci = {FirstPciInfo(*device), device->description.pci_subsystem, {}};
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetPciInfo(nvmlDevice_t handle, PciInfoV1* pci) {
  GPUMUX_NVML_DEVICE(device, handle, pci);
  *pci = FirstPciInfo(*device);
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetPciInfoExt(nvmlDevice_t handle, nvmlPciInfoExt_v1_t* pci) {
  GPUMUX_NVML_DEVICE(device, handle, pci);
  if (pci->version != kPciInfoExtV1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  *pci = {};
  pci->version = kPciInfoExtV1;
  pci->bus = softgpu::PciBus(device->index);
  pci->pciDeviceId = PciDevice(*device);
  pci->pciSubSystemId = device->description.pci_subsystem;
  pci->baseClass = 3;  // a display controller that shows nothing
  pci->subClass = 2;
  BusId(*device, pci->busId);
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetBusType(nvmlDevice_t handle, unsigned* type) {
  return Number(handle, type, [](const Device&) { return 2u; });  // PCIe
}

GPUMUX_NVML nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int* major, int* minor) {
  GPUMUX_NVML_DEVICE(device, handle, major, minor);
  *major = device->description.major;
  *minor = device->description.minor;
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetArchitecture(nvmlDevice_t handle, unsigned* architecture) {
  return Number(handle, architecture, [](const Device& d) {
    const int cc = d.description.major * 10 + d.description.minor;
    return cc >= 100 ? 10u : cc >= 90 ? 9u : cc >= 89 ? 8u : cc >= 80 ? 7u : 6u;
  });
}
GPUMUX_NVML nvmlDeviceGetBrand(nvmlDevice_t handle, unsigned* brand) {
  return Number(handle, brand, [](const Device& d) {
    const std::string_view name = d.description.name;
    return name.find("GeForce") != name.npos ? 5u : name.find("RTX") != name.npos ? 13u : 14u;
  });
}
GPUMUX_NVML nvmlDeviceGetNumGpuCores(nvmlDevice_t handle, unsigned* cores) {
  if (MigOn(handle)) return NVML_ERROR_NOT_SUPPORTED;
  return Number(handle, cores, [](const Device& d) {
    const int cc = d.description.major * 10 + d.description.minor;
    return static_cast<unsigned>(d.description.sms) * (cc <= 80 ? 64 : 128);
  });
}
GPUMUX_NVML nvmlDeviceGetMemoryBusWidth(nvmlDevice_t handle, unsigned* bits) {
  return Number(handle, bits, [](const Device& d) { return static_cast<unsigned>(d.description.bus_bits); });
}
GPUMUX_NVML nvmlDeviceGetMultiGpuBoard(nvmlDevice_t handle, unsigned* several) {
  return Number(handle, several, [](const Device&) { return 0u; });
}

GPUMUX_NVML nvmlDeviceGetPersistenceMode(nvmlDevice_t handle, unsigned* mode) {
  return Number(handle, mode, [](const Device&) { return 1u; });
}
GPUMUX_NVML nvmlDeviceGetDisplayMode(nvmlDevice_t handle, unsigned* mode) {
  return Number(handle, mode, [](const Device&) { return 0u; });
}
GPUMUX_NVML nvmlDeviceGetDisplayActive(nvmlDevice_t handle, unsigned* active) {
  return Number(handle, active, [](const Device&) { return 0u; });
}
GPUMUX_NVML nvmlDeviceGetVirtualizationMode(nvmlDevice_t handle, unsigned* mode) {
  return Number(handle, mode, [](const Device&) { return 0u; });
}
GPUMUX_NVML nvmlDeviceGetAccountingMode(nvmlDevice_t handle, unsigned* mode) {
  return Number(handle, mode, [](const Device&) { return 0u; });
}
GPUMUX_NVML nvmlDeviceGetEccMode(nvmlDevice_t handle, unsigned* current, unsigned* pending) {
  GPUMUX_NVML_DEVICE(device, handle, current, pending);
  if ((device->description.flags & softgpu::kFlagEcc) == 0) return NVML_ERROR_NOT_SUPPORTED;
  *current = *pending = 1;
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlDeviceGetComputeMode(nvmlDevice_t handle, nvmlComputeMode_t* mode) {
  if (mode == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  softgpu::Reply reply;
  if (nvmlReturn_t error = Call(handle, softgpu::Op::kUtilization, &reply); error != NVML_SUCCESS)
    return error;
  *mode = static_cast<nvmlComputeMode_t>(reply.values[1]);
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceSetComputeMode(nvmlDevice_t handle, int mode) {
  // Exclusive thread (1) is a mode of the past.
  if (mode == 1) return NVML_ERROR_NOT_SUPPORTED;
  if (mode < 0 || mode > 3) return NVML_ERROR_INVALID_ARGUMENT;
  GPUMUX_NVML_DEVICE(device, handle, &mode);
  softgpu::Reply reply;
  return Call(handle, softgpu::Op::kSetComputeMode, &reply, static_cast<uint64_t>(mode));
}

// One host, one NUMA node, no link between the GPUs.
GPUMUX_NVML nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, unsigned* level) {
  GPUMUX_NVML_DEVICE(first, a, level);
  GPUMUX_NVML_DEVICE(second, b, level);
  *level = first == second ? 0 : 40;  // internal, node
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t handle, unsigned level, unsigned* count,
                                             nvmlDevice_t* out) {
  GPUMUX_NVML_DEVICE(device, handle, count);
  State& state = Get();
  std::lock_guard lock(state.mutex);
  const unsigned others = level == 40 && state.found > 1 ? state.found - 1 : 0;
  const unsigned room = out != nullptr ? *count : 0;
  *count = others;
  if (room == 0) return NVML_SUCCESS;
  if (room < others) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (uint32_t i = 0; others > 0 && i < state.count; ++i) {
    if (state.devices[i].found && &state.devices[i] != device)
      *out++ = reinterpret_cast<nvmlDevice_t>(&state.devices[i]);
  }
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, unsigned, unsigned* status) {
  GPUMUX_NVML_DEVICE(first, a, status);
  GPUMUX_NVML_DEVICE(second, b, status);
  *status = first == second ? 0 : 5;  // ok, not supported
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceOnSameBoard(nvmlDevice_t a, nvmlDevice_t b, int* same) {
  GPUMUX_NVML_DEVICE(first, a, same);
  GPUMUX_NVML_DEVICE(second, b, same);
  *same = first == second ? 1 : 0;
  return NVML_SUCCESS;
}

}  // namespace gpumux::nvml
