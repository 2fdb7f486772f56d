// SPDX-License-Identifier: Apache-2.0
#include "history/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <variant>

#include "base/log.h"
#include "base/unique_fd.h"

namespace gpumux::history {

namespace {

// A death of the machine may cost the last seconds, and never the file.
constexpr char kSetUp[] =
    "PRAGMA journal_mode=WAL;"
    "PRAGMA synchronous=NORMAL;"
    "CREATE TABLE IF NOT EXISTS tenants (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT "
    "NULL, "
    "uid INTEGER NOT NULL, owner TEXT NOT NULL, outcome TEXT NOT NULL, started_ms INTEGER NOT NULL, ended_ms "
    "INTEGER NOT "
    "NULL, waited_seconds REAL NOT NULL, ran_seconds REAL NOT NULL, labels TEXT NOT NULL, record TEXT NOT "
    "NULL);"
    // What totals need is in the index, so that records are not read for them.
    "CREATE INDEX IF NOT EXISTS by_end ON tenants (ended_ms, id, owner, outcome, name, uid, waited_seconds, "
    "ran_seconds);"
    "CREATE TABLE IF NOT EXISTS labels (key TEXT NOT NULL, value TEXT NOT NULL, number INTEGER NOT NULL, "
    "PRIMARY KEY "
    "(key, value, number)) WITHOUT ROWID;"
    "CREATE TRIGGER IF NOT EXISTS forgotten AFTER DELETE ON tenants BEGIN DELETE FROM labels WHERE number = "
    "old.number "
    "AND (key, value) IN (SELECT key, value FROM json_each(CASE WHEN json_valid(old.labels) THEN old.labels "
    "ELSE "
    "'{}' END)); END;"
    "CREATE TABLE IF NOT EXISTS gpus (gpu TEXT NOT NULL, at_ms INTEGER NOT NULL, mode TEXT NOT NULL, tenants "
    "INTEGER NOT "
    "NULL, guaranteed INTEGER NOT NULL, used INTEGER NOT NULL, promisable INTEGER NOT NULL, device_used "
    "INTEGER, unmanaged "
    "INTEGER, unexplained INTEGER, PRIMARY KEY (gpu, at_ms)) WITHOUT ROWID;"
    "CREATE INDEX IF NOT EXISTS gpus_by_time ON gpus (at_ms);"
    "PRAGMA user_version=1;";
constexpr int kSchema = 1;
constexpr int kBusyMs = 2000;

struct Finalize {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};

using Value = std::variant<std::monostate, int64_t, double, std::string>;

Value OrNull(const std::optional<uint64_t>& bytes) {
  return bytes ? Value(static_cast<int64_t>(*bytes)) : Value(std::monostate());
}

class Statement {
 public:
  Statement(sqlite3* db, const std::string& sql) {
    sqlite3_stmt* statement = nullptr;
    sqlite3_prepare_v2(db, sql.c_str(), static_cast<int>(sql.size()), &statement, nullptr);
    statement_.reset(statement);
    error_ = statement ? SQLITE_OK : sqlite3_errcode(db);
  }

  void Bind(const std::vector<Value>& values) {
    int at = 0;
    for (const Value& value : values) {
      ++at;
      if (!statement_) return;
      if (const auto* number = std::get_if<int64_t>(&value)) {
        sqlite3_bind_int64(statement_.get(), at, *number);
      } else if (const auto* real = std::get_if<double>(&value)) {
        sqlite3_bind_double(statement_.get(), at, *real);
      } else if (std::holds_alternative<std::monostate>(value)) {
        sqlite3_bind_null(statement_.get(), at);
      } else {
        const auto& text = std::get<std::string>(value);
        sqlite3_bind_text(statement_.get(), at, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
      }
    }
  }

  int Step() { return statement_ ? sqlite3_step(statement_.get()) : error_; }
  int64_t Number(int column) { return sqlite3_column_int64(statement_.get(), column); }
  double Real(int column) { return sqlite3_column_double(statement_.get(), column); }
  bool IsNull(int column) { return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL; }
  std::string Text(int column) {
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
    return text ? std::string(text, static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column)))
                : std::string();
  }

 private:
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  int error_ = SQLITE_OK;
};

bool IsBroken(int code) { return code == SQLITE_CORRUPT || code == SQLITE_NOTADB; }

// What a query is about, as SQL.
struct Where {
  std::string sql = " WHERE 1";
  std::vector<Value> values;

