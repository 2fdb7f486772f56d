// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "tui/parts.h"

namespace gpumux::tui {
namespace {

std::string TimeOfDay(const EventSample& event, long utc_offset_seconds) {
  if (!event.at_unix_milliseconds) return "--:--:--";
  constexpr int64_t kDay = 86400;
  const auto seconds = static_cast<int64_t>(*event.at_unix_milliseconds / 1000 % kDay);
  const int64_t of_day = ((seconds + utc_offset_seconds) % kDay + kDay) % kDay;
  return fmt::format("{:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60);
}

}  // namespace

void DrawEvents(Screen& screen, int y, int height, const Model& model, const Look& look) {
  const auto& events = model.events();
  const int shown = std::min(height, static_cast<int>(events.size()));
  for (int i = 0; i < shown; ++i) {
    const EventSample& event = events[events.size() - static_cast<size_t>(shown - i)];
    const std::string who = event.tenant_name.empty() ? "" : event.tenant_name + ": ";
    const std::string by = event.user.empty() ? "" : " [" + event.user + "]";
    const Ink ink = event.severity == "error"     ? Ink::kBad
                    : event.severity == "warning" ? Ink::kWarning
                                                  : Ink::kPlain;
    const std::string line = fmt::format("{} {} {}{}{}", TimeOfDay(event, look.utc_offset_seconds),
                                         event.kind, who, event.text, by);
    screen.Put(0, y + height - shown + i, Cut(line, screen.width()), ink);
  }
}

}  // namespace gpumux::tui
