// SPDX-License-Identifier: Apache-2.0
#include "base/whole_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/unique_fd.h"

namespace gpumux {

namespace {

Status CannotWrite(const std::string& path) {
  return Fail(Code::kUnavailable, fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

}  // namespace

Status WriteWholeFile(const std::string& path, const std::string& text) {
  const std::string next = path + ".new";
  {
    const UniqueFd fd(::open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::fsync(fd.get()) != 0)
      return CannotWrite(next);
  }
  if (::rename(next.c_str(), path.c_str()) != 0) return CannotWrite(path);
  const std::string dir = path.substr(0, path.find_last_of('/') + 1);
  const UniqueFd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return fd && ::fsync(fd.get()) == 0 ? Status() : CannotWrite(dir);
}

Result<std::string> ReadWholeFile(const std::string& path, size_t most) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) {
    return Fail(errno == ENOENT ? Code::kNotFound : Code::kUnavailable,
                fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || static_cast<size_t>(info.st_size) > most)
    return Fail(Code::kInvalid, path + " is no file of ours");
  std::string text(most + 1, '\0');
  size_t have = 0;
  for (ssize_t n = 1; n > 0 && have <= most;) {
    n = ::read(fd.get(), text.data() + have, text.size() - have);
    if (n < 0 && errno == EINTR)
      n = 1;
    else if (n < 0)
      return Fail(Code::kUnavailable, fmt::format("cannot read {}: {}", path, std::strerror(errno)));
    else
      have += static_cast<size_t>(n);
  }
  if (have > most) return Fail(Code::kInvalid, path + " is no file of ours");
  text.resize(have);
  return text;
}

}  // namespace gpumux
