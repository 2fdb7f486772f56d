// SPDX-License-Identifier: Apache-2.0
#include "softgpu/uuid.h"

#include <cstdio>
#include <cstring>

namespace gpumux::softgpu {

GpuUuid UuidOf(const unsigned char (&bytes)[16]) {
  GpuUuid uuid;
  memcpy(uuid.bytes, bytes, sizeof(uuid.bytes));
  uuid.text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) uuid.text += '-';
    char hex[3];
    snprintf(hex, sizeof(hex), "%02x", bytes[i]);
    uuid.text += hex;
  }
  return uuid;
}

GpuUuid MakeUuid(uint64_t identity, uint32_t index) {
  // splitmix64: two well-mixed words from the directory and the ordinal.
  auto mix = [](uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  };
  const uint64_t words[2] = {mix(identity + index), mix(mix(identity) ^ (index + 1))};
  unsigned char bytes[16];
  memcpy(bytes, words, sizeof(words));
  return UuidOf(bytes);
}

}  // namespace gpumux::softgpu
