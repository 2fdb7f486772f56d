// SPDX-License-Identifier: Apache-2.0
#include "daemon/events.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "daemon/tenant.h"
#include "daemon/user_name.h"

namespace gpumux::daemon {

namespace {

using Json = nlohmann::ordered_json;

struct KindRow {
  EventKind kind;
  const char* name;  // docs/reference/events.md and docs/schemas/event.schema.json list them
  Severity severity;
};

constexpr KindRow kKinds[] = {
    {EventKind::kDaemonStarted, "daemon-started", Severity::kInfo},
    {EventKind::kDaemonStopped, "daemon-stopped", Severity::kInfo},
    {EventKind::kGranted, "granted", Severity::kInfo},
    {EventKind::kRefused, "refused", Severity::kWarning},
    {EventKind::kCancelled, "cancelled", Severity::kInfo},
    {EventKind::kStopping, "stopping", Severity::kInfo},
    {EventKind::kEnded, "ended", Severity::kInfo},
    {EventKind::kTakenOver, "taken-over", Severity::kInfo},
    {EventKind::kNotTakenOver, "not-taken-over", Severity::kError},
    {EventKind::kChanged, "changed", Severity::kInfo},
    {EventKind::kReserved, "reserved", Severity::kInfo},
    {EventKind::kReleased, "released", Severity::kInfo},
    {EventKind::kAboveLimit, "above-limit", Severity::kWarning},
    {EventKind::kBelowLimit, "below-limit", Severity::kInfo},
    {EventKind::kNotEnforced, "not-enforced", Severity::kWarning},
    {EventKind::kEnforced, "enforced", Severity::kInfo},
    {EventKind::kStrangerSeen, "stranger-seen", Severity::kWarning},
    {EventKind::kStrangerGone, "stranger-gone", Severity::kInfo},
    {EventKind::kAtRisk, "at-risk", Severity::kError},
    {EventKind::kCovered, "covered", Severity::kInfo},
    {EventKind::kRecalled, "recalled", Severity::kInfo},
    {EventKind::kIdle, "idle", Severity::kInfo},
    {EventKind::kIdleOver, "idle-over", Severity::kInfo},
    {EventKind::kDiedAtWork, "died-at-work", Severity::kWarning},
    {EventKind::kLetGo, "let-go", Severity::kInfo},
    {EventKind::kGpuLost, "gpu-lost", Severity::kError},
    {EventKind::kGpuBack, "gpu-back", Severity::kInfo},
    {EventKind::kGpuXid, "gpu-xid", Severity::kError},
    {EventKind::kMigChanged, "mig-changed", Severity::kInfo},
    {EventKind::kMigApplied, "mig-applied", Severity::kInfo},
    {EventKind::kMigFailed, "mig-failed", Severity::kError},
    {EventKind::kGpuOwned, "gpu-owned", Severity::kInfo},
    {EventKind::kMpsFault, "mps-fault", Severity::kError},
    {EventKind::kMpsServerLost, "mps-server-lost", Severity::kError},
    {EventKind::kTurnTaken, "turn-taken", Severity::kWarning},
    {EventKind::kMpsChanged, "mps-changed", Severity::kInfo},
    {EventKind::kAuditFailed, "audit-failed", Severity::kError},
    {EventKind::kAuditWorks, "audit-works", Severity::kInfo},
    {EventKind::kSuppressed, "suppressed", Severity::kWarning},
};

constexpr size_t kReadBackBytes = 64u << 10;
constexpr size_t kMaxTextBytes = 1000;

const KindRow& Row(EventKind kind) {
  return *std::find_if(std::begin(kKinds), std::end(kKinds),
                       [&](const KindRow& row) { return row.kind == kind; });
}

// With milliseconds, in UTC.
std::string Rfc3339(std::chrono::system_clock::time_point time) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(time - seconds).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)), rest);
}

