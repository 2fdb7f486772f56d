// SPDX-License-Identifier: Apache-2.0
#include "cli/run_report.h"

#include <fmt/format.h>

#include "base/units.h"
#include "cli/envelope.h"
#include "cli/refusal_line.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;

std::optional<uint64_t> Bytes(const Json& object, const char* key) {
  const Json& value = At(object, key);
  return value.is_number_unsigned() ? std::optional(value.get<uint64_t>()) : std::nullopt;
}

Json Tenant(const std::string& summary_json) {
  return At(Json::parse(summary_json, nullptr, false), "tenant");
}

}  // namespace

std::string ClosingLine(const std::string& summary_json, std::chrono::nanoseconds took) {
  const Json tenant = Tenant(summary_json);
  std::string line = "done in " + FormatDuration(took);
  if (!tenant.is_object()) return line;
  // Anything but its own exit is somebody's doing, and its user wants to know whose.
  const std::string why = TextAt(At(tenant, "ended"), "why", 200);
  if (!why.empty() && why != "exited") line = fmt::format("ended after {} ({})", FormatDuration(took), why);
  const auto peak = Bytes(tenant, "mem_peak_bytes");
  const auto limit = Bytes(tenant, "mem_limit_bytes");
  if (peak) {
    line += ", peak " + FormatBytes(*peak);
    if (limit) line += " of " + FormatBytes(*limit);
  }
  const Json& refusals = At(tenant, "refusals");
  if (refusals.is_object()) {
    line += ", " + RefusalCount(refusals);
    const std::string reason = RefusalReason(refusals);
    if (!reason.empty()) line += ": " + reason;
  }
  const Json& enforced = At(At(tenant, "enforced"), "memory");
  const Json& left = At(tenant, "left_behind_pids");
  if (left.is_array() && !left.empty()) {
    line +=
        fmt::format("; {} left in the background {} its promise: gpumux stop {}",
                    left.size() == 1 ? std::string("a process") : fmt::format("{} processes", left.size()),
                    left.size() == 1 ? "keeps" : "keep", TextAt(tenant, "id", 20));
  }
  if (enforced == "not enforced") line += "; its memory limit was NOT enforced";
  return line;
}

std::string ClosingLineWithoutRecord(std::chrono::nanoseconds took) {
  return "done in " + FormatDuration(took) +
         "; the daemon ended meanwhile, so the record of this run is missing";
}

std::string RunJson(const std::string& summary_json, bool simulated) {
  Json data = Json::parse(summary_json, nullptr, false);
  if (data.is_discarded()) data = nullptr;
  return Envelope("run", simulated, data);
}

std::string ErrorJson(const std::string& code, const std::string& message, const std::string& hint) {
  const nlohmann::ordered_json out = {{"error", {{"code", code}, {"message", message}, {"hint", hint}}}};
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace gpumux::cli
