// SPDX-License-Identifier: Apache-2.0
#include "daemon/mps_service.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/log.h"
#include "base/process.h"
#include "base/units.h"
#include "daemon/mps_places.h"
#include "daemon/usage.h"

namespace gpumux::daemon {

namespace {

// The path of the socket "pipe/control_privileged" below it must fit an address.
constexpr size_t kMaxDirBytes = 108 - 40;

MpsPrograms ProgramsOf(const gpu::GpuSource& source, bool for_everyone) {
  MpsPrograms programs;
  programs.control = FindMpsControl(source.libraries_dir);
  programs.every_user = for_everyone && ::geteuid() == 0;
  for (const char* name : {"PATH", "HOME", "LANG"}) {
    if (const char* value = ::getenv(name)) programs.env.push_back(fmt::format("{}={}", name, value));
  }
  if (source.simulated) {
    programs.env.push_back("GPUMUX_SOFTGPU=" + source.spec);
    programs.env.push_back("GPUMUX_SOFTGPU_DIR=" + source.dir);
    programs.env.push_back("LD_LIBRARY_PATH=" + source.libraries_dir);
  } else if (const char* value = ::getenv("LD_LIBRARY_PATH")) {
    programs.env.push_back(fmt::format("LD_LIBRARY_PATH={}", value));
  }
  return programs;
}

// Clients of two servers take turns with each other, and share no promise.
std::string OtherServerOn(const GpuState& gpu) {
  for (const auto& [pid, stranger] : gpu.strangers) {
    if (stranger.name.starts_with("nvidia-cuda-mps"))
      return fmt::format("another MPS server is on it: {} (gpumux mps status)", stranger.Describe());
  }
  return "";
}

}  // namespace

MpsService::MpsService(Machine& machine, gpu::Nvml& nvml, Tenants& tenants, EventLog& events, EventLoop& loop,
                       const Clock& clock, MpsSettings settings)
    : machine_(machine),
      compute_mode_(nvml),
      tenants_(tenants),
      events_(events),
      loop_(loop),
      clock_(clock),
      settings_(std::move(settings)),
      programs_(ProgramsOf(machine.source(), settings_.for_everyone)) {}

MpsService::~MpsService() = default;

void MpsService::TakeOver() {
  std::error_code none;
  std::vector<std::string> dirs;
  for (const auto& entry : std::filesystem::directory_iterator(settings_.dir, none))
    dirs.push_back(entry.path().string());
  for (const std::string& dir : dirs) TakeOverFrom(dir);
}

void MpsService::TakeOverFrom(const std::string& dir) {
  const auto record = ReadMpsRecord(dir);
  if (!record) return;
  const bool here = std::all_of(record->gpus.begin(), record->gpus.end(), [&](const gpu::Uuid& gpu) {
    return machine_.Find(gpu).has_value() && !Find(gpu);
  });
  const std::string pipe_dir = record->Adopted() ? record->pipe_dir : dir + "/pipe";
  const bool lives = MpsControl(loop_, programs_, pipe_dir, "").DaemonPid() != 0;
  // One that is kept is started again; somebody else's is not ours to start.
  if (here && !programs_.control.empty() && (lives || (record->kept && !record->Adopted())))
    return static_cast<void>(Add(*record, dir));
  compute_mode_.PutBack(dir);
  if (lives || MpsComputeMode::IsSet(dir)) return;
  std::error_code none;
  std::filesystem::remove_all(dir, none);
}

MpsDomain& MpsService::Add(MpsRecord record, const std::string& dir) {
  domains_.push_back(std::make_unique<MpsDomain>(
      loop_, clock_, programs_, MpsDomain::Place{dir, settings_.for_everyone}, std::move(record)));
  MpsDomain& domain = *domains_.back();
  domain.on_change = [this] { Changed(); };
  domain.on_lost_work = [this, &domain](bool fault) {
    if (on_lost_work) on_lost_work(domain, fault);
  };
  domain.Start();
  return domain;
}

MpsDomain* MpsService::Find(const gpu::Uuid& gpu) const {
  for (const auto& domain : domains_) {
    if (domain->Serves(gpu)) return domain.get();
  }
  return nullptr;
}

MpsDomain* MpsService::Serving(const std::vector<gpu::Uuid>& gpus) const {
  MpsDomain* domain = Find(gpus.front());
  const bool all = domain && std::all_of(gpus.begin(), gpus.end(),
                                         [&](const gpu::Uuid& gpu) { return domain->Serves(gpu); });
  return all ? domain : nullptr;
}

std::string MpsService::FreeDirectory(const gpu::Uuid& first) const {
  const std::string name = settings_.dir + "/" + first.ToString().substr(4, 8);
  std::string dir = name;
  // One that ends still has its own.
  for (int i = 2; std::any_of(domains_.begin(), domains_.end(),
                              [&](const auto& domain) { return domain->dir() == dir; });
       ++i)
    dir = fmt::format("{}-{}", name, i);
  return dir;
}

Status MpsService::CanStart(const std::string& dir) const {
  if (programs_.control.empty()) {
    return Fail(Code::kUnsupported, "nvidia-cuda-mps-control is not installed",
                "install the package of the driver that has it (cuda-compat or nvidia-compute-utils)");
  }
  if (dir.size() > kMaxDirBytes) {
    return Fail(Code::kUnsupported, fmt::format("the path of MPS's sockets would be too long: {}", dir),
                "set GPUMUX_RUNTIME_DIR to a shorter path");
  }
  // The mode in any case: programs of other users must get through.
  const mode_t mode = settings_.for_everyone ? 0755 : 0700;
  if ((::mkdir(settings_.dir.c_str(), mode) != 0 && errno != EEXIST) ||
      ::chmod(settings_.dir.c_str(), mode) != 0)
    return Fail(Code::kUnavailable, fmt::format("cannot make {}: {}", settings_.dir, std::strerror(errno)));
  return {};
}

void MpsService::Prepare(const std::vector<gpu::Uuid>& gpus, std::function<void(Status)> ready) {
  const std::string dir = FreeDirectory(gpus.front());
  if (Status can = CanStart(dir); !can) return ready(can);
  Await({.gpus = gpus}, std::move(ready));
}

void MpsService::Adopt(MpsRecord record, std::function<void(Status)> ready) {
  if (Status can = CanStart(FreeDirectory(record.gpus.front())); !can) return ready(can);
  Await(std::move(record), std::move(ready));
}

void MpsService::Await(MpsRecord record, std::function<void(Status)> ready) {
  if (record.Adopted() || !Serving(record.gpus)) {
    // Others without tenants on these GPUs make way; Changed() goes on then.
    for (const auto& domain : domains_) {
      const bool overlaps = std::any_of(record.gpus.begin(), record.gpus.end(),
                                        [&](const gpu::Uuid& gpu) { return domain->Serves(gpu); });
      if (overlaps) End(*domain);
    }
  }
  awaiting_.push_back({std::move(record), std::move(ready)});
  loop_.Post([this] { Changed(); });
}

Status MpsService::Keep(MpsDomain& domain, bool exclusive) {
  if (Status kept = domain.Keep(true, exclusive || domain.record().exclusive); !kept) return kept;
  given_up_.erase(&domain);
  if (!exclusive) return {};
  Status set = compute_mode_.SetExclusive(domain.dir(), domain.gpus());
  if (!set) (void)domain.Keep(true, false);
  machine_.ReadComputeModes();
  return set;
}

Status MpsService::GiveUp(MpsDomain& domain) {
  Status given = domain.Keep(false, false);
  compute_mode_.PutBack(domain.dir());
  machine_.ReadComputeModes();
  given_up_.insert(&domain);
  if (!HasTenants(domain)) End(domain);
  return given;
}

void MpsService::End(MpsDomain& domain) {
  compute_mode_.PutBack(domain.dir());
  machine_.ReadComputeModes();
  domain.End();
}

// Of domains that a gpumuxd of before kept so.
void MpsService::SetComputeModes() {
  for (const auto& domain : domains_) {
    const bool wants = domain->record().exclusive && domain->state() == MpsDomain::State::kActive;
    if (!wants || MpsComputeMode::IsSet(domain->dir())) continue;
    if (Status set = Keep(*domain, true); !set)
      LogError("MPS of {}: not in exclusive compute mode: {}", Joined(domain->gpus()),
               set.error().ToString());
  }
}

bool MpsService::TellOne() {
  for (auto it = awaiting_.begin(); it != awaiting_.end(); ++it) {
    MpsDomain* domain = Serving(it->record.gpus);
    const bool active = domain && domain->state() == MpsDomain::State::kActive;
    if (!active && !(domain && domain->failure())) continue;
    const auto ready = std::move(it->ready);
    awaiting_.erase(it);
    ready(active ? Status() : Status(tl::unexpected(*domain->failure())));
    return true;
  }
  return false;
}

void MpsService::Forget(const MpsDomain& domain) {
  compute_mode_.PutBack(domain.dir());
  const bool again = domain.record().kept && !domain.record().Adopted() && !domain.failure() && !leaving_;
  if (again)
    loop_.Post([this, record = domain.record(), dir = domain.dir()] {
      if (!Find(record.gpus.front())) Add(record, dir);
    });
  if (!domain.record().kept) ForgetMpsRecord(domain.dir());
  unused_since_.erase(&domain);
  given_up_.erase(&domain);
}

void MpsService::Changed() {
  SetComputeModes();
  while (TellOne()) {
  }
  std::erase_if(domains_, [&](const auto& domain) {
    // One that failed stays as long as it has tenants; who came while one ended gets the next.
    const bool gone =
        domain->state() == MpsDomain::State::kGone && (!domain->failure() || !HasTenants(*domain));
    if (gone) Forget(*domain);
    return gone;
  });
  for (const Awaiting& waits : awaiting_) {
    const auto& gpus = waits.record.gpus;
    const bool free =
        std::none_of(gpus.begin(), gpus.end(), [&](const gpu::Uuid& gpu) { return Find(gpu) != nullptr; });
    if (free) Add(waits.record, FreeDirectory(waits.record.gpus.front()));
  }
  if (on_room) on_room();
}

bool MpsService::IsServer(const gpu::Uuid& gpu, pid_t pid) const {
  const MpsDomain* domain = Find(gpu);
  if (!domain || domain->server_pid() != 0) return domain && pid == domain->server_pid();
  // It is on the GPU before it says that it is there.
  const auto stat = ReadProcessStat(pid);
  return stat && stat->parent > 1 && stat->parent == domain->control_pid();
}

std::vector<const Tenant*> MpsService::TenantsOf(const MpsDomain& domain) const {
  std::vector<const Tenant*> found;
  for (const auto& [id, tenant] : tenants_.live()) {
    if (tenant->ViaMps() && !tenant->shares.empty() && domain.Serves(tenant->shares[0].gpu))
      found.push_back(tenant.get());
  }
  return found;
}

bool MpsService::HasTenants(const MpsDomain& domain) const {
  return !TenantsOf(domain).empty() ||
         std::any_of(awaiting_.begin(), awaiting_.end(),
                     [&](const Awaiting& waits) { return domain.Serves(waits.record.gpus.front()); });
}

bool MpsService::HasPrograms(const MpsDomain& domain) const {
  return std::any_of(tenants_.live().begin(), tenants_.live().end(), [&](const auto& each) {
    const Tenant& tenant = *each.second;
    return tenant.ViaMps() && tenant.state != TenantState::kStarting && !tenant.shares.empty() &&
           domain.Serves(tenant.shares[0].gpu);
  });
}

void MpsService::Tick() {
  for (const auto& domain : domains_) {
    domain->Tick();
    const MpsDomain* key = domain.get();
    if (domain->state() == MpsDomain::State::kSilent && !HasPrograms(*domain)) {
      End(*domain);
    } else if (HasTenants(*domain) || domain->record().kept) {
      unused_since_.erase(key);
    } else if (given_up_.contains(key) ||
               clock_.Now() - unused_since_.try_emplace(key, clock_.Now()).first->second >=
                   settings_.idle_time) {
      End(*domain);
    }
  }
}

bool MpsService::Ending() const {
  return std::any_of(domains_.begin(), domains_.end(),
                     [](const auto& domain) { return domain->state() == MpsDomain::State::kEnding; });
}

void MpsService::EndUnused() {
  leaving_ = true;
  for (const auto& domain : domains_) {
    if (!HasTenants(*domain)) End(*domain);
  }
}

core::MpsSnapshot MpsService::Snapshot(size_t gpu_index) const {
  const GpuState& gpu = *machine_.gpus()[gpu_index];
  core::MpsSnapshot snapshot;
  snapshot.most_clients = core::MpsClientsOf(machine_.nvml_version());
  const MpsDomain* domain = Find(gpu.device.uuid);
  // Until NVML shows it, it is still to come.
  if (gpu.mps_server_bytes == 0) snapshot.server_bytes = gpu.cost.mps_server_bytes;
  if (domain && (HasTenants(*domain) || domain->record().kept)) {
    snapshot.domain = domain->gpus();
    snapshot.not_now =
        given_up_.contains(domain) ? "its MPS is stopped, once its tenants have ended" : domain->NotNow();
  }
  if (const std::string other = OtherServerOn(gpu); !other.empty()) snapshot.not_now = other;
  snapshot.clients = PlacesTaken(tenants_, gpu_index);
  return snapshot;
}

std::map<std::string, std::string> MpsService::EnvironmentOf(const Tenant& tenant) const {
  std::map<std::string, std::string> env;
  const MpsDomain* domain = tenant.ViaMps() ? Find(tenant.shares[0].gpu) : nullptr;
  if (!domain) return env;
  env["CUDA_MPS_PIPE_DIRECTORY"] = domain->PipeDirectory();
  const core::Request& ask = tenant.request.ask;
  if (ask.share_ceiling) env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = core::MpsPercentage(*ask.share_ceiling);
  if (ask.urgency == core::Urgency::kBestEffort) env["CUDA_MPS_CLIENT_PRIORITY"] = "1";
  std::vector<core::MpsLimit> limits;
  for (const core::Share& share : tenant.shares) {
    if (share.limit_bytes)
      limits.push_back({share.gpu, core::LimitOfProcess(*share.limit_bytes, ask.processes)});
  }
  if (limits.size() == tenant.shares.size())
    env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = core::MpsLimits(limits);
  return env;
}

std::string MpsService::WhyNotEnforced(const Tenant& tenant) const {
  if (!tenant.ViaMps()) return "";
  const core::Request& ask = tenant.request.ask;
  for (const auto& [key, member] : tenant.members) {
    if (member.died || !member.page) continue;
    for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot) {
      const GpuState& gpu = *machine_.gpus()[tenant.gpus[slot]];
      const ProcessWords words = member.page->Read(slot, 0, gpu.ledger.TotalBytes());
      if (words.mps == GPUMUX_MPS_NOT_ASKED) continue;
      if (words.mps != GPUMUX_MPS_ATTACHED)
        return fmt::format("pid {} runs outside MPS, without its limits: it did not find the control daemon",
                           member.process.pid);
      const unsigned sms = ask.share_ceiling && gpu.multiprocessors > 0
                               ? core::MpsSms(gpu.multiprocessors, *ask.share_ceiling)
                               : 0;
      if (sms > 0 && words.mps_sms > sms)
        return fmt::format("pid {} may use {} multiprocessors of GPU {}, not {}", member.process.pid,
                           words.mps_sms, gpu.device.index.Label(), sms);
      const auto& limit = tenant.shares[slot].limit_bytes;
      if (limit && words.mps_free_bytes > core::LimitOfProcess(*limit, ask.processes) + kMiB)
        return fmt::format("the memory limit of MPS is not in force for pid {}", member.process.pid);
    }
  }
  return "";
}

bool MpsService::TerminateClients(const Tenant& tenant, const std::function<void()>& done) {
  MpsDomain* domain = tenant.ViaMps() ? Find(tenant.shares[0].gpu) : nullptr;
  std::vector<pid_t> clients;
  for (const auto& [key, member] : tenant.members) {
    const bool on_gpu = std::any_of(member.gpus.begin(), member.gpus.end(),
                                    [](const Member::Gpu& gpu) { return gpu.IsUsed(); });
    if (on_gpu && !member.died) clients.push_back(member.process.pid);
  }
  if (!domain || domain->state() != MpsDomain::State::kActive || clients.empty()) return false;
  const auto left = std::make_shared<size_t>(clients.size());
  for (const pid_t pid : clients) {
    domain->TerminateClient(pid, [left, done](const Status&) {
      if (--*left == 0) done();
    });
  }
  return true;
}

}  // namespace gpumux::daemon
