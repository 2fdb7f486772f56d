// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics.h"

#include <algorithm>
#include <array>

#include "daemon/gate_report.h"
#include "daemon/history_record.h"
#include "daemon/metrics_series.h"
#include "daemon/report.h"
#include "daemon/turn_roster.h"
#include "daemon/usage.h"
#include "daemon/user_name.h"
#include "daemon/version.h"
#include "history/outcome.h"

namespace gpumux::daemon {

namespace {

using Labels = MetricsText::Labels;

// How old NVML's figures may be for whoever is not the daemon's user or root.
constexpr Time kFreshForStrangers = std::chrono::milliseconds(100);

// Labels of a tenant that dcgm-exporter gives to GPUs: series of both join by them.
constexpr std::string_view kPlaceLabels[] = {"pod", "namespace", "container", "hpc_job"};

constexpr TenantState kLiveStates[] = {TenantState::kStarting, TenantState::kRunning, TenantState::kStopping};

double SecondsOf(std::chrono::system_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

double SecondsOf(uint64_t ns) { return static_cast<double>(ns) / 1e9; }

uint64_t Natural(int64_t value) { return value > 0 ? static_cast<uint64_t>(value) : 0; }

std::string Word(bool value) { return value ? "true" : "false"; }

// As dcgm-exporter has them, of instances too; that does not tell compute instances of one GPU instance
// apart.
Labels GpuLabels(const gpu::Device& device) {
  if (!device.instance) return {{"gpu", std::to_string(device.index.gpu)}, {"UUID", device.uuid.ToString()}};
  return {{"gpu", std::to_string(device.index.gpu)},
          {"UUID", device.instance->gpu.ToString()},
          {"GPU_I_PROFILE", device.instance->profile},
          {"GPU_I_ID", std::to_string(device.instance->gpu_instance)},
          {"mig_uuid", device.uuid.ToString()}};
}

Labels With(Labels labels, std::string_view name, std::string_view value) {
  labels.emplace_back(name, value);
  return labels;
}

void AddRefusals(MetricsText& text, const MetricFamily& family, const Labels& labels, uint64_t own_limit,
                 uint64_t device_full, uint64_t own_part) {
  text.Add(family, With(labels, "cause", "own_limit"), own_limit);
  text.Add(family, With(labels, "cause", "device_full"), device_full);
  text.Add(family, With(labels, "cause", "own_part"), own_part);
}

Histogram HistogramOf(const TurnWaits& waits) {
  Histogram histogram(TurnWaits::kBoundsSeconds);
  for (size_t i = 0; i < waits.counts.size(); ++i) histogram.counts[i] = waits.counts[i].load();
  histogram.sum = SecondsOf(Natural(waits.sum_ns.load()));
  return histogram;
}

}  // namespace

Metrics::Metrics(const Machine& machine, const Tenants& tenants, const Leases& leases, Monitor& monitor,
                 const EventLog& events, const TurnWaits& turn_waits, const Clock& clock,
                 const bool& show_labels)
    : machine_(machine),
      tenants_(tenants),
      leases_(leases),
      monitor_(monitor),
      events_(events),
      turn_waits_(turn_waits),
      clock_(clock),
      show_labels_(show_labels),
      started_(clock.WallTime()) {}

TenantCounters Metrics::CountersOf(const Tenant& tenant) const {
  const Refusals refusals = CountRefusals(tenant, machine_);
  TenantCounters counters{
      .own_limit = refusals.own_limit, .device_full = refusals.device_full, .own_part = refusals.own_part};
  if (tenant.turns) {
    counters.turns = tenant.turns->turns;
    for (const size_t gpu : tenant.gpus) counters.gpu_ns.emplace_back(gpu, Natural(tenant.turns->billed_ns));
  }
  const auto gates = SumGates(tenant);
  if (gates && tenant.request.ask.urgency == core::Urgency::kBestEffort) {
    counters.gate_closed_ns = gates->closed_ns;
    counters.gate_forced = gates->forcings;
  }
  return counters;
}

void Metrics::Ended(const Tenant& tenant) {
  const TenantCounters counters = CountersOf(tenant);
  totals_.Look(tenant.id, counters);
  const double ran =
      tenant.ended ? std::chrono::duration<double>(tenant.ended->at - tenant.admitted).count() : 0;
  const uint64_t refused = counters.own_limit + counters.device_full + counters.own_part;
  totals_.Ended(tenant.id, history::Name(OutcomeOf(tenant, refused)), tenant.waited_seconds + ran,
                tenant.reservation);
}

ApiServer::Response Metrics::Answer(const ApiServer::Request& request) {
  if (request.method != "GET")
    return {405, Report::ErrorBody({Code::kInvalid, "metrics are read with GET", ""})};
  if (IsStranger(request.peer.uid))
    monitor_.RefreshAllIfOlder(kFreshForStrangers);
  else
    monitor_.RefreshAll();
  return {200, Text(request.peer.uid), MetricsText::kContentType};
}

ApiServer::Response Metrics::AnswerOnTcp(const ApiServer::Request& request) {
  // A web page can have a browser ask here under the page's own name.
  if (!IsLoopbackHost(request.host))
    return {403,
            Report::ErrorBody({Code::kDenied, "only requests for this machine's own address are answered",
                               "ask for localhost or 127.0.0.1"})};
  if (request.path != "/metrics")
    return {404, Report::ErrorBody(
                     {Code::kNotFound, "there is nothing but /metrics here", "the API is on a Unix socket"})};
  return Answer(request);
}

std::string Metrics::Text(uid_t viewer) {
  MetricsText text;
  for (const auto& [id, tenant] : tenants_.live()) {
    totals_.Look(id, CountersOf(*tenant));
    AddTenant(text, *tenant, viewer);
  }
  AddDaemon(text);
  AddTotals(text);
  AddGpus(text);
  return text.Render(series::All());
}

void Metrics::AddDaemon(MetricsText& text) const {
  text.Add(series::kBuild,
           {{"version", kVersion},
            {"driver_version", machine_.nvml_version()},
            {"simulated", Word(machine_.source().simulated)}},
           uint64_t{1});
  text.Add(series::kStart, {}, SecondsOf(started_));
  for (const TenantState state : kLiveStates) {
    const auto count =
        std::ranges::count_if(tenants_.live(), [&](const auto& each) { return each.second->state == state; });
    text.Add(series::kTenants, {{"state", std::string(Name(state))}}, static_cast<uint64_t>(count));
  }
  text.Add(series::kTenants, {{"state", "waiting"}}, static_cast<uint64_t>(leases_.waiters().size()));
  Time longest{};
  for (const auto& [id, waiter] : leases_.waiters()) longest = std::max(longest, clock_.Now() - waiter.since);
  text.Add(series::kLongestWait, {}, std::chrono::duration<double>(longest).count());
  for (const auto& [kind, count] : events_.Counts())
    text.Add(series::kEvents, {{"kind", std::string(kind)}}, count);
}

void Metrics::AddTotals(MetricsText& text) const {
  for (const std::string_view outcome : history::OutcomeNames()) {
    const auto it = totals_.ended().find(outcome);
    text.Add(series::kEnded, {{"outcome", std::string(outcome)}},
             it == totals_.ended().end() ? uint64_t{0} : it->second);
  }
  AddRefusals(text, series::kRefusals, {}, totals_.own_limit(), totals_.device_full(), totals_.own_part());
  text.Add(series::kTurns, {}, totals_.turns());
  text.Add(series::kGateClosed, {}, totals_.gate_closed_seconds());
  text.Add(series::kGateForced, {}, totals_.gate_forced());
  text.Add(series::kCompletion, {}, totals_.completion());
  text.Add(series::kQueueWait, {}, totals_.queue_wait());
  text.Add(series::kTurnWait, {}, HistogramOf(turn_waits_));
}

void Metrics::AddGpus(MetricsText& text) const {
  for (size_t i = 0; i < machine_.gpus().size(); ++i) {
    const GpuState& gpu = *machine_.gpus()[i];
    if (gpu.gone) continue;
    const Labels labels = GpuLabels(gpu.device);
    const core::GpuSnapshot snapshot = gpu.Snapshot();
    Labels info = With(labels, "model", gpu.device.name);
    if (!gpu.device.pci_bus_id.empty()) info.emplace_back("pci_bus_id", gpu.device.pci_bus_id);
    text.Add(series::kGpu, info, uint64_t{1});
    text.Add(series::kGpuLost, labels, uint64_t{gpu.lost.has_value()});
    text.Add(series::kGpuClosed, labels, uint64_t{snapshot.Closed()});
    for (const auto& [xid, count] : gpu.xids)
      text.Add(series::kGpuXids, With(labels, "xid", std::to_string(xid)), count);
    if (gpu.mode) text.Add(series::kGpuMode, With(labels, "mode", core::Name(*gpu.mode)), uint64_t{1});
    text.Add(series::kGpuTenants, labels, uint64_t{snapshot.tenants});
    text.Add(series::kGpuTurnTime, labels, totals_.GpuSeconds(i));
    uint64_t used = 0;
    for (const auto& [id, tenant] : tenants_.live()) {
      if (const auto slot = SlotOf(*tenant, i)) used += Measure(*tenant, *slot, gpu).used_bytes;
    }
    text.Add(series::kGpuGuaranteed, labels, snapshot.guaranteed_bytes);
    text.Add(series::kGpuUsed, labels, used);
    if (gpu.Known()) {
      text.Add(series::kGpuTotal, labels, snapshot.total_bytes);
      text.Add(series::kGpuReserve, labels, snapshot.reserve_bytes);
    }
    if (gpu.Known() || snapshot.Closed())
      text.Add(series::kGpuPromisable, labels, snapshot.Closed() ? uint64_t{0} : snapshot.promisable_bytes);
    if (gpu.lost || !gpu.last_reading) continue;
    text.Add(series::kGpuStrangers, labels, uint64_t{gpu.strangers.size()});
    text.Add(series::kGpuUnmanaged, labels, snapshot.unmanaged_bytes);
    text.Add(series::kGpuUnexplained, labels, snapshot.unexplained_bytes);
    text.Add(series::kGpuDeviceUsed, labels, gpu.device_used_bytes);
  }
}

// Its name is for people, its id makes it one: two may have one name, and a name comes again.
Labels Metrics::LabelsOf(const Tenant& tenant, uid_t viewer) const {
  Labels labels{{"tenant", tenant.request.ask.name}, {"tenant_id", tenant.id}};
  if (IsStranger(viewer) && viewer != tenant.uid && !show_labels_) return labels;
  for (const std::string_view name : kPlaceLabels) {
    const auto it = tenant.request.labels.find(std::string(name));
    if (it != tenant.request.labels.end() && !it->second.empty()) labels.emplace_back(name, it->second);
  }
  return labels;
}

void Metrics::AddTenant(MetricsText& text, const Tenant& tenant, uid_t viewer) const {
  const Labels labels = LabelsOf(tenant, viewer);
  Labels info = labels;
  info.emplace_back("owner", UserName(tenant.uid));
  info.emplace_back("mode", core::Name(tenant.mode));
  info.emplace_back("priority", core::Name(tenant.request.ask.urgency));
  info.emplace_back("isolation", core::Name(tenant.request.ask.isolation));
  info.emplace_back("reservation", Word(tenant.reservation));
  text.Add(series::kTenant, info, uint64_t{1});
  text.Add(series::kTenantStart, labels, SecondsOf(tenant.admitted_wall));
  if (const auto idle = tenant.idle.Lasted())
    text.Add(series::kTenantIdle, labels, std::chrono::duration<double>(*idle).count());
  if (const auto enforced = MemoryEnforced(tenant)) text.Add(series::kEnforced, labels, uint64_t{*enforced});
  const Refusals refusals = CountRefusals(tenant, machine_);
  AddRefusals(text, series::kTenantRefusals, labels, refusals.own_limit, refusals.device_full,
              refusals.own_part);
  if (const auto gates = SumGates(tenant);
      gates && tenant.request.ask.urgency == core::Urgency::kBestEffort) {
    text.Add(series::kTenantGateClosed, labels, SecondsOf(gates->closed_ns));
    text.Add(series::kTenantGateForced, labels, gates->forcings);
  }
  if (const TurnFigures* turns = tenant.turns.get()) {
    text.Add(series::kTenantPart, labels, turns->part.load());
    text.Add(series::kTenantTurns, labels, turns->turns.load());
    text.Add(series::kTenantOverran, labels, turns->overran.load());
    text.Add(series::kTenantUnused, labels, turns->unused.load());
    text.Add(series::kTenantTurnWait, labels, SecondsOf(Natural(turns->waited_ns)));
  }
  AddTenantOnGpus(text, tenant, labels);
}

void Metrics::AddTenantOnGpus(MetricsText& text, const Tenant& tenant, const Labels& of_tenant) const {
  for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot) {
    const GpuState& gpu = *machine_.gpus()[tenant.gpus[slot]];
    const core::Share& share = tenant.shares[slot];
    Labels labels = GpuLabels(gpu.device);
    labels.insert(labels.end(), of_tenant.begin(), of_tenant.end());
    const Usage usage = Measure(tenant, slot, gpu);
    text.Add(series::kTenantGuaranteed, labels, share.guaranteed_bytes);
    if (share.limit_bytes) text.Add(series::kTenantLimit, labels, *share.limit_bytes);
    text.Add(series::kTenantUsed, labels, usage.used_bytes);
    text.Add(series::kTenantPeak, labels, std::max(tenant.peak_bytes[slot], usage.peak_bytes));
    text.Add(series::kTenantAtRisk, labels,
             slot < tenant.risks.size() ? tenant.risks[slot].bytes : uint64_t{0});
    if (tenant.turns) text.Add(series::kTenantGpuTime, labels, SecondsOf(Natural(tenant.turns->billed_ns)));
  }
}

}  // namespace gpumux::daemon
