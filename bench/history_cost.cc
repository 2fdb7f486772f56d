// SPDX-License-Identifier: Apache-2.0
//
// What the history of past tenants costs: views of N of them, and how the file grows.
//
// usage: history_cost [N]     (10000). One JSON object: medians in milliseconds.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "history/answer.h"
#include "history/store.h"

namespace {

using gpumux::history::PastTenant;
using gpumux::history::Query;
using Steady = std::chrono::steady_clock;

constexpr int64_t kFirstMs = 1'700'000'000'000;
constexpr const char* kOutcomes[] = {"completed", "completed",     "completed",
                                     "failed",    "out-of-memory", "stopped"};

// As gpumuxd writes it for a training with a few labels.
PastTenant Past(int i) {
  const std::string outcome = kOutcomes[i % 6], owner = fmt::format("user{}", i % 40);
  const int64_t ended = kFirstMs + 60'000LL * i;
  nlohmann::ordered_json record{
      {"id", fmt::format("t-{:012x}", i * 2654435761u)},
      {"name", fmt::format("train-{}", i % 500)},
      {"owner", owner},
      {"owner_uid", 1000 + i % 40},
      {"mode", "timeslice"},
      {"priority", "normal"},
      {"isolation", "fault"},
      {"share_min_ratio", nullptr},
      {"share_max_ratio", nullptr},
      {"time_limit_seconds", 14400.0},
      {"mem_guaranteed_bytes", 21474836480},
      {"mem_limit_bytes", 42949672960},
      {"mem_peak_bytes", 20000000000 + i},
      {"waited_seconds", i % 300 * 1.1},
      {"started_at", "2026-11-30T10:00:00Z"},
      {"ended",
       {{"why", "exited"},
        {"lost_work", nullptr},
        {"exit_code", 0},
        {"signal", nullptr},
        {"ended_at", "2026-11-30T12:00:00Z"},
        {"ran_seconds", i % 7200 * 1.3}}},
      {"refusals",
       {{"own_limit", 0}, {"device_full", 0}, {"own_part", 0}, {"last_refused_bytes", 0}, {"last", nullptr}}},
      {"launches", 123456789 + i},
      {"gate", nullptr},
      {"turns", nullptr},
      {"command", "python3 train.py --config configs/large.yaml --seed 17 --output /data/runs/2026-11-30"},
      {"cwd", fmt::format("/home/{}/project", owner)},
      {"labels", {{"team", i % 2 ? "vision" : "speech"}, {"run", fmt::format("{}", i)}}},
      {"gpus",
       {{{"uuid", "GPU-2f9d6b7d-77f5-d0b5-99b9-ce5269b97dc4"},
         {"index", 0},
         {"name", "NVIDIA H200"},
         {"mem_guaranteed_bytes", 21474836480},
         {"mem_limit_bytes", 42949672960},
         {"mem_peak_bytes", 20000000000 + i}}}},
      {"memory_enforced", "guard"},
      {"outcome", outcome},
      {"mem_mean_bytes", 19000000000 + i},
      {"started_ms", ended - 100'000},
      {"ended_ms", ended}};
  return {.id = record["id"],
          .name = record["name"],
          .uid = static_cast<uint32_t>(1000 + i % 40),
          .owner = owner,
          .outcome = outcome,
          .started_ms = ended - 100'000,
          .ended_ms = ended,
          .waited_seconds = record["waited_seconds"],
          .ran_seconds = record["ended"]["ran_seconds"],
          .labels = record["labels"].dump(),
          .record = record.dump()};
}

template <typename F>
double MedianMs(int times, F&& what) {
  std::vector<double> took;
  for (int i = 0; i < times; ++i) {
    const auto start = Steady::now();
    what();
    took.push_back(std::chrono::duration<double, std::milli>(Steady::now() - start).count());
  }
  std::nth_element(took.begin(), took.begin() + times / 2, took.end());
  return took[static_cast<size_t>(times) / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 10'000;
  char dir[] = "/tmp/gpumux-history-cost.XXXXXX";
  if (count < 1 || !mkdtemp(dir)) return 2;
  const std::string path = std::string(dir) + "/history.db";
  nlohmann::ordered_json out{{"tenants", count}};
  {
    gpumux::history::Store store(path);
    const auto start = Steady::now();
    for (int i = 0; i < count; ++i)
      if (!store.Put(Past(i))) return 1;
    out["put_ms_each"] = std::chrono::duration<double, std::milli>(Steady::now() - start).count() / count;
    const int64_t last = kFirstMs + 60'000LL * count;
    const std::vector<std::pair<const char*, Query>> views = {
        {"newest 50", {}},
        {"newest 1000", {.limit = 1000}},
        {"of one owner", {.owner = "user7"}},
        {"out of memory", {.outcome = "out-of-memory"}},
        {"with a label", {.label_key = "run", .label_value = "77"}},
        {"of the last day", {.since_ms = last - 86'400'000}},
        {"oldest page", {.limit = 50, .before = {{kFirstMs + 3'000'000, ""}}}}};
    for (const auto& [name, query] : views) {
      out["views_ms"][name] = MedianMs(21, [&store, &query = query] {
        const auto found = store.Find(query);
        if (!found) std::exit(1);
        (void)gpumux::history::AnswerJson(*found, [](auto record, const auto&) { return record; }).dump();
      });
    }
  }
  const double bytes = static_cast<double>(std::filesystem::file_size(path)) / count;
  out["bytes_each"] = bytes;
  out["gib_of_a_year_with_one_a_minute"] = bytes * 525'600 / (1 << 30);
  std::printf("%s\n", out.dump(1).c_str());
  std::filesystem::remove_all(dir);
}
