// SPDX-License-Identifier: Apache-2.0
#include "softgpu/uuid.h"

#include <cstdio>
#include <cstring>

namespace gpumux::softgpu {

namespace {

// splitmix64: a well-mixed word.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

GpuUuid WithPrefix(const char* prefix, const unsigned char (&bytes)[16]) {
  GpuUuid uuid;
  memcpy(uuid.bytes, bytes, sizeof(uuid.bytes));
  uuid.text = prefix;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) uuid.text += '-';
    char hex[3];
    snprintf(hex, sizeof(hex), "%02x", bytes[i]);
    uuid.text += hex;
  }
  return uuid;
}

}  // namespace

GpuUuid UuidOf(const unsigned char (&bytes)[16]) { return WithPrefix("GPU-", bytes); }
GpuUuid MigUuidOf(const unsigned char (&bytes)[16]) { return WithPrefix("MIG-", bytes); }

GpuUuid MakeMigUuid(const unsigned char (&gpu)[16], uint32_t gpu_instance, uint32_t compute_instance) {
  uint64_t words[2];
  memcpy(words, gpu, sizeof(words));
  const uint64_t ids = (static_cast<uint64_t>(gpu_instance) << 32 | compute_instance) + 1;
  words[0] = Mix(words[0] ^ Mix(ids));
  words[1] = Mix(words[1] + words[0]);
  unsigned char bytes[16];
  memcpy(bytes, words, sizeof(words));
  // As NVIDIA's are: of version 5, of the usual variant.
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x50);
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);
  return MigUuidOf(bytes);
}

GpuUuid MakeUuid(uint64_t identity, uint32_t index) {
  const uint64_t words[2] = {Mix(identity + index), Mix(Mix(identity) ^ (index + 1))};
  unsigned char bytes[16];
  memcpy(bytes, words, sizeof(words));
  return UuidOf(bytes);
}

}  // namespace gpumux::softgpu
