// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace gpumux::daemon {

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

const char* Name(MetricType type) {
  switch (type) {
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kCounter:
      return "counter";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "untyped";
}

// Bytes of the character at the beginning of `text`; 0: it is none.
size_t CharacterAt(std::string_view text) {
  const auto byte = [&](size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  size_t length = 0;
  unsigned least = 0x80, most = 0xbf;  // of the second byte: no overlong forms, surrogates or beyond U+10FFFF
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) least = 0xa0;
    if (first == 0xed) most = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) least = 0x90;
    if (first == 0xf4) most = 0x8f;
  } else {
    return 0;
  }
  if (byte(1) < least || byte(1) > most) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return length;
}

bool IsControl(unsigned char c) { return c < 0x20 || c == 0x7f; }

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string Number(uint64_t value) { return fmt::format("{}", value); }

// name="value",...
std::string Join(const MetricsText::Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels)
    text += fmt::format("{}{}=\"{}\"", text.empty() ? "" : ",", name, LabelValue(value));
  return text;
}

}  // namespace

void Histogram::Observe(double value) {
  const auto at = std::lower_bound(bounds.begin(), bounds.end(), value);
  ++counts[static_cast<size_t>(at - bounds.begin())];
  sum += value;
}

std::string LabelValue(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = CharacterAt(text);
    const char c = text[0];
    if (c == '\n')
      out += "\\n";
    else if (c == '\\' || c == '"')
      (out += '\\') += c;
    else if (length == 0 || (length == 1 && IsControl(static_cast<unsigned char>(c))))
      out += kReplacement;
    else
      out += text.substr(0, length);
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

void MetricsText::Line(const MetricFamily& family, std::string_view suffix, const std::string& labels,
                       const std::string& value) {
  std::string& lines = samples_[&family];
  (lines += family.name) += suffix;
  if (!labels.empty()) lines += "{" + labels + "}";
  lines += " " + value + "\n";
}

void MetricsText::Add(const MetricFamily& family, const Labels& labels, uint64_t value) {
  Line(family, "", Join(labels), Number(value));
}

void MetricsText::Add(const MetricFamily& family, const Labels& labels, double value) {
  Line(family, "", Join(labels), Number(value));
}

void MetricsText::Add(const MetricFamily& family, const Labels& labels, const Histogram& histogram) {
  const std::string text = Join(labels);
  const std::string before = text.empty() ? "" : text + ",";
  uint64_t count = 0;
  for (size_t i = 0; i < histogram.counts.size(); ++i) {
    count += histogram.counts[i];
    const std::string bound = i < histogram.bounds.size() ? Number(histogram.bounds[i]) : "+Inf";
    Line(family, "_bucket", fmt::format("{}le=\"{}\"", before, bound), Number(count));
  }
  Line(family, "_sum", text, Number(histogram.sum));
  Line(family, "_count", text, Number(count));
}

std::string MetricsText::Render(std::span<const MetricFamily* const> families) const {
  std::string text;
  for (const MetricFamily* family : families) {
    text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", family->name, family->help, Name(family->type));
    if (const auto it = samples_.find(family); it != samples_.end()) text += it->second;
  }
  return text;
}

}  // namespace gpumux::daemon
