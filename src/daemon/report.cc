// SPDX-License-Identifier: Apache-2.0
#include "daemon/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "daemon/cpu_affinity.h"
#include "daemon/gate_report.h"
#include "daemon/refusal_report.h"
#include "daemon/turn_report.h"
#include "daemon/usage.h"
#include "daemon/user_name.h"
#include "daemon/version.h"
#include "gpumux/abi/pages.h"
#include "gpumux/abi/session.h"
#include "modes/sharing_mode.h"

namespace gpumux::daemon {

using Json = nlohmann::ordered_json;

// What another user has no business to know goes; its name, sizes and state stay.
Json TenantForViewer(Json tenant, uid_t viewer, uid_t owner) {
  if (!IsStranger(viewer) || viewer == owner) return tenant;
  constexpr const char* kWhy = "its owner and root see it";
  // An argument may be a password: the program's name alone, without its folder.
  const std::string command = tenant["command"].get<std::string>();
  const std::string program = command.substr(0, command.find(' '));
  tenant["command"] = program.substr(program.rfind('/') + 1);
  tenant["command_reason"] = kWhy;
  tenant["cwd"] = nullptr;
  tenant["cwd_reason"] = kWhy;
  tenant["labels"] = nullptr;
  tenant["labels_reason"] = kWhy;
  return tenant;
}

namespace {

constexpr const char* kFreesAsItGoes = "its limit was lowered below its use: frees as it goes";
constexpr const char* kFoundAbove = "the driver took more for it than was asked for";
constexpr const char* kNoGuarantee = "no guarantee: whatever is not promised to others";

// Names of processes may be any bytes: never an exception for those.
std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string Rfc3339(std::chrono::system_clock::time_point time) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(time)));
}

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string ModeReason(const Tenant& tenant) {
  return tenant.apart.empty() ? tenant.mode_reason
                              : tenant.mode_reason + "; apart from the MPS server, for " + tenant.apart;
}

// Apart from the MPS server it is as in time slices.
const modes::Capability& CapabilityOf(const Tenant& tenant) {
  return modes::ModeOf(tenant.apart.empty() ? tenant.mode : core::Mode::kTimeslice).capability();
}

Json Enforced(const Tenant& tenant, const Machine& machine) {
  const auto& capability = CapabilityOf(tenant);
  Json enforced;
  const auto in_force = MemoryEnforced(tenant);
  if (in_force == false) {
    enforced["memory"] = "not enforced";
    enforced["memory_reason"] = tenant.ended ? tenant.was_not_enforced : tenant.not_enforced;
  } else if (in_force) {
    enforced["memory"] = capability.memory_enforced_by;
  } else {
    enforced["memory"] = nullptr;
    enforced["memory_reason"] = "no process of it uses CUDA now";
  }
  enforced["compute"] = nullptr;
  enforced["compute_reason"] = capability.compute_promise;
  if (tenant.mode == core::Mode::kTurns) {
    const std::string why_not = WhyNoTurns(tenant);
    enforced["compute_reason"] = why_not;
    if (why_not.empty()) {
      enforced["compute"] = capability.compute_enforced_by;
      enforced.erase("compute_reason");
    }
  }
  if (tenant.mode == core::Mode::kMig) {
    enforced["compute"] = capability.compute_enforced_by;
    enforced.erase("compute_reason");
  }
  if (tenant.mode == core::Mode::kExclusive) {
    size_t unmanaged = 0;
    for (const size_t gpu : tenant.gpus) unmanaged += machine.gpus()[gpu]->strangers.size();
    if (unmanaged == 0)
      enforced["compute"] = capability.compute_enforced_by;
    else
      enforced["compute_reason"] = "unmanaged processes use its GPU too";
  }
  return enforced;
}

void AddShareKeys(Json& json, const Tenant& tenant) {
  const auto& capability = CapabilityOf(tenant);
  if (capability.share_min_ratio < 0) {
    json["share_min_ratio"] = nullptr;
    json["share_max_ratio"] = nullptr;
    json["share_min_ratio_reason"] = json["share_max_ratio_reason"] = capability.compute_promise;
  } else {
    const core::Request& ask = tenant.request.ask;
    json["share_min_ratio"] = ask.share_min.value_or(capability.share_min_ratio);
    json["share_max_ratio"] = ask.share_ceiling.value_or(capability.share_max_ratio);
  }
  json["priority"] = core::Name(tenant.request.ask.urgency);
}

