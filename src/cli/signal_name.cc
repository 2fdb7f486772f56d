// SPDX-License-Identifier: Apache-2.0
#include "cli/signal_name.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <charconv>

#include "cli/terminal.h"

namespace gpumux::cli {

Result<int> ParseSignal(const std::string& text) {
  int number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && number >= 1 && number < NSIG)
    return number;
  std::string name = text;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return c >= 'a' && c <= 'z' ? c - 32 : c; });
  if (name.starts_with("SIG")) name = name.substr(3);
  for (int signal = 1; signal < NSIG; ++signal) {
    const char* abbreviation = ::sigabbrev_np(signal);
    if (abbreviation && name == abbreviation) return signal;
  }
  return Fail(Code::kInvalid, fmt::format("'{}' is not a signal", Plain(text, 40)),
              "write for example TERM, INT or 9");
}

std::string SignalName(int signal) {
  const char* abbreviation = ::sigabbrev_np(signal);
  return abbreviation ? fmt::format("SIG{}", abbreviation) : fmt::format("signal {}", signal);
}

}  // namespace gpumux::cli
