// SPDX-License-Identifier: Apache-2.0
#include "cli/mig/plan_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/envelope.h"
#include "cli/mig/request.h"
#include "cli/terminal.h"
#include "core/mig/cost.h"

namespace gpumux::cli {
namespace {

using core::mig::Given;
using core::mig::GpuPlan;
using core::mig::GpuState;
using core::mig::Layout;
using core::mig::Moved;
using core::mig::Placed;
using core::mig::Present;
using core::mig::ProfileOf;
using core::mig::Step;
using Json = nlohmann::json;

constexpr uint32_t kMostSlices = 64;

template <typename T>
void Set(Json& object, const char* key, const std::optional<T>& value, const char* reason) {
  if (value) {
    object[key] = *value;
  } else {
    object[key] = nullptr;
    object[std::string(key) + "_reason"] = reason;
  }
}

Json PlacedJson(const GpuState& gpu, Placed instance) {
  const gpu::MigProfile& profile = ProfileOf(*gpu.model, instance.profile);
  return {{"profile", profile.name},
          {"profile_id", instance.profile},
          {"start", instance.start},
          {"memory_slices", *profile.memory_slices}};
}

Json InstanceJson(const MigPlanned& planned, size_t i, Placed instance) {
  constexpr const char* kUnknown = "no document says it of this profile";
  const GpuState& gpu = planned.gpus[i];
  const GpuPlan& plan = planned.plan.gpus[i];
  const gpu::MigProfile& profile = ProfileOf(*gpu.model, instance.profile);
  Json out = PlacedJson(gpu, instance);
  Set(out, "sms", profile.sms, kUnknown);
  Set(out, "mem_bytes", profile.bytes, kUnknown);
  out["compute_instances"] = std::vector{profile.compute_slices};
  if (!planned.divided.empty() && planned.divided[i].contains(instance))
    out["compute_instances"] = planned.divided[i].at(instance);
  const auto there = std::ranges::find(gpu.present, instance, &Present::instance);
  out["exists"] = there != gpu.present.end();
  out["users"] = there != gpu.present.end() ? there->users : std::vector<std::string>{};
  const auto moved = std::ranges::find(plan.moved, instance, &Moved::to);
  if (moved != plan.moved.end()) out["users"] = moved->users;
  out["tenants"] = Json::array();
  const auto given = std::ranges::find(plan.given, instance, &Given::instance);
  for (const size_t want : given == plan.given.end() ? std::vector<size_t>{} : given->whom)
    out["tenants"].push_back(planned.wants[want].name);
  return out;
}

Json PartsJson(const core::mig::Parts& parts) {
  constexpr const char* kUnknown = "not known of each of them";
  Json out;
  Set(out, "sms", parts.sms, kUnknown);
  Set(out, "whole_sms", parts.whole_sms, kUnknown);
  Set(out, "mem_bytes", parts.bytes, kUnknown);
  Set(out, "whole_mem_bytes", parts.whole_bytes, kUnknown);
  return out;
}

Result<Json> GpuJson(const MigPlanned& planned, size_t i) {
  const GpuState& gpu = planned.gpus[i];
  const GpuPlan& plan = planned.plan.gpus[i];
  const auto change = MigStepsOf(gpu, plan);
  if (!change) return tl::unexpected(change.error());
  Json out{{"name", gpu.name},
           {"model", gpu.model->key},
           {"from_device", gpu.model->from_device},
           {"mig_enabled", planned.enabled.empty() || planned.enabled[i]},
           {"instances", Json::array()},
           {"moved", Json::array()},
           {"steps", Json::array()},
           {"parts", PartsJson(core::mig::PartsOf(*gpu.model, plan.layout))}};
  out["uuid"] = nullptr;
  if (planned.uuids[i].empty()) {
    out["uuid_reason"] = "no GPU of this machine";
  } else {
    out["uuid"] = planned.uuids[i];
  }
  for (const Placed& instance : plan.layout) out["instances"].push_back(InstanceJson(planned, i, instance));
  for (const Moved& moved : plan.moved) {
    out["moved"].push_back({{"profile", ProfileOf(*gpu.model, moved.from.profile).name},
                            {"profile_id", moved.from.profile},
                            {"from", moved.from.start},
                            {"to", moved.to.start},
                            {"users", moved.users}});
  }
  for (const Step& step : change->steps) {
    Json one = PlacedJson(gpu, step.instance);
    one["do"] = step.what == Step::What::kCreate ? "create" : "destroy";
    out["steps"].push_back(std::move(one));
  }
  return out;
}

tl::unexpected<Error> Wrong(const std::string& where, const char* what) {
  return Fail(Code::kInvalid, fmt::format("{}: {}", where, what),
              "a plan is what gpumux mig plan --json prints");
}

Result<uint32_t> Number(const Json& object, const char* key, uint32_t most, const std::string& where) {
  const Json& value = At(object, key);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > most)
    return Wrong(fmt::format("{}.{}", where, key), "no number, or too large");
  return value.get<uint32_t>();
}

Result<std::vector<uint32_t>> Division(const Json& instance, const std::string& where) {
  std::vector<uint32_t> sizes;
  const Json& list = At(instance, "compute_instances");
  if (list.is_null()) return sizes;
  if (!list.is_array() || list.size() > kMostSlices)
    return Wrong(where + ".compute_instances", "no list of sizes");
  for (const Json& size : list) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() == 0 || size.get<uint64_t>() > kMostSlices)
      return Wrong(where + ".compute_instances", "no size in compute slices");
    sizes.push_back(size.get<uint32_t>());
  }
  return sizes;
}

