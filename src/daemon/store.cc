// SPDX-License-Identifier: Apache-2.0
#include "daemon/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/log.h"
#include "base/unique_fd.h"

namespace gpumux::daemon {

namespace {

// What a death of the process cannot undo is enough: after a power cut there is
// no tenant either. So nothing waits for a disk.
constexpr char kSetUp[] =
    "PRAGMA journal_mode=WAL;"
    "PRAGMA synchronous=OFF;"
    "CREATE TABLE IF NOT EXISTS leases (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, record TEXT NOT "
    "NULL);"
    "CREATE TABLE IF NOT EXISTS finished (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, record TEXT "
    "NOT "
    "NULL);"
    "PRAGMA user_version=1;";
// The daemon before this one may still be dying: its locks go one after the other.
constexpr int kBusyMs = 2000;
// Raised when a release before cannot read what this one writes, rows included. Files of before
// there was a number have 0 and the layout of 1.
constexpr int kSchema = 1;

// What no daemon writes is not read: more would be somebody's attempt to fill the memory.
constexpr int kMaxRows = 65536;
constexpr int kMaxRecordBytes = 1 << 20;
constexpr int kMostFinished = 16384;

struct Finalize {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Statement = std::unique_ptr<sqlite3_stmt, Finalize>;

Statement Prepare(sqlite3* db, const char* sql) {
  sqlite3_stmt* statement = nullptr;
  sqlite3_prepare_v2(db, sql, -1, &statement, nullptr);
  return Statement(statement);
}

std::string Text(sqlite3_stmt* statement, int column) {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement, column));
  return text ? std::string(text, static_cast<size_t>(sqlite3_column_bytes(statement, column)))
              : std::string();
}

bool IsSound(sqlite3* db) {
  const Statement check = Prepare(db, "PRAGMA quick_check(1)");
  return check && sqlite3_step(check.get()) == SQLITE_ROW && Text(check.get(), 0) == "ok";
}

}  // namespace

void Store::Close::operator()(sqlite3* db) const { sqlite3_close(db); }

Store::Store(const std::string& path) : path_(path) { Start(); }

void Store::Start() {
  Status opened = Open();
  if (!opened && opened.error().code == Code::kInvalid) {
    LogError("{}; it is put aside as {}.broken", opened.error().ToString(), path_);
    db_.reset();
    for (const char* suffix : {"-wal", "-shm"}) std::remove((path_ + suffix).c_str());
    if (std::rename(path_.c_str(), (path_ + ".broken").c_str()) == 0) opened = Open();
  }
  const std::string why = opened ? "" : opened.error().ToString();
  if (!opened && why != said_) LogError("no new promises: {}", why);
  said_ = why;
  if (!opened) db_.reset();
  struct stat info{};
  if (::stat(path_.c_str(), &info) == 0) {
    device_ = info.st_dev;
    inode_ = info.st_ino;
  }
}

void Store::Reopen() {
  db_.reset();
  broken_ = false;
  Start();
}

bool Store::InPlace() const {
  struct stat info{};
  return db_ && !broken_ && ::stat(path_.c_str(), &info) == 0 && info.st_dev == device_ &&
         info.st_ino == inode_;
}

// Before anything is written to the file.
Status Store::CheckSchema(sqlite3* db) {
  const Statement version = Prepare(db, "PRAGMA user_version");
  const int step = version ? sqlite3_step(version.get()) : sqlite3_errcode(db);
  if (step == SQLITE_CORRUPT || step == SQLITE_NOTADB)
    return Fail(Code::kInvalid, fmt::format("{} is broken", path_));
  if (step != SQLITE_ROW) {
    return Fail(Code::kUnavailable, fmt::format("cannot read {}: {}", path_, sqlite3_errmsg(db)));
  }
  const int found = sqlite3_column_int(version.get(), 0);
  if (found < 0 || found > kSchema) {
    return Fail(Code::kUnavailable,
                fmt::format("{} is of a later gpumuxd (layout {}, this one has {}) and stays as it is", path_,
                            found, kSchema),
                "start that gpumuxd; or, when its tenants have ended, remove the file");
  }
  return {};
}