void AddTimeLimit(Json& json, const core::Request& ask) {
  json["time_limit_seconds"] = nullptr;
  if (ask.time_limit)
    json["time_limit_seconds"] = std::chrono::duration<double>(*ask.time_limit).count();
  else
    json["time_limit_seconds_reason"] = "it was started without --time";
}

// Why the process waits for a place as a client of MPS; null: it does not.
Json WaitsJson(const Member& member) {
  for (const Member::Gpu& on : member.gpus) {
    if (on.waits && !member.died) return on.waits->reason;
  }
  return nullptr;
}

Json MembersJson(const Tenant& tenant, const Machine& machine) {
  Json members = Json::array();
  for (const auto& [key, member] : tenant.members) {
    Json gpus = Json::array();
    for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot) {
      const GpuState& gpu = *machine.gpus()[tenant.gpus[slot]];
      const auto* entry = gpu.ledger.Find(tenant.id, key);
      if (!entry) continue;
      ProcessWords words;
      if (member.page) words = member.page->Read(slot, entry->granted_bytes, gpu.ledger.TotalBytes());
      const Member::Gpu& on = member.gpus[slot];
      Json figures{{"uuid", gpu.device.uuid.ToString()},
                   {"mem_granted_bytes", entry->granted_bytes},
                   {"mem_committed_bytes", words.committed_bytes},
                   {"mem_free_credit_bytes", words.free_bytes},
                   {"mem_overhead_bytes", entry->overhead_bytes},
                   {"mem_nvml_bytes", OrNull(on.own_bytes)},
                   {"contexts", on.contexts},
                   {"launches", words.launches},
                   {"unrouted", words.unrouted}};
      if (!on.own_bytes) figures["mem_nvml_bytes_reason"] = "NVML does not list the process on this GPU";
      gpus.push_back(std::move(figures));
    }
    members.push_back(
        {{"pid", member.process.pid},
         {"name", member.name},
         {"guard", member.page ? (member.page->InForce() ? "in force" : "not in force") : "absent"},
         {"alive", !member.died},
         {"waits", WaitsJson(member)},
         {"descriptors_held",
          tenant.ViaMps() ? Json(member.held.lost ? 0 : member.held.held) : Json(nullptr)},
         {"gpus", std::move(gpus)}});
  }
  return members;
}

Json ReclaimJson(const Reclaims& reclaims) {
  Json json{{"listening", reclaims.listening}, {"asked", reclaims.asked}};
  json["asked_at"] = reclaims.asked_wall ? Json(Rfc3339(*reclaims.asked_wall)) : Json(nullptr);
  json["given_bytes"] = reclaims.given_bytes;
  json["last_given_bytes"] = reclaims.asked ? Json(reclaims.last_given_bytes) : Json(nullptr);
  if (!reclaims.asked) json["asked_at_reason"] = json["last_given_bytes_reason"] = "never asked";
  return json;
}

void AddIdleKeys(Json& json, const Tenant& tenant) {
  const auto idle = tenant.ended ? std::nullopt : tenant.idle.Lasted();
  json["idle_seconds"] = idle ? Json(std::chrono::duration<double>(*idle).count()) : Json(nullptr);
  if (!idle) json["idle_seconds_reason"] = tenant.ended ? "it has ended" : tenant.idle_unknown;
}

