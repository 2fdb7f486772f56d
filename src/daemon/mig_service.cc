// SPDX-License-Identifier: Apache-2.0
#include "daemon/mig_service.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>

#include "base/kill_point.h"
#include "base/log.h"
#include "base/units.h"
#include "base/whole_file.h"
#include "daemon/user_name.h"
#include "gpu/mig_reading.h"

namespace gpumux::daemon {

using core::mig::Layout;
using core::mig::Placed;
using core::mig::Step;

namespace {

constexpr Time kLookEvery = std::chrono::milliseconds(100);

Layout Going(const std::vector<Step>& steps) {
  Layout layout;
  for (const Step& step : steps) {
    if (step.what == Step::What::kDestroy) layout.push_back(step.instance);
  }
  return layout;
}

}  // namespace

struct MigService::Change {
  MigChangeRequest request;
  Done done;
  gpu::Uuid gpu;
  std::string label;
  MigSteps steps;
  std::vector<MigPart> before;
  std::vector<GpuState*> going;  // the devices of instances that go: they stay in the machine's list
  core::mig::Change plan;
  size_t carried_out = 0;
  MigOutcome outcome;
  std::optional<Time> give_up, began;
  bool closed = false, stopping = false;
  EventLoop::Watch timer;
};

MigService::MigService(Machine& machine, Tenants& tenants, Monitor& monitor, EventLog& events,
                       EventLoop& loop, const Clock& clock, Settings settings)
    : machine_(machine),
      tenants_(tenants),
      monitor_(monitor),
      events_(events),
      loop_(loop),
      clock_(clock),
      settings_(std::move(settings)) {}

MigService::~MigService() = default;

Result<size_t> MigService::FindGpu(const std::string& name) const {
  const auto& gpus = machine_.gpus();
  if (name.empty()) {
    std::optional<size_t> only;
    for (size_t at = 0; at < gpus.size(); ++at) {
      if (gpus[at]->device.instance) continue;
      if (only) return Fail(Code::kInvalid, "this machine has several GPUs", "name one with --gpu");
      only = at;
    }
    if (only) return *only;
    return Fail(Code::kNotFound, "this machine has no GPU");
  }
  auto found = machine_.FindNamed(name);
  if (found && gpus[*found]->device.instance)
    return Fail(Code::kInvalid, fmt::format("{} is an instance, not a GPU", name), "name its GPU");
  return found;
}

Status MigService::CheckRights() const {
  if (::geteuid() == 0 || ::access(settings_.rights_file.c_str(), R_OK) == 0) return {};
  return Fail(Code::kDenied,
              "changing MIG instances needs root, and this gpumuxd runs as " + UserName(::geteuid()),
              fmt::format("a machine's daemon may (systemctl enable --now gpumuxd), or whoever can read {}",
                          settings_.rights_file));
}

Result<MigService::ByInstance> MigService::DevicesOf(const gpu::Uuid& gpu) const {
  const auto instances = machine_.nvml().mig().Instances(gpu);
  // Not to know who is where is not the same as nobody.
  if (!instances) return tl::unexpected(instances.error());
  ByInstance devices;
  for (const gpu::MigInstance& each : *instances) {
    auto& of = devices[{each.placement.start, each.profile}];
    for (const auto& state : machine_.gpus()) {
      const auto& is = state->device.instance;
      if (is && is->gpu == gpu && is->gpu_instance == each.id && !state->gone) of.push_back(state.get());
    }
  }
  return devices;
}

void MigService::AddUsersOn(const GpuState& gpu, std::vector<std::string>& users) const {
  for (const auto& [id, entry] : gpu.ledger.Tenants()) {
    const Tenant* tenant = tenants_.Find(id);
    users.push_back(tenant ? fmt::format("{} ({})", tenant->request.ask.name, id) : id);
  }
  for (const auto& [pid, stranger] : gpu.strangers) users.push_back(stranger.Describe());
}

std::vector<std::string> MigService::UsersOn(const std::vector<GpuState*>& devices) const {
  std::vector<std::string> users;
  for (const GpuState* state : devices) AddUsersOn(*state, users);
  return users;
}

Result<std::vector<core::mig::Present>> MigService::Present(const gpu::Uuid& gpu,
                                                            const Layout& layout) const {
  auto devices = DevicesOf(gpu);
  if (!devices) return tl::unexpected(devices.error());
  std::vector<core::mig::Present> present;
  for (const Placed& each : layout) present.push_back({each, UsersOn((*devices)[each])});
  return present;
}

// Looks, and plans; nothing is changed.
Status MigService::Prepare(const MigChangeRequest& request) {
  if (change_)
    return Fail(Code::kConflict, "another change of MIG instances is under way, of GPU " + change_->label,
                "wait for it: gpumux mig status");
  if (unfinished_)
    return Fail(Code::kConflict,
                "a change that was interrupted waits to be put back: " + unfinished_->gpu.ToString(),
                "see gpumux events");
  const auto found = FindGpu(request.gpu);
  if (!found) return tl::unexpected(found.error());
  const GpuState& gpu = *machine_.gpus()[*found];
  if (!gpu.claim)
    return Fail(Code::kConflict, fmt::format("GPU {} is another daemon's", gpu.device.index.Label()),
                "see gpumux status");
  auto model = gpu::ReadMigModel(machine_.nvml(), gpu.device);
  if (!model) return tl::unexpected(model.error());
  // Whoever made or removed some a moment ago.
  machine_.LookForInstances();
  monitor_.RefreshAll();
  MigSteps steps(machine_.nvml().mig(), gpu.device.uuid, std::move(*model));
  auto before = steps.Look();
  if (!before) return tl::unexpected(before.error());
  auto devices = DevicesOf(gpu.device.uuid);
  if (!devices) return tl::unexpected(devices.error());
  std::vector<core::mig::Present> present;
  for (const MigPart& part : *before) present.push_back({part.instance, UsersOn((*devices)[part.instance])});
  std::vector<std::string> users;
  if (request.drain != MigDrain::kRefuse || request.dry_run) {
    for (auto& each : present) {
      if (std::ranges::count(request.wanted, each.instance) > 0) continue;
      users.insert(users.end(), each.users.begin(), each.users.end());
      each.users.clear();
    }
  }
  auto plan = core::mig::StepsTo(steps.model(), present, request.wanted);
  if (!plan) {
    Error error = plan.error();
    if (error.code == Code::kConflict && error.message.starts_with("in use"))
      error.hint = "end what runs there, or let gpumux: --drain wait, or --drain stop";
    return tl::unexpected(std::move(error));
  }
  if (!plan->steps.empty() && !request.dry_run) {
    if (Status rights = CheckRights(); !rights) return rights;
  }
  steps.Remember(*before);
  std::vector<GpuState*> going;
  for (const Placed& each : Going(plan->steps)) {
    const auto& of = (*devices)[each];
    going.insert(going.end(), of.begin(), of.end());
  }
  MigOutcome outcome;
  outcome.gpu = gpu.device.index.Label();
  for (const Step& step : plan->steps) outcome.steps.push_back(core::mig::ToString(steps.model(), step));
  outcome.stopped = std::move(users);
  change_ = std::make_unique<Change>(Change{.request = request,
                                            .done = {},
                                            .gpu = gpu.device.uuid,
                                            .label = gpu.device.index.Label(),
                                            .steps = std::move(steps),
                                            .before = std::move(*before),
                                            .going = std::move(going),
                                            .plan = std::move(*plan),
                                            .outcome = std::move(outcome),
                                            .give_up = {},
                                            .began = {},
                                            .timer = {}});
  return {};
}

void MigService::Apply(const MigChangeRequest& request, Done done) {
  if (Status prepared = Prepare(request); !prepared) return done(tl::unexpected(prepared.error()));
  change_->done = std::move(done);
  if (request.dry_run || change_->plan.steps.empty()) {
    Status kept;
    if (!request.dry_run && request.keep) kept = Keep(change_->gpu, change_->before);
    if (!kept) return Finish(tl::unexpected(kept.error()));
    return Finish(change_->outcome);
  }
  Close();
  if (request.wait) change_->give_up = clock_.Now() + *request.wait;
  Drain();
}

// Instances that go are given to nobody from now on; those that stay go on.
void MigService::Close() {
  change_->closed = true;
  for (GpuState* state : change_->going)
    state->going = fmt::format("instance {} is to be removed, as {} told", state->device.index.Label(),
                               UserName(change_->request.by));
}

void MigService::Drain() {
  const std::vector<std::string> users = UsersOn(change_->going);
  if (users.empty()) return Begin();
  if (change_->request.drain == MigDrain::kStop && !change_->stopping) {
    change_->stopping = true;
    for (const GpuState* state : change_->going) {
      std::vector<std::string> ids;
      for (const auto& [id, entry] : state->ledger.Tenants()) ids.push_back(id);
      for (const std::string& id : ids) {
        if (Status stopped = stop(
                id, fmt::format("its MIG instance is removed, as {} told", UserName(change_->request.by)));
            !stopped)
          LogWarning("tenant {}: {}", id, stopped.error().ToString());
      }
    }
  }
  if (change_->give_up && clock_.Now() >= *change_->give_up)
    return Finish(Fail(Code::kTimeout,
                       fmt::format("still in use, and nothing was changed: {}", fmt::join(users, ", ")),
                       "end what runs there, or wait longer: --wait"));
  change_->timer = loop_.After(kLookEvery, [this] {
    monitor_.RefreshAll();
    Drain();
  });
}

// What there is goes to the disk before the first step.
void MigService::Begin() {
  // Those who used it may have taken hours, in which others may have changed instances.
  const auto now = change_->steps.Look();
  if (!now) return Finish(tl::unexpected(now.error()));
  if (*now != change_->before)
    return Finish(Fail(Code::kConflict,
                       "somebody else has changed instances meanwhile, and nothing was changed here",
                       "see gpumux mig status, and ask again"));
  const MigChangeRecord record{change_->gpu, change_->before, change_->request.wanted, change_->request.by};
  if (Status written = WriteWholeFile(settings_.change_file, FormatMigChange(record)); !written) {
    // It may be there, and not be sure to stay.
    ::unlink(settings_.change_file.c_str());
    return Finish(tl::unexpected(written.error()));
  }
  KillPoint("mig-change-written");
  change_->began = clock_.Now();
  machine_.HoldInstances(true);
  Next();
}

void MigService::Next() {
  if (change_->carried_out == change_->plan.steps.size()) {
    const auto now = change_->steps.Look();
    if (!now) return Failed(now.error());
    Layout wanted = change_->request.wanted;
    std::ranges::sort(wanted);
    if (LayoutOf(*now) != wanted)
      return Failed({Code::kInternal, "the driver shows other instances than were made", ""});
    if (change_->request.keep || kept_.contains(change_->gpu)) {
      if (Status kept = Keep(change_->gpu, *now); !kept) LogError("MIG: {}", kept.error().ToString());
    }
    change_->outcome.changed = true;
    return Finish(change_->outcome);
  }
  const Step step = change_->plan.steps[change_->carried_out];
  if (Status done = change_->steps.Do(step); !done) return Failed(done.error());
  ++change_->carried_out;
  KillPoint("mig-step-done");
  // Whoever else waits for the loop is served between two steps.
  loop_.Post([this] { Next(); });
}

void MigService::Failed(const Error& error) {
  const auto& steps = change_->plan.steps;
  const auto left =
      change_->steps.PutBack({steps.begin(), steps.begin() + static_cast<ptrdiff_t>(change_->carried_out)});
  Error told = error;
  told.code = error.code == Code::kDenied || error.code == Code::kConflict ? error.code : Code::kInternal;
  const auto now = change_->steps.Look();
  if (left.empty() && now && *now == change_->before)
    told.message += "; what was there is back";
  else if (left.empty())
    told.message += "; what was there could not be put back whole: see gpumux mig status";
  else
    told.message += fmt::format("; not put back: {}", fmt::join(left, "; "));
  Finish(tl::unexpected(std::move(told)));
}

void MigService::Finish(Result<MigOutcome> outcome) {
  std::unique_ptr<Change> change = std::move(change_);
  const bool began = change->began.has_value();
  if (began) ::unlink(settings_.change_file.c_str());
  if (began && outcome) {
    const gpu::MigModel& model = change->steps.model();
    uint32_t slices = 0;
    for (const Placed& each : Going(change->plan.steps))
      slices += core::mig::ProfileOf(model, each.profile).compute_slices;
    outcome->took = clock_.Now() - *change->began;
    outcome->lost_gpu_seconds =
        std::chrono::duration<double>(outcome->took).count() * slices / std::max(1u, model.compute_slices);
  }
  if (change->closed) {
    for (const auto& state : machine_.gpus()) state->going.reset();
    machine_.HoldInstances(false);
  }
  if (began) {
    const std::string text =
        outcome ? fmt::format("GPU {}: {}; in {}, {:.1f} GPU-seconds lost{}", change->label,
                              fmt::join(outcome->steps, ", "), FormatDuration(outcome->took),
                              outcome->lost_gpu_seconds,
                              outcome->stopped.empty()
                                  ? ""
                                  : fmt::format("; ended for it: {}", fmt::join(outcome->stopped, ", ")))
                : fmt::format("GPU {}: {}", change->label, outcome.error().message);
    Note(outcome ? EventKind::kMigApplied : EventKind::kMigFailed, text, change->gpu, change->request.by);
  }
  machine_.LookForInstances();
  monitor_.RefreshAll();
  if (on_changed) on_changed();
  change->done(std::move(outcome));
}

Status MigService::Cancel(uid_t by) {
  if (!change_) return Fail(Code::kNotFound, "no change of MIG instances is under way");
  if (change_->began) return Fail(Code::kConflict, "its steps have begun", "it is over in a moment");
  Finish(Fail(Code::kConflict, fmt::format("cancelled by {}; nothing was changed", UserName(by)), ""));
  return {};
}

void MigService::Note(EventKind kind, std::string text, const gpu::Uuid& gpu, std::optional<uid_t> by) {
  events_.Note({.kind = kind, .text = std::move(text), .by = by, .gpus = {gpu}});
}

Result<std::string> MigService::SetMode(const std::string& name, bool on, uid_t by) {
  if (change_)
    return Fail(Code::kConflict, "a change of MIG instances is under way, of GPU " + change_->label);
  const auto found = FindGpu(name);
  if (!found) return tl::unexpected(found.error());
  const GpuState& gpu = *machine_.gpus()[*found];
  const std::string label = gpu.device.index.Label();
  if (!gpu.claim)
    return Fail(Code::kConflict, fmt::format("GPU {} is another daemon's", label), "see gpumux status");
  const auto modes = machine_.nvml().mig().Modes(gpu.device.uuid);
  if (!modes) return tl::unexpected(modes.error());
  if (!*modes) return Fail(Code::kUnsupported, fmt::format("GPU {} ({}) has no MIG", label, gpu.device.name));
  if ((*modes)->current == on && (*modes)->pending == on)
    return fmt::format("GPU {}: MIG is {} already", label, on ? "on" : "off");
  if (::geteuid() != 0)
    return Fail(Code::kDenied, "switching MIG needs root, and this gpumuxd runs as " + UserName(::geteuid()),
                "a machine's daemon may: systemctl enable --now gpumuxd");
  machine_.LookForInstances();
  monitor_.RefreshAll();
  std::vector<std::string> users;
  for (const auto& state : machine_.gpus()) {
    const bool part = state->device.instance && state->device.instance->gpu == gpu.device.uuid;
    if (state.get() == &gpu || part) AddUsersOn(*state, users);
  }
  if (!users.empty())
    return Fail(Code::kConflict, fmt::format("GPU {} is in use: {}", label, fmt::join(users, ", ")),
                "wait until they have ended: gpumux status");
  const auto set = machine_.nvml().mig().SetMode(gpu.device.uuid, on);
  if (!set) return tl::unexpected(set.error());
  const char* const word = on ? "on" : "off";
  std::string text = fmt::format("GPU {}: MIG is {}", label, word);
  if (set->current != on)
    text = fmt::format(
        "GPU {}: MIG will be {} after its next reset, when nobody uses it (nvidia-smi --gpu-reset -i {}), "
        "or a reboot",
        label, word, label);
  tried_.erase(gpu.device.uuid);
  Note(EventKind::kMigApplied, text, gpu.device.uuid, by);
  machine_.LookForInstances();
  RestoreKept();
  if (on_changed) on_changed();
  return text;
}

std::string MigService::UnderWay() const { return change_ ? change_->label : std::string(); }

void MigService::Tick() {
  if (change_) return;
  PutBackUnfinished();
  RestoreKept();
}

}  // namespace gpumux::daemon