  void And(const std::string& condition, Value value) {
    values.push_back(std::move(value));
    sql += fmt::format(fmt::runtime(" AND " + condition), values.size());
  }
};

Where WhereOf(const Query& query) {
  Where where;
  if (query.owner) where.And("owner = ?{}", *query.owner);
  if (query.uid) where.And("uid = ?{}", int64_t{*query.uid});
  if (query.name) where.And("name = ?{}", *query.name);
  if (query.outcome) where.And("outcome = ?{}", *query.outcome);
  if (query.since_ms) where.And("ended_ms >= ?{}", *query.since_ms);
  if (query.until_ms) where.And("ended_ms <= ?{}", *query.until_ms);
  if (!query.label_key.empty()) {
    where.values.emplace_back(query.label_key);
    const size_t key = where.values.size();
    where.And(fmt::format("number IN (SELECT number FROM labels WHERE key = ?{} AND value = ?{{}})", key),
              query.label_value);
  }
  return where;
}

std::optional<double> Rank(std::vector<double>& sorted, unsigned percent) {
  if (sorted.empty()) return std::nullopt;
  const size_t rank = (percent * sorted.size() + 99) / 100;
  return sorted[std::max<size_t>(rank, 1) - 1];
}

}  // namespace

void Store::Close::operator()(sqlite3* db) const { sqlite3_close_v2(db); }

Store::~Store() = default;

Error Store::Failure(std::string_view what) const {
  return {Code::kUnavailable,
          fmt::format("cannot {} {}: {}", what, path_, db_ ? sqlite3_errmsg(db_.get()) : "no memory"),
          "make room on that file system, and see that it may be written"};
}

// The next one is empty; what was there is kept for whoever can read it.
void Store::PutAside() {
  LogError("{} is broken: it is put aside as {}.broken", path_, path_);
  for (const char* suffix : {"-wal", "-shm"}) std::remove((path_ + suffix).c_str());
  std::rename(path_.c_str(), (path_ + ".broken").c_str());
}

// Damage inside shows when it is read, and not when the file is opened.
void Store::GiveUpIfBroken(int code) {
  if (!IsBroken(code)) return;
  db_.reset();
  PutAside();
}

Status Store::Open() {
  if (db_) return {};
  // Command lines of every user are in it; SQLite's own files take its mode.
  UniqueFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)).reset();
  sqlite3* db = nullptr;
  const int opened = sqlite3_open_v2(
      path_.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOFOLLOW, nullptr);
  db_.reset(db);
  Error error = Failure("open");
  int step = opened;
  if (opened == SQLITE_OK) {
    sqlite3_busy_timeout(db, kBusyMs);
    int64_t layout = 0;
    {
      Statement version(db, "PRAGMA user_version");
      step = version.Step();
      if (step == SQLITE_ROW) layout = version.Number(0);
    }
    if (step == SQLITE_ROW && (layout < 0 || layout > kSchema)) {
      error = {Code::kUnavailable,
               fmt::format("{} is of a later gpumuxd (layout {}, this one has {}) and stays as it is", path_,
                           layout, kSchema),
               "start that gpumuxd, or move the file away"};
    } else if (step == SQLITE_ROW) {
      step = sqlite3_exec(db, kSetUp, nullptr, nullptr, nullptr);
      if (step == SQLITE_OK) return {};
      error = Failure("write");
    }
  }
  db_.reset();
  if (IsBroken(step)) PutAside();
  return tl::unexpected(error);
}

int Store::Begin() { return sqlite3_exec(db_.get(), "BEGIN IMMEDIATE", nullptr, nullptr, nullptr); }

