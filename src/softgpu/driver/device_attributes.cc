// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/device_attributes.h"

#include <iterator>

#include "softgpu/names.h"

namespace gpumux::softgpu {

namespace {

// By number, from 1, as an H200 answers, with these differences: what this
// software GPU does not do (peers, multicast, RDMA) reads 0.
constexpr int kValues[] = {
    /*   1 */ 1024,
    1024,
    1024,
    64,
    2147483647,
    65535,
    65535,  // threads and grid
    /*   8 */ 49152,
    65536,
    32,
    2147483647,
    65536,
    1980000,
    512,
    1,
    /*  16 */ 132,
    0,
    0,
    1,
    0,
    /*  21 */ 131072,
    131072,
    65536,
    16384,
    16384,
    16384,
    32768,
    32768,
    2048,  // textures
    /*  30 */ 512,
    1,
    1,
    0,
    0,
    0,
    /*  36 */ 3201000,
    6144,
    62914560,
    2048,
    3,
    1,
    /*  42 */ 32768,
    2048,
    1,
    32768,
    32768,
    8192,
    8192,
    32768,
    0,
    32,
    32768,
    32768,
    2046,
    /*  55 */ 32768,
    131072,
    65536,
    16384,
    16384,
    16384,
    32768,
    2048,
    32768,
    32768,
    2048,
    32768,
    32768,
    2046,
    /*  69 */ 268435456,
    131072,
    65000,
    2097120,
    32768,
    32768,
    /*  75 */ 9,
    0,
    32768,
    1,
    1,
    1,
    233472,
    65536,
    1,
    0,
    0,
    0,
    2,
    /*  88 */ 0,
    1,
    1,
    1,
    0,
    0,
    0,
    1,
    1,
    232448,
    0,
    1,
    0,
    0,
    /* 102 */ 1,
    1,
    0,
    0,
    32,
    0,
    39321600,
    134213632,
    0,
    1024,
    0,
    1,
    0,
    /* 115 */ 1,
    0,
    0,
    0,
    1,
    1,
    0,
    1,
    1,
    0,
    1,
    4,
    0,
    /* 128 */ 0,
    0,
    0,
    -1,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0x233510de,
    0x18be10de,
    /* 141 */ 1,
    0,
    0,
    0,
    1,
    0,
    0,
};
static_assert(std::size(kValues) == 147);

}  // namespace

std::optional<int> DeviceAttribute(int attribute, const Description& d) {
  if (attribute < 1 || attribute > static_cast<int>(std::size(kValues))) return std::nullopt;
  const int l2 = static_cast<int>(d.l2_kib) * 1024;
  // A block may have all of an SM's shared memory but 1 KiB; Turing's may have all.
  const int shared = static_cast<int>(d.shared_kib_per_sm) * 1024;
  const bool unified = (d.flags & kFlagUnified) != 0;
  switch (attribute) {
    case 13:
      return d.clock_mhz * 1000;
    case 16:
      return d.sms;
    case 18:  // integrated
      return unified ? 1 : 0;
    case 32:
      return (d.flags & kFlagEcc) != 0 ? 1 : 0;
    case 33:
      return static_cast<int>(PciBus(d.parent));
    case 36:
      return d.memory_clock_mhz * 1000;
    case 37:
      return d.bus_bits;
    case 38:
      return l2;
    case 39:
      return d.threads_per_sm;
    case 75:
      return d.major;
    case 76:
      return d.minor;
    case 81:
      return shared;
    case 97:
      return d.major >= 8 ? shared - 1024 : shared;
    case 106:
      return d.blocks_per_sm;
    case 108:  // of the L2, what may persist
      return d.major >= 8 ? l2 / 8 * 5 : 0;
    case 109:  // access policy window
      return d.major >= 8 ? kValues[attribute - 1] : 0;
    case 120:  // clusters
      return d.major >= 9 ? 1 : 0;
    case 139:
      return d.pci_device != 0 ? static_cast<int>(d.pci_device << 16 | 0x10de) : 0;
    case 140:
      return static_cast<int>(d.pci_subsystem);
    default:
      break;
  }
  return kValues[attribute - 1];
}

}  // namespace gpumux::softgpu
