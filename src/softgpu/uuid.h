// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace gpumux::softgpu {

// "GPU-8-4-4-4-12" and the 16 bytes of it.
struct GpuUuid {
  unsigned char bytes[16];
  std::string text;
};

// Of GPU `index` of a directory.
GpuUuid MakeUuid(uint64_t identity, uint32_t index);
GpuUuid UuidOf(const unsigned char (&bytes)[16]);
// Of a compute instance: always the same for the same GPU and ids. "MIG-" and as above.
GpuUuid MakeMigUuid(const unsigned char (&gpu)[16], uint32_t gpu_instance, uint32_t compute_instance);
GpuUuid MigUuidOf(const unsigned char (&bytes)[16]);

}  // namespace gpumux::softgpu
