// SPDX-License-Identifier: Apache-2.0
#include "daemon/mps_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/log.h"
#include "base/whole_file.h"

namespace gpumux::daemon {

namespace {

constexpr char kRecordFile[] = "/gpus";
constexpr char kModeFile[] = "/compute-mode";
constexpr size_t kMostGpus = 64;
constexpr size_t kMostPath = 4096;

Result<std::vector<gpu::Uuid>> ParseGpus(const std::string& line) {
  std::istringstream words(line);
  std::vector<gpu::Uuid> gpus;
  for (std::string word; std::getline(words, word, ',');) {
    const auto uuid = gpu::ParseUuid(word);
    if (!uuid || gpus.size() == kMostGpus) return Fail(Code::kInvalid, "names no GPU");
    gpus.push_back(*uuid);
  }
  if (gpus.empty()) return Fail(Code::kInvalid, "names no GPU");
  return gpus;
}

constexpr std::pair<gpu::ComputeMode, std::string_view> kModes[] = {
    {gpu::ComputeMode::kDefault, "default"}, {gpu::ComputeMode::kProhibited, "prohibited"}};

struct ModeBefore {
  gpu::Uuid gpu;
  gpu::ComputeMode mode;
};

std::vector<ModeBefore> ReadModes(const std::string& dir) {
  std::vector<ModeBefore> modes;
  std::ifstream file(dir + kModeFile);
  for (std::string gpu, name; modes.size() < kMostGpus && file >> gpu >> name;) {
    const auto uuid = gpu::ParseUuid(gpu);
    const auto* mode = std::find_if(std::begin(kModes), std::end(kModes),
                                    [&](const auto& each) { return each.second == name; });
    if (uuid && mode != std::end(kModes)) modes.push_back({*uuid, mode->first});
  }
  return modes;
}

}  // namespace

bool MpsRecord::Serves(const gpu::Uuid& gpu) const {
  return std::find(gpus.begin(), gpus.end(), gpu) != gpus.end();
}

std::string Joined(const std::vector<gpu::Uuid>& gpus) {
  std::string text;
  for (const gpu::Uuid& gpu : gpus) text += (text.empty() ? "" : ",") + gpu.ToString();
  return text;
}

Result<MpsRecord> ReadMpsRecord(const std::string& dir) {
  std::ifstream file(dir + kRecordFile);
  std::string line;
  if (!std::getline(file, line)) return Fail(Code::kNotFound, dir + " is of no MPS control daemon");
  auto gpus = ParseGpus(line);
  if (!gpus) return Fail(Code::kInvalid, fmt::format("{}{} {}", dir, kRecordFile, gpus.error().message));
  MpsRecord record{.gpus = std::move(*gpus)};
  while (std::getline(file, line)) {
    const size_t space = line.find(' ');
    const std::string key = line.substr(0, space);
    const std::string value = space == std::string::npos ? "" : line.substr(space + 1, kMostPath);
    if (key == "kept") record.kept = true;
    if (key == "exclusive") record.exclusive = true;
    if (key == "pipe" && value.starts_with('/')) record.pipe_dir = value;
    if (key == "log" && value.starts_with('/')) record.log_dir = value;
  }
  return record;
}

Status WriteMpsRecord(const std::string& dir, const MpsRecord& record) {
  std::string text = Joined(record.gpus) + "\n";
  if (record.kept) text += "kept\n";
  if (record.exclusive) text += "exclusive\n";
  if (record.Adopted()) text += fmt::format("pipe {}\nlog {}\n", record.pipe_dir, record.log_dir);
  return WriteWholeFile(dir + kRecordFile, text);
}

void ForgetMpsRecord(const std::string& dir) { ::unlink((dir + kRecordFile).c_str()); }

Status MpsComputeMode::SetExclusive(const std::string& dir, const std::vector<gpu::Uuid>& gpus) {
  std::vector<ModeBefore> before;
  std::string text;
  for (const gpu::Uuid& gpu : gpus) {
    const auto mode = nvml_.Mode(gpu);
    if (!mode) return tl::unexpected(mode.error());
    const auto* known = std::find_if(std::begin(kModes), std::end(kModes),
                                     [&](const auto& each) { return each.first == *mode; });
    if (known == std::end(kModes)) continue;  // it is exclusive, by somebody else's will
    before.push_back({gpu, *mode});
    text += fmt::format("{} {}\n", gpu.ToString(), known->second);
  }
  // Of a GPU that was set by us already, the file says what was before that.
  for (const ModeBefore& each : ReadModes(dir)) {
    const bool again = std::any_of(before.begin(), before.end(),
                                   [&](const ModeBefore& other) { return other.gpu == each.gpu; });
    if (!again)
      text += fmt::format("{} {}\n", each.gpu.ToString(),
                          each.mode == gpu::ComputeMode::kDefault ? "default" : "prohibited");
  }
  if (Status written = WriteWholeFile(dir + kModeFile, text); !written) return written;
  for (const ModeBefore& each : before) {
    if (Status set = nvml_.SetMode(each.gpu, gpu::ComputeMode::kExclusiveProcess); !set) {
      PutBack(dir);
      return set;
    }
  }
  return {};
}

void MpsComputeMode::PutBack(const std::string& dir) {
  for (const ModeBefore& each : ReadModes(dir)) {
    const auto mode = nvml_.Mode(each.gpu);
    // Somebody has set it since: theirs is the last word.
    if (!mode || *mode != gpu::ComputeMode::kExclusiveProcess) continue;
    if (Status set = nvml_.SetMode(each.gpu, each.mode); !set) {
      LogError("the compute mode of {} stays exclusive: {}", each.gpu.ToString(), set.error().ToString());
      return;  // the file stays, for another attempt
    }
    LogInfo("the compute mode of {} is as it was before", each.gpu.ToString());
  }
  ::unlink((dir + kModeFile).c_str());
}

bool MpsComputeMode::IsSet(const std::string& dir) { return ::access((dir + kModeFile).c_str(), F_OK) == 0; }

}  // namespace gpumux::daemon
