// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/mps.h"
#include "daemon/events.h"
#include "daemon/machine.h"
#include "daemon/mps_domain.h"
#include "daemon/tenants.h"

namespace gpumux::daemon {

struct MpsSettings {
  std::string dir;  // its own, below the daemon's
  bool for_everyone = false;
  Time idle_time = std::chrono::seconds(30);  // that a domain without tenants stays
};

// MPS on this machine: which control daemons there are, and who is served by which.
class MpsService {
 public:
  // `nvml` must outlive it.
  MpsService(Machine& machine, gpu::Nvml& nvml, Tenants& tenants, EventLog& events, EventLoop& loop,
             const Clock& clock, MpsSettings settings);
  ~MpsService();

  // Domains that an earlier daemon left. Before its leases are taken over.
  void TakeOver();
  // Calls back, from the loop, when a domain serves all of these GPUs: then a
  // program may be started, or it says why not.
  void Prepare(const std::vector<gpu::Uuid>& gpus, std::function<void(Status)> ready);
  // The domain that Prepare made stays, with tenants or without, until it is given up.
  // `exclusive`: in exclusive compute mode. kDenied: that needs root.
  Status Keep(MpsDomain& domain, bool exclusive);
  // It ends, at once or with its last tenant; its GPUs' compute mode is as before at once.
  Status GiveUp(MpsDomain& domain);
  // A control daemon that somebody else started serves tenants from now on, in the place of one of
  // our own that nobody needs. Calls back as Prepare.
  void Adopt(MpsRecord record, std::function<void(Status)> ready);
  // What a client of the tenant gets in its environment; empty for other modes.
  std::map<std::string, std::string> EnvironmentOf(const Tenant& tenant) const;
  // As far as tenants of a GPU are clients of MPS.
  core::MpsSnapshot Snapshot(size_t gpu_index) const;
  // Why one of the tenant's processes is not served as was promised; empty: they all are.
  std::string WhyNotEnforced(const Tenant& tenant) const;
  // The server ends the work of the tenant's clients; `done` once all are asked. False: it has none.
  bool TerminateClients(const Tenant& tenant, const std::function<void()>& done);

  void Tick();
  // Ends domains without tenants now. When the daemon leaves.
  void EndUnused();
  bool Ending() const;
  bool Idle() const { return domains_.empty(); }
  const std::vector<std::unique_ptr<MpsDomain>>& domains() const { return domains_; }
  MpsDomain* Find(const gpu::Uuid& gpu) const;
  // The process is the server of the GPU's domain: its bytes are ours, and no stranger's.
  bool IsServer(const gpu::Uuid& gpu, pid_t pid) const;
  // The domain of all of these GPUs, or null.
  MpsDomain* Serving(const std::vector<gpu::Uuid>& gpus) const;
  // The tenants that are clients of the domain, or will be.
  std::vector<const Tenant*> TenantsOf(const MpsDomain& domain) const;

  // Work of the domain's clients is lost: by a fault, or with the server.
  std::function<void(const MpsDomain& domain, bool fault)> on_lost_work;
  // Somebody may start now who could not before.
  std::function<void()> on_room;

 private:
  struct Awaiting {
    MpsRecord record;
    std::function<void(Status)> ready;
  };
  MpsDomain& Add(MpsRecord record, const std::string& dir);
  // Its directory can be made; and the program is there.
  Status CanStart(const std::string& dir) const;
  void End(MpsDomain& domain);
  void TakeOverFrom(const std::string& dir);
  void SetComputeModes();
  void Await(MpsRecord record, std::function<void(Status)> ready);
  // It is gone. One that is kept is started again, unless it cannot be.
  void Forget(const MpsDomain& domain);
  std::string FreeDirectory(const gpu::Uuid& first) const;
  bool HasTenants(const MpsDomain& domain) const;
  // Of its tenants, others than those that wait to be started.
  bool HasPrograms(const MpsDomain& domain) const;
  void Changed();
  // Tells those who wait for a domain. False: none could be told.
  bool TellOne();

  Machine& machine_;
  MpsComputeMode compute_mode_;
  Tenants& tenants_;
  EventLog& events_;
  EventLoop& loop_;
  const Clock& clock_;
  MpsSettings settings_;
  MpsPrograms programs_;
  std::vector<std::unique_ptr<MpsDomain>> domains_;
  std::map<const MpsDomain*, Time> unused_since_;
  std::set<const MpsDomain*> given_up_;
  bool leaving_ = false;
  std::vector<Awaiting> awaiting_;
};

}  // namespace gpumux::daemon