Json TenantJson(const Tenant& tenant, const Machine& machine) {
  Json json{{"id", tenant.id},
            {"name", tenant.request.ask.name},
            {"owner", UserName(tenant.uid)},
            {"owner_uid", tenant.uid},
            {"state", Name(tenant.state)}};
  uint64_t guaranteed = 0, limit = 0, used = 0, peak = 0, allowance = 0, at_risk = 0;
  bool limited = true;
  Json gpus = Json::array();
  for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot) {
    const GpuState& gpu = *machine.gpus()[tenant.gpus[slot]];
    const core::Share& share = tenant.shares[slot];
    const Usage usage = Measure(tenant, slot, gpu);
    const uint64_t slot_peak = std::max(tenant.peak_bytes[slot], usage.peak_bytes);
    Json figures{{"uuid", share.gpu.ToString()},
                 {"index", gpu.device.index.gpu},
                 {"label", gpu.device.index.Label()},
                 {"name", gpu.device.name},
                 {"mem_guaranteed_bytes", share.guaranteed_bytes},
                 {"mem_limit_bytes", OrNull(share.limit_bytes)}};
    if (!share.limit_bytes) figures["mem_limit_bytes_reason"] = kNoGuarantee;
    const Risk risk = slot < tenant.risks.size() && !tenant.ended ? tenant.risks[slot] : Risk{};
    figures["mem_at_risk_bytes"] = risk.bytes;
    if (risk.bytes > 0) figures["at_risk_why"] = risk.why;
    at_risk += risk.bytes;
    figures["mem_used_bytes"] = usage.used_bytes;
    figures["mem_peak_bytes"] = slot_peak;
    figures["mem_free_credit_bytes"] = usage.free_credit_bytes;
    figures["mem_overhead_bytes"] = usage.overhead_bytes;
    figures["mem_allowance_bytes"] = usage.allowance_bytes;
    gpus.push_back(std::move(figures));
    guaranteed += share.guaranteed_bytes;
    limited &= share.limit_bytes.has_value();
    limit += share.limit_bytes.value_or(0);
    used += usage.used_bytes;
    peak += slot_peak;
    allowance += usage.allowance_bytes;
  }
  json["gpus"] = std::move(gpus);
  json["mode"] = core::Name(tenant.mode);
  json["mode_reason"] = ModeReason(tenant);
  json["mem_guaranteed_bytes"] = guaranteed;
  json["mem_limit_bytes"] = limited ? Json(limit) : Json(nullptr);
  if (!limited) json["mem_limit_bytes_reason"] = kNoGuarantee;
  json["mem_at_risk_bytes"] = at_risk;
  json["mem_used_bytes"] = used;
  json["mem_allowance_bytes"] = allowance;
  json["mem_peak_bytes"] = peak;
  AddShareKeys(json, tenant);
  json["gate"] = GateJson(tenant);
  json["turns"] = TurnsJson(tenant);
  json["isolation"] = core::Name(tenant.request.ask.isolation);
  json["strict"] = tenant.request.strict;
  json["enforced"] = Enforced(tenant, machine);
  const auto& capability = CapabilityOf(tenant);
  json["cpu_affinity"] = CpuAffinityJson(tenant, machine);
  json["mem_guaranteed_by"] = capability.memory_guaranteed_by;
  json["neighbours"] = {{"fault", capability.neighbour_fault},
                        {"death", capability.neighbour_death},
                        {"load", capability.neighbour_load}};
  json["above_limit"] = tenant.frozen;
  if (tenant.frozen) json["above_limit_reason"] = tenant.frees_as_it_goes ? kFreesAsItGoes : kFoundAbove;
  json["waited_seconds"] = tenant.waited_seconds;
  AddTimeLimit(json, tenant.request.ask);
  json["started_at"] = Rfc3339(tenant.admitted_wall);
  json["waiting"] = nullptr;
  const Refusals refusals = CountRefusals(tenant, machine);
  json["refusals"] = {{"own_limit", refusals.own_limit},
                      {"device_full", refusals.device_full},
                      {"own_part", refusals.own_part},
                      {"last_refused_bytes", refusals.last_refused_bytes},
                      {"last", nullptr}};
  if (tenant.last_refusal && refusals.own_limit + refusals.device_full + refusals.own_part > 0)
    json["refusals"]["last"] = RefusalJson(*tenant.last_refusal);
  json["reclaim"] = ReclaimJson(tenant.reclaims);
  json["launches"] = CountLaunches(tenant);
  AddIdleKeys(json, tenant);
  json["command"] = tenant.request.command;
  json["cwd"] = tenant.request.cwd;
  json["labels"] = tenant.request.labels;
  json["run_pid"] = tenant.reservation ? Json(nullptr) : Json(tenant.run.pid);
  if (tenant.reservation) json["run_pid_reason"] = "a reservation: its program was not started by gpumux";
  json["reservation_pid"] = tenant.reservation ? Json(tenant.child->pid) : Json(nullptr);
  json["pid"] = tenant.child ? Json(tenant.child->pid) : Json(nullptr);
  if (!tenant.child) json["pid_reason"] = "its program has not started, or was over at once";
  json["members"] = MembersJson(tenant, machine);
  json["left_behind_pids"] = Json::array();
  for (const auto& [process, left] : tenant.left_behind) json["left_behind_pids"].push_back(process.pid);
  if (tenant.ended && !tenant.ended->why.empty()) {
    json["ended"] = {
        {"why", tenant.ended->why},
        {"lost_work", tenant.lost_work ? Json(Name(tenant.lost_work->cause)) : Json(nullptr)},
        {"exit_code", OrNull(tenant.ended->exit_code)},
        {"signal", OrNull(tenant.ended->signal)},
        {"ended_at", Rfc3339(tenant.ended->wall)},
        {"ran_seconds", std::chrono::duration<double>(tenant.ended->at - tenant.admitted).count()}};
  } else {
    json["ended"] = nullptr;
  }
  return json;
}

