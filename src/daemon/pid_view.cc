// SPDX-License-Identifier: Apache-2.0
#include "daemon/pid_view.h"

#include <fcntl.h>
#include <linux/nsfs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <utility>

#include "base/process.h"
#include "base/unique_fd.h"

namespace gpumux::daemon {

std::vector<pid_t> ParseNsPids(std::string_view status) {
  constexpr std::string_view kKey = "\nNSpid:";
  std::vector<pid_t> pids;
  const size_t at = status.find(kKey);
  if (at == std::string_view::npos) return pids;
  std::string_view line = status.substr(at + kKey.size());
  line = line.substr(0, line.find('\n'));
  while (!line.empty()) {
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), pid);
    if (error == std::errc()) pids.push_back(pid);
    line.remove_prefix(error == std::errc() ? static_cast<size_t>(end - line.data()) : 1);
  }
  return pids;
}

PidView::PidView(pid_t viewer, std::string proc_root) : proc_root_(std::move(proc_root)), viewer_(viewer) {
  depth_ = PidsOf(viewer).size();
  if (depth_ > 1) namespace_ = NamespaceOf(viewer, 0);
}

std::vector<pid_t> PidView::PidsOf(pid_t pid) const {
  const auto text = ReadProcessStatus(pid, proc_root_);
  if (!text) return {};
  auto pids = ParseNsPids(*text);
  if (pids.empty()) pids.push_back(pid);
  return pids;
}

std::optional<PidView::Namespace> PidView::NamespaceOf(pid_t pid, size_t levels) const {
  const std::string path = proc_root_ + "/" + std::to_string(pid) + "/ns/pid";
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  for (; fd && levels > 0; --levels) fd = UniqueFd(::ioctl(fd.get(), NS_GET_PARENT));
  struct stat info{};
  if (!fd || ::fstat(fd.get(), &info) != 0) return std::nullopt;
  return Namespace{info.st_dev, info.st_ino};
}

std::optional<pid_t> PidView::Of(pid_t pid) const {
  const std::vector<pid_t> pids = PidsOf(pid);
  if (depth_ == 0 || pids.size() < depth_) return std::nullopt;
  const pid_t seen = pids[depth_ - 1];
  if (depth_ == 1 || pid == viewer_) return seen;
  // As deep is not the same place.
  if (!namespace_ || NamespaceOf(pid, pids.size() - depth_) != namespace_) return std::nullopt;
  return seen;
}

}  // namespace gpumux::daemon
