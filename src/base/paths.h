// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"

namespace gpumux {

// Where a daemon's files live. A daemon on the software GPU has a folder of its
// own below the runtime folder (`sim/`), so that both kinds run side by side.
struct RuntimePaths {
  std::string dir;
  std::string session_socket;  // SOCK_SEQPACKET: tenants
  std::string api_socket;      // HTTP over SOCK_STREAM: commands
  std::string log;
  std::string store;          // leases, for the daemon's successor
  std::string audit;          // every change, for whoever looks after the machine
  std::string keeper_socket;  // SOCK_SEQPACKET: the keeper, for this daemon and the next
  std::string history;        // past tenants, where it outlives the boot; in `dir` if that was chosen
  std::string lock;           // held (flock) by the daemon as long as it runs
};

// The user's own. Creates the folders with mode 0700 where they are missing and
// refuses (kDenied) one that is a symbolic link, belongs to someone else, or
// that others may enter: a socket in it could be anyone's.
Result<RuntimePaths> FindRuntimePaths(bool simulated);

// The name of the runtime folder, which need not exist: as below. kInvalid: not absolute.
Result<std::string> RuntimeDirName();

// The runtime folder itself, created and checked: $GPUMUX_RUNTIME_DIR, else
// $XDG_RUNTIME_DIR/gpumux, else /tmp/gpumux-<uid>.
Result<std::string> FindRuntimeDir();

// Creates `path` (one level) with mode 0700, or checks it as above.
Status EnsurePrivateDir(const std::string& path);

// The same for the machine's daemon, with mode 0755: everybody may enter, nobody
// else may write.
Status EnsureMachineDir(const std::string& path);

// The daemon of the whole machine; nothing is created or checked here.
RuntimePaths MachinePaths();

// The folder of the history, for the daemon that writes it.
Status EnsureHistoryDir(const RuntimePaths& paths);

// The paths in a given folder.
RuntimePaths PathsIn(const std::string& dir);

}  // namespace gpumux
