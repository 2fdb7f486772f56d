// SPDX-License-Identifier: Apache-2.0
#include "daemon/place.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace gpumux::daemon {

Place::Place(RuntimePaths paths) : paths_(std::move(paths)) {
  struct stat info{};
  if (::lstat(paths_.lock.c_str(), &info) != 0) return;
  device_ = info.st_dev;
  inode_ = info.st_ino;
}

Status Place::MakeDir() {
  struct stat info{};
  if (::lstat(paths_.dir.c_str(), &info) == 0) return {};
  const std::string parent = paths_.dir.substr(0, paths_.dir.find_last_of('/'));
  // The software GPU's daemon is one level deeper, so the level above may be gone too.
  if (::lstat(parent.c_str(), &info) != 0) {
    if (Status made = EnsurePrivateDir(parent); !made) return made;
  }
  return EnsurePrivateDir(paths_.dir);
}

Status Place::Take() {
  if (Status made = MakeDir(); !made) return made;
  UniqueFd fd(::open(paths_.lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd)
    return Fail(Code::kUnavailable, fmt::format("cannot open {}: {}", paths_.lock, std::strerror(errno)));
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0)
    return Fail(Code::kUnavailable, fmt::format("cannot look at {}: {}", paths_.lock, std::strerror(errno)));
  if (info.st_dev == device_ && info.st_ino == inode_) return {};
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
    lock_ = std::move(fd);
    device_ = info.st_dev;
    inode_ = info.st_ino;
    return {};
  }
  return Fail(Code::kConflict, fmt::format("another gpumuxd has taken {}", paths_.dir));
}

}  // namespace gpumux::daemon