// In whole seconds, rounded up: what is told as "at the latest" stays true.
std::string AtTheLatest(Time at, const Clock& clock) {
  const auto wall = clock.WallTime() + std::chrono::duration_cast<std::chrono::system_clock::duration>(
                                           at - clock.Now() + std::chrono::seconds(1));
  return Rfc3339(wall);
}

Json WaitingJson(size_t position, const core::Queue::Waiting& waiting, const Clock& clock) {
  Json json{{"position", position}, {"reason", waiting.reason}, {"priority", waiting.request.priority}};
  if (waiting.estimate.at_the_latest) {
    json["estimated_start_at"] = AtTheLatest(*waiting.estimate.at_the_latest, clock);
  } else {
    json["estimated_start_at"] = nullptr;
    json["estimated_start_at_reason"] =
        waiting.estimate.why_not.empty() ? "not judged yet" : waiting.estimate.why_not;
  }
  return json;
}

Json WaiterJson(const Waiter& waiter, const core::Queue& queue, const Clock& clock) {
  const core::Request& ask = waiter.request.ask;
  Json json{{"id", waiter.id},         {"name", ask.name},   {"owner", UserName(waiter.uid)},
            {"owner_uid", waiter.uid}, {"state", "waiting"}, {"gpus", Json::array()}};
  json["mode"] = ask.mode ? Json(core::Name(*ask.mode)) : Json(nullptr);
  if (!ask.mode) json["mode_reason"] = "chosen when it starts";
  const auto bytes = [](const std::optional<MemorySize>& size) -> Json {
    return size && size->bytes ? Json(size->bytes) : Json(nullptr);
  };
  json["mem_guaranteed_bytes"] = ask.mem ? bytes(ask.mem) : Json(0);
  json["mem_limit_bytes"] = bytes(ask.mem_limit ? ask.mem_limit : ask.mem);
  if (json["mem_guaranteed_bytes"].is_null())
    json["mem_guaranteed_bytes_reason"] = "a part of a GPU that is not chosen yet";
  if (json["mem_limit_bytes"].is_null()) {
    json["mem_limit_bytes_reason"] = ask.mem ? "a part of a GPU that is not chosen yet" : kNoGuarantee;
  }
  json["mem_used_bytes"] = 0;
  json["mem_allowance_bytes"] = 0;
  json["mem_peak_bytes"] = 0;
  json["share_min_ratio"] = json["share_max_ratio"] = nullptr;
  json["share_min_ratio_reason"] = json["share_max_ratio_reason"] = "waits";
  json["priority"] = core::Name(ask.urgency);
  json["isolation"] = core::Name(ask.isolation);
  json["strict"] = waiter.request.strict;
  json["enforced"] = {
      {"memory", nullptr}, {"memory_reason", "waits"}, {"compute", nullptr}, {"compute_reason", "waits"}};
  json["cpu_affinity"] = nullptr;
  json["cpu_affinity_reason"] = "waits";
  json["waited_seconds"] = std::chrono::duration<double>(clock.Now() - waiter.since).count();
  json["idle_seconds"] = nullptr;
  json["idle_seconds_reason"] = "waits";
  const size_t position = queue.Position(ask.id);
  AddTimeLimit(json, ask);
  // Taken out of the queue, and about to be told.
  static const core::Queue::Waiting kNoMore;
  json["waiting"] = WaitingJson(position, position ? queue.waiting()[position - 1] : kNoMore, clock);
  json["refusals"] = {
      {"own_limit", 0}, {"device_full", 0}, {"own_part", 0}, {"last_refused_bytes", 0}, {"last", nullptr}};
  json["command"] = waiter.request.command;
  json["cwd"] = waiter.request.cwd;
  json["labels"] = waiter.request.labels;
  json["run_pid"] = waiter.run.pid;
  json["members"] = Json::array();
  json["left_behind_pids"] = Json::array();
  json["ended"] = nullptr;
  return json;
}

