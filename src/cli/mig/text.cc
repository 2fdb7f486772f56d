// SPDX-License-Identifier: Apache-2.0
#include "cli/mig/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/units.h"
#include "cli/mig/bar.h"
#include "cli/table.h"
#include "core/mig/cost.h"

namespace gpumux::cli {
namespace {

using core::mig::Given;
using core::mig::GpuPlan;
using core::mig::GpuState;
using core::mig::Layout;
using core::mig::Moved;
using core::mig::Parts;
using core::mig::Placed;
using core::mig::Present;
using core::mig::ProfileOf;
using gpu::MigModel;
using gpu::MigProfile;
using Align = Table::Align;

// What is not known is "-" for people, and null in JSON.
constexpr const char* kUnknown = "-";

template <typename T>
std::string Or(const std::optional<T>& value, const char* mark = "") {
  return value ? fmt::format("{}{}", *value, mark) : kUnknown;
}

const char* Mark(const MigProfile& profile, gpu::MigInferred field) {
  return profile.inferred & field ? "~" : "";
}

std::string Memory(const std::optional<uint64_t>& bytes) {
  return bytes ? fmt::format("{:.2f} GiB", static_cast<double>(*bytes) / kGiB) : kUnknown;
}

std::string Starts(const MigProfile& profile) {
  if (!profile.placements_known()) return kUnknown;
  return fmt::format("{}:{}{}", fmt::join(profile.starts, ","), *profile.memory_slices,
                     Mark(profile, gpu::kInferredPlacements));
}

std::string Engines(const MigProfile& profile) {
  if (!profile.engines) return kUnknown;
  const gpu::MigEngines& e = *profile.engines;
  return fmt::format("{}/{}/{}/{}/{}{}", e.copy, e.nvdec, e.nvenc, e.jpeg, e.ofa,
                     Mark(profile, gpu::kInferredEngines));
}

std::string Enabling(const MigModel& model) {
  std::string text = "not known what enabling needs";
  if (model.enable.needs_reset == true)
    text = "enabling MIG needs a reset, and a GPU that nobody uses; the mode survives a reboot";
  if (model.enable.needs_reset == false)
    text = "enabling MIG needs no reset; the mode is lost when the driver unloads";
  if (model.enable.needs_display_mode)
    text += "; workstation boards need display mode compute and recent firmware";
  return text + "; instances are lost at each reset";
}

std::string Headline(const MigModel& model) {
  std::string text = fmt::format("{} ({}): {} compute slices, {} memory slices, {} SMs with MIG off",
                                 model.key, model.name, model.compute_slices, Or(model.memory_slices),
                                 Or(model.whole_sms, model.whole_sms_inferred ? "~" : ""));
  if (model.mig_sms && model.mig_sms != model.whole_sms)
    text += fmt::format(", {} with MIG on", *model.mig_sms);
  return text + "\n";
}

std::string Percent(uint64_t part, uint64_t whole) {
  return fmt::format("{:.0f} %",
                     whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string LostText(const Parts& parts) {
  std::string sms = "SMs not known", memory = "memory not known";
  if (parts.sms && parts.whole_sms)
    sms = fmt::format("{} of {} SMs ({})", *parts.whole_sms - *parts.sms, *parts.whole_sms,
                      Percent(*parts.whole_sms - *parts.sms, *parts.whole_sms));
  if (parts.bytes && parts.whole_bytes)
    memory = fmt::format(
        "{} of {} ({})", FormatBytes(*parts.whole_bytes - std::min(*parts.whole_bytes, *parts.bytes)),
        FormatBytes(*parts.whole_bytes),
        Percent(*parts.whole_bytes - std::min(*parts.whole_bytes, *parts.bytes), *parts.whole_bytes));
  return fmt::format("Not in any instance: {}, {}\n", sms, memory);
}

// "serve x2, train"; who is there already as "in use by ...".
std::string ForWhom(const MigPlanned& planned, size_t i, Placed instance) {
  const GpuPlan& plan = planned.plan.gpus[i];
  const auto moved = std::ranges::find(plan.moved, instance, &Moved::to);
  const auto there = std::ranges::find(planned.gpus[i].present, instance, &Present::instance);
  const auto given = std::ranges::find(plan.given, instance, &Given::instance);
  std::string out;
  if (moved != plan.moved.end()) {
    out = fmt::format("{}, moved here from {}", fmt::join(moved->users, ", "), moved->from.start);
  } else if (given != plan.given.end()) {
    for (size_t at = 0; at < given->whom.size();) {
      const auto count = static_cast<size_t>(std::ranges::count(given->whom, given->whom[at]));
      out += fmt::format("{}{}{}", out.empty() ? "" : ", ", planned.wants[given->whom[at]].name,
                         count > 1 ? fmt::format(" x{}", count) : "");
      at += count;
    }
  } else if (there != planned.gpus[i].present.end() && !there->users.empty()) {
    out = fmt::format("in use by {}", fmt::join(there->users, ", "));
  } else {
    out = "nobody, and there already";
  }
  if (!planned.divided.empty() && planned.divided[i].contains(instance))
    out += fmt::format(" (compute instances of {} slices)", fmt::join(planned.divided[i].at(instance), ", "));
  return Plain(out, 200);
}

std::string Indented(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    out += "  " + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return out;
}

std::string InstancesText(const MigPlanned& planned, size_t i, const Terminal& terminal) {
  const GpuState& gpu = planned.gpus[i];
  Table table;
  table.AddColumn("INSTANCE");
  table.AddColumn("SMS", Align::kRight);
  table.AddColumn("MEMORY", Align::kRight);
  table.AddColumn("FOR");
  for (const Placed& instance : planned.plan.gpus[i].layout) {
    const MigProfile& profile = ProfileOf(*gpu.model, instance.profile);
    table.AddRow({{core::mig::Name(*gpu.model, instance)},
                  {Or(profile.sms)},
                  {Memory(profile.bytes)},
                  {ForWhom(planned, i, instance)}});
  }
  Terminal inner = terminal;
  if (inner.width > 2) inner.width -= 2;
  return table.Render(inner);
}

std::string RoomText(const GpuState& gpu, const Layout& layout) {
  std::vector<std::string> left;
  for (const MigProfile& profile : gpu.model->profiles) {
    const uint32_t count = core::mig::RemainingCapacity(*gpu.model, layout, *profile.id);
    if (count > 0) left.push_back(count > 1 ? fmt::format("{}x{}", count, profile.name) : profile.name);
  }
  if (left.empty()) return "Room left for: nothing\n";
  return fmt::format("Room left for one of: {}\n", fmt::join(left, ", "));
}

std::string StepsText(const GpuState& gpu, const GpuPlan& plan, const core::mig::Change& change) {
  std::string out;
  for (const Moved& moved : plan.moved)
    out += fmt::format("Has to be stopped first: {} ({})\n",
                       Plain(fmt::format("{}", fmt::join(moved.users, ", ")), 200),
                       core::mig::Name(*gpu.model, moved.from));
  if (change.steps.empty()) return out + "Steps: none, all of it is there\n";
  out += "Steps:";
  for (size_t i = 0; i < change.steps.size(); ++i)
    out += fmt::format("{}{}. {}\n", i == 0 ? " " : "       ", i + 1,
                       core::mig::ToString(*gpu.model, change.steps[i]));
  return out;
}

Result<std::string> GpuText(const MigPlanned& planned, size_t i, const Terminal& terminal) {
  const GpuState& gpu = planned.gpus[i];
  const GpuPlan& plan = planned.plan.gpus[i];
  const auto change = MigStepsOf(gpu, plan);
  if (!change) return tl::unexpected(change.error());
  std::string out = fmt::format("\n{}: {}\n", gpu.name, gpu.model->name);
  if (!planned.enabled.empty() && !planned.enabled[i])
    out += "  MIG is to be off: a step of its own, after these\n";
  if (plan.layout.empty() && change->steps.empty()) return out + "  no instance\n";
  std::string inner = MigBar(*gpu.model, plan.layout);
  if (!plan.layout.empty()) inner += InstancesText(planned, i, terminal);
  inner += LostText(core::mig::PartsOf(*gpu.model, plan.layout)) + RoomText(gpu, plan.layout);
  return out + Indented(inner + StepsText(gpu, plan, *change));
}

std::string UnplacedText(const MigPlanned& planned) {
  std::string out;
  for (const auto& one : planned.plan.unplaced) {
    const core::mig::Want& want = planned.wants[one.want];
    out += fmt::format("  {}{}: {}\n", Plain(want.name, 64),
                       want.count > 1 ? fmt::format(" ({} of {})", one.count, want.count) : "", one.why);
  }
  return out.empty() ? "" : "\nNot placed:\n" + out;
}

std::string Summary(const MigPlanned& planned) {
  uint32_t left = 0;
  for (const auto& one : planned.plan.unplaced) left += one.count;
  const uint32_t placed = planned.plan.score.placed, all = placed + left;
  if (left == 0) return fmt::format("Fits: {} of {} wanted.\n", placed, all);
  return fmt::format("Does not fit: {} of {} wanted{}.\n", placed, all,
                     planned.plan.most_placed ? ", and no layout has more" : "");
}

}  // namespace

std::string MigProfilesText(const MigModel& model, const Terminal& terminal) {
  Table table;
  table.AddColumn("PROFILE");
  table.AddColumn("ID", Align::kRight);
  table.AddColumn("MOST", Align::kRight);
  table.AddColumn("SMS", Align::kRight);
  table.AddColumn("MEMORY", Align::kRight);
  table.AddColumn("COMPUTE", Align::kRight, 3);
  table.AddColumn("STARTS:SIZE");
  table.AddColumn("CE/DEC/ENC/JPEG/OFA", Align::kLeft, 2);
  table.AddColumn("SURE", Align::kLeft, 1);
  for (const MigProfile& profile : model.profiles) {
    table.AddRow({{profile.name},
                  {Or(profile.id, Mark(profile, gpu::kInferredId))},
                  {std::to_string(profile.max_instances)},
                  {Or(profile.sms, Mark(profile, gpu::kInferredSms))},
                  {Memory(profile.bytes) + Mark(profile, gpu::kInferredMemory)},
                  {std::to_string(profile.compute_slices)},
                  {Starts(profile)},
                  {Engines(profile)},
                  {model.from_device ? std::string("device") : std::string(gpu::Name(profile.confidence))}});
  }
  std::string out = Headline(model);
  out += model.from_device
             ? "Read from the device.\n"
             : "From the table, not read from the device; ~ is taken from another GPU of the family.\n";
  out += table.Render(terminal);
  out += fmt::format("Note: {}.\n", Enabling(model));
  if (!model.note.empty()) out += fmt::format("Note: {}.\n", model.note);
  return out;
}

std::string MigModelsText(const Terminal& terminal) {
  Table table;
  for (const char* head : {"GPU", "NAME", "ARCHITECTURE"}) table.AddColumn(head);
  table.AddColumn("SMS", Align::kRight);
  table.AddColumn("SLICES", Align::kRight);
  table.AddColumn("PROFILES");
  for (const MigModel& model : gpu::MigModels()) {
    std::vector<std::string> names;
    for (const MigProfile& profile : model.profiles) names.push_back(profile.name);
    table.AddRow({{model.key},
                  {model.name},
                  {model.architecture},
                  {Or(model.whole_sms)},
                  {std::to_string(model.compute_slices)},
                  {fmt::format("{}", fmt::join(names, " "))}});
  }
  return table.Render(terminal);
}

Result<std::string> MigPlanText(const MigPlanned& planned, const Terminal& terminal) {
  std::string out = Summary(planned);
  bool table = false;
  for (size_t i = 0; i < planned.gpus.size(); ++i) {
    const auto gpu = GpuText(planned, i, terminal);
    if (!gpu) return tl::unexpected(gpu.error());
    out += *gpu;
    table = table || !planned.gpus[i].model->from_device;
  }
  out += UnplacedText(planned) + "\nWith MIG on:\n";
  for (const auto& limit : core::mig::LimitsOfMig()) out += fmt::format("  * {}\n", limit.text);
  if (table) out += "\nProfiles are from the table, not read from the device.\n";
  return out;
}

}  // namespace gpumux::cli
