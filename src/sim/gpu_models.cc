// SPDX-License-Identifier: Apache-2.0
#include "sim/gpu_models.h"

#include <algorithm>

#include "sim/slab_layout.h"

namespace gpumux::sim {

namespace {

// In the order of docs/reference/software-gpu-spec.md. Sizes are what nvidia-smi
// prints for the part where that is known, else the nominal size.
constexpr GpuModelData kModels[] = {
    // key, alias, name, device, subsystem, MiB, SMs, threads, blocks, cc, MHz, memory MHz, bits, L2 KiB,
    // shared KiB, MIG, ECC, unified
    {"A100-40", "A100", "NVIDIA A100-SXM4-40GB", 0x20b0, 0, 40960, 108, 2048, 32, 8, 0, 1410, 1215, 5120,
     40960, 164, true, true, false},
    {"A100-80", "", "NVIDIA A100-SXM4-80GB", 0x20b2, 0, 81920, 108, 2048, 32, 8, 0, 1410, 1593, 5120, 40960,
     164, true, true, false},
    {"A30", "", "NVIDIA A30", 0x20b7, 0, 24576, 56, 2048, 32, 8, 0, 1440, 1215, 3072, 24576, 164, true, true,
     false},
    {"H100-80", "H100", "NVIDIA H100 80GB HBM3", 0x2330, 0, 81559, 132, 2048, 32, 9, 0, 1980, 2619, 5120,
     51200, 228, true, true, false},
    {"H100-PCIe-80", "H100-PCIe", "NVIDIA H100 PCIe", 0x2331, 0, 81559, 114, 2048, 32, 9, 0, 1755, 1593, 5120,
     51200, 228, true, true, false},
    {"H100-NVL-94", "H100-NVL", "NVIDIA H100 NVL", 0x2321, 0, 95830, 132, 2048, 32, 9, 0, 1785, 2619, 6144,
     61440, 228, true, true, false},
    {"GH200-96", "GH200", "NVIDIA GH200 480GB", 0x2342, 0, 97871, 132, 2048, 32, 9, 0, 1980, 2619, 6144,
     61440, 228, true, true, false},
    {"GH200-144", "", "NVIDIA GH200 144G HBM3e", 0x2348, 0, 147456, 132, 2048, 32, 9, 0, 1980, 3201, 6144,
     61440, 228, true, true, false},
    {"H20", "H20-96", "NVIDIA H20", 0x2329, 0, 97871, 78, 2048, 32, 9, 0, 1980, 2619, 6144, 61440, 228, true,
     true, false},
    {"H200", "H200-141", "NVIDIA H200", 0x2335, 0x18be10de, 143771, 132, 2048, 32, 9, 0, 1980, 3201, 6144,
     61440, 228, true, true, false},
    {"B200", "B200-180", "NVIDIA B200", 0x2901, 0, 183359, 148, 2048, 32, 10, 0, 1965, 3996, 7680, 129536,
     228, true, true, false},
    {"GB200", "GB200-186", "NVIDIA GB200", 0x2941, 0, 189471, 152, 2048, 32, 10, 0, 1965, 3996, 7680, 129536,
     228, true, true, false},
    {"B300", "", "NVIDIA B300 SXM6 AC", 0x3182, 0, 275040, 148, 2048, 32, 10, 3, 1920, 3996, 7680, 129536,
     228, true, true, false},
    {"GB300", "", "NVIDIA GB300", 0x31c2, 0, 284208, 152, 2048, 32, 10, 3, 1920, 3996, 7680, 129536, 228,
     true, true, false},
    {"RTX-PRO-6000", "", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 0x2bb5, 0, 97887, 188, 1536, 24, 12,
     0, 2430, 12481, 512, 131072, 100, true, true, false},
    {"RTX-PRO-5000", "", "NVIDIA RTX PRO 5000 Blackwell", 0x2bb3, 0, 49152, 110, 1536, 24, 12, 0, 2617, 14001,
     384, 98304, 100, true, true, false},
    {"RTX-PRO-4500", "", "NVIDIA RTX PRO 4500 Blackwell", 0x2c31, 0, 32768, 82, 1536, 24, 12, 0, 2617, 14001,
     256, 65536, 100, true, true, false},
    {"Thor", "", "NVIDIA Thor", 0, 0, 125772, 20, 1536, 24, 11, 0, 1575, 4266, 256, 32768, 228, true, false,
     true},
    {"A10", "", "NVIDIA A10", 0x2236, 0, 23028, 72, 1536, 16, 8, 6, 1695, 6251, 384, 6144, 100, false, true,
     false},
    {"L4", "", "NVIDIA L4", 0x27b8, 0, 23034, 58, 1536, 24, 8, 9, 2040, 6251, 192, 49152, 100, false, true,
     false},
    {"L40S", "", "NVIDIA L40S", 0x26b9, 0, 46068, 142, 1536, 24, 8, 9, 2520, 9001, 384, 98304, 100, false,
     true, false},
    {"T4", "", "Tesla T4", 0x1eb8, 0, 15360, 40, 1024, 16, 7, 5, 1590, 5001, 256, 4096, 64, false, true,
     false},
    {"RTX-4090", "RTX4090", "NVIDIA GeForce RTX 4090", 0x2684, 0, 24564, 128, 1536, 24, 8, 9, 2520, 10501,
     384, 73728, 100, false, false, false},
};

bool SameWord(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

std::span<const GpuModelData> GpuModels() { return kModels; }

const GpuModelData* FindGpuModel(std::string_view word) {
  if (word.empty()) return nullptr;
  for (const GpuModelData& model : kModels) {
    if (SameWord(word, model.key) || SameWord(word, model.alias)) return &model;
  }
  return nullptr;
}

GpuSpec SpecOf(uint64_t total, int64_t reserved, int sms, int threads_per_sm, int blocks_per_sm) {
  const auto stack = [](int all_sms, int threads) {
    return static_cast<uint64_t>(all_sms) * static_cast<uint64_t>(threads) * kH200.default_stack_bytes;
  };
  GpuSpec spec = kH200;
  spec.nvml_total = total;
  // 128 bits: a total of terabytes times a share overflows 64.
  const auto share = static_cast<uint64_t>(static_cast<unsigned __int128>(total) *
                                           (kH200.nvml_total - kH200.usable) / kH200.nvml_total);
  spec.usable = total - (reserved < 0 ? RoundUp(share, 64 << 10) : static_cast<uint64_t>(reserved));
  spec.sms = sms;
  spec.threads_per_sm = threads_per_sm;
  spec.blocks_per_sm = blocks_per_sm;
  const uint64_t fixed = kH200.context_own - stack(kH200.sms, kH200.threads_per_sm);
  spec.context_own = RoundUp(fixed + stack(sms, threads_per_sm), kPageBytes);
  spec.context_device = spec.context_own + (kH200.context_device - kH200.context_own);
  return spec;
}

GpuSpec SpecOf(const GpuModelData& model) {
  if (model.key == "H200") return kH200;
  return SpecOf(model.memory_mib << 20, -1, model.sms, model.threads_per_sm, model.blocks_per_sm);
}

}  // namespace gpumux::sim
