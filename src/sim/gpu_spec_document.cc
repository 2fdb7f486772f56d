// SPDX-License-Identifier: Apache-2.0
//
// The JSON form of a spec. Apart from the list, so that the libraries, which
// never read it, do without a JSON parser.
#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "sim/gpu_spec_parser.h"

namespace gpumux::sim {

namespace {

using nlohmann::json;

constexpr size_t kMaxDocumentBytes = 1 << 20;
constexpr uint64_t kMinMemory = 1ULL << 30;
constexpr uint64_t kMaxMemory = 1ULL << 43;
constexpr int kMaxSms = 4096;

tl::unexpected<Error> Wrong(const std::string& where, const std::string& what) {
  return Fail(Code::kInvalid, where + " " + what, "docs/reference/software-gpu-spec.md has the format");
}

Status OnlyKeys(const json& object, const std::string& where, std::initializer_list<std::string_view> known) {
  if (!object.is_object()) return Wrong(where, "is not an object");
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      std::string shown = key.substr(0, 40);
      for (char& c : shown) c = c >= ' ' && c < 127 && c != '"' ? c : '?';
      return Wrong(where, "has an unknown member \"" + shown + "\"");
    }
  }
  return {};
}

// A number of bytes, or text with a unit.
Result<uint64_t> Bytes(const json& value, const std::string& where) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (value.is_string()) {
    auto size = ParseMemorySize(value.get_ref<const std::string&>());
    if (size && size->bytes > 0) return size->bytes;
  }
  return Wrong(where, "is neither a number of bytes nor a size such as \"80GiB\"");
}

Result<int> Number(const json& value, const std::string& where, int lowest, int highest) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() < static_cast<uint64_t>(lowest) ||
      value.get<uint64_t>() > static_cast<uint64_t>(highest)) {
    return Wrong(where,
                 "is not a whole number from " + std::to_string(lowest) + " to " + std::to_string(highest));
  }
  return value.get<int>();
}

Result<std::string> Text(const json& value, const std::string& where, size_t longest) {
  if (!value.is_string()) return Wrong(where, "is not text");
  const auto& text = value.get_ref<const std::string&>();
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 127; });
  if (text.empty() || text.size() > longest || !printable) {
    return Wrong(where,
                 "is empty, has more than " + std::to_string(longest) + " characters or unprintable ones");
  }
  return text;
}

// "13.0" or 13000.
Result<int> CudaVersion(const json& value) {
  int version = 0;
  if (value.is_number_unsigned() && value.get<uint64_t>() <= 99'990) {
    version = value.get<int>();
  } else if (value.is_string()) {
    int major = 0, minor = -1, end = 0;
    const auto& text = value.get_ref<const std::string&>();
    if (text.size() <= 5 && sscanf(text.c_str(), "%2d.%2d%n", &major, &minor, &end) == 2 &&
        static_cast<size_t>(end) == text.size() && minor >= 0) {
      version = major * 1000 + minor * 10;
    }
  }
  if (version < 11000 || version > 13000 || version % 10 != 0) {
    return Wrong("cuda_version", "is not a version from 11.0 to 13.0");
  }
  return version;
}