Result<MigPlanOfGpu> ReadGpu(const Json& gpu, const std::string& where) {
  MigPlanOfGpu out{TextAt(gpu, "name", 64), TextAt(gpu, "uuid", 64), TextAt(gpu, "model", 96), true, {}};
  if (const Json& enabled = At(gpu, "mig_enabled"); enabled.is_boolean()) out.enabled = enabled.get<bool>();
  const Json& instances = At(gpu, "instances");
  if (!instances.is_array() || instances.size() > kMostSlices)
    return Wrong(where + ".instances", "no list of instances");
  if (out.model.empty()) return Wrong(where + ".model", "no GPU");
  for (const Json& instance : instances) {
    const std::string place = fmt::format("{}.instances[{}]", where, out.layout.size());
    const auto id = Number(instance, "profile_id", 10'000, place);
    if (!id) return tl::unexpected(id.error());
    const auto start = Number(instance, "start", kMostSlices, place);
    if (!start) return tl::unexpected(start.error());
    auto division = Division(instance, place);
    if (!division) return tl::unexpected(division.error());
    out.layout.push_back({*start, *id});
    if (!division->empty()) out.divided[out.layout.back()] = std::move(*division);
  }
  std::ranges::sort(out.layout);
  return out;
}

}  // namespace

Result<core::mig::Change> MigStepsOf(const GpuState& gpu, const GpuPlan& plan) {
  std::vector<Present> present = gpu.present;
  for (Present& one : present) {
    if (std::ranges::count(plan.moved, one.instance, &Moved::from) > 0) one.users.clear();
  }
  return core::mig::StepsTo(*gpu.model, present, plan.layout);
}

Result<Json> MigPlanJson(const MigPlanned& planned) {
  const core::mig::Plan& plan = planned.plan;
  Json unplaced = Json::array(), limits = Json::array(), gpus = Json::array();
  uint64_t tenants = plan.score.placed;
  for (const auto& one : plan.unplaced) {
    tenants += one.count;
    unplaced.push_back({{"name", planned.wants[one.want].name}, {"count", one.count}, {"reason", one.why}});
  }
  for (const auto& limit : core::mig::LimitsOfMig())
    limits.push_back({{"id", limit.id}, {"text", limit.text}});
  for (size_t i = 0; i < planned.gpus.size(); ++i) {
    auto gpu = GpuJson(planned, i);
    if (!gpu) return tl::unexpected(gpu.error());
    gpus.push_back(std::move(*gpu));
  }
  return Json{
      {"fits", plan.unplaced.empty()},   {"most_placed", plan.most_placed},   {"tenants", tenants},
      {"placed", plan.score.placed},     {"disturbed", plan.score.disturbed}, {"gpus", std::move(gpus)},
      {"unplaced", std::move(unplaced)}, {"limits", std::move(limits)}};
}

Result<std::vector<MigPlanOfGpu>> ReadMigPlan(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return Wrong("the plan", "no JSON");
  if (TextAt(json, "schema") != "gpumux.mig-plan/1") return Wrong("schema", "not gpumux.mig-plan/1");
  const Json& gpus = At(At(json, "data"), "gpus");
  if (!gpus.is_array() || gpus.empty() || gpus.size() > kMostPlannedGpus)
    return Wrong("data.gpus", "no list of GPUs");
  std::vector<MigPlanOfGpu> out;
  for (const Json& gpu : gpus) {
    auto one = ReadGpu(gpu, fmt::format("data.gpus[{}]", out.size()));
    if (!one) return tl::unexpected(one.error());
    out.push_back(std::move(*one));
  }
  return out;
}

}  // namespace gpumux::cli
