// SPDX-License-Identifier: Apache-2.0
#include "workload/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/units.h"

namespace gpumux::workload {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string Api(const Options& options) {
  return options.like == Framework::kNone ? Name(options.alloc_api) : Name(AllocApi::kPlain);
}

}  // namespace

std::string ToJson(const Report& report, const Options& options) {
  Json out;
  out["name"] = options.name;
  out["device"] = report.device_name.empty() ? Json(nullptr) : Json(report.device_name);
  const auto number = [&report](auto member) {
    return report.load ? Json((*report.load).*member) : Json(nullptr);
  };
  out["rate_per_s"] = number(&Summary::rate_per_s);
  out["p50_us"] = number(&Summary::p50_us);
  out["p99_us"] = number(&Summary::p99_us);
  out["max_us"] = number(&Summary::max_us);
  out["service_p50_us"] = number(&Summary::service_p50_us);
  out["service_p99_us"] = number(&Summary::service_p99_us);
  out["requests"] = number(&Summary::requests);
  out["free_bytes"] = OrNull(report.free_bytes);
  out["total_bytes"] = OrNull(report.total_bytes);
  if (report.alloc) {
    Json& alloc = out["alloc"];
    alloc["api"] = Api(options);
    alloc["bytes"] = report.alloc->bytes;
    alloc["result"] = report.alloc_result;
    alloc["call"] = report.alloc->call;
    alloc["attempts"] = report.alloc->attempts;
    alloc["granted"] = report.alloc->granted;
    if (options.like != Framework::kNone) alloc["like"] = Name(options.like);
  } else {
    out["alloc"] = nullptr;
  }
  if (options.verify) out["verified"] = OrNull(report.verified);
  out["end"] = Name(options.end);
  if (!report.fault_result.empty()) out["fault_result"] = report.fault_result;
  if (options.report_memory) {
    out["memory"] = Json::array();
    for (const MemoryStep& step : report.steps) {
      out["memory"].push_back({{"step", step.step},
                               {"took_ms", step.took_ms},
                               {"free_bytes", OrNull(step.free_bytes)},
                               {"total_bytes", OrNull(step.total_bytes)},
                               {"nvml_used_bytes", OrNull(step.nvml_used_bytes)},
                               {"nvml_free_bytes", OrNull(step.nvml_free_bytes)},
                               {"nvml_own_bytes", OrNull(step.nvml_own_bytes)}});
    }
  }
  if (!report.error.empty()) out["error"] = report.error;
  out["exit_status"] = report.exit_status;
  // A name from the command line may be no UTF-8.
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ToText(const Report& report, const Options& options) {
  std::string out;
  const auto bytes = [](const std::optional<uint64_t>& value) {
    return value ? FormatBytes(*value) : std::string("-");
  };
  for (const MemoryStep& step : report.steps) {
    out += fmt::format("{}: {:<10} free {:>10} of {:>10}, NVML used {:>10}, own {:>10}, took {:.1f} ms\n",
                       options.name, step.step, bytes(step.free_bytes), bytes(step.total_bytes),
                       bytes(step.nvml_used_bytes), bytes(step.nvml_own_bytes), step.took_ms);
  }
  if (report.total_bytes) {
    out += fmt::format("{}: {}: {} free of {}\n", options.name, report.device_name, bytes(report.free_bytes),
                       bytes(report.total_bytes));
  }
  if (report.alloc) {
    const std::string how =
        options.like == Framework::kNone ? Api(options) : std::string("like ") + Name(options.like);
    out += fmt::format("{}: took {} ({}), {} of {} allocations granted; last: {} {}\n", options.name,
                       FormatBytes(report.alloc->bytes), how, report.alloc->granted, report.alloc->attempts,
                       report.alloc->call, report.alloc_result);
  }
  if (report.verified)
    out += fmt::format("{}: contents {}\n", options.name, *report.verified ? "verified" : "WRONG");
  if (report.load) {
    out += fmt::format("{}: {} requests, {:.1f} a second, p50 {:.0f} us, p99 {:.0f} us, max {:.0f} us\n",
                       options.name, report.load->requests, report.load->rate_per_s, report.load->p50_us,
                       report.load->p99_us, report.load->max_us);
  }
  if (!report.fault_result.empty()) out += fmt::format("{}: fault: {}\n", options.name, report.fault_result);
  return out;
}

}  // namespace gpumux::workload