Json StrangerJson(const Stranger& stranger) {
  Json json{{"pid", stranger.process.pid},
            {"name", stranger.name.empty() ? Json(nullptr) : Json(stranger.name)},
            {"owner", stranger.owner ? Json(UserName(*stranger.owner)) : Json(nullptr)},
            {"owner_uid", OrNull(stranger.owner)},
            {"container", stranger.container.empty() ? Json(nullptr) : Json(stranger.container)},
            {"mem_used_bytes", stranger.bytes}};
  if (stranger.name.empty()) json["name_reason"] = "the process cannot be seen from here";
  if (!stranger.owner) json["owner_reason"] = "the process cannot be seen from here";
  return json;
}

Json GpuJson(const GpuState& gpu, const Tenants& tenants, const Machine& machine) {
  const core::GpuSnapshot snapshot = gpu.Snapshot();
  Json json{{"uuid", gpu.device.uuid.ToString()},
            {"index", gpu.device.index.gpu},
            {"label", gpu.device.index.Label()},
            {"name", gpu.device.name},
            {"pci_bus_id", gpu.device.pci_bus_id}};
  json["mode"] = gpu.mode ? Json(core::Name(*gpu.mode)) : Json(nullptr);
  if (!gpu.mode) json["mode_reason"] = "no tenant";
  const bool known = !gpu.lost && gpu.last_reading;
  uint64_t used = 0;
  for (const auto& [id, tenant] : tenants.live()) {
    for (unsigned slot = 0; slot < tenant->gpus.size(); ++slot) {
      if (machine.gpus()[tenant->gpus[slot]].get() == &gpu) used += Measure(*tenant, slot, gpu).used_bytes;
    }
  }
  json["mem_total_bytes"] = gpu.Known() ? Json(snapshot.total_bytes) : Json(nullptr);
  json["mem_reserve_bytes"] = gpu.Known() ? Json(snapshot.reserve_bytes) : Json(nullptr);
  json["mem_guaranteed_bytes"] = snapshot.guaranteed_bytes;
  json["mem_used_bytes"] = used;
  json["mem_unmanaged_bytes"] = known ? Json(snapshot.unmanaged_bytes) : Json(nullptr);
  json["mem_unexplained_bytes"] = known ? Json(snapshot.unexplained_bytes) : Json(nullptr);
  json["mem_device_used_bytes"] = known ? Json(gpu.device_used_bytes) : Json(nullptr);
  json["mem_promisable_bytes"] = snapshot.Closed() ? Json(0) : Json(snapshot.promisable_bytes);
  if (snapshot.Closed()) json["mem_promisable_bytes_reason"] = snapshot.closed_error.message;
  if (!known) {
    const std::string reason = gpu.lost ? gpu.lost->message : "not read yet";
    json["mem_unmanaged_bytes_reason"] = json["mem_unexplained_bytes_reason"] =
        json["mem_device_used_bytes_reason"] = reason;
    if (!gpu.Known()) json["mem_total_bytes_reason"] = json["mem_reserve_bytes_reason"] = reason;
  }
  // Of one that is lost nothing is known any more.
  json["busy_ratio"] = known && gpu.busy_ratio ? Json(*gpu.busy_ratio) : Json(nullptr);
  if (json["busy_ratio"].is_null())
    json["busy_ratio_reason"] = gpu.lost         ? gpu.lost->message
                                : gpu.busy_ratio ? "not read yet"
                                                 : gpu.busy_ratio.error().message;
  json["remedy"] = snapshot.closed_error.hint.empty() ? Json(nullptr) : Json(snapshot.closed_error.hint);
  json["unmanaged_pids"] = Json::array();
  json["strangers"] = Json::array();
  for (const auto& [pid, stranger] : gpu.strangers) {
    json["unmanaged_pids"].push_back(pid);
    json["strangers"].push_back(StrangerJson(stranger));
  }
  json["context_bytes"] = gpu.cost.ChargeBytes();
  json["context_bytes_measured"] = gpu.cost.measured;
  json["tenants"] = snapshot.tenants;
  json["owner"] =
      gpu.other_owner ? Json{{"uid", gpu.other_owner->uid}, {"pid", gpu.other_owner->pid}} : Json(nullptr);
  return json;
}