Status Store::Open() {
  // Command lines of every user are in it; SQLite's own files take its mode.
  UniqueFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)).reset();
  sqlite3* db = nullptr;
  const int opened = sqlite3_open_v2(
      path_.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOFOLLOW, nullptr);
  db_.reset(db);
  if (opened != SQLITE_OK) {
    return Fail(Code::kUnavailable,
                fmt::format("cannot open {}: {}", path_, db ? sqlite3_errmsg(db) : "no memory"));
  }
  sqlite3_busy_timeout(db, kBusyMs);
  if (Status known = CheckSchema(db); !known) return known;
  const int set_up = sqlite3_exec(db, kSetUp, nullptr, nullptr, nullptr);
  if (set_up == SQLITE_CORRUPT || set_up == SQLITE_NOTADB || (set_up == SQLITE_OK && !IsSound(db))) {
    return Fail(Code::kInvalid, fmt::format("{} is broken", path_));
  }
  if (set_up != SQLITE_OK) {
    return Fail(Code::kUnavailable, fmt::format("cannot write {}: {}", path_, sqlite3_errmsg(db)));
  }
  return {};
}

Status Store::Run(const char* sql, const std::vector<std::string>& values) {
  if (!db_) return Fail(Code::kUnavailable, said_, "see gpumuxd.log");
  const Statement statement = Prepare(db_.get(), sql);
  int at = 0;
  for (const std::string& value : values) {
    if (statement)
      sqlite3_bind_text(statement.get(), ++at, value.data(), static_cast<int>(value.size()),
                        SQLITE_TRANSIENT);
  }
  const int step = statement ? sqlite3_step(statement.get()) : sqlite3_errcode(db_.get());
  if (step == SQLITE_DONE) return {};
  broken_ |= step == SQLITE_CORRUPT || step == SQLITE_NOTADB;
  return Fail(Code::kUnavailable, fmt::format("cannot write {}: {}", path_, sqlite3_errmsg(db_.get())),
              "make room on that file system, and see that it may be written");
}

Status Store::Put(const std::string& id, const std::string& record) {
  return Run(
      "INSERT INTO leases (id, record) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET record = "
      "excluded.record",
      {id, record});
}

Status Store::Remove(const std::string& id) { return Run("DELETE FROM leases WHERE id = ?1", {id}); }

Status Store::Finish(const std::string& id, const std::string& past) {
  if (Status begun = Run("BEGIN IMMEDIATE", {}); !begun) return begun;
  Status done = Run("INSERT OR REPLACE INTO finished (id, record) VALUES (?1, ?2)", {id, past});
  // Where the history cannot be written for long, the oldest are lost rather than new promises.
  if (done)
    done = Run("DELETE FROM finished WHERE number <= (SELECT max(number) FROM finished) - ?1",
               {std::to_string(kMostFinished)});
  if (done) done = Remove(id);
  if (done) done = Run("COMMIT", {});
  if (done) return done;
  (void)Run("ROLLBACK", {});
  // The lease is over in any case.
  if (Status removed = Remove(id); !removed) return removed;
  return done;
}

Result<std::vector<std::pair<std::string, std::string>>> Store::Finished() {
  return Rows(
      "SELECT id, record FROM finished WHERE length(id) < 256 AND length(record) <= ?1 "
      "ORDER BY number LIMIT ?2");
}

Status Store::Forget(const std::string& id) { return Run("DELETE FROM finished WHERE id = ?1", {id}); }

Result<std::vector<std::pair<std::string, std::string>>> Store::All() {
  return Rows(
      "SELECT id, record FROM leases WHERE length(id) < 256 AND length(record) <= ?1 "
      "ORDER BY number LIMIT ?2");
}

Result<std::vector<std::pair<std::string, std::string>>> Store::Rows(const char* sql) {
  std::vector<std::pair<std::string, std::string>> all;
  if (!db_) return Fail(Code::kUnavailable, fmt::format("{} cannot be used", path_));
  const Statement statement = Prepare(db_.get(), sql);
  if (statement) {
    sqlite3_bind_int(statement.get(), 1, kMaxRecordBytes);
    sqlite3_bind_int(statement.get(), 2, kMaxRows);
  }
  int step = SQLITE_ERROR;
  while (statement && (step = sqlite3_step(statement.get())) == SQLITE_ROW) {
    all.emplace_back(Text(statement.get(), 0), Text(statement.get(), 1));
  }
  if (step != SQLITE_DONE)
    return Fail(Code::kUnavailable, fmt::format("cannot read {}: {}", path_, sqlite3_errmsg(db_.get())));
  return all;
}

}  // namespace gpumux::daemon
