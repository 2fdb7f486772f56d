// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>

#include "base/unique_fd.h"

namespace gpumux::cli::doctor {

namespace fs = std::filesystem;

std::optional<std::string> ReadText(const std::string& path) {
  constexpr size_t kMost = 1u << 20;
  // A file of another user may be a pipe: never wait for it.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) return std::nullopt;
  std::string text;
  char buffer[16384];
  while (text.size() < kMost) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && text.empty()) return std::nullopt;
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

std::vector<std::string> Entries(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    if (end > 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::optional<uint64_t> NumberAt(std::string_view text) {
  uint64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (result.ec != std::errc()) return std::nullopt;
  return number;
}

std::optional<std::string> FieldOf(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.starts_with(key)) continue;
    line.remove_prefix(key.size());
    const size_t begin = line.find_first_not_of(": \t");
    return begin == std::string_view::npos ? "" : std::string(line.substr(begin));
  }
  return std::nullopt;
}

std::string VersionIn(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t begin = text.find_first_of("0123456789", at);
    if (begin == std::string_view::npos) break;
    const size_t end = std::min(text.find_first_not_of("0123456789.", begin), text.size());
    std::string_view word = text.substr(begin, end - begin);
    while (word.ends_with('.')) word.remove_suffix(1);
    if (word.find('.') != std::string_view::npos) return std::string(word);
    at = end;
  }
  return "";
}

bool OlderThan(std::string_view version, std::string_view other) {
  const auto left = Split(version, '.'), right = Split(other, '.');
  for (size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
    const uint64_t a = i < left.size() ? NumberAt(left[i]).value_or(0) : 0;
    const uint64_t b = i < right.size() ? NumberAt(right[i]).value_or(0) : 0;
    if (a != b) return a < b;
  }
  return false;
}

}  // namespace gpumux::cli::doctor