Json UserOrNull(const std::optional<uid_t>& uid) { return uid ? Json(UserName(*uid)) : Json(nullptr); }
Json UidOrNull(const std::optional<uid_t>& uid) { return uid ? Json(*uid) : Json(nullptr); }

std::optional<uid_t> UidAt(const Json& json, const char* key) {
  const Json& value = json.at(key);
  return value.is_null() ? std::nullopt : std::optional(value.get<uid_t>());
}

Event Read(const Json& json) {
  Event event;
  event.id = json.at("id").get<uint64_t>();
  event.at = std::chrono::system_clock::time_point(
      std::chrono::milliseconds(json.at("at_unix_milliseconds").get<int64_t>()));
  const std::string kind = json.at("kind").get<std::string>();
  const auto* row =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const KindRow& r) { return kind == r.name; });
  if (row == std::end(kKinds)) return {};
  event.kind = row->kind;
  event.text = json.at("text").get<std::string>();
  if (!json.at("tenant").is_null()) event.tenant = json.at("tenant").get<std::string>();
  if (!json.at("tenant_name").is_null()) event.tenant_name = json.at("tenant_name").get<std::string>();
  event.owner = UidAt(json, "owner_uid");
  event.by = UidAt(json, "user_uid");
  for (const Json& gpu : json.at("gpus")) {
    if (const auto uuid = gpu::ParseUuid(gpu.get<std::string>())) event.gpus.push_back(*uuid);
  }
  return event;
}

}  // namespace

std::string_view Name(EventKind kind) { return Row(kind).name; }
Severity SeverityOf(EventKind kind) { return Row(kind).severity; }

