// SPDX-License-Identifier: Apache-2.0
#include "config/sources.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "base/unique_fd.h"

namespace gpumux::config {
namespace {

constexpr const char* kConfigVariable = "GPUMUX_CONFIG";
constexpr size_t kMaxFiles = 256;  // of conf.d

// A daemon of root obeys what is written here: nobody else may be able to write
// it. A user trusts the machine and itself, and whom it lets write its file.
std::optional<std::string> Distrusted(const struct stat& status, Reader reader) {
  const bool others = status.st_mode & S_IWOTH, group = status.st_mode & S_IWGRP;
  if (status.st_uid != 0 && status.st_uid != ::geteuid())
    return fmt::format("belongs to uid {}", status.st_uid);
  if (others || (group && reader == Reader::kMachineDaemon))
    return fmt::format("can be written by {}", others ? "everybody" : "its group");
  return std::nullopt;
}

Problem OfFile(const std::string& file, const std::string& message, const std::string& hint = "") {
  return {file, {}, message, hint};
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Whoever can write a folder can put another file in the place of one in it.
std::optional<Problem> FolderDistrusted(const std::string& path, Reader reader) {
  if (reader != Reader::kMachineDaemon) return std::nullopt;
  struct stat status{};
  const std::string folder = FolderOf(path);
  if (::stat(folder.c_str(), &status) != 0) return std::nullopt;
  // In one like /tmp nobody can replace what is another's.
  if (status.st_mode & S_ISVTX) status.st_mode &= ~(S_IWOTH | S_IWGRP);
  const auto why = Distrusted(status, reader);
  if (!why) return std::nullopt;
  return OfFile(folder, *why, "make it root's, with mode 0755");
}

enum class IfMissing { kNothing, kProblem };

// Whether there was such a file.
bool ReadFile(const std::string& path, Reader reader, IfMissing if_missing, Loaded& loaded) {
  // Without O_NONBLOCK a pipe in its place would hold us for ever.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    if (!missing || if_missing == IfMissing::kProblem)
      loaded.problems.push_back(OfFile(path, fmt::format("cannot be read: {}", std::strerror(errno))));
    return !missing;
  }
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    loaded.problems.push_back(OfFile(path, "is not a file"));
    return true;
  }
  if (const auto why = Distrusted(status, reader)) {
    loaded.problems.push_back(OfFile(
        path, *why,
        reader == Reader::kMachineDaemon ? "make it root's, with mode 0644" : "let nobody else write it"));
    return true;
  }
  if (auto problem = FolderDistrusted(path, reader)) {
    loaded.problems.push_back(std::move(*problem));
    return true;
  }
  std::string text;
  char buffer[65536];
  ssize_t n;
  while (text.size() <= kMaxTomlBytes && (n = ::read(fd.get(), buffer, sizeof buffer)) != 0) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      loaded.problems.push_back(OfFile(path, fmt::format("cannot be read: {}", std::strerror(errno))));
      return true;
    }
    text.append(buffer, static_cast<size_t>(n));
  }
  loaded.files.push_back(path);
  ReadText(path, text, loaded.settings, loaded.problems);
  return true;
}

void ReadFolder(const std::string& dir, Reader reader, Loaded& loaded) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(dir.c_str()), &::closedir);
  if (!folder) {
    if (errno != ENOENT)
      loaded.problems.push_back(OfFile(dir, fmt::format("cannot be read: {}", std::strerror(errno))));
    return;
  }
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with('.') && name.ends_with(".toml")) names.emplace_back(name);
  }
  if (names.size() > kMaxFiles) {
    loaded.problems.push_back(OfFile(dir, fmt::format("has more than {} files", kMaxFiles)));
    return;
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names)
    ReadFile(fmt::format("{}/{}", dir, name), reader, IfMissing::kNothing, loaded);
}

std::string Variable(const Surroundings& surroundings, const char* name) {
  const char* value = surroundings.variable(name);
  return value ? value : "";
}

std::string UserFile(const Surroundings& surroundings) {
  // As the XDG specification says, a relative path counts as none.
  if (const std::string dir = Variable(surroundings, "XDG_CONFIG_HOME"); dir.starts_with('/'))
    return dir + "/gpumux/config.toml";
  const std::string home = Variable(surroundings, "HOME");
  return home.starts_with('/') ? home + "/.config/gpumux/config.toml" : "";
}

}  // namespace

Surroundings Surroundings::OfThisProcess() {
  return {.variable = [](const char* name) -> const char* { return std::getenv(name); }};
}

Loaded Load(Reader reader, const Surroundings& surroundings) {
  Loaded loaded;
  if (const std::string only = Variable(surroundings, kConfigVariable); !only.empty()) {
    if (only.starts_with('/')) {
      ReadFile(only, reader, IfMissing::kProblem, loaded);
    } else {
      loaded.problems.push_back(
          OfFile(kConfigVariable, fmt::format("'{}' is no absolute path", only.substr(0, 200))));
    }
  } else {
    ReadFile(surroundings.system_dir + "/config.toml", reader, IfMissing::kNothing, loaded);
    ReadFolder(surroundings.system_dir + "/conf.d", reader, loaded);
    const std::string user = reader == Reader::kUser ? UserFile(surroundings) : "";
    if (!user.empty()) ReadFile(user, reader, IfMissing::kNothing, loaded);
  }
  for (const Key& key : AllKeys()) {
    if (!key.variable) continue;
    if (const std::string text = Variable(surroundings, key.variable); !text.empty())
      ReadVariable(key, text, loaded.settings, loaded.problems);
  }
  return loaded;
}

Loaded LoadFile(const std::string& path, Reader reader) {
  Loaded loaded;
  ReadFile(path, reader, IfMissing::kProblem, loaded);
  return loaded;
}

Error ErrorOf(const std::vector<Problem>& problems) {
  Error error{Code::kInvalid, problems.front().ToString(), ""};
  if (problems.size() > 1)
    error.hint = fmt::format("and {} more: gpumux config check shows them", problems.size() - 1);
  return error;
}

}  // namespace gpumux::config
