// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "gpu/nvml.h"
#include "gpu/uuid.h"

namespace gpumux::daemon {

// What a domain's directory says of it, for the daemon after this one.
struct MpsRecord {
  std::vector<gpu::Uuid> gpus = {};
  bool kept = false;       // until `gpumux mps stop`, with tenants or without
  bool exclusive = false;  // its GPUs are to be in exclusive compute mode
  // Of a control daemon that somebody else started; empty: our own, below the directory.
  std::string pipe_dir = {}, log_dir = {};

  bool Adopted() const { return !pipe_dir.empty(); }
  bool Serves(const gpu::Uuid& gpu) const;
};

// "GPU-…,GPU-…"
std::string Joined(const std::vector<gpu::Uuid>& gpus);

// kNotFound: there is none. kInvalid: it is not one.
Result<MpsRecord> ReadMpsRecord(const std::string& dir);
// The directory is nobody's from now on; what else is in it stays.
void ForgetMpsRecord(const std::string& dir);
// Whole or not at all, and on the disk when this returns.
Status WriteMpsRecord(const std::string& dir, const MpsRecord& record);

// Exclusive compute mode, for as long as a domain wants it. What was set before is on the
// disk before anything is changed, so that whoever comes after a crash can put it back.
class MpsComputeMode {
 public:
  explicit MpsComputeMode(gpu::Nvml& nvml) : nvml_(nvml) {}

  // For all of these GPUs, or none. kDenied: needs root.
  Status SetExclusive(const std::string& dir, const std::vector<gpu::Uuid>& gpus);
  // What SetExclusive changed, and nobody else since. Without it: nothing.
  void PutBack(const std::string& dir);
  static bool IsSet(const std::string& dir);

 private:
  gpu::Nvml& nvml_;
};

}  // namespace gpumux::daemon