std::string Envelope(const char* schema, const Clock& clock, bool simulated, const Json& data) {
  return EnvelopeOf(schema, clock, simulated, Dump(data));
}

Json TenantsJson(uid_t viewer, const Machine& machine, const Tenants& tenants, const Leases& leases,
                 bool ended_too, const Clock& clock) {
  Json list = Json::array();
  const auto add = [&](const Tenant& tenant) {
    list.push_back(TenantForViewer(TenantJson(tenant, machine), viewer, tenant.uid));
  };
  if (ended_too) {
    for (const auto& tenant : tenants.ended()) add(*tenant);
  }
  std::vector<const Tenant*> live;
  for (const auto& [id, tenant] : tenants.live()) live.push_back(tenant.get());
  std::sort(live.begin(), live.end(), [](const auto* a, const auto* b) { return a->admitted < b->admitted; });
  for (const Tenant* tenant : live) add(*tenant);
  std::vector<std::pair<size_t, const Waiter*>> waiters;
  for (const auto& [id, waiter] : leases.waiters())
    waiters.emplace_back(leases.queue().Position(id), &waiter);
  std::sort(waiters.begin(), waiters.end());
  for (const auto& [position, waiter] : waiters)
    list.push_back(TenantForViewer(WaiterJson(*waiter, leases.queue(), clock), viewer, waiter->uid));
  return list;
}

}  // namespace

std::string EnvelopeOf(const char* schema, const Clock& clock, bool simulated, const std::string& data) {
  return fmt::format("{{\"schema\":\"{}\",\"generated_at\":\"{}\",\"simulated\":{},\"data\":{}}}\n", schema,
                     Rfc3339(clock.WallTime()), simulated, data);
}

std::string GrantedJson(const Tenant& tenant, const Machine& machine, const std::string& session_socket,
                        const std::string& guard_library,
                        const std::map<std::string, std::string>& environment) {
  const gpu::GpuSource& source = machine.source();
  Json gpus = Json::array();
  std::string visible;
  for (const core::Share& share : tenant.shares) {
    const GpuState& gpu = *machine.gpus()[*machine.Find(share.gpu)];
    gpus.push_back({{"uuid", share.gpu.ToString()},
                    {"index", gpu.device.index.gpu},
                    {"label", gpu.device.index.Label()},
                    {"name", gpu.device.name},
                    {"mem_guaranteed_bytes", share.guaranteed_bytes},
                    {"mem_limit_bytes", OrNull(share.limit_bytes)}});
    visible += (visible.empty() ? "" : ",") + share.gpu.ToString();
  }
  Json env{{GPUMUX_ENV_SESSION, session_socket},
           {GPUMUX_ENV_TENANT, tenant.id},
           {"CUDA_VISIBLE_DEVICES", visible}};
  env[GPUMUX_ENV_STRICT] = tenant.request.strict ? "1" : "0";
  for (const auto& [name, value] : environment) env[name] = value;
  Json prepend{{"LD_PRELOAD", guard_library}};
  if (source.simulated) {
    env["GPUMUX_SOFTGPU"] = source.spec;
    env["GPUMUX_SOFTGPU_DIR"] = source.dir;
    prepend["LD_LIBRARY_PATH"] = source.libraries_dir;
  }
  return Dump({{"tenant_id", tenant.id},
               {"name", tenant.request.ask.name},
               {"mode", core::Name(tenant.mode)},
               {"mode_reason", ModeReason(tenant)},
               {"simulated", source.simulated},
               {"waited_seconds", tenant.waited_seconds},
               {"gpus", std::move(gpus)},
               {"near", NearJson(tenant.gpus, machine)},
               {"env", std::move(env)},
               {"env_prepend", std::move(prepend)}});
}

