// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include "base/paths.h"
#include "base/unique_fd.h"

namespace gpumux::daemon {

// The directory that a daemon works in and the lock that makes it the only one
// there, when somebody has removed them under a daemon that runs. One thread.
class Place {
 public:
  // The lock file that is there is held by this process.
  explicit Place(RuntimePaths paths);

  // Makes what is missing and takes the lock in it. kConflict: another daemon was
  // quicker; what it has stays its own.
  Status Take();

 private:
  Status MakeDir();

  RuntimePaths paths_;
  UniqueFd lock_;
  dev_t device_ = 0;  // of the lock file that is ours
  ino_t inode_ = 0;
};

}  // namespace gpumux::daemon
