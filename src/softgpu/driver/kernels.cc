// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "softgpu/driver/memory.h"
#include "softgpu/protocol.h"

namespace gpumux::softgpu {

namespace {

// What moves through memory takes its time: 4 TB/s, of the 4.8 of the data
// sheet what a simple kernel reaches.
uint64_t WithTraffic(uint64_t bytes) { return kDefaultNs + bytes / 4000; }

constexpr uint64_t kMaxWords = 1ULL << 44;

bool Fill(uint64_t pointer, uint32_t value, uint64_t count) {
  Memory& memory = Memory::Get();
  if (!memory.IsDevice(pointer, count * 4)) return count == 0;
  memory.Touch(pointer, count * 4);
  return memory.WithAccess(pointer, count * 4, pointer, 0,
                           [&] { std::fill_n(reinterpret_cast<uint32_t*>(pointer), count, value); });
}

bool Saxpy(float a, uint64_t x, uint64_t y, uint64_t count) {
  Memory& memory = Memory::Get();
  if (!memory.IsDevice(x, count * 4) || !memory.IsDevice(y, count * 4)) return count == 0;
  memory.Touch(x, count * 4);
  memory.Touch(y, count * 4);
  return memory.WithAccess(x, count * 4, y, count * 4, [&] {
    const auto* from = reinterpret_cast<const float*>(x);
    auto* to = reinterpret_cast<float*>(y);
    for (uint64_t i = 0; i < count; ++i) to[i] = std::fma(a, from[i], to[i]);
  });
}

bool Checksum(uint64_t pointer, uint64_t count, uint64_t out) {
  Memory& memory = Memory::Get();
  if (!memory.IsDevice(out, 8) || (count > 0 && !memory.IsDevice(pointer, count * 4))) return false;
  memory.Touch(pointer, count * 4);
  memory.Touch(out, 8);
  return memory.WithAccess(pointer, count * 4, out, 8, [&] {
    const auto* words = reinterpret_cast<const uint32_t*>(pointer);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; ++i) sum += words[i];
    uint64_t before;
    memcpy(&before, reinterpret_cast<void*>(out), sizeof(before));
    sum += before;
    memcpy(reinterpret_cast<void*>(out), &sum, sizeof(sum));
  });
}

}  // namespace

const std::vector<uint64_t>* KnownParameters(std::string_view name) {
  static const auto& known = *new std::map<std::string_view, std::vector<uint64_t>>{
      {"spin", {8}}, {"fill", {8, 4, 8}}, {"saxpy", {4, 8, 8, 8}}, {"checksum", {8, 8, 8}}, {"fault", {}}};
  auto it = known.find(name);
  return it != known.end() ? &it->second : nullptr;
}

KernelRun PrepareKernel(std::string_view name, const std::vector<uint64_t>& a) {
  if (name == "spin") return {std::min(a[0], kMaxKernelNs), nullptr};
  if (name == "fault") return {kDefaultNs, [] { return false; }};
  if (name == "fill") {
    if (a[2] > kMaxWords) return {kDefaultNs, [] { return false; }};
    return {WithTraffic(a[2] * 4), [=] { return Fill(a[0], static_cast<uint32_t>(a[1]), a[2]); }};
  }
  if (name == "saxpy") {
    if (a[3] > kMaxWords) return {kDefaultNs, [] { return false; }};
    float factor;
    memcpy(&factor, &a[0], sizeof(factor));
    return {WithTraffic(a[3] * 12), [=] { return Saxpy(factor, a[1], a[2], a[3]); }};
  }
  if (name == "checksum") {
    if (a[1] > kMaxWords) return {kDefaultNs, [] { return false; }};
    return {WithTraffic(a[1] * 4), [=] { return Checksum(a[0], a[1], a[2]); }};
  }
  return {kDefaultNs, nullptr};
}

}  // namespace gpumux::softgpu