// `step`: what came of all that was done since.
Status Store::End(int step) {
  if (step == SQLITE_OK) step = sqlite3_exec(db_.get(), "COMMIT", nullptr, nullptr, nullptr);
  if (step == SQLITE_OK) return {};
  const Error error = Failure("write");
  sqlite3_exec(db_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
  GiveUpIfBroken(step);
  return tl::unexpected(error);
}

Status Store::Put(const PastTenant& tenant) {
  if (Status opened = Open(); !opened) return opened;
  int step = Begin();
  const auto run = [&](const char* sql, const std::vector<Value>& values) {
    if (step != SQLITE_OK) return;
    Statement statement(db_.get(), sql);
    statement.Bind(values);
    step = statement.Step();
    if (step == SQLITE_DONE) step = SQLITE_OK;
  };
  // A daemon that did not see its end knows less than one that did.
  run("DELETE FROM tenants WHERE id = ?1 AND (outcome = 'unknown' OR ?2 <> 'unknown')",
      {tenant.id, tenant.outcome});
  run("INSERT OR IGNORE INTO tenants (id, name, uid, owner, outcome, started_ms, ended_ms, waited_seconds, "
      "ran_seconds, labels, "
      "record) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
      {tenant.id, tenant.name, int64_t{tenant.uid}, tenant.owner, tenant.outcome, tenant.started_ms,
       tenant.ended_ms, tenant.waited_seconds, tenant.ran_seconds, tenant.labels, tenant.record});
  if (step == SQLITE_OK && sqlite3_changes(db_.get()) == 1)
    run("INSERT OR IGNORE INTO labels SELECT key, value, last_insert_rowid() FROM json_each(CASE WHEN "
        "json_valid(?1) THEN "
        "?1 ELSE '{}' END) WHERE type = 'text'",
        {tenant.labels});
  return End(step);
}

Result<Answer> Store::Find(const Query& query) {
  if (Status opened = Open(); !opened) return tl::unexpected(opened.error());
  Answer answer;
  const Where all = WhereOf(query);
  Where page = all;
  if (query.before) {
    page.values.emplace_back(query.before->first);
    const size_t ended = page.values.size();
    page.And(fmt::format("(ended_ms < ?{0} OR (ended_ms = ?{0} AND id < ?{{}}))", ended),
             query.before->second);
  }
  Statement rows(db_.get(),
                 "SELECT id, name, uid, owner, outcome, started_ms, ended_ms, waited_seconds, ran_seconds, "
                 "labels, record FROM tenants" +
                     page.sql + fmt::format(" ORDER BY ended_ms DESC, id DESC LIMIT {}", query.limit + 1));
  rows.Bind(page.values);
  int step;
  while ((step = rows.Step()) == SQLITE_ROW) {
    if (answer.tenants.size() == query.limit) {
      answer.more = true;
      step = SQLITE_DONE;
      break;
    }
    answer.tenants.push_back({.id = rows.Text(0),
                              .name = rows.Text(1),
                              .uid = static_cast<uint32_t>(rows.Number(2)),
                              .owner = rows.Text(3),
                              .outcome = rows.Text(4),
                              .started_ms = rows.Number(5),
                              .ended_ms = rows.Number(6),
                              .waited_seconds = rows.Real(7),
                              .ran_seconds = rows.Real(8),
                              .labels = rows.Text(9),
                              .record = rows.Text(10)});
  }
  std::vector<double> ran, waited;
  std::map<std::string, uint64_t> outcomes;
  Statement totals(db_.get(), "SELECT outcome, waited_seconds, ran_seconds FROM tenants" + all.sql);
  totals.Bind(all.values);
  while (step == SQLITE_DONE && (step = totals.Step()) == SQLITE_ROW) {
    ++outcomes[totals.Text(0)];
    waited.push_back(totals.Real(1));
    ran.push_back(totals.Real(2));
    step = SQLITE_DONE;
  }
  Statement oldest(db_.get(), "SELECT min(ended_ms) FROM tenants");
  if (step == SQLITE_DONE && (step = oldest.Step()) == SQLITE_ROW) {
    if (!oldest.IsNull(0)) answer.kept_since_ms = oldest.Number(0);
    step = SQLITE_DONE;
  }
  if (step != SQLITE_DONE) {
    const Error error = Failure("read");
    GiveUpIfBroken(step);
    return tl::unexpected(error);
  }
  std::sort(ran.begin(), ran.end());
  std::sort(waited.begin(), waited.end());
  answer.totals = {.tenants = ran.size(),
                   .outcomes = {outcomes.begin(), outcomes.end()},
                   .ran_median_seconds = Rank(ran, 50),
                   .ran_p95_seconds = Rank(ran, 95),
                   .waited_median_seconds = Rank(waited, 50),
                   .waited_p95_seconds = Rank(waited, 95)};
  return answer;
}

Status Store::Put(const std::vector<GpuSample>& samples) {
  if (Status opened = Open(); !opened) return opened;
  int step = Begin();
  for (const GpuSample& sample : samples) {
    if (step != SQLITE_OK) break;
    Statement put(db_.get(), "INSERT OR REPLACE INTO gpus VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)");
    put.Bind({sample.gpu, sample.at_ms, sample.mode, int64_t{sample.tenants},
              static_cast<int64_t>(sample.guaranteed_bytes), static_cast<int64_t>(sample.used_bytes),
              static_cast<int64_t>(sample.promisable_bytes), OrNull(sample.device_used_bytes),
              OrNull(sample.unmanaged_bytes), OrNull(sample.unexplained_bytes)});
    step = put.Step();
    if (step == SQLITE_DONE) step = SQLITE_OK;
  }
  return End(step);
}

Result<std::vector<GpuStretch>> Store::FindGpus(const GpuQuery& query) {
  if (Status opened = Open(); !opened) return tl::unexpected(opened.error());
  const int64_t step_ms = std::max<int64_t>(query.step_ms, 1);
  std::string sql =
      "SELECT gpu, (at_ms / ?3) * ?3 AS stretch, group_concat(DISTINCT mode), max(tenants), count(*), "
      "max(guaranteed), "
      "max(used), avg(used), min(promisable), max(device_used), max(unmanaged), max(unexplained) FROM gpus "
      "WHERE at_ms >= ?1 AND at_ms <= ?2";
  std::vector<Value> values = {query.since_ms, query.until_ms, step_ms};
  if (query.gpu) {
    sql += " AND gpu = ?4";
    values.emplace_back(*query.gpu);
  }
  Statement rows(db_.get(), sql + " GROUP BY gpu, stretch ORDER BY stretch, gpu");
  rows.Bind(values);
  const auto bytes = [&](int column) { return static_cast<uint64_t>(rows.Number(column)); };
  const auto or_none = [&](int column) {
    return rows.IsNull(column) ? std::nullopt : std::optional<uint64_t>(bytes(column));
  };
  std::vector<GpuStretch> found;
  int step;
  while ((step = rows.Step()) == SQLITE_ROW) {
    found.push_back({.from_ms = rows.Number(1),
                     .gpu = rows.Text(0),
                     .modes = {},
                     .tenants = static_cast<uint32_t>(rows.Number(3)),
                     .samples = bytes(4),
                     .guaranteed_bytes = bytes(5),
                     .used_bytes = bytes(6),
                     .used_mean_bytes = static_cast<uint64_t>(rows.Real(7)),
                     .promisable_bytes = bytes(8),
                     .device_used_bytes = or_none(9),
                     .unmanaged_bytes = or_none(10),
                     .unexplained_bytes = or_none(11)});
    std::string modes = rows.Text(2);
    for (size_t at = 0; at <= modes.size();) {
      const size_t end = std::min(modes.find(',', at), modes.size());
      if (end > at) found.back().modes.push_back(modes.substr(at, end - at));
      at = end + 1;
    }
    std::sort(found.back().modes.begin(), found.back().modes.end());
  }
  if (step == SQLITE_DONE) return found;
  const Error error = Failure("read");
  GiveUpIfBroken(step);
  return tl::unexpected(error);
}

Result<Store::Pruned> Store::Prune(int64_t before_ms, size_t most) {
  if (Status opened = Open(); !opened) return tl::unexpected(opened.error());
  const auto run = [&](const char* sql) -> Result<uint64_t> {
    Statement prune(db_.get(), sql);
    prune.Bind({before_ms, static_cast<int64_t>(most)});
    if (const int step = prune.Step(); step != SQLITE_DONE) {
      const Error error = Failure("write");
      GiveUpIfBroken(step);
      return tl::unexpected(error);
    }
    return static_cast<uint64_t>(sqlite3_changes(db_.get()));
  };
  const auto tenants =
      run("DELETE FROM tenants WHERE number IN (SELECT number FROM tenants WHERE ended_ms < ?1 ORDER BY "
          "ended_ms LIMIT ?2)");
  if (!tenants) return tl::unexpected(tenants.error());
  const auto samples =
      run("DELETE FROM gpus WHERE (gpu, at_ms) IN (SELECT gpu, at_ms FROM gpus WHERE at_ms < ?1 ORDER BY "
          "at_ms LIMIT ?2)");
  if (!samples) return tl::unexpected(samples.error());
  return Pruned{*tenants, *tenants == most || *samples == most};
}

}  // namespace gpumux::history
