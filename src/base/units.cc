// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

namespace gpumux {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 60;
constexpr std::chrono::milliseconds kMaxDuration = std::chrono::hours(24 * 366);
// Error messages quote what was given; not a megabyte of it.
constexpr size_t kMaxQuoted = 40;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsSpace(char c) { return c == ' ' || c == '\t'; }
char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

std::string Quote(std::string_view text) {
  std::string out = "'";
  for (char c : text.substr(0, kMaxQuoted)) out += (c >= 0x20 && c != 0x7f) ? c : '?';
  if (text.size() > kMaxQuoted) out += "...";
  return out + "'";
}

std::string LowerCase(std::string_view text) {
  std::string out;
  for (char c : text) out += Lower(c);
  return out;
}

// An unsigned decimal number in front of `text`, which then begins after it.
// No sign, exponent, "inf" or "nan": none of them is an amount.
struct Number {
  uint64_t whole = 0;
  long double value = 0;
  bool is_whole = true;
  bool overflow = false;
};

bool TakeNumber(std::string_view& text, Number& number) {
  size_t i = 0;
  while (i < text.size() && IsDigit(text[i])) ++i;
  const size_t digits = i;
  bool fraction = false;
  if (i < text.size() && text[i] == '.') {
    ++i;
    while (i < text.size() && IsDigit(text[i])) ++i;
    fraction = i > digits + 1;
    if (!fraction) return false;
  }
  if (digits == 0 && !fraction) return false;
  const char* begin = text.data();
  if (digits > 0) {
    const auto parsed = std::from_chars(begin, begin + digits, number.whole);
    number.overflow = parsed.ec == std::errc::result_out_of_range;
  }
  number.is_whole = !fraction;
  const auto parsed = std::from_chars(begin, begin + i, number.value, std::chars_format::fixed);
  if (parsed.ec == std::errc::result_out_of_range) number.overflow = true;
  text.remove_prefix(i);
  return true;
}

Result<MemorySize> ParsePercent(const Number& number, std::string_view text) {
  if (number.overflow || number.value > 100) {
    return Fail(Code::kInvalid, fmt::format("{} is more than the whole GPU", Quote(text)),
                "write at most 100%");
  }
  if (number.value <= 0) return Fail(Code::kInvalid, fmt::format("{} is nothing", Quote(text)));
  return MemorySize{.bytes = 0, .ratio = static_cast<double>(number.value / 100)};
}

}  // namespace

Result<MemorySize> ParseMemorySize(std::string_view text) {
  constexpr const char* kExample = "write for example 10GiB, 512MiB or 40%";
  std::string_view rest = Trim(text);
  if (rest.empty()) return Fail(Code::kInvalid, "the amount of memory is empty", kExample);
  if (rest.front() == '-') {
    return Fail(Code::kInvalid, fmt::format("{} is negative", Quote(text)), kExample);
  }
  Number number;
  if (!TakeNumber(rest, number)) {
    return Fail(Code::kInvalid, fmt::format("{} is not an amount of memory", Quote(text)), kExample);
  }
  const std::string unit = LowerCase(Trim(rest));
  if (unit == "%") return ParsePercent(number, text);
  if (unit.empty()) {
    return Fail(Code::kInvalid, fmt::format("{} has no unit", Quote(text)),
                fmt::format("write {0}GiB or {0}MiB", Trim(text).substr(0, kMaxQuoted)));
  }
  struct Unit {
    char letter;
    uint64_t bytes;
  };
  constexpr std::array<Unit, 5> kUnits{{{'b', 1}, {'k', kKiB}, {'m', kMiB}, {'g', kGiB}, {'t', kTiB}}};
  uint64_t factor = 0;
  for (const Unit& candidate : kUnits) {
    if (unit[0] != candidate.letter) continue;
    const std::string_view suffix = std::string_view(unit).substr(1);
    if (suffix.empty() || (candidate.bytes > 1 && (suffix == "b" || suffix == "ib")))
      factor = candidate.bytes;
  }
  if (factor == 0) {
    return Fail(Code::kInvalid, fmt::format("{} has an unknown unit {}", Quote(text), Quote(Trim(rest))),
                "units are B, KiB, MiB, GiB, TiB and %");
  }
  const bool too_large =
      number.overflow || (number.is_whole && number.whole > kMaxBytes / factor) ||
      number.value * static_cast<long double>(factor) > static_cast<long double>(kMaxBytes);
  if (too_large) {
    return Fail(Code::kInvalid, fmt::format("{} is larger than any GPU's memory", Quote(text)), kExample);
  }
  const uint64_t bytes = number.is_whole
                             ? number.whole * factor
                             : static_cast<uint64_t>(number.value * static_cast<long double>(factor));
  if (bytes == 0) return Fail(Code::kInvalid, fmt::format("{} is nothing", Quote(text)), kExample);
  return MemorySize{.bytes = bytes, .ratio = 0};
}

