// SPDX-License-Identifier: Apache-2.0
#include "daemon/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/log.h"
#include "modes/sharing_mode.h"

namespace gpumux::daemon {

namespace {
// Of the attempts (one a second) that ask a silent owner again who it is.
constexpr unsigned kAskEvery = 60;
// NVML is started anew so long after a GPU was lost, and then twice as long each time.
constexpr Time kFirstRecovery = std::chrono::seconds(1);
constexpr Time kSeldomRecovery = std::chrono::seconds(60);
}  // namespace

Error WhyLost(const gpu::Device& device, const Error& error) {
  Error why = error;
  // A library or GPU without the query will not come to have it.
  if (why.code == Code::kUnsupported) return why;
  if (why.code == Code::kNotFound) {
    why.message = fmt::format("GPU {} ({}) is not among the GPUs that NVML shows now", device.index.Label(),
                              device.uuid.ToString());
  }
  why.code = Code::kUnavailable;
  if (why.hint.empty()) {
    why.hint =
        "nvidia-smi and the kernel's log (Xid) tell more; a reset of the GPU or a reboot may bring it back, "
        "and gpumuxd notices";
  }
  return why;
}

GpuState::GpuState(gpu::Device d, const gpu::DeviceMemory& memory, core::ContextCost c)
    : device(std::move(d)),
      cost(c),
      // The first context on a GPU costs more than each further one: never promised.
      ledger(memory.total_bytes, memory.reserved_bytes + c.first_share_bytes) {}

core::GpuSnapshot GpuState::Snapshot() const {
  core::GpuSnapshot snapshot;
  snapshot.uuid = device.uuid;
  snapshot.index = device.index;
  snapshot.name = device.name;
  snapshot.total_bytes = ledger.TotalBytes();
  snapshot.reserve_bytes = ledger.ReserveBytes();
  snapshot.guaranteed_bytes = ledger.GuaranteedBytes();
  for (const auto& [id, tenant] : ledger.Tenants()) {
    snapshot.burst_bytes += tenant.ChargedBytes() - tenant.guaranteed_bytes;
  }
  snapshot.unmanaged_bytes = ledger.UnmanagedBytes();
  for (const auto& [pid, stranger] : strangers) snapshot.strangers.push_back(stranger.Describe());
  snapshot.unexplained_bytes = ledger.UnexplainedBytes();
  snapshot.promisable_bytes = ledger.PromisableBytes();
  snapshot.mode = mode;
  snapshot.tenants = ledger.Tenants().size();
  snapshot.context = cost;
  snapshot.absent = gone;
  if (lost) {
    snapshot.closed_error = *lost;
  } else if (going) {
    snapshot.closed_error = {Code::kConflict, *going, ""};
    snapshot.opens_soon = true;
  } else if (partitioned) {
    const Status status = modes::SupportsOn(core::Mode::kMig, {.partitioned = true});
    snapshot.closed_error = status.error();
    snapshot.closed_error.message = fmt::format("GPU {}: {}", device.index.Label(), status.error().message);
  } else if (!claim && !ledger.Tenants().empty()) {
    snapshot.closed_error = {
        Code::kConflict,
        fmt::format("GPU {} is being taken over from an earlier gpumuxd", device.index.Label()), ""};
    snapshot.opens_soon = true;
  } else if (!claim) {
    snapshot.closed_error = other_owner
                                ? DescribeOwner(device.index, *other_owner)
                                : Error{Code::kUnavailable, "the ledger of the GPU could not be claimed", ""};
  }
  for (const core::Mode each : core::kModes) {
    const Status status = modes::SupportsOn(
        each,
        {.compute_mode = compute_mode, .instance = device.instance.has_value(), .partitioned = partitioned});
    if (!status) snapshot.forbidden_modes[each] = status.error();
  }
  return snapshot;
}

Machine::Machine(gpu::GpuSource source, gpu::Nvml& nvml, EventLoop& loop, EventLog& events,
                 std::string api_path)
    : source_(std::move(source)), nvml_(nvml), loop_(loop), events_(events), api_path_(std::move(api_path)) {}

void Machine::Start(std::vector<UniqueFd> kept) {
  for (const gpu::Device& device : nvml_.Devices()) Add(device, kept);
  MarkInstances();
}

void Machine::Add(const gpu::Device& device, std::span<UniqueFd> kept) {
  auto gpu = std::make_unique<GpuState>(device, gpu::DeviceMemory{}, core::ContextCostOf(device.name));
  gpu->compute_mode = nvml_.Mode(device.uuid).value_or(gpu::ComputeMode::kUnknown);
  gpu->near = gpu::FindLocality(nvml_, device);
  gpu->multiprocessors = nvml_.Multiprocessors(device.uuid).value_or(0);
  if (!Learn(*gpu)) NoteLost(*gpu);
  const std::string name = OwnershipName(source_, device.uuid);
  const auto ours = std::find_if(kept.begin(), kept.end(), [&](const UniqueFd& socket) {
    return socket && IsClaimOf(socket.get(), name);
  });
  if (ours != kept.end())
    Own(*gpu, std::move(*ours));
  else
    Claim(*gpu);
  gpus_.push_back(std::move(gpu));
}

void Machine::ReadComputeModes() {
  for (const auto& gpu : gpus_) {
    if (!gpu->lost) gpu->compute_mode = nvml_.Mode(gpu->device.uuid).value_or(gpu::ComputeMode::kUnknown);
  }
}

bool Machine::Learn(GpuState& gpu) {
  const auto memory = nvml_.Memory(gpu.device.uuid);
  if (!memory) {
    gpu.lost = WhyLost(gpu.device, memory.error());
    return false;
  }
  gpu.lost.reset();
  gpu.ledger.SetDevice(memory->total_bytes, memory->reserved_bytes + gpu.cost.first_share_bytes);
  return true;
}

void Machine::NoteLost(const GpuState& gpu) {
  events_.Note(
      {.kind = EventKind::kGpuLost,
       .text = fmt::format("GPU {}: {}; no new promises", gpu.device.index.Label(), gpu.lost->ToString()),
       .gpus = {gpu.device.uuid}});
}

void Machine::NoteBack(const GpuState& gpu) {
  events_.Note({.kind = EventKind::kGpuBack,
                .text = fmt::format("GPU {} answers again", gpu.device.index.Label()),
                .gpus = {gpu.device.uuid}});
}

void Machine::Recover(Time now, bool missing) {
  bool lost = missing, found = false;
  for (auto& gpu : gpus_) {
    if (!gpu->gone && !gpu->Known() && Learn(*gpu)) {
      found = true;
      NoteBack(*gpu);
    }
    lost |= gpu->lost && !gpu->gone && gpu->lost->code != Code::kUnsupported;
  }
  if (!lost) {
    recover_at_.reset();
  } else if (!recover_at_) {
    // A first failure may be one of the moment.
    recover_wait_ = kFirstRecovery;
    recover_at_ = now + recover_wait_;
  } else if (now >= *recover_at_) {
    recover_wait_ = std::min(2 * recover_wait_, kSeldomRecovery);
    recover_at_ = now + recover_wait_;
    const Status started = nvml_.Restart();
    if (!started) LogWarning("NVML, started anew: {}", started.error().ToString());
    if (started) found |= TakeDevices();
  }
  if (found && on_found) on_found();
}

bool Machine::TakeDevices() {
  bool more = false;
  for (const gpu::Device& device : nvml_.Devices()) {
    // Also where NVML was started anew in the midst of a change.
    if (device.instance && instances_held_) continue;
    const auto at = Find(device.uuid);
    if (!at) {
      more = true;
      Add(device);
      continue;
    }
    GpuState& gpu = *gpus_[*at];
    if (gpu.device.index != device.index)
      LogInfo("GPU {} ({}) is GPU {} now", gpu.device.index.Label(), device.uuid.ToString(),
              device.index.Label());
    const bool other = gpu.device.instance != device.instance;
    gpu.device = device;
    gpu.compute_mode = nvml_.Mode(device.uuid).value_or(gpu.compute_mode);
    if (!other) continue;
    gpu.multiprocessors = nvml_.Multiprocessors(device.uuid).value_or(0);
    Learn(gpu);
  }
  if (!instances_held_) MarkInstances();
  return more;
}

void Machine::LookForInstances() {
  if (instances_held_) return;
  if (nvml_.Look() && TakeDevices() && on_found) on_found();
}

std::string Machine::DescribeInstances(const GpuState& gpu) const {
  std::string text;
  for (const gpu::Device& device : nvml_.Devices()) {
    if (device.instance && device.instance->gpu == gpu.device.uuid)
      text +=
          fmt::format("{}{} ({})", text.empty() ? "" : ", ", device.index.Label(), device.instance->profile);
  }
  return text.empty() ? "none" : text;
}

void Machine::MarkInstances() {
  const auto& devices = nvml_.Devices();
  std::set<gpu::Uuid> changed;
  for (auto& gpu : gpus_) {
    if (!gpu->device.instance) continue;
    const bool there =
        std::ranges::any_of(devices, [&](const auto& each) { return each.uuid == gpu->device.uuid; });
    if (there == gpu->gone || !std::exchange(gpu->told, true)) changed.insert(gpu->device.instance->gpu);
    if (there != gpu->gone) continue;
    gpu->gone = !there;
    if (there) {
      Learn(*gpu);
    } else {
      gpu->lost = Error{Code::kUnavailable,
                        fmt::format("instance {} is not there any more", gpu->device.index.Label()),
                        "see which there are: gpumux mig status"};
      NoteStrangers(*gpu, {}, events_);
    }
  }
  for (auto& gpu : gpus_) {
    if (gpu->device.instance) continue;
    const bool partitioned = nvml_.IsPartitioned(gpu->device.uuid);
    if (std::exchange(gpu->partitioned, partitioned) == partitioned && !changed.contains(gpu->device.uuid))
      continue;
    const std::string index = gpu->device.index.Label();
    events_.Note({.kind = EventKind::kMigChanged,
                  .text = partitioned ? fmt::format("GPU {} is partitioned (MIG); instances: {}", index,
                                                    DescribeInstances(*gpu))
                                      : fmt::format("GPU {} is not partitioned any more", index),
                  .gpus = {gpu->device.uuid}});
  }
}

void Machine::ClaimFree() {
  for (auto& gpu : gpus_) {
    if (!gpu->claim) Claim(*gpu);
  }
}

void Machine::Claim(GpuState& gpu) {
  const bool ask_anew = gpu.claims++ % kAskEvery == 0;
  auto claim = ClaimGpu(OwnershipName(source_, gpu.device.uuid), ask_anew ? std::nullopt : gpu.other_owner);
  if (!claim) {
    LogError("GPU {}: {}", gpu.device.index.Label(), claim.error().ToString());
    return;
  }
  // A queue that is full says less than what is known.
  if (claim->other && claim->other->pid == 0 && gpu.other_owner) claim->other = gpu.other_owner;
  const bool news = claim->socket || !gpu.other_owner || gpu.other_owner->pid != claim->other->pid;
  gpu.other_owner = claim->other;
  if (!claim->socket) {
    if (news) LogWarning("{}", DescribeOwner(gpu.device.index, *gpu.other_owner).ToString());
    return;
  }
  Own(gpu, std::move(claim->socket));
}

void Machine::TakeClaim(UniqueFd socket) {
  for (auto& gpu : gpus_) {
    if (gpu->claim || !IsClaimOf(socket.get(), OwnershipName(source_, gpu->device.uuid))) continue;
    return Own(*gpu, std::move(socket));
  }
}

void Machine::Own(GpuState& gpu, UniqueFd socket) {
  gpu.other_owner.reset();
  gpu.claim = std::move(socket);
  gpu.claim_watch =
      loop_.OnReadable(gpu.claim.get(), [this, &gpu] { GreetClaimants(gpu.claim.get(), api_path_); });
  events_.Note({.kind = EventKind::kGpuOwned,
                .text = fmt::format("GPU {} ({}, {}) is ours", gpu.device.index.Label(), gpu.device.name,
                                    gpu.device.uuid.ToString()),
                .gpus = {gpu.device.uuid}});
}

std::vector<core::GpuSnapshot> Machine::Snapshot() const {
  std::vector<core::GpuSnapshot> snapshots;
  for (const auto& gpu : gpus_) snapshots.push_back(gpu->Snapshot());
  return snapshots;
}

Result<size_t> Machine::FindNamed(std::string_view text) const {
  const auto index = gpu::ParseIndex(text);
  std::optional<size_t> found;
  for (size_t at = 0; at < gpus_.size(); ++at) {
    const gpu::Device& device = gpus_[at]->device;
    if (gpus_[at]->gone) continue;
    const bool is =
        index ? device.index == *index : text.size() > 4 && device.uuid.ToString().starts_with(text);
    if (is && found) return Fail(Code::kInvalid, fmt::format("gpu: {} stands for several GPUs", text));
    if (is) found = at;
  }
  if (found) return *found;
  return Fail(Code::kNotFound, fmt::format("there is no GPU \"{}\" on this machine", text),
              "see them with: gpumux status");
}

size_t Machine::GpuCount() const {
  return static_cast<size_t>(
      std::ranges::count_if(gpus_, [](const auto& gpu) { return !gpu->device.instance.has_value(); }));
}

std::optional<size_t> Machine::Find(const gpu::Uuid& uuid) const {
  for (size_t i = 0; i < gpus_.size(); ++i) {
    if (gpus_[i]->device.uuid == uuid) return i;
  }
  return std::nullopt;
}

}  // namespace gpumux::daemon
