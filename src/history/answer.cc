// SPDX-License-Identifier: Apache-2.0
#include "history/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "history/outcome.h"
#include "history/query_text.h"

namespace gpumux::history {

namespace {

using Json = nlohmann::ordered_json;

Error Invalid(std::string_view key, std::string_view value) {
  return {Code::kInvalid, fmt::format("'{}' is no value of {}", value.substr(0, 40), key),
          "see gpumux history --help"};
}

Result<int64_t> NumberOf(std::string_view key, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    return tl::unexpected(Invalid(key, text));
  return value;
}

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json TotalsJson(const Totals& totals) {
  Json outcomes = Json::object();
  for (const auto& [name, count] : totals.outcomes) outcomes[name] = count;
  return {{"tenants", totals.tenants},
          {"outcomes", std::move(outcomes)},
          {"ran_median_seconds", OrNull(totals.ran_median_seconds)},
          {"ran_p95_seconds", OrNull(totals.ran_p95_seconds)},
          {"waited_median_seconds", OrNull(totals.waited_median_seconds)},
          {"waited_p95_seconds", OrNull(totals.waited_p95_seconds)}};
}

}  // namespace

Result<Query> ParseQuery(std::string_view text) {
  Query query;
  const auto pairs = ParseQueryText(text);
  if (!pairs) return tl::unexpected(pairs.error());
  std::optional<int64_t> before_ms;
  std::string before_id;
  for (const auto& [key, value] : *pairs) {
    if (key == "owner") {
      query.owner = value;
    } else if (key == "name") {
      query.name = value;
    } else if (key == "outcome") {
      if (!ParseOutcome(value)) return tl::unexpected(Invalid(key, value));
      query.outcome = value;
    } else if (key == "label") {
      const size_t equals = value.find('=');
      if (equals == std::string::npos || equals == 0) return tl::unexpected(Invalid(key, value));
      query.label_key = value.substr(0, equals);
      query.label_value = value.substr(equals + 1);
    } else if (key == "before_id") {
      before_id = value;
    } else {
      const auto number = NumberOf(key, value);
      if (!number) return tl::unexpected(number.error());
      if (key == "since_ms") {
        query.since_ms = *number;
      } else if (key == "until_ms") {
        query.until_ms = *number;
      } else if (key == "before_ms") {
        before_ms = *number;
      } else if (key == "limit") {
        query.limit = std::min<size_t>(static_cast<size_t>(*number), kMostInAnAnswer);
      } else {
        return Fail(Code::kInvalid, fmt::format("'{}' is nothing to ask the history for", key.substr(0, 40)));
      }
    }
  }
  if (before_ms) query.before = {*before_ms, before_id};
  return query;
}

Json AnswerJson(const Answer& answer, const std::function<Json(Json record, const PastTenant& past)>& show) {
  Json data{{"tenants", Json::array()}, {"more", answer.more}};
  for (const PastTenant& past : answer.tenants) {
    Json record = Json::parse(past.record, nullptr, false);
    if (record.is_object()) data["tenants"].push_back(show(std::move(record), past));
  }
  data["totals"] = TotalsJson(answer.totals);
  return data;
}

Result<GpuQuery> ParseGpuQuery(std::string_view text, int64_t now_ms) {
  constexpr int64_t kDayMs = 86'400'000, kLeastStepMs = 60'000, kMostRows = 1440;
  GpuQuery query;
  query.until_ms = now_ms;
  query.step_ms = 0;
  std::optional<int64_t> since;
  const auto pairs = ParseQueryText(text);
  if (!pairs) return tl::unexpected(pairs.error());
  for (const auto& [key, value] : *pairs) {
    if (key == "gpu") {
      query.gpu = value;
      continue;
    }
    const auto number = NumberOf(key, value);
    if (!number) return tl::unexpected(number.error());
    if (key == "since_ms") {
      since = *number;
    } else if (key == "until_ms") {
      query.until_ms = *number;
    } else if (key == "step_ms") {
      query.step_ms = *number;
    } else {
      return Fail(Code::kInvalid, fmt::format("'{}' is nothing to ask the history for", key.substr(0, 40)));
    }
  }
  query.since_ms = since.value_or(std::max<int64_t>(query.until_ms - kDayMs, 0));
  const int64_t range = std::max<int64_t>(query.until_ms - query.since_ms, 0);
  query.step_ms = std::max({query.step_ms, kLeastStepMs, range / kMostRows});
  return query;
}

Json GpuAnswerJson(const std::vector<GpuStretch>& stretches, const GpuQuery& query) {
  const auto bytes = [](const std::optional<uint64_t>& value) {
    return value ? Json(*value) : Json(nullptr);
  };
  Json list = Json::array();
  for (const GpuStretch& stretch : stretches) {
    list.push_back({{"from_ms", stretch.from_ms},
                    {"uuid", stretch.gpu},
                    {"modes", stretch.modes},
                    {"samples", stretch.samples},
                    {"tenants", stretch.tenants},
                    {"mem_guaranteed_bytes", stretch.guaranteed_bytes},
                    {"mem_used_bytes", stretch.used_bytes},
                    {"mem_used_mean_bytes", stretch.used_mean_bytes},
                    {"mem_promisable_bytes", stretch.promisable_bytes},
                    {"mem_device_used_bytes", bytes(stretch.device_used_bytes)},
                    {"mem_unmanaged_bytes", bytes(stretch.unmanaged_bytes)},
                    {"mem_unexplained_bytes", bytes(stretch.unexplained_bytes)}});
  }
  return {{"step_seconds", static_cast<double>(query.step_ms) / 1e3}, {"stretches", std::move(list)}};
}

}  // namespace gpumux::history