Result<MemoryRange> ParseMemoryRange(std::string_view text) {
  const size_t colon = text.find(':');
  const auto guaranteed = ParseMemorySize(text.substr(0, colon));
  if (!guaranteed) return tl::unexpected(guaranteed.error());
  MemoryRange range{.guaranteed = *guaranteed, .limit = std::nullopt};
  if (colon == std::string_view::npos) return range;
  const auto limit = ParseMemorySize(text.substr(colon + 1));
  if (!limit) return tl::unexpected(limit.error());
  const bool same_kind = (guaranteed->bytes > 0) == (limit->bytes > 0);
  if (same_kind && (limit->bytes < guaranteed->bytes || limit->ratio < guaranteed->ratio)) {
    return Fail(Code::kInvalid, fmt::format("{}: the limit is below the guarantee", Quote(text)),
                "write guarantee:limit, for example 10GiB:20GiB");
  }
  range.limit = *limit;
  return range;
}

Result<std::chrono::milliseconds> ParseDuration(std::string_view text) {
  constexpr const char* kExample = "write for example 30s, 10m or 1h30m";
  std::string_view rest = Trim(text);
  if (rest.empty()) return Fail(Code::kInvalid, "the duration is empty", kExample);
  if (rest.front() == '-') return Fail(Code::kInvalid, fmt::format("{} is negative", Quote(text)), kExample);
  struct Unit {
    std::string_view name;
    long double milliseconds;
  };
  // From large to small: each part must be of a smaller unit than the one before it.
  constexpr std::array<Unit, 5> kUnits{
      {{"d", 86'400'000}, {"h", 3'600'000}, {"m", 60'000}, {"s", 1000}, {"ms", 1}}};
  long double total = 0;
  size_t next_unit = 0;
  while (!rest.empty()) {
    Number number;
    if (!TakeNumber(rest, number)) {
      return Fail(Code::kInvalid, fmt::format("{} is not a duration", Quote(text)), kExample);
    }
    rest = Trim(rest);
    size_t length = 0;
    while (length < rest.size() && !IsDigit(rest[length]) && !IsSpace(rest[length]) && rest[length] != '.')
      ++length;
    const std::string unit = LowerCase(rest.substr(0, length));
    if (unit.empty()) {
      return Fail(Code::kInvalid, fmt::format("{} has no unit", Quote(text)),
                  fmt::format("write {0}s, {0}m or {0}h", Trim(text).substr(0, kMaxQuoted)));
    }
    rest = Trim(rest.substr(length));
    size_t index = 0;
    while (index < kUnits.size() && kUnits[index].name != unit) ++index;
    if (index == kUnits.size()) {
      return Fail(Code::kInvalid, fmt::format("{} has an unknown unit {}", Quote(text), Quote(unit)),
                  "units are d, h, m, s and ms");
    }
    if (index < next_unit) {
      return Fail(Code::kInvalid, fmt::format("{} has its units in the wrong order", Quote(text)), kExample);
    }
    next_unit = index + 1;
    total += number.overflow ? static_cast<long double>(kMaxDuration.count()) + 1
                             : number.value * kUnits[index].milliseconds;
  }
  if (total > static_cast<long double>(kMaxDuration.count())) {
    return Fail(Code::kInvalid, fmt::format("{} is longer than a year", Quote(text)), kExample);
  }
  return std::chrono::milliseconds(static_cast<int64_t>(total));
}

std::string FormatBytes(uint64_t bytes) {
  if (bytes < kKiB) return fmt::format("{} B", bytes);
  // A value that rounds up to 1024 of its unit is shown as 1 of the next.
  const auto rounded = [bytes](uint64_t unit) { return bytes / unit + (bytes % unit >= unit / 2 ? 1 : 0); };
  if (rounded(kKiB) < 1024) return fmt::format("{} KiB", rounded(kKiB));
  if (rounded(kMiB) < 1024) return fmt::format("{} MiB", rounded(kMiB));
  const double gib = static_cast<double>(bytes) / static_cast<double>(kGiB);
  if (gib < 1023.95) return fmt::format("{:.1f} GiB", gib);
  return fmt::format("{:.1f} TiB", static_cast<double>(bytes) / static_cast<double>(kTiB));
}

std::string FormatRoundedUp(uint64_t bytes) {
  const uint64_t unit = bytes > 4 * kGiB ? kGiB : kGiB / 4;
  const uint64_t rounded = bytes > (uint64_t{1} << 60) ? bytes : (bytes + unit - 1) / unit * unit;
  return rounded % kGiB == 0 ? fmt::format("{}GiB", rounded / kGiB) : fmt::format("{}MiB", rounded / kMiB);
}

std::string FormatDuration(std::chrono::nanoseconds duration) {
  using namespace std::chrono;
  if (duration < nanoseconds(0)) return "-" + FormatDuration(-duration);
  if (duration < 1us) return fmt::format("{} ns", duration.count());
  if (duration < 1ms) return fmt::format("{} us", duration_cast<microseconds>(duration).count());
  if (duration < 1s) return fmt::format("{} ms", duration_cast<milliseconds>(duration).count());
  if (duration < 59'950ms) return fmt::format("{:.1f} s", static_cast<double>(duration.count()) / 1e9);
  const int64_t total = (duration + 500ms) / 1s;
  if (total < 3600) return fmt::format("{}m{:02}s", total / 60, total % 60);
  if (total < 86'400) return fmt::format("{}h{:02}m", total / 3600, total / 60 % 60);
  return fmt::format("{}d{:02}h", total / 86'400, total / 3600 % 24);
}

}  // namespace gpumux
