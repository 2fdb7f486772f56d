// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpumux::gpu {

// What sets one profile apart from another of the same size: its share of the
// engines for video, JPEG and optical flow ("media"), or graphics.
enum class MigAttribute : uint8_t {
  kNone,
  kMe,     // "+me": has the media engines that plain profiles lack; one instance of a GPU at most
  kMeAll,  // "+me.all": has all of them, so that no other instance has any
  kGfx,    // "+gfx": graphics APIs work
  kNoMe,   // "-me": has none of them
};

enum class MigConfidence : uint8_t {
  kHigh,    // printed by a real driver, or by an official sample for this part
  kMedium,  // names and counts are official, the rest is as in the family
  kLow,     // names alone
};

// "high", "medium", "low".
std::string_view Name(MigConfidence confidence);

// Fields of a row that its confidence does not cover: they were taken from
// another part of the same family, and are very probably right.
enum MigInferred : unsigned {
  kInferredId = 1,
  kInferredSms = 2,
  kInferredMemory = 4,
  kInferredPlacements = 8,
  kInferredEngines = 16,
};

struct MigEngines {
  uint32_t copy = 0, nvdec = 0, nvenc = 0, jpeg = 0, ofa = 0;

  bool operator==(const MigEngines&) const = default;
};

// One kind of GPU instance. `id` is what is compared: drivers change names and sizes.
struct MigProfile {
  std::string name;                      // "3g.71gb", "1g.18gb+me"
  std::optional<uint32_t> id;            // as nvidia-smi prints it and NVML's create call takes it
  std::optional<uint32_t> nvml_profile;  // NVML_GPU_INSTANCE_PROFILE_*: what NVML's query takes
  uint32_t compute_slices = 0;
  std::optional<uint32_t> memory_slices;  // an instance at `start` takes [start, start + memory_slices)
  uint32_t max_instances = 0;
  std::vector<uint32_t> starts;  // where one may begin, ascending; empty: not known
  std::optional<uint32_t> sms;
  std::optional<uint64_t> bytes;  // of the instance, as a driver printed it: less than the name says
  std::optional<MigEngines> engines;
  MigAttribute attribute = MigAttribute::kNone;
  MigConfidence confidence = MigConfidence::kHigh;
  unsigned inferred = 0;  // MigInferred
  std::string sources;    // keys of MigSources(), by spaces

  bool placements_known() const { return id && memory_slices && !starts.empty(); }
};

// What it takes to switch MIG mode on.
struct MigEnable {
  std::optional<bool> needs_reset;  // and so a GPU that nobody uses
  std::optional<bool>
      survives_reboot;  // false: the mode is lost when the driver unloads. Instances never survive
  bool needs_display_mode = false;  // a workstation board: firmware of some age, and display mode "compute"
};

// A GPU that can be partitioned, from the table or as read from a device.
struct MigModel {
  std::string key;                   // "H200": what --gpu takes, and what the software GPU calls it
  std::string name;                  // for people
  std::vector<uint16_t> pci_device;  // PCI device ids, without the vendor
  std::string architecture;
  std::string min_driver;              // "R525.53"; "": not known
  std::optional<uint32_t> whole_sms;   // with MIG off
  bool whole_sms_inferred = false;     // known of the part in general, from no document
  std::optional<uint32_t> mig_sms;     // of the largest instance
  std::optional<uint32_t> nominal_gb;  // as its maker says
  uint32_t compute_slices = 0;         // all instances together
  std::optional<uint32_t> memory_slices;
  uint32_t max_instances = 0;
  MigEnable enable;
  std::vector<MigProfile> profiles;
  std::string note;          // what one should know of these figures; may be empty
  bool from_device = false;  // read from a driver: then these are not the table's values

  // Whether all that planning needs is known: a driver has to be asked otherwise.
  bool placements_known() const;
  const MigProfile* FindProfile(uint32_t id) const;
};

// The table (src/gpu/mig_models.inc): every part that was known on 2026-11-29.
// A running driver is always the authority. Built at the first call; any thread.
std::span<const MigModel> MigModels();

struct MigSource {
  std::string_view key, text;
};
std::span<const MigSource> MigSources();

// By key, by what NVML or people call it ("H200", "NVIDIA H200 NVL", "a100 80gb"), or by PCI
// device id ("0x2335", or with NVIDIA's vendor id as NVML prints it, "0x233510DE").
// kUnsupported: a GPU that has no MIG. kInvalid: more than one part is called so, each
// named. kNotFound: no such GPU, with the nearest name.
Result<const MigModel*> FindMigModel(std::string_view text);
// Null if there is none.
const MigModel* FindMigModelByPci(uint16_t device);

// Why a GPU of this name (as NVML prints it, or shorter) has no MIG; nullopt if that is not known.
std::optional<std::string> WhyNoMig(std::string_view name);

// "+me"; "" for kNone.
std::string_view MigAttributeSuffix(MigAttribute attribute);

}  // namespace gpumux::gpu