std::string_view Name(Severity severity) {
  switch (severity) {
    case Severity::kInfo:
      return "info";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "?";
}

Event About(EventKind kind, const Tenant& tenant, std::string text, std::optional<uid_t> by) {
  Event event;
  event.kind = kind;
  event.text = std::move(text);
  event.tenant = tenant.id;
  event.tenant_name = tenant.request.ask.name;
  event.owner = tenant.uid;
  event.by = by;
  for (const core::Share& share : tenant.shares) event.gpus.push_back(share.gpu);
  return event;
}

std::string EventJson(const Event& event) {
  Json gpus = Json::array();
  for (const gpu::Uuid& gpu : event.gpus) gpus.push_back(gpu.ToString());
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(event.at.time_since_epoch()).count();
  const Json json{{"id", event.id},
                  {"at", Rfc3339(event.at)},
                  {"at_unix_milliseconds", milliseconds},
                  {"kind", Name(event.kind)},
                  {"severity", Name(SeverityOf(event.kind))},
                  {"tenant", event.tenant.empty() ? Json(nullptr) : Json(event.tenant)},
                  {"tenant_name", event.tenant_name.empty() ? Json(nullptr) : Json(event.tenant_name)},
                  {"owner", UserOrNull(event.owner)},
                  {"owner_uid", UidOrNull(event.owner)},
                  {"user", UserOrNull(event.by)},
                  {"user_uid", UidOrNull(event.by)},
                  {"gpus", std::move(gpus)},
                  {"text", event.text}};
  // Names of processes may be any bytes.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<Event> ParseEvent(std::string_view line) {
  try {
    Event event = Read(Json::parse(line));
    if (event.id == 0 || event.text.size() > 2 * kMaxTextBytes) return std::nullopt;
    return event;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

EventLog::EventLog(const std::string& audit_path, const Clock& clock) : clock_(clock), audit_(audit_path) {
  for (const std::string& line : AuditLog::ReadLast(audit_path, kReadBackBytes)) {
    auto event = ParseEvent(line);
    // A number near the end of the range would leave none for what follows.
    if (!event || event->id < next_id_ || event->id > UINT64_MAX / 2) continue;
    next_id_ = event->id + 1;
    Keep(std::move(*event));
  }
}

std::optional<uid_t> EventLog::Accountable(const Event& event) { return event.by ? event.by : event.owner; }

bool EventLog::MayNote(uid_t uid) {
  const auto now = clock_.Now();
  Allowance& allowance =
      allowances_.try_emplace(uid, Allowance{.left = kBurst, .at = now, .suppressed = 0}).first->second;
  const double seconds = std::chrono::duration<double>(now - allowance.at).count();
  allowance.at = now;
  allowance.left = std::min(kBurst, allowance.left + seconds * kPerSecond);
  if (allowance.left < 1) {
    ++allowance.suppressed;
    return false;
  }
  --allowance.left;
  return true;
}

void EventLog::Note(Event event) {
  ++counts_[event.kind];
  const auto user = Accountable(event);
  if (user && !MayNote(*user)) return;
  Add(std::move(event));
}

void EventLog::Add(Event event) {
  event.id = next_id_++;
  event.at = clock_.WallTime();
  if (event.text.size() > kMaxTextBytes) event.text = event.text.substr(0, kMaxTextBytes) + "...";
  const std::string who =
      event.tenant.empty() ? "" : fmt::format("tenant {} ({}): ", event.tenant, event.tenant_name);
  const std::string line = fmt::format("{}: {}{}", Name(event.kind), who, event.text);
  switch (SeverityOf(event.kind)) {
    case Severity::kInfo:
      LogInfo("{}", line);
      break;
    case Severity::kWarning:
      LogWarning("{}", line);
      break;
    case Severity::kError:
      LogError("{}", line);
      break;
  }
  audit_.Append(EventJson(event));
  Keep(std::move(event));
  if (on_event) on_event();
}

std::vector<std::pair<std::string_view, uint64_t>> EventLog::Counts() const {
  std::vector<std::pair<std::string_view, uint64_t>> counts;
  for (const KindRow& row : kKinds) {
    const auto it = counts_.find(row.kind);
    counts.emplace_back(row.name, it == counts_.end() ? 0 : it->second);
  }
  return counts;
}

void EventLog::Keep(Event event) {
  if (const auto user = Accountable(event)) ++kept_of_[*user];
  kept_.push_back(std::move(event));
  if (kept_.size() <= kMaxKept) return;
  // Whoever has half of them loses their own oldest, not another's.
  auto victim = kept_.begin();
  for (const auto& [uid, count] : kept_of_) {
    if (count <= kMaxKept / 2) continue;
    victim = std::find_if(kept_.begin(), kept_.end(),
                          [&, u = uid](const Event& each) { return Accountable(each) == u; });
  }
  if (const auto user = Accountable(*victim); user && --kept_of_[*user] == 0) kept_of_.erase(*user);
  kept_.erase(victim);
}

void EventLog::Tick() {
  for (auto it = allowances_.begin(); it != allowances_.end();) {
    Allowance& allowance = it->second;
    const double left =
        allowance.left + std::chrono::duration<double>(clock_.Now() - allowance.at).count() * kPerSecond;
    if (allowance.suppressed > 0 && left >= 1) {
      Event event;
      event.kind = EventKind::kSuppressed;
      event.by = it->first;
      event.text =
          fmt::format("{} more events caused by {} were left out", allowance.suppressed, UserName(it->first));
      allowance.suppressed = 0;
      allowance.left -= 1;
      ++counts_[event.kind];
      Add(std::move(event));
    }
    it = left >= kBurst && allowance.suppressed == 0 ? allowances_.erase(it) : std::next(it);
  }
  const AuditLog::State state = audit_.state();
  if (state.problem == audit_problem_) return;
  const bool was_bad = !audit_problem_.empty();
  audit_problem_ = state.problem;
  if (was_bad && !state.problem.empty()) return;  // another reason, the same state
  Event event;
  event.kind = state.problem.empty() ? EventKind::kAuditWorks : EventKind::kAuditFailed;
  event.text = state.problem.empty()
                   ? fmt::format("the audit log is written again; {} lines so far are not in it", state.lost)
                   : state.problem + "; what happens is not recorded there";
  ++counts_[event.kind];
  Add(std::move(event));
}

}  // namespace gpumux::daemon