Status AddGpus(const json& object, const std::string& where, Machine* machine) {
  if (auto status =
          OnlyKeys(object, where, {"model", "count", "name", "memory", "reserved", "sms", "uuid", "mig"});
      !status) {
    return status;
  }
  if (!object.contains("model") || !object["model"].is_string()) return Wrong(where, "has no model");
  const GpuModelData* model = FindGpuModel(object["model"].get_ref<const std::string&>());
  if (model == nullptr) return Wrong(where, "names a model that there is not");
  GpuInstance gpu{*model, std::string(model->name), SpecOf(*model), std::nullopt};
  int count = 1;
  if (object.contains("count")) {
    auto number = Number(object["count"], where + ": count", 1, static_cast<int>(kMaxSpecGpus));
    if (!number) return tl::unexpected(number.error());
    count = *number;
  }
  if (object.contains("name")) {
    auto text = Text(object["name"], where + ": name", 56);
    if (!text) return tl::unexpected(text.error());
    gpu.name = *text;
  }
  if (object.contains("sms")) {
    auto number = Number(object["sms"], where + ": sms", 1, kMaxSms);
    if (!number) return tl::unexpected(number.error());
    gpu.model.sms = *number;
  }
  uint64_t total = gpu.spec.nvml_total;
  if (object.contains("memory")) {
    auto bytes = Bytes(object["memory"], where + ": memory");
    if (!bytes) return tl::unexpected(bytes.error());
    if (*bytes < kMinMemory || *bytes > kMaxMemory)
      return Wrong(where + ": memory", "is not from 1 GiB to 8 TiB");
    total = *bytes;
  }
  int64_t reserved = -1;
  if (object.contains("reserved")) {
    auto bytes =
        object["reserved"] == 0 ? Result<uint64_t>(0) : Bytes(object["reserved"], where + ": reserved");
    if (!bytes) return tl::unexpected(bytes.error());
    if (*bytes > total / 2) return Wrong(where + ": reserved", "is more than half of the memory");
    reserved = static_cast<int64_t>(*bytes);
  }
  if (object.contains("memory") || object.contains("reserved") || object.contains("sms")) {
    gpu.spec = SpecOf(total, reserved, gpu.model.sms, gpu.model.threads_per_sm, gpu.model.blocks_per_sm);
  }
  if (object.contains("mig")) {
    if (!object["mig"].is_boolean()) return Wrong(where + ": mig", "is neither true nor false");
    gpu.mig = object["mig"].get<bool>();
    if (gpu.mig && !gpu.model.mig) return Wrong(where + ": mig", "is true, and the model has no MIG");
  }
  if (object.contains("uuid")) {
    if (object["uuid"].is_string()) gpu.uuid = ParseUuid(object["uuid"].get_ref<const std::string&>());
    if (!gpu.uuid)
      return Wrong(where + ": uuid", "is not GPU- and 32 lower-case hexadecimal digits in five groups");
    if (count != 1) return Wrong(where, "gives several GPUs one uuid");
    for (const auto& other : machine->gpus) {
      if (other.uuid == gpu.uuid) return Wrong(where + ": uuid", "is that of another GPU");
    }
  }
  if (static_cast<size_t>(count) > kMaxSpecGpus - machine->gpus.size()) {
    return Wrong("gpus", "are more than " + std::to_string(kMaxSpecGpus));
  }
  machine->gpus.insert(machine->gpus.end(), static_cast<size_t>(count), gpu);
  return {};
}

}  // namespace

Result<Machine> ParseGpuDocument(std::string_view text) {
  if (text.size() > kMaxDocumentBytes) return Wrong("the document", "is larger than 1 MiB");
  // Names that are there twice: the parser would keep the last one in silence.
  std::vector<std::set<std::string>> seen;
  bool repeated = false, deep = false;
  const json document = json::parse(
      text,
      [&](int depth, json::parse_event_t event, json& value) {
        deep |= depth > 8;
        if (event == json::parse_event_t::object_start) seen.emplace_back();
        if (event == json::parse_event_t::object_end && !seen.empty()) seen.pop_back();
        if (event == json::parse_event_t::key && !seen.empty()) {
          repeated |= !seen.back().insert(value.get<std::string>()).second;
        }
        return !deep;
      },
      /*allow_exceptions=*/false);
  if (document.is_discarded() || deep) return Wrong("the document", "is not JSON as expected");
  if (repeated) return Wrong("the document", "has an object with the same member twice");
  if (auto status = OnlyKeys(document, "the document", {"gpus", "driver_version", "cuda_version"}); !status) {
    return tl::unexpected(status.error());
  }
  Machine machine;
  if (document.contains("driver_version")) {
    auto version = Text(document["driver_version"], "driver_version", 20);
    if (!version) return tl::unexpected(version.error());
    machine.driver_version = *version;
    machine.cuda_version = CudaVersionOfDriver(*version);
    if (!IsDriverVersion(*version)) return Wrong("driver_version", "is not a version such as 550.54.15");
  }
  if (document.contains("cuda_version")) {
    auto version = CudaVersion(document["cuda_version"]);
    if (!version) return tl::unexpected(version.error());
    machine.cuda_version = *version;
  } else if (!machine.driver_version.empty() && machine.cuda_version == 0) {
    return Wrong("driver_version", "is of a branch whose CUDA version is not known: give cuda_version");
  }
  if (!document.contains("gpus") || !document["gpus"].is_array() || document["gpus"].empty()) {
    return Wrong("gpus", "is not a list of at least one");
  }
  const json& gpus = document["gpus"];
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (auto status = AddGpus(gpus[i], "gpus[" + std::to_string(i) + "]", &machine); !status) {
      return tl::unexpected(status.error());
    }
  }
  return machine;
}

}  // namespace gpumux::sim
