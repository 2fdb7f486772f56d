// SPDX-License-Identifier: Apache-2.0
#include "core/change.h"

#include <fmt/format.h>

#include <algorithm>

namespace gpumux::core {

namespace {

const GpuSnapshot* Find(const std::vector<GpuSnapshot>& gpus, const gpu::Uuid& uuid) {
  const auto it = std::find_if(gpus.begin(), gpus.end(), [&](const auto& gpu) { return gpu.uuid == uuid; });
  return it == gpus.end() ? nullptr : &*it;
}

Status JudgeTime(const Change& change, const Changeable& tenant,
                 const std::map<gpu::Uuid, std::string>& kept) {
  if (*change.time_limit <= tenant.ran) {
    return Fail(Code::kConflict,
                fmt::format("{} has run for {} already", tenant.name, FormatDuration(tenant.ran)),
                "to end it now: gpumux stop");
  }
  if (!tenant.time_limit || *change.time_limit <= *tenant.time_limit) return {};
  for (const Share& share : tenant.shares) {
    const auto it = kept.find(share.gpu);
    if (it == kept.end()) continue;
    return Fail(Code::kConflict,
                fmt::format("{} waits for its GPU and counts on the time limit of {}", it->second,
                            FormatDuration(*tenant.time_limit)),
                "try again when it has started");
  }
  return {};
}

// Of one GPU: whether `share` may become `next` there.
Status JudgeShare(const Change& change, const Changeable& tenant, const Share& share, uint64_t used,
                  const Share& next, const GpuSnapshot& gpu, const std::map<gpu::Uuid, std::string>& kept) {
  if (used > next.limit_bytes.value_or(UINT64_MAX) && !change.as_it_frees) {
    return Fail(Code::kConflict,
                fmt::format("{} uses {} of GPU {}, more than the limit of {} that is asked for", tenant.name,
                            FormatBytes(used), gpu.index.Label(), FormatBytes(*next.limit_bytes)),
                "let it free memory first, or use --as-it-frees: it then gets no more until it is below");
  }
  const uint64_t before = std::max(share.guaranteed_bytes, used);
  const uint64_t after = std::max(next.guaranteed_bytes, used);
  // Also what it may only use: those who wait were told by when it is theirs.
  const bool may_use_more = share.limit_bytes && next.limit_bytes.value_or(UINT64_MAX) > *share.limit_bytes;
  if (after <= before && !may_use_more) return {};
  if (const auto it = kept.find(gpu.uuid); it != kept.end()) {
    return Fail(Code::kConflict,
                fmt::format("GPU {} is kept for {}, which waits in the queue", gpu.index.Label(), it->second),
                "try again when it has started");
  }
  if (after <= before) return {};
  const uint64_t more = after - before;
  if (gpu.Closed()) return tl::unexpected(gpu.closed_error);
  if (more > gpu.promisable_bytes) {
    return Fail(
        Code::kConflict,
        fmt::format("needs {} more on GPU {}, {}", FormatBytes(more), gpu.index.Label(), DescribeRoom(gpu)),
        "ask for less, or try again when others have ended");
  }
  return {};
}

Status JudgeQuotas(const std::vector<Share>& before, const std::vector<Share>& after,
                   const std::vector<Bound>& bounds) {
  uint64_t old_bytes = 0, new_bytes = 0;
  for (const Share& share : before) old_bytes += share.guaranteed_bytes;
  for (const Share& share : after) new_bytes += share.guaranteed_bytes;
  if (new_bytes <= old_bytes) return {};
  for (const Bound& bound : bounds) {
    if (bound.HasRoomFor(new_bytes - old_bytes)) continue;
    return Fail(Code::kDenied,
                fmt::format("needs {} more: {}", FormatBytes(new_bytes - old_bytes), DescribeBytes(bound)),
                HowToRaise(bound, "memory"));
  }
  return {};
}

}  // namespace

Result<std::vector<Share>> JudgeChange(const Change& change, const Changeable& tenant,
                                       const std::vector<GpuSnapshot>& gpus, const std::vector<Bound>& bounds,
                                       const std::map<gpu::Uuid, std::string>& kept) {
  if (change.time_limit) {
    if (Status status = JudgeTime(change, tenant, kept); !status) return tl::unexpected(status.error());
  }
  if (!change.mem) return tenant.shares;
  if (!Shares(tenant.mode)) {
    return Fail(Code::kUnsupported,
                fmt::format("{} is in mode {}: it has all of its {}", tenant.name, Name(tenant.mode),
                            tenant.mode == Mode::kMig ? "instance" : "GPU"),
                "");
  }
  Request request;
  request.mem = change.mem;
  request.mem_limit = change.mem_limit;
  std::vector<Share> after;
  for (size_t slot = 0; slot < tenant.shares.size(); ++slot) {
    const Share& share = tenant.shares[slot];
    const GpuSnapshot* gpu = Find(gpus, share.gpu);
    if (!gpu) return Fail(Code::kNotFound, fmt::format("GPU {} is gone", share.gpu.ToString()));
    if (auto never = NeverHere(request, tenant.mode, *gpu)) return tl::unexpected(*never);
    after.push_back(ShareOn(request, *gpu));
    Status status = JudgeShare(change, tenant, share, tenant.used_bytes[slot], after.back(), *gpu, kept);
    if (!status) return tl::unexpected(status.error());
  }
  if (Status status = JudgeQuotas(tenant.shares, after, bounds); !status)
    return tl::unexpected(status.error());
  return after;
}

}  // namespace gpumux::core
