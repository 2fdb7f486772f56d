// SPDX-License-Identifier: Apache-2.0
#include "cli/program_lookup.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

enum class Found { kNo, kNotExecutable, kYes };

Found Look(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return errno == EACCES ? Found::kNotExecutable : Found::kNo;
  if (S_ISDIR(info.st_mode) || ::access(path.c_str(), X_OK) != 0) return Found::kNotExecutable;
  return Found::kYes;
}

}  // namespace

Result<std::string> FindProgram(const std::string& command) {
  const auto not_executable = [&](const std::string& path) {
    return Fail(Code::kNotExecutable, fmt::format("{} cannot be executed", Plain(path, 200)));
  };
  if (command.find('/') != std::string::npos) {
    switch (Look(command)) {
      case Found::kYes:
        return command;
      case Found::kNotExecutable:
        return not_executable(command);
      case Found::kNo:
        return Fail(Code::kNoCommand, fmt::format("there is no program {}", Plain(command, 200)));
    }
  }
  const char* path = std::getenv("PATH");
  const std::string list = path ? path : "/bin:/usr/bin";
  std::string refused;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(':', begin), list.size());
    const std::string folder = end == begin ? "." : list.substr(begin, end - begin);
    std::string candidate = folder;
    candidate.append("/").append(command);
    const Found found = Look(candidate);
    if (found == Found::kYes) return candidate;
    if (found == Found::kNotExecutable && refused.empty()) refused = candidate;
    begin = end + 1;
  }
  if (!refused.empty()) return not_executable(refused);
  return Fail(Code::kNoCommand, fmt::format("there is no program {} in PATH", Plain(command, 200)));
}

}  // namespace gpumux::cli
