// SPDX-License-Identifier: Apache-2.0
//
// The ledger of one GPU: who was promised how many bytes and who uses how many.
//
//      0                                                          total_bytes
//      ├─ reserve ─┼─ unmanaged ─┼─ unexplained ─┼─ A ─┼── B ──┼─ promisable ─┤
//
// A tenant takes max(guaranteed, used) of the bar: what is guaranteed to it is
// nobody else's even while it is not used, and what it uses beyond (burst) is
// in use all the same. Whatever gpumux decides keeps
//
//      sum of max(guaranteed, used) + reserve + unmanaged + unexplained <= total
//
// Processes without a lease, and code that a driver loads by itself, can break
// this from outside. Then `PromisableBytes` is 0 and nothing new is promised
// until it holds again; guarantees already given stay given.
//
// `used` of a process is its granted credit (committed, under way or free in
// its page: the ledger does not look) and its overhead (contexts and lazily
// loaded code, see context_cost.h).
//
// Pure: no I/O, no clock. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpumux::core {

using TenantId = std::string;
// The daemon's own number of one process (a pid with its start time), never used twice.
using ProcessKey = uint64_t;

enum class Verdict {
  kGranted,
  kLimit,       // the tenant's own limit
  kDeviceFull,  // within the limit, but the bytes are not there to be had
  kUnknown,     // no such tenant or process
};

class Ledger {
 public:
  struct Grant {
    Verdict verdict = Verdict::kUnknown;
    uint64_t slack_bytes = 0;  // granted on top, for the page's free credit
  };

  struct Tenant {
    struct Process {
      uint64_t granted_bytes = 0;
      uint64_t overhead_bytes = 0;
    };
    uint64_t guaranteed_bytes = 0;
    std::optional<uint64_t> limit_bytes;  // nullopt: whatever is promisable
    uint64_t used_bytes = 0;              // sum over `processes`
    std::map<ProcessKey, Process> processes;

    uint64_t ChargedBytes() const { return used_bytes > guaranteed_bytes ? used_bytes : guaranteed_bytes; }
  };

  Ledger(uint64_t total_bytes, uint64_t reserve_bytes) : total_(total_bytes), reserve_(reserve_bytes) {}

  // What the device is, where that was not known (0 bytes) when this was made.
  void SetDevice(uint64_t total_bytes, uint64_t reserve_bytes) {
    total_ = total_bytes;
    reserve_ = reserve_bytes;
  }

  // What others than tenants hold, as the monitor last saw it.
  void SetOutside(uint64_t unmanaged_bytes, uint64_t unexplained_bytes);

  // False, and nothing changes: the id is taken, `guaranteed_bytes` is above
  // what is promisable, or above `limit_bytes`.
  bool AddTenant(const TenantId& id, uint64_t guaranteed_bytes, std::optional<uint64_t> limit_bytes);
  // A new promise for a tenant. False, and nothing changes: there is none such,
  // what it needs beyond what is charged to it is not promisable, or the
  // guarantee is above the limit. A limit below what is used is taken.
  bool ChangeTenant(const TenantId& id, uint64_t guaranteed_bytes, std::optional<uint64_t> limit_bytes);
  // With all its processes: every byte returns.
  void RemoveTenant(const TenantId& id);

  bool AddProcess(const TenantId& id, ProcessKey process);
  // All that was granted to it returns to the tenant, whatever its page says.
  void RemoveProcess(const TenantId& id, ProcessKey process);

  // `bytes` of credit for a call of this process. With `with_slack` the process
  // gets some more, so that its next calls need not ask; slack comes only from
  // what is guaranteed, never from bytes that another could be promised.
  Grant GrantCredit(const TenantId& id, ProcessKey process, uint64_t bytes, bool with_slack);
  // What the process has already, as an earlier ledger had granted it. Never
  // refused: it is a fact.
  void AdoptCredit(const TenantId& id, ProcessKey process, uint64_t bytes);
  // Takes up to `bytes` of the process's credit back; returns how many.
  uint64_t TakeBack(const TenantId& id, ProcessKey process, uint64_t bytes);

  // The process took more than it was granted, since the driver took more than
  // anybody could foresee. Never refused: it is a fact.
  void Overdraw(const TenantId& id, ProcessKey process, uint64_t bytes);

  // A context is about to be made: `bytes` more overhead, if they are to be had.
  Grant ChargeOverhead(const TenantId& id, ProcessKey process, uint64_t bytes);
  // The overhead that was found. Never refused: it is a fact.
  void SetOverhead(const TenantId& id, ProcessKey process, uint64_t bytes);

  // Would `bytes` be granted if the tenants gave `cancelled` bytes back first?
  // The answer "no" makes a refusal final; "yes" makes it worth to wait for the
  // calls that are under way.
  bool WouldFit(const TenantId& id, uint64_t bytes, const std::map<TenantId, uint64_t>& cancelled) const;

  uint64_t TotalBytes() const { return total_; }
  uint64_t ReserveBytes() const { return reserve_; }
  uint64_t UnmanagedBytes() const { return unmanaged_; }
  uint64_t UnexplainedBytes() const { return unexplained_; }
  uint64_t GuaranteedBytes() const;  // sum over the tenants
  uint64_t UsedBytes() const;        // sum over the tenants
  uint64_t PromisableBytes() const;
  bool Holds() const;  // the invariant above
  // By how much the invariant is broken; 0: it holds.
  uint64_t ShortfallBytes() const;
  // Of what is guaranteed to the tenant and not used yet: how much may not be
  // there, should the others take theirs first.
  uint64_t AtRiskBytes(const TenantId& id) const;
  const std::map<TenantId, Tenant>& Tenants() const { return tenants_; }
  const Tenant* Find(const TenantId& id) const;
  const Tenant::Process* Find(const TenantId& id, ProcessKey process) const;

  // What the tenant could be granted right now.
  uint64_t AvailableBytes(const TenantId& id) const;
  // What its programs are told as the total: the limit, or without one what it
  // uses and could get.
  uint64_t ToldLimitBytes(const TenantId& id) const;
  bool AboveLimit(const TenantId& id) const;

 private:
  Tenant::Process* Find(Tenant*& tenant, const TenantId& id, ProcessKey process);
  uint64_t TakenBytes(const std::map<TenantId, uint64_t>& cancelled) const;
  Verdict Judge(const TenantId& id, const Tenant& tenant, uint64_t bytes,
                const std::map<TenantId, uint64_t>& cancelled) const;

  uint64_t total_;
  uint64_t reserve_;
  uint64_t unmanaged_ = 0;
  uint64_t unexplained_ = 0;
  std::map<TenantId, Tenant> tenants_;
};

}  // namespace gpumux::core
