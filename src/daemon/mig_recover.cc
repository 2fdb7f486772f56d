// SPDX-License-Identifier: Apache-2.0
//
// MigService: what it finds on the disk: a change that a daemon before did not finish, and
// layouts that outlive a reset (docs/design/mig.md, "Apply").
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/whole_file.h"
#include "daemon/mig_service.h"
#include "gpu/mig_reading.h"

namespace gpumux::daemon {

using core::mig::Layout;
using core::mig::Placed;
using core::mig::Step;

namespace {
constexpr Time kTryAgain = std::chrono::seconds(5);
}  // namespace

bool MigService::IsKept(const gpu::Uuid& gpu) const { return kept_.contains(gpu); }

Status MigService::Keep(const gpu::Uuid& gpu, const std::vector<MigPart>& parts) {
  MigKept next = kept_;
  next[gpu] = parts;
  if (Status written = WriteWholeFile(settings_.kept_file, FormatMigKept(next)); !written) return written;
  kept_ = std::move(next);
  tried_.erase(gpu);
  return {};
}

Status MigService::Forget(const std::string& name) {
  const auto found = FindGpu(name);
  if (!found) return tl::unexpected(found.error());
  MigKept next = kept_;
  next.erase(machine_.gpus()[*found]->device.uuid);
  if (Status written = WriteWholeFile(settings_.kept_file, FormatMigKept(next)); !written) return written;
  kept_ = std::move(next);
  return {};
}

void MigService::Recover() {
  if (const auto text = ReadWholeFile(settings_.kept_file, kMaxMigRecordBytes)) {
    if (auto kept = ParseMigKept(*text))
      kept_ = std::move(*kept);
    else
      LogError("{}: {}", settings_.kept_file, kept.error().message);
  }
  if (const auto text = ReadWholeFile(settings_.change_file, kMaxMigRecordBytes)) {
    if (auto record = ParseMigChange(*text)) {
      unfinished_ = std::move(*record);
    } else {
      LogError("{}: {}", settings_.change_file, record.error().message);
      ::unlink(settings_.change_file.c_str());
    }
  }
  PutBackUnfinished();
  RestoreKept();
}

// A daemon died in the middle of a change: nobody got what it made, so that what was there can be made again.
// As soon as its GPU is there, and ours.
void MigService::PutBackUnfinished() {
  if (!unfinished_) return;
  const auto found = machine_.Find(unfinished_->gpu);
  if (!found || !machine_.gpus()[*found]->claim || machine_.gpus()[*found]->lost) return;
  const MigChangeRecord record = *std::exchange(unfinished_, std::nullopt);
  const GpuState& gpu = *machine_.gpus()[*found];
  const std::string label = gpu.device.index.Label();
  ::unlink(settings_.change_file.c_str());
  auto model = gpu::ReadMigModel(machine_.nvml(), gpu.device);
  if (!model) {
    Note(
        EventKind::kMigFailed,
        fmt::format("GPU {}: a change of its instances was interrupted, and what is there cannot be read: {}",
                    label, model.error().message),
        gpu.device.uuid, record.by);
    return;
  }
  MigSteps steps(machine_.nvml().mig(), gpu.device.uuid, std::move(*model));
  steps.Remember(record.before);
  const auto now = steps.Look();
  Layout wanted = record.wanted, there = now ? LayoutOf(*now) : Layout{};
  std::ranges::sort(wanted);
  std::string told;
  EventKind kind = EventKind::kMigApplied;
  if (!now) {
    told = now.error().message;
    kind = EventKind::kMigFailed;
  } else if (there == wanted) {
    told = "it had been carried out";
  } else {
    const auto present = Present(gpu.device.uuid, there);
    const auto back = present ? core::mig::StepsTo(steps.model(), *present, LayoutOf(record.before))
                              : tl::unexpected(present.error());
    std::vector<std::string> left;
    if (!back) left.push_back(back.error().message);
    for (const Step& step : back ? back->steps : std::vector<Step>{}) {
      if (Status done = steps.Do(step); !done) left.push_back(done.error().message);
    }
    told = left.empty() ? "what was there before is back"
                        : fmt::format("not put back: {}", fmt::join(left, "; "));
    if (!left.empty()) kind = EventKind::kMigFailed;
  }
  Note(kind,
       fmt::format("GPU {}: a change of its instances was interrupted by the daemon's end; {}", label, told),
       gpu.device.uuid, record.by);
  machine_.LookForInstances();
}

// Instances do not outlive a reset. Only where nothing is there: somebody may have made others.
void MigService::RestoreKept() {
  for (const auto& [uuid, parts] : kept_) {
    const auto found = machine_.Find(uuid);
    if (!found || parts.empty()) continue;
    if (const auto tried = tried_.find(uuid); tried != tried_.end() && clock_.Now() < tried->second.next)
      continue;
    const GpuState& gpu = *machine_.gpus()[*found];
    if (gpu.lost || !gpu.claim) continue;
    // Each second: nothing is asked of the driver as long as there is an instance.
    const bool any = std::ranges::any_of(machine_.gpus(), [&, &uuid = uuid](const auto& each) {
      return each->device.instance && each->device.instance->gpu == uuid && !each->gone;
    });
    if (any) continue;
    const std::string label = gpu.device.index.Label();
    auto model = gpu::ReadMigModel(machine_.nvml(), gpu.device);
    const auto fail = [&, &uuid = uuid](const std::string& why) {
      Tried& tried = tried_[uuid];
      tried.next = clock_.Now() + kTryAgain;
      // The same again is no news.
      if (std::exchange(tried.why, why) == why) return;
      Note(EventKind::kMigFailed,
           fmt::format("GPU {}: its kept MIG instances cannot be made again: {}", label, why), uuid,
           std::nullopt);
    };
    if (!model) {
      fail(model.error().ToString());
      continue;
    }
    MigSteps steps(machine_.nvml().mig(), uuid, std::move(*model));
    const auto now = steps.Look();
    if (!now || !now->empty()) continue;
    steps.Remember(parts);
    const auto plan = core::mig::StepsTo(steps.model(), {}, LayoutOf(parts));
    if (!plan) {
      fail(plan.error().message);
      continue;
    }
    std::vector<std::string> left;
    for (const Step& step : plan->steps) {
      if (Status done = steps.Do(step); !done) left.push_back(done.error().message);
    }
    if (left.empty()) {
      tried_.erase(uuid);
      Note(EventKind::kMigApplied,
           fmt::format("GPU {}: its {} kept MIG instance(s) were made again", label, parts.size()), uuid,
           std::nullopt);
    } else {
      fail(fmt::format("{}", fmt::join(left, "; ")));
    }
    machine_.LookForInstances();
  }
}

}  // namespace gpumux::daemon
