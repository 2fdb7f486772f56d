// SPDX-License-Identifier: Apache-2.0
//
// The GPUs of this machine: their ledgers, and who owns these.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "core/admission.h"
#include "core/ledger.h"
#include "daemon/event_loop.h"
#include "daemon/events.h"
#include "daemon/gpu_ownership.h"
#include "daemon/strangers.h"
#include "daemon/tenant.h"
#include "gpu/nvml.h"

namespace gpumux::daemon {

struct GpuState {
  GpuState(gpu::Device d, const gpu::DeviceMemory& memory, core::ContextCost c);

  gpu::Device device;
  core::ContextCost cost;
  core::Ledger ledger;
  std::optional<core::Mode> mode;  // nullopt: no tenant
  gpu::ComputeMode compute_mode = gpu::ComputeMode::kUnknown;
  Result<gpu::Locality> near = gpu::Locality{};  // as the machine was started
  UniqueFd claim;                                // valid: the ledger is ours
  EventLoop::Watch claim_watch;
  std::optional<GpuOwner> other_owner;
  unsigned claims = 0;                    // tried
  std::optional<Error> lost;              // NVML does not answer for it
  bool partitioned = false;               // MIG is on: its instances are what can be used
  bool told = false;                      // of an instance: an event said that it is there
  std::optional<std::string> going = {};  // of an instance that is to be removed: why nobody new gets it
  bool gone = false;                      // an instance that is not there any more; then `lost` too
  std::optional<Time> last_reading;
  uint64_t device_used_bytes = 0;  // NVML's figure, the driver's reserve not included
  // The part of the time in which a kernel ran, as NVML said at the last reading.
  Result<double> busy_ratio = tl::unexpected(Error{Code::kUnavailable, "not read yet", ""});
  std::map<pid_t, Stranger> strangers;
  uint64_t mps_server_bytes = 0;      // at the last reading; of a server of ours
  unsigned multiprocessors = 0;       // 0: not known
  std::map<unsigned, uint64_t> xids;  // how often each was reported, since the daemon started
  uint64_t previous_unexplained_bytes = 0;

  // Its figures were read at least once, and its ledger stands on them.
  bool Known() const { return ledger.TotalBytes() > 0; }
  core::GpuSnapshot Snapshot() const;
};

// Why a GPU is closed, with what can be done, of what NVML answered.
Error WhyLost(const gpu::Device& device, const Error& error);

class Machine {
 public:
  // `nvml` must outlive it.
  Machine(gpu::GpuSource source, gpu::Nvml& nvml, EventLoop& loop, EventLog& events, std::string api_path);

  // Reads every GPU once and claims it, or takes one of the sockets that an
  // earlier daemon had. A GPU that cannot be read is there and closed.
  void Start(std::vector<UniqueFd> kept = {});
  // Looks after GPUs that do not answer: starts NVML anew, more and more seldom, and
  // takes what it shows then. A GPU stays in its place whatever its index is now.
  // `missing`: there should be a GPU that NVML does not show.
  void Recover(Time now, bool missing);
  // A GPU is there that was not, or what it has is known now. Before it is read.
  std::function<void()> on_found;
  // Takes up which instances there are now, whoever made or removed some; not while they are held.
  void LookForInstances();
  // While a change of instances is under way, what is seen of it is given to nobody.
  void HoldInstances(bool held) { instances_held_ = held; }
  // Anybody with rights may change it at any time.
  void ReadComputeModes();
  // Tries again for GPUs that were someone else's.
  void ClaimFree();
  // A `run` hands over the socket that it holds of one of our GPUs. Anything else
  // is closed.
  void TakeClaim(UniqueFd socket);
  // Events: `gpu.lost` says why; it answers again.
  void NoteLost(const GpuState& gpu);
  void NoteBack(const GpuState& gpu);

  std::vector<core::GpuSnapshot> Snapshot() const;
  std::vector<std::unique_ptr<GpuState>>& gpus() { return gpus_; }
  const std::vector<std::unique_ptr<GpuState>>& gpus() const { return gpus_; }
  std::optional<size_t> Find(const gpu::Uuid& uuid) const;
  // GPUs, without instances of any.
  size_t GpuCount() const;
  // By its index, its UUID or the beginning of one that no other GPU has. kNotFound, kInvalid.
  Result<size_t> FindNamed(std::string_view text) const;
  const gpu::GpuSource& source() const { return source_; }
  gpu::Nvml& nvml() { return nvml_; }
  std::string nvml_version() const { return nvml_.DriverVersion(); }

 private:
  void Add(const gpu::Device& device, std::span<UniqueFd> kept = {});
  // What the GPU has, if that is not known yet; false: it still is not.
  bool Learn(GpuState& gpu);
  // What NVML shows since it was started anew, or there are other instances; whether there is a GPU more.
  bool TakeDevices();
  // Marks those of NVML's instances that went and those that came back, and who is partitioned.
  void MarkInstances();
  std::string DescribeInstances(const GpuState& gpu) const;
  void Claim(GpuState& gpu);
  void Own(GpuState& gpu, UniqueFd socket);

  gpu::GpuSource source_;
  gpu::Nvml& nvml_;
  EventLoop& loop_;
  EventLog& events_;
  std::string api_path_;
  std::vector<std::unique_ptr<GpuState>> gpus_;
  std::optional<Time> recover_at_;  // while a GPU does not answer
  Time recover_wait_{};
  bool instances_held_ = false;
};

}  // namespace gpumux::daemon
