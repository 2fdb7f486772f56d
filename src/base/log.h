// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

#include "base/result.h"

namespace gpumux {

// The log of gpumuxd and the software GPU's server: one line an event,
// "2026-01-31T12:00:00.123+00:00 info  text", to stderr or a file that was opened for
// appending. Any thread. Nothing is logged in a tenant's process.
enum class LogLevel { kDebug, kInfo, kWarning, kError };

void SetLogLevel(LogLevel level);
// Lines of `level` are written at all.
bool LogEnabled(LogLevel level);
// "debug", "info", "warning", "error"
Result<LogLevel> ParseLogLevel(std::string_view text);
// From now on to `path` (mode 0600).
Status SetLogFile(const std::string& path);

// Line feeds and control characters in `text` become '?': what a peer sends can
// forge no lines.
void WriteLog(LogLevel level, std::string_view text);

template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(LogLevel::kDebug))
    WriteLog(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(LogLevel::kInfo))
    WriteLog(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(LogLevel::kWarning))
    WriteLog(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(LogLevel::kError))
    WriteLog(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace gpumux
