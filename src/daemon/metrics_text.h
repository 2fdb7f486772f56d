// SPDX-License-Identifier: Apache-2.0
//
// Prometheus' text format, version 0.0.4: samples in, text out. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpumux::daemon {

enum class MetricType { kGauge, kCounter, kHistogram };

struct MetricFamily {
  const char* name;
  MetricType type;
  const char* help;  // one sentence without its full stop
};

// How many values were at most each bound, and above the last one.
struct Histogram {
  explicit Histogram(std::span<const double> ascending) : bounds(ascending), counts(ascending.size() + 1) {}
  void Observe(double value);

  std::span<const double> bounds;
  std::vector<uint64_t> counts;  // not cumulated; one more than bounds
  double sum = 0;
};

// Any bytes as the value of a label, without its quotes: what is no UTF-8 or a control
// character, which would cost the reader the whole answer, becomes U+FFFD.
std::string LabelValue(std::string_view text);

class MetricsText {
 public:
  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

  // Names are ours, values anybody's.
  using Labels = std::vector<std::pair<std::string_view, std::string>>;

  // A family without a sample is one whose values are unknown or that has none now.
  void Add(const MetricFamily& family, const Labels& labels, uint64_t value);
  void Add(const MetricFamily& family, const Labels& labels, double value);
  void Add(const MetricFamily& family, const Labels& labels, const Histogram& histogram);

  // With the head of every family in this order, also of those without samples.
  std::string Render(std::span<const MetricFamily* const> families) const;

 private:
  void Line(const MetricFamily& family, std::string_view suffix, const std::string& labels,
            const std::string& value);

  std::map<const MetricFamily*, std::string> samples_;
};

}  // namespace gpumux::daemon
