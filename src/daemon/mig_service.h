// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "daemon/event_loop.h"
#include "daemon/events.h"
#include "daemon/machine.h"
#include "daemon/mig_record.h"
#include "daemon/monitor.h"
#include "daemon/tenants.h"

namespace gpumux::daemon {

// What becomes of those who use an instance that has to go.
enum class MigDrain {
  kRefuse,  // nothing is changed as long as there are any
  kWait,    // nobody new gets it, and the change waits for them
  kStop,    // tenants are stopped; whoever is outside gpumux is waited for
};

struct MigChangeRequest {
  std::string gpu;  // as people name it
  core::mig::Layout wanted;
  MigDrain drain = MigDrain::kRefuse;
  std::optional<Time> wait;  // at most so long for those who use it
  bool dry_run = false;
  bool keep = false;  // also after a reset or a boot
  uid_t by = 0;
};

// How a change went, or would go.
struct MigOutcome {
  std::string gpu;  // its label
  std::vector<std::string> steps;
  std::vector<std::string> stopped;  // tenants, and others that were waited for
  bool changed = false;
  Time took{};                  // from the first step to the last look
  double lost_gpu_seconds = 0;  // of the GPU's compute slices that went, from the first step to the last look
};

// Changes how a GPU is partitioned, safely: docs/design/mig.md, "Apply". One change at a time. One thread.
class MigService {
 public:
  struct Settings {
    std::string change_file;  // of a change under way; goes with a boot, as instances do
    std::string kept_file;    // layouts that outlive a boot
    std::string rights_file;  // who may read it may change instances, besides root
  };

  MigService(Machine& machine, Tenants& tenants, Monitor& monitor, EventLog& events, EventLoop& loop,
             const Clock& clock, Settings settings);
  ~MigService();

  using Done = std::function<void(Result<MigOutcome>)>;
  // Answers when it is over. kConflict: in use, MIG is off, or another change is under way; kDenied: no
  // rights (nothing was changed in these cases); kTimeout: those who use it did not end; kInternal: a step
  // failed, and the message says that what was there is back, or exactly what is not.
  void Apply(const MigChangeRequest& request, Done done);
  // Ends a change that still waits for somebody. kNotFound: there is none; kConflict: too late.
  Status Cancel(uid_t by);
  // Switches MIG mode. The text says what it takes until it counts. kConflict: somebody uses the GPU.
  Result<std::string> SetMode(const std::string& gpu, bool on, uid_t by);
  // As the daemon starts: undoes a change that an earlier one did not finish, and makes kept layouts again.
  void Recover();
  // Once a second.
  void Tick();
  // Of a GPU, by its label; empty: none is under way.
  std::string UnderWay() const;
  bool IsKept(const gpu::Uuid& gpu) const;
  Status Forget(const std::string& gpu);

  // Stops a tenant, as its owner would.
  std::function<Status(const std::string& id, const std::string& reason)> stop;
  // After what can be promised has changed.
  std::function<void()> on_changed;

 private:
  struct Change;

  Result<size_t> FindGpu(const std::string& name) const;
  Status CheckRights() const;
  Result<std::vector<core::mig::Present>> Present(const gpu::Uuid& gpu,
                                                  const core::mig::Layout& layout) const;
  void AddUsersOn(const GpuState& gpu, std::vector<std::string>& users) const;
  std::vector<std::string> UsersOn(const std::vector<GpuState*>& devices) const;
  using ByInstance = std::map<core::mig::Placed, std::vector<GpuState*>>;
  Result<ByInstance> DevicesOf(const gpu::Uuid& gpu) const;
  Status Prepare(const MigChangeRequest& request);
  void Drain();
  void Begin();
  void Next();
  void Failed(const Error& error);
  void Finish(Result<MigOutcome> outcome);
  void Close();
  void Note(EventKind kind, std::string text, const gpu::Uuid& gpu, std::optional<uid_t> by);
  Status Keep(const gpu::Uuid& gpu, const std::vector<MigPart>& parts);
  void PutBackUnfinished();
  void RestoreKept();

  Machine& machine_;
  Tenants& tenants_;
  Monitor& monitor_;
  EventLog& events_;
  EventLoop& loop_;
  const Clock& clock_;
  Settings settings_;
  std::unique_ptr<Change> change_;
  MigKept kept_;
  std::optional<MigChangeRecord> unfinished_;  // of a daemon before; until it is put back
  struct Tried {
    std::string why;  // as an event said it
    Time next{};
  };
  std::map<gpu::Uuid, Tried> tried_;  // kept layouts that could not be made
};

}  // namespace gpumux::daemon
