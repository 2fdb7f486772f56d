// SPDX-License-Identifier: Apache-2.0
#include "cli/event_view.h"

#include <fmt/format.h>
#include <time.h>

#include "cli/envelope.h"

namespace gpumux::cli {
namespace {

constexpr const char* kUnknown = "–";

std::string LocalTime(const nlohmann::json& event) {
  const nlohmann::json& milliseconds = At(event, "at_unix_milliseconds");
  if (!milliseconds.is_number_unsigned()) return kUnknown;
  const auto seconds = static_cast<time_t>(milliseconds.get<uint64_t>() / 1000);
  tm local{};
  char date[32];
  if (!::localtime_r(&seconds, &local) || ::strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", &local) == 0)
    return kUnknown;
  return date;
}

const char* Color(const std::string& severity) {
  if (severity == "error") return "\033[31m";
  if (severity == "warning") return "\033[33m";
  return "";
}

}  // namespace

std::string EventLine(const nlohmann::json& event, const Terminal& terminal) {
  const nlohmann::json& id = At(event, "id");
  const std::string severity = TextAt(event, "severity", 10), tenant = TextAt(event, "tenant", 20),
                    user = TextAt(event, "user", 32);
  std::string line = fmt::format("{}  {:>5}  {:<14}  ", LocalTime(event),
                                 id.is_number_unsigned() ? std::to_string(id.get<uint64_t>()) : kUnknown,
                                 TextAt(event, "kind", 20));
  if (!tenant.empty()) line += fmt::format("{} ({}): ", TextAt(event, "tenant_name", 64), tenant);
  line += TextAt(event, "text", 1000);
  if (!user.empty()) line += fmt::format(" [{}]", user);
  const char* color = terminal.color ? Color(severity) : "";
  return color[0] ? color + line + "\033[0m\n" : line + "\n";
}

}  // namespace gpumux::cli
