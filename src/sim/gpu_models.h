// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sim/gpu_spec.h"

namespace gpumux::sim {

// A GPU one can buy, as data: what GPUMUX_SOFTGPU calls it, what NVML calls it,
// and what programs ask a driver about it.
struct GpuModelData {
  std::string_view key;    // "H100-80"
  std::string_view alias;  // another word for it; may be empty
  std::string_view name;   // as NVML prints it
  uint32_t pci_device;     // 16 bits, without the vendor
  uint32_t pci_subsystem;  // 32 bits; 0: not known
  uint64_t memory_mib;     // NVML's total
  int sms;
  int threads_per_sm;
  int blocks_per_sm;
  int major, minor;  // compute capability
  int clock_mhz;     // the highest of the SMs
  int memory_clock_mhz;
  int bus_bits;
  uint32_t l2_kib;
  uint32_t shared_kib_per_sm;
  bool mig;  // can be partitioned
  bool ecc;
  bool unified;  // no memory of its own: NVML tells no figures of memory
};

std::span<const GpuModelData> GpuModels();
// By key or alias, in any case of letters; null if there is none.
const GpuModelData* FindGpuModel(std::string_view word);

// The figures of sharing. The H200's were measured; of any other model, or of
// one with another size, they follow from the H200's:
//   * reserved memory is the same share of the total, in steps of 64 KiB;
//   * a context costs what does not depend on the SMs (the H200's figure less
//     the default stack of all its threads) and the default stack of the
//     model's own threads, in steps of 2 MiB;
//   * everything else is as on the H200.
// Assumed, all of it; a real GPU differs.
GpuSpec SpecOf(const GpuModelData& model);
// The same rule for memory and SMs given otherwise. `reserved` below 0: by the rule.
GpuSpec SpecOf(uint64_t total, int64_t reserved, int sms, int threads_per_sm, int blocks_per_sm);

}  // namespace gpumux::sim
