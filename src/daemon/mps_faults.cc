// SPDX-License-Identifier: Apache-2.0
#include "daemon/mps_faults.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <optional>

#include "daemon/usage.h"

namespace gpumux::daemon {

namespace {

// A fault is noticed within a second, when the server's log has grown.
constexpr Time kRemembered = std::chrono::seconds(5);
// A death may be noticed so much later than it was.
constexpr Time kNoticed = std::chrono::milliseconds(50);
constexpr size_t kMostDead = 1024;
// Of a process without work the driver has nothing any more so soon after its descriptors
// are closed; with work under way it takes 2 s (H200).
constexpr Time kQuickClose = std::chrono::seconds(1);
constexpr uint32_t kIllegalAddress = 700;
// A fault is told to everybody within 0.1 s (H200).
constexpr Time kToldWithin = std::chrono::seconds(2);
// Who is started again later than that is not suspected any more.
constexpr Time kSuspected = std::chrono::hours(24);
constexpr size_t kMostSuspects = 4096;

// Before the loop comes to tell it.
bool HasEnded(const Member& member) {
  pollfd poll{member.pidfd.get(), POLLIN, 0};
  return ::poll(&poll, 1, 0) == 1;
}

}  // namespace

MpsFaults::Client MpsFaults::Look(const Tenant& tenant, const Member& member) const {
  Client client;
  client.tenant = tenant.id;
  client.owner = tenant.uid;
  client.process = member.process;
  client.name = tenant.request.ask.name;
  client.died = member.died.value_or(Time(0));
  client.hold = member.held.hold;
  client.lost = member.held.lost;
  client.gpu = tenant.shares[0].gpu;
  // Its guard has not come to this daemon: what it did is not known.
  client.busy = !member.page;
  if (!member.page) return client;
  // Who waited for all of its work with success, and launched nothing for longer than a fault
  // takes to be told, has no part in it. Success alone is no proof: the culprit's own wait may
  // end so (a misaligned address, H200). Launches are counted on the first slot.
  const WorkWords work = member.page->Work();
  const bool quiet = work.all_ended && tenant.idle.LastsFor(kToldWithin, CountLaunches(tenant));
  client.busy = work.launches > 0 && !quiet;
  client.error = member.page->FirstError();
  client.ended_well = member.died && client.error == 0 && !member.held.under_way;
  // The process wrote it: a time that cannot be is none.
  const Time at(static_cast<int64_t>(std::min<uint64_t>(member.page->FirstErrorNs(), INT64_MAX)));
  if (client.error != 0 && at <= clock_.Now() && at > clock_.Now() - kRemembered) client.error_at = at;
  return client;
}

void MpsFaults::NoteDeath(Tenant& tenant, const Member& member) {
  if (!tenant.apart.empty()) return NoteFaultApart(tenant, member);
  // What a fault has ended already is no part of the next one.
  if (!tenant.ViaMps() || tenant.lost_work) return;
  Client client = Look(tenant, member);
  if (client.died == Time(0)) client.died = clock_.Now();
  dead_.push_back(std::move(client));
  if (dead_.size() > kMostDead) dead_.pop_front();
}

void MpsFaults::NoteLetGo(const Member& member) {
  for (Client& each : dead_) {
    if (each.process != member.process) continue;
    each.hold = std::min(each.hold, clock_.Now() - each.died);
    // Closing them may take the driver as long as the work does (2 s on an H200).
    each.let_go = clock_.Now();
    each.lost |= member.held.lost;
  }
}

std::vector<MpsFaults::Client> MpsFaults::ClientsOf(const MpsDomain& domain) {
  std::erase_if(dead_, [&](const Client& each) { return each.died < clock_.Now() - kRemembered; });
  std::vector<Client> clients;
  for (const Client& each : dead_) {
    if (domain.Serves(each.gpu)) clients.push_back(each);
  }
  for (const auto& [id, tenant] : tenants_.live()) {
    if (!tenant->ViaMps() || !domain.Serves(tenant->shares[0].gpu)) continue;
    for (const auto& [key, member] : tenant->members) {
      if (member.died) continue;
      const bool on_gpu = std::any_of(member.gpus.begin(), member.gpus.end(),
                                      [](const Member::Gpu& gpu) { return gpu.IsUsed(); });
      Client client = Look(*tenant, member);
      // Its descriptors are closed before its end is told: the driver has nothing of it any
      // more, its guard hung up, and it was at work a moment ago.
      const bool ends = (member.page && client.busy && member.sessions == 0 && !on_gpu) || HasEnded(member);
      // What is held of it tears nothing down yet.
      if (ends && (member.held.held == 0 || member.held.lost)) client.died = clock_.Now();
      if (on_gpu || ends) clients.push_back(std::move(client));
    }
  }
  return clients;
}

core::Culprit MpsFaults::Judge(const std::vector<Client>& clients) const {
  // The first error in a process of another tenant; before that nobody had one.
  const auto first_error_beside = [&](const std::string& tenant) {
    std::optional<Time> first;
    for (const Client& each : clients) {
      if (each.tenant != tenant && each.error_at != Time(0))
        first = std::min(first.value_or(each.error_at), each.error_at);
    }
    return first;
  };
  // Of a death at work the others get this error and no other; of a fault, its own.
  const bool by_death =
      std::any_of(clients.begin(), clients.end(), [](const Client& each) { return each.error != 0; }) &&
      std::all_of(clients.begin(), clients.end(),
                  [](const Client& each) { return each.error == 0 || each.error == kIllegalAddress; });
  std::vector<core::Suspect> suspects;
  for (const Client& each : clients) {
    core::Suspect suspect;
    suspect.tenant = each.tenant;
    suspect.busy = each.busy;
    // While its descriptors are held a death tears nothing down. Who noticed an error was a victim.
    const Time fault_at = first_error_beside(each.tenant).value_or(clock_.Now());
    const Time torn_down = each.died + each.hold;
    // The driver closes what has no work at once.
    const Time closed = each.let_go == Time(0) ? clock_.Now() : each.let_go;
    const bool at_work = each.hold == Time(0) || each.lost || closed - torn_down > kQuickClose;
    const bool died = each.died != Time(0) && each.error == 0 && !each.ended_well;
    if (by_death && died && at_work && torn_down <= fault_at + kNoticed)
      suspect.torn_down_before = std::max(fault_at - std::max(torn_down, each.let_go), Time(0));
    suspects.push_back(std::move(suspect));
  }
  return core::FindCulprit(suspects);
}

void MpsFaults::WorkIsLost(const MpsDomain& domain, bool fault) {
  const std::vector<Client> clients = ClientsOf(domain);
  const core::Culprit culprit = fault ? Judge(clients) : core::Culprit{};
  std::set<std::string> losers;
  for (const Client& each : clients) {
    if (!each.ended_well) losers.insert(each.tenant);
  }
  Event event;
  event.kind = fault ? EventKind::kMpsFault : EventKind::kMpsServerLost;
  event.gpus = domain.gpus();
  // Its tenant may be over by now.
  const auto named = std::find_if(clients.begin(), clients.end(), [&](const Client& each) {
    return !culprit.tenant.empty() && each.tenant == culprit.tenant;
  });
  const Client* by = named == clients.end() ? nullptr : &*named;
  if (by) {
    event.tenant = by->tenant;
    event.tenant_name = by->name;
    event.owner = by->owner;
  }
  if (!fault)
    event.text = fmt::format("the MPS server has died: the work of {} tenant(s) is lost; another one starts",
                             losers.size());
  else if (by)
    event.text = fmt::format("a fault of tenant {} ({}) on the GPU: {}; the work of {} tenant(s) is lost",
                             by->tenant, by->name, culprit.why, losers.size());
  else
    event.text =
        fmt::format("a fault on the GPU: {}; the work of {} tenant(s) is lost", culprit.why, losers.size());
  events_.Note(std::move(event));
  if (fault && !by) Suspect(losers);
  Mark(clients, culprit, by, fault);
  dead_.clear();
}

void MpsFaults::Mark(const std::vector<Client>& clients, const core::Culprit& culprit, const Client* by,
                     bool fault) {
  for (const Client& each : clients) {
    Tenant* tenant = tenants_.Find(each.tenant);
    if (!tenant || tenant->lost_work || each.ended_well) continue;
    LostWork lost;
    if (!fault) {
      lost = {LostWork::Cause::kServer, "its MPS server died"};
    } else if (by && by->tenant == tenant->id) {
      lost = {LostWork::Cause::kOwnFault, "a GPU fault of its own: " + culprit.why};
    } else if (by) {
      lost = {LostWork::Cause::kNeighbour,
              fmt::format("killed by fault of tenant {} ({})", by->tenant, by->name)};
    } else {
      lost = {LostWork::Cause::kUnknown, "killed by a GPU fault under MPS: " + culprit.why};
    }
    tenant->lost_work = std::move(lost);
    if (on_marked) on_marked(*tenant);
  }
}

std::string MpsFaults::WhyApart(const std::string& before, uid_t owner) const {
  const auto found = suspects_.find(before);
  if (found == suspects_.end() || found->second.owner != owner) return "";
  const Suspicion& fault = found->second;
  return fmt::format(
      "it may have been the reason of the fault at {:%H:%M:%S} UTC, as {}",
      fmt::gmtime(std::chrono::system_clock::to_time_t(fault.wall)),
      fault.of == 2 ? std::string("another one may") : fmt::format("{} others may", fault.of - 1));
}

void MpsFaults::Suspect(const std::set<std::string>& tenants) {
  std::erase_if(suspects_, [&](const auto& each) { return each.second.since < clock_.Now() - kSuspected; });
  for (const std::string& id : tenants) {
    const Tenant* tenant = tenants_.Find(id);
    if (!tenant || suspects_.size() >= kMostSuspects) continue;
    suspects_[id] = {tenant->uid, clock_.Now(), clock_.WallTime(), tenants.size()};
  }
}

void MpsFaults::NoteFaultApart(Tenant& tenant, const Member& member) {
  const uint32_t error = member.page ? member.page->FirstError() : 0;
  if (error == 0 || tenant.lost_work) return;
  const std::string why = fmt::format("error {} of pid {}, which ran apart from the MPS server, for {}",
                                      error, member.process.pid, tenant.apart);
  tenant.lost_work = {LostWork::Cause::kOwnFault, "a GPU fault of its own: " + why};
  if (on_marked) on_marked(tenant);
  Event event = About(EventKind::kMpsFault, tenant,
                      fmt::format("a fault of tenant {} ({}) on the GPU: {}; nobody else lost work",
                                  tenant.id, tenant.request.ask.name, why));
  for (const size_t gpu : tenant.gpus) event.gpus.push_back(machine_.gpus()[gpu]->device.uuid);
  events_.Note(std::move(event));
}

bool MpsFaults::Enquire(Tenant& tenant, std::function<void()> go_on) {
  if (tenant.fault_asking) return true;
  if (!tenant.ViaMps() || tenant.lost_work || tenant.fault_asked) return false;
  MpsDomain* domain = mps_.Find(tenant.shares[0].gpu);
  const bool failed =
      tenant.ended && (tenant.ended->signal.has_value() || tenant.ended->exit_code.value_or(0) != 0);
  if (!domain || !failed || !tenant.stop_reason.empty()) return false;
  tenant.fault_asked = tenant.fault_asking = true;
  domain->AskNow([this, id = tenant.id, go_on = std::move(go_on)] {
    if (Tenant* asked = tenants_.Find(id)) asked->fault_asking = false;
    go_on();
  });
  return true;
}

}  // namespace gpumux::daemon