std::string QueuedJson(size_t position, const core::Queue::Waiting& waiting, const Tenants& tenants,
                       const Clock& clock) {
  constexpr size_t kMaxHolders = 64;  // the message is bounded
  Json holders = Json::array();
  for (const auto& [id, tenant] : tenants.live()) {
    if (holders.size() >= kMaxHolders) break;
    uint64_t guaranteed = 0;
    for (const core::Share& share : tenant->shares) guaranteed += share.guaranteed_bytes;
    holders.push_back({{"id", id}, {"name", tenant->request.ask.name}, {"mem_guaranteed_bytes", guaranteed}});
  }
  Json json = WaitingJson(position, waiting, clock);
  json["holders"] = std::move(holders);
  return Dump(json);
}

std::string SummaryJson(const Tenant& tenant, const Machine& machine) {
  Json json = TenantJson(tenant, machine);
  std::string text = Dump({{"tenant", json}});
  // With thousands of processes it would not fit into a message.
  if (text.size() > GPUMUX_MAX_PAYLOAD) {
    json["members"] = Json::array();
    json["members_reason"] = "too many for this message";
    text = Dump({{"tenant", json}});
  }
  return text;
}

std::string Report::Status(uid_t viewer) const {
  // A GPU that came late is the machine's last one, whatever NVML's index of it is.
  std::vector<const GpuState*> by_index;
  for (const auto& gpu : machine_.gpus()) {
    // An instance that was removed is of interest as long as somebody has a promise on it.
    if (!gpu->gone || !gpu->ledger.Tenants().empty()) by_index.push_back(gpu.get());
  }
  std::ranges::stable_sort(by_index, {}, [](const GpuState* gpu) { return gpu->device.index; });
  Json gpus = Json::array();
  for (const GpuState* gpu : by_index) gpus.push_back(GpuJson(*gpu, tenants_, machine_));
  Json data{
      {"daemon",
       {{"pid", ::getpid()}, {"uid", ::getuid()}, {"user", UserName(::getuid())}, {"version", kVersion}}},
      {"driver_version", machine_.nvml_version()},
      {"gpus", std::move(gpus)}};
  data["tenants"] = TenantsJson(viewer, machine_, tenants_, leases_, false, clock_);
  return Envelope("gpumux.status/1", clock_, machine_.source().simulated, data);
}

std::string Report::TenantList(uid_t viewer, bool ended_too) const {
  return Envelope("gpumux.tenants/1", clock_, machine_.source().simulated,
                  {{"tenants", TenantsJson(viewer, machine_, tenants_, leases_, ended_too, clock_)}});
}

std::optional<std::string> Report::TenantDetail(uid_t viewer, const std::string& id) const {
  const auto body = [&](Json tenant, uid_t owner) {
    return Envelope("gpumux.tenant/1", clock_, machine_.source().simulated,
                    TenantForViewer(std::move(tenant), viewer, owner));
  };
  if (const Tenant* tenant = tenants_.FindAny(id)) return body(TenantJson(*tenant, machine_), tenant->uid);
  for (const auto& [request, waiter] : leases_.waiters()) {
    if (waiter.id == id) return body(WaiterJson(waiter, leases_.queue(), clock_), waiter.uid);
  }
  return std::nullopt;
}

std::string Report::Version() const {
  return Envelope("gpumux.version/1", clock_, machine_.source().simulated,
                  {{"version", kVersion},
                   {"session_version", GPUMUX_SESSION_VERSION},
                   {"pages_version", GPUMUX_PAGES_VERSION},
                   {"driver_version", machine_.nvml_version()},
                   {"pid", ::getpid()}});
}

std::string Report::Done() const {
  return Envelope("gpumux.done/1", clock_, machine_.source().simulated, Json::object());
}

std::string Report::ErrorBody(const Error& error) {
  return Dump({{"error", {{"code", Name(error.code)}, {"message", error.message}, {"hint", error.hint}}}}) +
         "\n";
}

}  // namespace gpumux::daemon
