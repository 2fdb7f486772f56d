// SPDX-License-Identifier: Apache-2.0
#include "daemon/mps_api.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "daemon/report.h"
#include "daemon/user_name.h"
#include "gpu/mps_processes.h"

namespace gpumux::daemon {

namespace {

using Json = nlohmann::json;

constexpr const char* kSchema = "gpumux.mps/1";

ApiServer::Response Failure(const Error& error) { return {HttpStatus(error.code), Report::ErrorBody(error)}; }

// {"gpus":{"list":[TEXT, ...]},"exclusive":BOOL,"pid":N}, each as far as the request has it.
struct Asked {
  std::vector<std::string> gpus;
  bool exclusive = false;
  pid_t pid = 0;
};

Result<Asked> Parse(const std::string& body) {
  Asked asked;
  const Json json = Json::parse(body.empty() ? "{}" : body, nullptr, false);
  if (!json.is_object()) return Fail(Code::kInvalid, "the request is not a JSON object");
  if (const auto gpus = json.find("gpus"); gpus != json.end()) {
    const Json list = gpus->is_object() ? gpus->value("list", Json()) : Json();
    if (!list.is_array() || list.empty() || list.size() > GPUMUX_MAX_GPUS)
      return Fail(Code::kInvalid,
                  fmt::format("gpus must be {{\"list\":[...]}} with 1 to {} GPUs", GPUMUX_MAX_GPUS));
    for (const Json& gpu : list) {
      if (!gpu.is_string() || gpu.get_ref<const std::string&>().size() > 64)
        return Fail(Code::kInvalid, "gpus must list indexes or UUIDs as strings");
      asked.gpus.push_back(gpu.get<std::string>());
    }
  }
  if (const auto exclusive = json.find("exclusive"); exclusive != json.end()) {
    if (!exclusive->is_boolean()) return Fail(Code::kInvalid, "exclusive must be true or false");
    asked.exclusive = exclusive->get<bool>();
  }
  if (const auto pid = json.find("pid"); pid != json.end()) {
    if (!pid->is_number_unsigned() || pid->get<uint64_t>() == 0 || pid->get<uint64_t>() > INT32_MAX)
      return Fail(Code::kInvalid, "pid must be a process's number");
    asked.pid = pid->get<pid_t>();
  }
  return asked;
}

Json TextOrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }
Json PidOrNull(pid_t pid) { return pid == 0 ? Json(nullptr) : Json(pid); }

bool IsOwn(const MpsService& mps, pid_t pid) {
  return std::any_of(mps.domains().begin(), mps.domains().end(),
                     [&](const auto& domain) { return domain->daemon_pid() == pid; });
}

}  // namespace

void MpsApi::Handle(const ApiServer::Request& request, ApiServer::Reply reply) {
  if (request.method == "GET" && request.path == "/v1/mps") return reply({200, Body()});
  const bool start = request.path == "/v1/mps/start", stop = request.path == "/v1/mps/stop";
  const bool adopt = request.path == "/v1/mps/adopt";
  if (request.method != "POST" || (!start && !stop && !adopt))
    return reply(
        Failure({Code::kNotFound, fmt::format("there is no {} {} here", request.method, request.path), ""}));
  if (IsStranger(request.peer.uid))
    return reply(
        Failure({Code::kDenied, "the MPS of this daemon is " + UserName(::geteuid()) + "'s to change",
                 "ask them, or root"}));
  if (start) return Start(request, std::move(reply));
  if (adopt) return Adopt(request, std::move(reply));
  Stop(request, reply);
}

Result<std::vector<gpu::Uuid>> MpsApi::GpusNamed(const std::vector<std::string>& names) const {
  std::vector<gpu::Uuid> gpus;
  if (names.empty()) {
    if (machine_.GpuCount() == 1) return std::vector{machine_.gpus()[0]->device.uuid};
    return Fail(Code::kInvalid, fmt::format("this machine has {} GPUs", machine_.GpuCount()),
                "name those that shall share one MPS server with --gpu");
  }
  for (const std::string& name : names) {
    const auto found = machine_.FindNamed(name);
    if (!found) return tl::unexpected(found.error());
    const gpu::Uuid& uuid = machine_.gpus()[*found]->device.uuid;
    if (std::find(gpus.begin(), gpus.end(), uuid) != gpus.end())
      return Fail(Code::kInvalid, fmt::format("GPU \"{}\" is named twice", name));
    gpus.push_back(uuid);
  }
  return gpus;
}

