// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

struct sqlite3;

namespace gpumux::daemon {

// The leases of a daemon's life and of those before it, so that the next one can
// take them over (docs/design/takeover.md). A file in the runtime directory: it
// need not outlive the machine, only the process. One thread.
class Store {
 public:
  // Never fails: a store that cannot be opened or written refuses every Put
  // with the reason, and a broken file is put aside.
  explicit Store(const std::string& path);

  // False: the file was removed or replaced, or could not be used when last tried.
  bool InPlace() const;
  // Anew at the same path, empty or with what is there.
  void Reopen();

  // kUnavailable: not written, e.g. the disk is full.
  Status Put(const std::string& id, const std::string& record);
  Status Remove(const std::string& id);
  // The lease is over: its row goes, and what is to be known of it waits, in one step, until the history has
  // it.
  Status Finish(const std::string& id, const std::string& past);
  // Those that wait; and one of them need not any more.
  Result<std::vector<std::pair<std::string, std::string>>> Finished();
  Status Forget(const std::string& id);
  // (id, record), in the order in which they were first put.
  Result<std::vector<std::pair<std::string, std::string>>> All();

 private:
  struct Close {
    void operator()(sqlite3* db) const;
  };
  void Start();
  Status Open();
  Status CheckSchema(sqlite3* db);
  Status Run(const char* sql, const std::vector<std::string>& values);
  Result<std::vector<std::pair<std::string, std::string>>> Rows(const char* sql);

  std::string path_;
  dev_t device_ = 0;  // of the file that is open
  ino_t inode_ = 0;
  bool broken_ = false;  // SQLite said so of the open file
  std::string said_;     // the last reason for which there is no store
  std::unique_ptr<sqlite3, Close> db_;
};

}  // namespace gpumux::daemon
