// SPDX-License-Identifier: Apache-2.0
#include "workload/frameworks.h"

#include <algorithm>

namespace gpumux::workload {
namespace {

Outcome LikeTensorFlow(Holdings& holdings, uint64_t free_bytes) {
  constexpr uint64_t kForLibraries = 1800 * kMiB;
  constexpr uint64_t kGiveUpBelow = 2 * kMiB;
  Outcome outcome;
  uint64_t size = free_bytes > 2 * kForLibraries ? free_bytes - kForLibraries : free_bytes / 2;
  size = size / 256 * 256;
  while (size >= kGiveUpBelow && !holdings.Take(AllocApi::kPlain, size, outcome)) {
    if (!IsRefusal(outcome.result)) break;
    size = static_cast<uint64_t>(static_cast<double>(size) * 0.9) / 256 * 256;
  }
  return outcome;
}

Outcome LikeJax(Holdings& holdings, uint64_t total_bytes) {
  Outcome outcome;
  holdings.Take(AllocApi::kPlain, total_bytes / 4 * 3 / 256 * 256, outcome);
  return outcome;
}

Outcome LikePyTorch(Holdings& holdings, uint64_t stop_at) {
  // Tensor sizes of a model that is being built: small ones (shared 2 MiB
  // segments), middle ones (20 MiB segments), then large ones of their own.
  constexpr uint64_t kSegments[] = {2 * kMiB,   20 * kMiB,  20 * kMiB, 62 * kMiB,
                                    142 * kMiB, 258 * kMiB, 512 * kMiB};
  Outcome outcome;
  for (size_t i = 0;; ++i) {
    uint64_t size = kSegments[i % std::size(kSegments)];
    if (stop_at > 0) {
      if (outcome.bytes >= stop_at) break;
      const uint64_t rest = (stop_at - outcome.bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
      size = std::min(size, rest);
    }
    if (!holdings.Take(AllocApi::kPlain, size, outcome)) break;
  }
  return outcome;
}

}  // namespace

Outcome TakeLike(Framework framework, Holdings& holdings, uint64_t total_bytes, uint64_t free_bytes,
                 uint64_t stop_at) {
  switch (framework) {
    case Framework::kTensorFlow:
      return LikeTensorFlow(holdings, free_bytes);
    case Framework::kJax:
      return LikeJax(holdings, total_bytes);
    case Framework::kPyTorch:
      return LikePyTorch(holdings, stop_at);
    case Framework::kNone:
      break;
  }
  return {};
}

}  // namespace gpumux::workload
