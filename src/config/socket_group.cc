// SPDX-License-Identifier: Apache-2.0
#include "config/socket_group.h"

#include <fmt/format.h>
#include <grp.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace gpumux::config {
namespace {

// A group with many members needs much room.
constexpr size_t kLeastBuffer = 4096, kMostBuffer = 1 << 22;

}  // namespace

tl::expected<std::optional<gid_t>, Problem> SocketGroupOf(const Settings& settings) {
  const Path path = {"daemon", "socket_group"};
  const Setting* setting = Find(settings, path);
  if (!setting) return std::nullopt;
  const std::string& name = std::get<std::string>(setting->value);
  group entry{};
  group* found = nullptr;
  int error = ERANGE;
  for (size_t size = kLeastBuffer; error == ERANGE && size <= kMostBuffer; size *= 4) {
    std::vector<char> buffer(size);
    error = ::getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  }
  if (found) return entry.gr_gid;
  const std::string why = error == 0 || error == ENOENT || error == ESRCH
                              ? fmt::format("there is no group '{}'", name)
                              : fmt::format("cannot look up the group '{}': {}", name, std::strerror(error));
  return tl::unexpected(Problem{setting->origin, setting->at, fmt::format("{}: {}", FormatPath(path), why),
                                "getent group shows those there are"});
}

}  // namespace gpumux::config