// What would be in the way; of exclusive mode also every process that is no client of the server.
Status MpsApi::MayStart(const std::vector<gpu::Uuid>& gpus, bool exclusive) {
  if (exclusive && ::geteuid() != 0)
    return Fail(Code::kDenied,
                "exclusive compute mode needs root, and this gpumuxd runs as " + UserName(::geteuid()),
                "start it without --exclusive: gpumux itself sees who runs outside MPS");
  monitor_.RefreshAll();
  const MpsDomain* serving = mps_.Serving(gpus);
  for (const gpu::Uuid& uuid : gpus) {
    const GpuState& gpu = *machine_.gpus()[*machine_.Find(uuid)];
    const std::string index = gpu.device.index.Label();
    if (!gpu.claim)
      return Fail(Code::kConflict, fmt::format("GPU {} is another daemon's", index), "see gpumux status");
    if (gpu.mode && *gpu.mode != core::Mode::kMps)
      return Fail(Code::kConflict, fmt::format("GPU {} has tenants of mode {}", index, core::Name(*gpu.mode)),
                  "wait until they have ended: gpumux status");
    const MpsDomain* domain = mps_.Find(uuid);
    const bool other = domain && (domain != serving || domain->gpus().size() != gpus.size());
    if (other && (domain->record().kept || !mps_.TenantsOf(*domain).empty()))
      return Fail(Code::kConflict,
                  fmt::format("GPU {} is served with other GPUs: {}", index, Names(domain->gpus())),
                  "see gpumux mps status");
    for (const auto& [pid, stranger] : gpu.strangers) {
      const bool server = stranger.name.starts_with("nvidia-cuda-mps");
      if (exclusive || server)
        return Fail(
            Code::kConflict, fmt::format("{} is on GPU {}", stranger.Describe(), index),
            server ? "end its control daemon, or: gpumux mps adopt" : "it would keep MPS from starting");
    }
  }
  return {};
}

void MpsApi::Start(const ApiServer::Request& request, ApiServer::Reply reply) {
  const auto asked = Parse(request.body);
  if (!asked) return reply(Failure(asked.error()));
  const auto gpus = GpusNamed(asked->gpus);
  if (!gpus) return reply(Failure(gpus.error()));
  if (Status may = MayStart(*gpus, asked->exclusive); !may) return reply(Failure(may.error()));
  mps_.Prepare(*gpus, [this, gpus = *gpus, exclusive = asked->exclusive, by = request.peer.uid,
                       reply = std::move(reply)](const Status& ready) {
    MpsDomain* domain = mps_.Serving(gpus);
    if (!ready || !domain)
      return reply(Failure(ready ? Error{Code::kUnavailable, "it has ended already", ""} : ready.error()));
    if (Status kept = mps_.Keep(*domain, exclusive); !kept) return reply(Failure(kept.error()));
    Note(fmt::format("MPS of {} stays until it is stopped{}", Names(gpus),
                     exclusive ? ", in exclusive compute mode" : ""),
         gpus, by);
    reply({200, Body()});
  });
}

