// SPDX-License-Identifier: Apache-2.0
//
// Parts of a GPU that a green context can have, with the layout of the binary
// interface (layout_test.cc compares it with NVIDIA's header).
#pragma once

#include <cstdint>

namespace gpumux::softgpu {

enum ResourceType : int { kInvalidResource = 0, kSmResource = 1 };

// CUdevResource. What is before `sms` is the driver's own.
struct Resource {
  int type;
  int device;
  uint64_t split;  // the call that it came from; 0: it may be split
  unsigned char reserved[80];
  unsigned sms;
  unsigned min_sms;
  unsigned alignment;
  unsigned char rest[36];
};
static_assert(sizeof(Resource) == 144);

}  // namespace gpumux::softgpu
