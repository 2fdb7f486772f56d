// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <random>

namespace gpumux::test {

namespace {

constexpr uint64_t kMiB = 1 << 20;

struct Weight {
  Kind kind;
  unsigned weight;
};
constexpr Weight kWeights[] = {
    {Kind::kAllocate, 40}, {Kind::kFree, 18},        {Kind::kFreeWrongly, 5}, {Kind::kMap, 8},
    {Kind::kSetLimit, 4},  {Kind::kResetPrimary, 2}, {Kind::kShare, 5},       {Kind::kAskFree, 3},
    {Kind::kFork, 6},      {Kind::kExec, 2},         {Kind::kDie, 3},         {Kind::kBurst, 6},
};

}  // namespace

Program Generate(uint64_t seed, unsigned steps) {
  std::mt19937_64 random(seed);
  unsigned sum = 0;
  for (const Weight& each : kWeights) sum += each.weight;
  Program program{seed, {}};
  for (unsigned i = 0; i < steps; ++i) {
    auto at = static_cast<unsigned>(random() % sum);
    const Weight* chosen = kWeights;
    while (at >= chosen->weight) at -= (chosen++)->weight;
    program.steps.push_back({chosen->kind, static_cast<uint32_t>(random()), random(), random()});
  }
  return program;
}

uint64_t BytesOf(uint64_t random) {
  const uint64_t value = random >> 3;
  switch (random % 8) {
    case 0:
      return 1 + value % kMiB;  // shares a slab
    case 1: {
      constexpr uint64_t kEdges[] = {1,        512,          513,           kMiB,     kMiB + 1,
                                     2 * kMiB, 2 * kMiB + 1, 32 * kMiB - 1, 32 * kMiB};
      return kEdges[value % std::size(kEdges)];
    }
    case 2:
    case 3:
    case 4:
      return (1 + value % 100) * 2 * kMiB;
    case 5:
      return kMiB + value % (64 * kMiB);
    case 6:
      return kMiB + value % (700 * kMiB);
    default:
      return (1 + value % 1000) * 2 * kMiB;
  }
}

}  // namespace gpumux::test
