// SPDX-License-Identifier: Apache-2.0
#include "daemon/xids.h"

#include <fmt/format.h>

#include <algorithm>

namespace gpumux::daemon {

namespace {

struct XidRow {
  unsigned number;
  const char* means;
};

// Of NVIDIA's catalogue of Xids those that a machine for computing is likely to see.
constexpr XidRow kXids[] = {
    {13, "exception in a kernel: an error of a program"},
    {31, "MMU fault: an illegal access of a program"},
    {32, "corrupted push buffer: an error of a program"},
    {43, "channel reset: an error of a program"},
    {45, "work of a program was removed, as when it is killed"},
    {46, "the GPU stopped processing; it needs a reset"},
    {48, "memory error that cannot be corrected"},
    {62, "internal controller halted; the GPU needs a reset"},
    {63, "a row of memory is to be replaced at the next reset"},
    {64, "a row of memory could not be replaced; the GPU needs a reset"},
    {68, "video decoder exception: an error of a program"},
    {69, "class exception: an error of a program"},
    {74, "NVLink error"},
    {79, "the GPU fell off the bus; the machine needs a restart"},
    {92, "many memory errors that were corrected"},
    {94, "contained memory error: one program lost its work"},
    {95, "uncontained memory error; the GPU needs a reset"},
    {109, "context switch timed out; the GPU needs a reset"},
    {119, "system processor (GSP) does not answer; the GPU needs a reset"},
    {120, "system processor (GSP) error; the GPU needs a reset"},
    {140, "the GPU needs a reset"},
    {143, "the GPU needs a reset"},
    {154, "what the GPU needs to recover has changed: see nvidia-smi -q"},
    {155, "the GPU needs a reset"},
    {156, "the GPU needs a reset"},
    {158, "the GPU needs a reset"},
};

}  // namespace

std::string DescribeXid(unsigned number) {
  const auto* row =
      std::find_if(std::begin(kXids), std::end(kXids), [&](const XidRow& r) { return r.number == number; });
  if (row == std::end(kXids)) return fmt::format("Xid {}", number);
  return fmt::format("Xid {} ({})", number, row->means);
}

void Xids::Tell(const GpuState& gpu, unsigned number, const std::string& more) {
  events_.Note({.kind = EventKind::kGpuXid,
                .text = fmt::format("GPU {}: {}{}", gpu.device.index.Label(), DescribeXid(number), more),
                .gpus = {gpu.device.uuid}});
}

void Xids::Take(const std::vector<gpu::Xid>& xids) {
  const Time now = clock_.Now();
  for (const gpu::Xid& each : xids) {
    const auto at = machine_.Find(each.gpu);
    if (!at) continue;
    GpuState& gpu = *machine_.gpus()[*at];
    ++gpu.xids[each.number];
    const auto [recent, first] = recent_.try_emplace({*at, each.number}, Untold{.told_at = now});
    if (first)
      Tell(gpu, each.number, "");
    else
      ++recent->second.count;
  }
  for (auto it = recent_.begin(); it != recent_.end();) {
    auto& [key, untold] = *it;
    if (now < untold.told_at + kTogether) {
      ++it;
    } else if (untold.count == 0) {
      it = recent_.erase(it);
    } else {
      Tell(*machine_.gpus()[key.first], key.second,
           fmt::format(", {} more in the last minute", untold.count));
      untold = {.told_at = now};
      ++it;
    }
  }
}

}  // namespace gpumux::daemon
