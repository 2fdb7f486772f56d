// SPDX-License-Identifier: Apache-2.0
#include "cli/envelope.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>

#include "cli/terminal.h"

namespace gpumux::cli {

std::string Envelope(const std::string& name, bool simulated, const nlohmann::json& data) {
  const time_t now = ::time(nullptr);
  tm local{};
  ::localtime_r(&now, &local);
  char date[32], zone[8];
  ::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &local);
  ::strftime(zone, sizeof zone, "%z", &local);
  nlohmann::ordered_json out;
  out["schema"] = "gpumux." + name + "/1";
  out["generated_at"] = fmt::format("{}{}:{}", date, std::string_view(zone, 3), std::string_view(zone + 3));
  out["simulated"] = simulated;
  out["data"] = data;
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

const nlohmann::json& At(const nlohmann::json& object, const char* key) {
  static const nlohmann::json kNull;
  if (!object.is_object()) return kNull;
  const auto it = object.find(key);
  return it == object.end() ? kNull : *it;
}

std::string TextAt(const nlohmann::json& object, const char* key, size_t width) {
  const nlohmann::json& value = At(object, key);
  return value.is_string() ? Plain(value.get_ref<const std::string&>(), width) : "";
}

std::string GpuLabel(const nlohmann::json& gpu) {
  std::string label = TextAt(gpu, "label", 16);
  if (!label.empty()) return label;
  // From a daemon of before.
  const nlohmann::json& index = At(gpu, "index");
  return index.is_number_unsigned() ? index.dump() : "?";
}

nlohmann::json GpuListOf(const std::string& text) {
  nlohmann::json list = nlohmann::json::array();
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    list.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return list;
}

}  // namespace gpumux::cli