void MpsApi::Stop(const ApiServer::Request& request, const ApiServer::Reply& reply) {
  const auto asked = Parse(request.body);
  if (!asked) return reply(Failure(asked.error()));
  std::vector<MpsDomain*> domains;
  for (const auto& domain : mps_.domains()) {
    if (asked->gpus.empty()) domains.push_back(domain.get());
  }
  if (!asked->gpus.empty()) {
    const auto gpus = GpusNamed(asked->gpus);
    if (!gpus) return reply(Failure(gpus.error()));
    for (const gpu::Uuid& gpu : *gpus) {
      MpsDomain* domain = mps_.Find(gpu);
      if (domain && std::find(domains.begin(), domains.end(), domain) == domains.end())
        domains.push_back(domain);
    }
  }
  if (domains.empty())
    return reply(Failure({Code::kNotFound, "gpumux runs no MPS here", "see gpumux mps status"}));
  for (MpsDomain* domain : domains) {
    const std::vector<gpu::Uuid> gpus = domain->gpus();
    const size_t tenants = mps_.TenantsOf(*domain).size();
    if (Status given = mps_.GiveUp(*domain); !given) return reply(Failure(given.error()));
    Note(fmt::format("MPS of {} is stopped{}", Names(gpus),
                     tenants == 0 ? "" : fmt::format(" when its {} tenant(s) have ended", tenants)),
         gpus, request.peer.uid);
  }
  reply({200, Body()});
}

// What gpumux needs to know of somebody's control daemon, and whether it can be used.
Result<MpsRecord> MpsApi::RecordOf(pid_t pid, uid_t by) const {
  std::vector<gpu::MpsDaemon> found = gpu::FindMpsDaemons();
  std::erase_if(found, [&](const gpu::MpsDaemon& daemon) { return IsOwn(mps_, daemon.pid); });
  if (pid != 0) std::erase_if(found, [&](const gpu::MpsDaemon& daemon) { return daemon.pid != pid; });
  if (found.empty())
    return Fail(Code::kNotFound,
                pid == 0 ? "no MPS control daemon runs that gpumux did not start"
                         : fmt::format("pid {} is no MPS control daemon of somebody else", pid),
                "see gpumux mps status");
  if (found.size() > 1)
    return Fail(Code::kInvalid, fmt::format("{} MPS control daemons run", found.size()),
                "say which with --pid");
  const gpu::MpsDaemon& daemon = found[0];
  const uid_t owner = daemon.owner.value_or(static_cast<uid_t>(-1));
  if (!daemon.settings || owner != ::geteuid())
    return Fail(Code::kDenied,
                fmt::format("the MPS control daemon {} is {}'s, and gpumuxd runs as {}", daemon.pid,
                            daemon.owner ? UserName(owner) : "somebody else", UserName(::geteuid())),
                "only the user who started it can give it commands");
  if (by != 0 && by != owner) return Fail(Code::kDenied, "it is " + UserName(owner) + "'s");
  MpsRecord record{.pipe_dir = daemon.settings->pipe_dir, .log_dir = daemon.settings->log_dir};
  if (!record.pipe_dir.starts_with('/') || !record.log_dir.starts_with('/'))
    return Fail(Code::kUnsupported, "its pipe directory is a relative path: " + record.pipe_dir,
                "start it with absolute ones");
  if (const auto& visible = daemon.settings->visible; visible && machine_.GpuCount() > 1) {
    std::istringstream words(*visible);
    for (std::string word; std::getline(words, word, ',');) {
      const auto index =
          word.starts_with("GPU-") ? machine_.FindNamed(word) : Result<size_t>(Fail(Code::kInvalid, ""));
      if (!index)
        return Fail(
            Code::kUnsupported,
            fmt::format("it was started with CUDA_VISIBLE_DEVICES={}: which GPUs these are, CUDA alone knows",
                        *visible),
            "start it with their UUIDs");
      record.gpus.push_back(machine_.gpus()[*index]->device.uuid);
    }
  } else {
    for (const auto& gpu : machine_.gpus()) record.gpus.push_back(gpu->device.uuid);
  }
  if (record.gpus.empty()) return Fail(Code::kUnsupported, "it serves no GPU");
  return record;
}

