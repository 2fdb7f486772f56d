// SPDX-License-Identifier: Apache-2.0
//
// What happened: every change that somebody made or the daemon found, with a
// number. `gpumux events` shows the last of them, the audit log keeps them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "daemon/audit_log.h"
#include "gpu/uuid.h"

namespace gpumux::daemon {

struct Tenant;

enum class EventKind {
  kDaemonStarted,
  kDaemonStopped,
  kGranted,
  kRefused,
  kCancelled,  // hung up while it waited
  kStopping,
  kEnded,
  kTakenOver,     // from an earlier daemon
  kNotTakenOver,  // its lease is lost
  kChanged,       // somebody set something of a tenant
  kReserved,      // room for a program outside gpumux
  kReleased,
  kAboveLimit,
  kBelowLimit,
  kNotEnforced,
  kEnforced,
  kStrangerSeen,
  kStrangerGone,
  kAtRisk,   // a promise is not covered any more
  kCovered,  // it is again
  kRecalled,
  kIdle,  // holds memory and launches nothing, for as long as the policy says
  kIdleOver,
  kDiedAtWork,  // a client of MPS, with work under way
  kLetGo,       // what was held of it is no more
  kGpuLost,
  kGpuBack,
  kGpuXid,  // a critical error that the driver reports
  kMigChanged,
  kMigApplied,  // a change of partitions that somebody told us, or that was kept
  kMigFailed,
  kGpuOwned,
  kTurnTaken,      // from a holder that hung or did not use it
  kMpsFault,       // of one client: all clients of its server have lost their work
  kMpsServerLost,  // it died, and their work with it
  kMpsChanged,     // somebody started, stopped or adopted it
  kAuditFailed,
  kAuditWorks,
  kSuppressed,  // further events that one user caused
};

enum class Severity { kInfo, kWarning, kError };

std::string_view Name(EventKind kind);
std::string_view Name(Severity severity);
Severity SeverityOf(EventKind kind);

struct Event {
  EventKind kind = EventKind::kDaemonStarted;
  std::string text = {};    // one sentence, without a full stop
  std::string tenant = {};  // id; empty: of no tenant
  std::string tenant_name = {};
  std::optional<uid_t> owner = {};   // of the tenant
  std::optional<uid_t> by = {};      // who caused it; nullopt: the daemon found it
  std::vector<gpu::Uuid> gpus = {};  // that it is about
  // Set by EventLog.
  uint64_t id = 0;
  std::chrono::system_clock::time_point at{};
};

// An event about this tenant, on all of its GPUs.
Event About(EventKind kind, const Tenant& tenant, std::string text, std::optional<uid_t> by = {});

// One JSON object on one line, as in the audit log and in `gpumux events --json`.
std::string EventJson(const Event& event);
// Nullopt: not such a line. Any bytes may come.
std::optional<Event> ParseEvent(std::string_view line);

// The last events, in memory, and all of them in the audit log. One user can
// neither fill the disk nor push everybody else's events out. One thread.
class EventLog {
 public:
  static constexpr size_t kMaxKept = 4096;
  // Of one user; beyond it they are counted.
  static constexpr double kBurst = 256, kPerSecond = 8;

  // Numbers go on where an earlier daemon's audit log ends.
  EventLog(const std::string& audit_path, const Clock& clock);

  // Also a line in the daemon's log.
  void Note(Event event);
  // Once a second: says what was suppressed, and how the audit log fares.
  void Tick();

  const std::deque<Event>& kept() const { return kept_; }  // ascending ids, with gaps
  uint64_t last_id() const { return next_id_ - 1; }
  // Of every kind, since this daemon started: those that were suppressed too.
  std::vector<std::pair<std::string_view, uint64_t>> Counts() const;
  // After each event.
  std::function<void()> on_event;

 private:
  struct Allowance {
    double left = kBurst;
    std::chrono::nanoseconds at{};
    uint64_t suppressed = 0;
  };

  bool MayNote(uid_t uid);
  void Add(Event event);
  void Keep(Event event);
  static std::optional<uid_t> Accountable(const Event& event);

  const Clock& clock_;
  AuditLog audit_;
  std::deque<Event> kept_;
  std::map<uid_t, size_t> kept_of_;
  std::map<EventKind, uint64_t> counts_;
  std::map<uid_t, Allowance> allowances_;
  uint64_t next_id_ = 1;
  std::string audit_problem_;
};

}  // namespace gpumux::daemon
