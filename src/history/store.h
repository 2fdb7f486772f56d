// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

struct sqlite3;

namespace gpumux::history {

// A tenant that has ended, as it is kept. Times in milliseconds since 1970, durations in seconds.
struct PastTenant {
  std::string id;
  std::string name = {};
  uint32_t uid = 0;
  std::string owner = {};  // as it was called then
  std::string outcome = {};
  int64_t started_ms = 0, ended_ms = 0;
  double waited_seconds = 0, ran_seconds = 0;
  std::string labels = {};  // JSON: an object of texts
  std::string record =
      {};  // JSON: the tenant as `ps --all --json` shows it, and more (daemon/history_record.h)
};

struct Query {
  std::optional<std::string> owner = {}, name = {}, outcome = {};  // exactly
  std::string label_key = {}, label_value = {};                    // empty: any
  std::optional<uint32_t> uid = {};
  std::optional<int64_t> since_ms = {}, until_ms = {};  // of its end
  size_t limit = 50;                                    // the newest
  // After the last row of the answer before.
  std::optional<std::pair<int64_t, std::string>> before = {};  // ended_ms, id
};

// Of all that a query is about, whatever its limit.
struct Totals {
  uint64_t tenants = 0;
  std::vector<std::pair<std::string, uint64_t>> outcomes = {};  // by name
  // Nearest rank; nullopt: there are none.
  std::optional<double> ran_median_seconds = {}, ran_p95_seconds = {}, waited_median_seconds = {},
                        waited_p95_seconds = {};
};

struct Answer {
  std::vector<PastTenant> tenants = {};  // newest first
  bool more = false;
  Totals totals = {};
  std::optional<int64_t> kept_since_ms = {};  // the oldest end in the file
};

// A GPU at one moment. Bytes; of what NVML could not be asked for nullopt.
struct GpuSample {
  int64_t at_ms = 0;
  std::string gpu;   // UUID
  std::string mode;  // empty: no tenant
  uint32_t tenants = 0;
  uint64_t guaranteed_bytes = 0, used_bytes = 0, promisable_bytes = 0;
  std::optional<uint64_t> device_used_bytes = {}, unmanaged_bytes = {}, unexplained_bytes = {};
};

struct GpuQuery {
  std::optional<std::string> gpu = {};  // UUID
  int64_t since_ms = 0, until_ms = INT64_MAX;
  int64_t step_ms = 60'000;  // one row for so long
};

// What samples of one stretch of time say together: the most of each, and of promisable bytes the least.
struct GpuStretch {
  int64_t from_ms = 0;
  std::string gpu;
  std::vector<std::string> modes;  // that it had, without doubles, sorted
  uint32_t tenants = 0;
  uint64_t samples = 0;
  uint64_t guaranteed_bytes = 0, used_bytes = 0, used_mean_bytes = 0, promisable_bytes = 0;
  std::optional<uint64_t> device_used_bytes, unmanaged_bytes, unexplained_bytes;
};

// Past tenants in an SQLite file that outlives the machine's boot. One thread.
class Store {
 public:
  // Nothing is opened yet.
  explicit Store(std::string path) : path_(std::move(path)) {}
  ~Store();

  // Again with the same id: the new one, unless that is "unknown" and the old one is not. kUnavailable: not
  // written, and why.
  Status Put(const PastTenant& tenant);
  Result<Answer> Find(const Query& query);
  // All of one moment, or none.
  Status Put(const std::vector<GpuSample>& samples);
  // Oldest first.
  Result<std::vector<GpuStretch>> FindGpus(const GpuQuery& query);
  // Tenants that ended before, and samples of before: at most so many of each.
  struct Pruned {
    uint64_t tenants = 0;
    bool more = false;
  };
  Result<Pruned> Prune(int64_t before_ms, size_t most);

 private:
  struct Close {
    void operator()(sqlite3* db) const;
  };
  Status Open();
  // One transaction: all of it or nothing. Codes of SQLite.
  int Begin();
  Status End(int step);
  void PutAside();
  void GiveUpIfBroken(int code);
  Error Failure(std::string_view what) const;

  const std::string path_;
  std::unique_ptr<sqlite3, Close> db_;
};

}  // namespace gpumux::history