void MpsApi::Adopt(const ApiServer::Request& request, ApiServer::Reply reply) {
  const auto asked = Parse(request.body);
  if (!asked) return reply(Failure(asked.error()));
  auto record = RecordOf(asked->pid, request.peer.uid);
  if (!record) return reply(Failure(record.error()));
  for (const gpu::Uuid& gpu : record->gpus) {
    const MpsDomain* domain = mps_.Find(gpu);
    if (domain && (domain->record().kept || !mps_.TenantsOf(*domain).empty()))
      return reply(Failure({Code::kConflict, "gpumux runs an MPS of its own for " + Names({gpu}),
                            "end it first: gpumux mps stop"}));
  }
  const std::vector<gpu::Uuid> gpus = record->gpus;
  const std::string pipe_dir = record->pipe_dir;
  mps_.Adopt(std::move(*record), [this, gpus, pipe_dir, by = request.peer.uid,
                                  reply = std::move(reply)](const Status& ready) {
    MpsDomain* domain = mps_.Serving(gpus);
    const Status kept = !ready    ? ready
                        : !domain ? Fail(Code::kUnavailable, "it has ended")
                                  : mps_.Keep(*domain, false);
    if (!kept) return reply(Failure(kept.error()));
    Note(fmt::format("the MPS control daemon of {} in {} is adopted", Names(gpus), pipe_dir), gpus, by);
    reply({200, Body()});
  });
}

std::string MpsApi::Body() const {
  Json domains = Json::array(), foreign = Json::array();
  for (const auto& domain : mps_.domains()) {
    Json gpus = Json::array(), tenants = Json::array();
    unsigned places = 0, most = 0;
    for (const gpu::Uuid& uuid : domain->gpus()) {
      const size_t at = *machine_.Find(uuid);
      const GpuState& gpu = *machine_.gpus()[at];
      const core::MpsSnapshot snapshot = mps_.Snapshot(at);
      places = std::max(places, snapshot.clients);
      most = snapshot.most_clients;
      gpus.push_back({{"uuid", uuid.ToString()},
                      {"index", gpu.device.index.gpu},
                      {"exclusive_compute_mode", gpu.compute_mode == gpu::ComputeMode::kExclusiveProcess}});
    }
    for (const Tenant* tenant : mps_.TenantsOf(*domain))
      tenants.push_back({{"id", tenant->id}, {"name", tenant->request.ask.name}});
    domains.push_back(
        {{"gpus", std::move(gpus)},
         {"state", std::string(Name(domain->state()))},
         {"reason", TextOrNull(domain->failure() ? domain->failure()->ToString() : domain->NotNow())},
         {"control_pid", PidOrNull(domain->daemon_pid())},
         {"server_pid", PidOrNull(domain->server_pid())},
         {"pipe_dir", domain->PipeDirectory()},
         {"log_dir", domain->LogDirectory()},
         {"kept", domain->record().kept},
         {"exclusive", domain->record().exclusive},
         {"adopted", domain->record().Adopted()},
         {"client_places_taken", places},
         {"client_places", most},
         {"tenants", std::move(tenants)},
         {"faults", domain->faults()},
         {"server_deaths", domain->server_deaths()}});
  }
  for (const gpu::MpsDaemon& daemon : gpu::FindMpsDaemons()) {
    if (IsOwn(mps_, daemon.pid)) continue;
    foreign.push_back({{"pid", daemon.pid},
                       {"owner", daemon.owner ? Json(UserName(*daemon.owner)) : Json(nullptr)},
                       {"pipe_dir", daemon.settings ? Json(daemon.settings->pipe_dir) : Json(nullptr)},
                       {"every_user", daemon.every_user}});
  }
  const Json data{{"domains", std::move(domains)}, {"foreign", std::move(foreign)}};
  return EnvelopeOf(kSchema, clock_, machine_.source().simulated,
                    data.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string MpsApi::Names(const std::vector<gpu::Uuid>& gpus) const {
  std::string text;
  for (const gpu::Uuid& gpu : gpus) {
    const auto at = machine_.Find(gpu);
    text += fmt::format("{}{}", text.empty() ? "GPU " : ", ",
                        at ? machine_.gpus()[*at]->device.index.Label() : gpu.ToString());
  }
  return text;
}

void MpsApi::Note(std::string text, const std::vector<gpu::Uuid>& gpus, uid_t by) {
  events_.Note({.kind = EventKind::kMpsChanged, .text = std::move(text), .by = by, .gpus = gpus});
}

}  // namespace gpumux::daemon
