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

}  // namespace

MpsService::MpsService(Machine& machine, Tenants& tenants, EventLog& events, EventLoop& loop,
                       const Clock& clock, MpsSettings settings)
    : machine_(machine),
      tenants_(tenants),
      events_(events),
      loop_(loop),
      clock_(clock),
      settings_(std::move(settings)),
      programs_(ProgramsOf(machine.source(), settings_.for_everyone)) {}

MpsService::~MpsService() = default;

void MpsService::TakeOver() {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(settings_.dir, none)) {
    const auto gpus = MpsDomain::ReadGpus(entry.path().string());
    if (!gpus) continue;
    const bool here = std::all_of(gpus->begin(), gpus->end(),
                                  [&](const gpu::Uuid& gpu) { return machine_.Find(gpu).has_value(); });
    if (!here || programs_.control.empty()) continue;
    const MpsControl control(loop_, programs_, entry.path().string() + "/pipe", "");
    if (control.DaemonPid() != 0) Add(*gpus, entry.path().string());
  }
}

MpsDomain& MpsService::Add(std::vector<gpu::Uuid> gpus, const std::string& dir) {
  domains_.push_back(std::make_unique<MpsDomain>(
      loop_, clock_, programs_, MpsDomain::Place{dir, settings_.for_everyone}, std::move(gpus)));
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

void MpsService::Prepare(const std::vector<gpu::Uuid>& gpus, std::function<void(Status)> ready) {
  if (programs_.control.empty()) {
    return ready(Fail(Code::kUnsupported, "nvidia-cuda-mps-control is not installed",
                      "install the package of the driver that has it (cuda-compat or nvidia-compute-utils)"));
  }
  const std::string dir = FreeDirectory(gpus.front());
  if (dir.size() > kMaxDirBytes) {
    return ready(Fail(Code::kUnsupported, fmt::format("the path of MPS's sockets would be too long: {}", dir),
                      "set GPUMUX_RUNTIME_DIR to a shorter path"));
  }
  // The mode in any case: programs of other users must get through.
  const mode_t mode = settings_.for_everyone ? 0755 : 0700;
  if ((::mkdir(settings_.dir.c_str(), mode) != 0 && errno != EEXIST) ||
      ::chmod(settings_.dir.c_str(), mode) != 0) {
    return ready(
        Fail(Code::kUnavailable, fmt::format("cannot make {}: {}", settings_.dir, std::strerror(errno))));
  }
  awaiting_.push_back({gpus, std::move(ready)});
  if (!Serving(gpus)) {
    // Others without tenants on these GPUs make way; Changed() goes on then.
    bool in_the_way = false;
    for (const auto& domain : domains_) {
      const bool overlaps =
          std::any_of(gpus.begin(), gpus.end(), [&](const gpu::Uuid& gpu) { return domain->Serves(gpu); });
      if (!overlaps) continue;
      in_the_way = true;
      domain->End();
    }
    if (!in_the_way) Add(gpus, dir);
  }
  loop_.Post([this] { Changed(); });
}

bool MpsService::TellOne() {
  for (auto it = awaiting_.begin(); it != awaiting_.end(); ++it) {
    MpsDomain* domain = Serving(it->gpus);
    const bool active = domain && domain->state() == MpsDomain::State::kActive;
    if (!active && !(domain && domain->failure())) continue;
    const auto ready = std::move(it->ready);
    awaiting_.erase(it);
    ready(active ? Status() : Status(tl::unexpected(*domain->failure())));
    return true;
  }
  return false;
}

void MpsService::Changed() {
  while (TellOne()) {
  }
  std::erase_if(domains_, [&](const auto& domain) {
    // One that failed stays as long as it has tenants; who came while one ended gets the next.
    const bool gone =
        domain->state() == MpsDomain::State::kGone && (!domain->failure() || !HasTenants(*domain));
    if (gone) unused_since_.erase(domain.get());
    return gone;
  });
  for (const Awaiting& waits : awaiting_) {
    const bool free = std::none_of(waits.gpus.begin(), waits.gpus.end(),
                                   [&](const gpu::Uuid& gpu) { return Find(gpu) != nullptr; });
    if (free) Add(waits.gpus, FreeDirectory(waits.gpus.front()));
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

bool MpsService::HasTenants(const MpsDomain& domain) const {
  for (const auto& [id, tenant] : tenants_.live()) {
    if (tenant->mode == core::Mode::kMps && !tenant->shares.empty() && domain.Serves(tenant->shares[0].gpu))
      return true;
  }
  return std::any_of(awaiting_.begin(), awaiting_.end(),
                     [&](const Awaiting& waits) { return domain.Serves(waits.gpus.front()); });
}

bool MpsService::HasPrograms(const MpsDomain& domain) const {
  return std::any_of(tenants_.live().begin(), tenants_.live().end(), [&](const auto& each) {
    const Tenant& tenant = *each.second;
    return tenant.mode == core::Mode::kMps && tenant.state != TenantState::kStarting &&
           !tenant.shares.empty() && domain.Serves(tenant.shares[0].gpu);
  });
}

void MpsService::Tick() {
  for (const auto& domain : domains_) {
    domain->Tick();
    const MpsDomain* key = domain.get();
    if (domain->state() == MpsDomain::State::kSilent && !HasPrograms(*domain)) {
      domain->End();
    } else if (HasTenants(*domain)) {
      unused_since_.erase(key);
    } else if (clock_.Now() - unused_since_.try_emplace(key, clock_.Now()).first->second >=
               settings_.idle_time) {
      domain->End();
    }
  }
}

bool MpsService::Ending() const {
  return std::any_of(domains_.begin(), domains_.end(),
                     [](const auto& domain) { return domain->state() == MpsDomain::State::kEnding; });
}

void MpsService::EndUnused() {
  for (const auto& domain : domains_) {
    if (!HasTenants(*domain)) domain->End();
  }
}

core::MpsSnapshot MpsService::Snapshot(size_t gpu_index) const {
  const GpuState& gpu = *machine_.gpus()[gpu_index];
  core::MpsSnapshot snapshot;
  snapshot.most_clients = core::MpsClientsOf(machine_.nvml_version());
  const MpsDomain* domain = Find(gpu.device.uuid);
  // Until NVML shows it, it is still to come.
  if (gpu.mps_server_bytes == 0) snapshot.server_bytes = gpu.cost.mps_server_bytes;
  if (domain && HasTenants(*domain)) {
    snapshot.domain = domain->gpus();
    snapshot.not_now = domain->NotNow();
  }
  snapshot.clients = PlacesTaken(tenants_, gpu_index);
  return snapshot;
}

std::map<std::string, std::string> MpsService::EnvironmentOf(const Tenant& tenant) const {
  std::map<std::string, std::string> env;
  const MpsDomain* domain = tenant.mode == core::Mode::kMps ? Find(tenant.shares[0].gpu) : nullptr;
  if (!domain) return env;
  env["CUDA_MPS_PIPE_DIRECTORY"] = domain->PipeDirectory();
  const core::Request& ask = tenant.request.ask;
  if (ask.share_ceiling) env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = core::MpsPercentage(*ask.share_ceiling);
  if (ask.best_effort) env["CUDA_MPS_CLIENT_PRIORITY"] = "1";
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
  if (tenant.mode != core::Mode::kMps) return "";
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
                           words.mps_sms, gpu.device.index, sms);
      const auto& limit = tenant.shares[slot].limit_bytes;
      if (limit && words.mps_free_bytes > core::LimitOfProcess(*limit, ask.processes) + kMiB)
        return fmt::format("the memory limit of MPS is not in force for pid {}", member.process.pid);
    }
  }
  return "";
}

bool MpsService::TerminateClients(const Tenant& tenant, const std::function<void()>& done) {
  MpsDomain* domain = tenant.mode == core::Mode::kMps ? Find(tenant.shares[0].gpu) : nullptr;
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
