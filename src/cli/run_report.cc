// SPDX-License-Identifier: Apache-2.0
#include "cli/run_report.h"

#include <fmt/format.h>

#include <algorithm>

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

// ", peak 11.2 GiB of 12.0 GiB". A limit is of each GPU: of several, the one that
// came closest to its own.
std::string Peak(const Json& tenant) {
  const Json* fullest = &tenant;
  const Json& gpus = At(tenant, "gpus");
  if (gpus.is_array() && gpus.size() > 1) {
    const auto share = [](const Json& gpu) {
      const double peak = static_cast<double>(Bytes(gpu, "mem_peak_bytes").value_or(0));
      return peak / static_cast<double>(std::max<uint64_t>(Bytes(gpu, "mem_limit_bytes").value_or(1), 1));
    };
    fullest = &*std::max_element(gpus.begin(), gpus.end(),
                                 [&](const Json& a, const Json& b) { return share(a) < share(b); });
  }
  const auto peak = Bytes(*fullest, "mem_peak_bytes"), limit = Bytes(*fullest, "mem_limit_bytes");
  if (!peak) return "";
  std::string text = ", peak " + FormatBytes(*peak);
  if (limit) text += " of " + FormatBytes(*limit);
  if (fullest != &tenant)
    text += fmt::format(" on GPU {}, the fullest of {}", GpuLabel(*fullest), gpus.size());
  return text;
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
  line += Peak(tenant);
  const Json& refusals = At(tenant, "refusals");
  if (refusals.is_object()) {
    line += ", " + RefusalCount(refusals);
    const std::string reason = RefusalReason(tenant, nullptr);
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

std::string LostByOthers(const std::string& summary_json) {
  const Json ended = At(Tenant(summary_json), "ended");
  const Json& cause = At(ended, "lost_work");
  std::string why = TextAt(ended, "why", 200);
  if (cause == "mps-server" || cause == "neighbour-fault" || cause == "unknown-fault") return why;
  return "";
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
