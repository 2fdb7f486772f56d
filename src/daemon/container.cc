// SPDX-License-Identifier: Apache-2.0
#include "daemon/container.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <vector>

namespace gpumux::daemon {

namespace {

constexpr size_t kMaxText = 64u << 10;
constexpr size_t kMaxParts = 256;
constexpr size_t kIdLength = 64;     // of a container, in hex digits
constexpr size_t kShownLength = 12;  // as docker ps shows them

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsDigits(std::string_view text) {
  return !text.empty() && text.size() <= 18 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool IsPlain(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

bool Strip(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

struct Found {
  std::string runtime;  // "docker", or "" where the folder does not say
  std::string container;
  std::string pod;
  std::string job;
  std::string lxc;
};

// A folder named after a container: by systemd "docker-ID.scope", else "ID".
void TakeContainer(std::string_view part, std::string_view parent, Found& found) {
  struct Prefix {
    const char* text;
    const char* runtime;
  };
  static constexpr Prefix kPrefixes[] = {{"docker-", "docker"},
                                         {"libpod-", "podman"},
                                         {"cri-containerd-", "containerd"},
                                         {"crio-", "cri-o"},
                                         {"nerdctl-", "containerd"}};
  std::string_view id = part;
  std::string runtime;
  for (const Prefix& prefix : kPrefixes) {
    if (runtime.empty() && Strip(id, prefix.text)) runtime = prefix.runtime;
  }
  if (id.ends_with(".scope")) id.remove_suffix(6);
  if (id.size() != kIdLength || !IsHex(id)) return;
  if (runtime.empty() && parent == "docker") runtime = "docker";
  if (runtime.empty() && parent.starts_with("libpod")) runtime = "podman";
  found.runtime = runtime;
  found.container = id.substr(0, kShownLength);
}

// "kubepods-burstable-pod1b2c_...slice" of systemd, or "pod1b2c-...".
void TakePod(std::string_view part, Found& found) {
  if (part.ends_with(".slice")) part.remove_suffix(6);
  const size_t at = part.starts_with("kubepods-") ? part.rfind("-pod") : std::string_view::npos;
  if (at != std::string_view::npos)
    part.remove_prefix(at + 4);
  else if (!Strip(part, "pod"))
    return;
  std::string uid(part);
  std::replace(uid.begin(), uid.end(), '_', '-');
  std::string digits = uid;
  digits.erase(std::remove(digits.begin(), digits.end(), '-'), digits.end());
  if (digits.size() == 32 && IsHex(digits)) found.pod = uid;
}

void TakePath(std::string_view path, Found& found) {
  std::string_view parent;
  bool kubepods = false, slurm = false;
  for (size_t parts = 0; !path.empty() && parts < kMaxParts; ++parts) {
    const std::string_view part = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(path.size(), part.size() + 1));
    std::string_view rest = part;
    kubepods |= part == "kubepods" || part.starts_with("kubepods.slice");
    slurm |= part == "slurm" || part.starts_with("slurmstepd.scope") || part.starts_with("slurm_");
    TakeContainer(part, parent, found);
    if (kubepods) TakePod(part, found);
    if (slurm && Strip(rest, "job_") && IsDigits(rest)) found.job = rest;
    if (Strip(rest, "lxc.payload.") && IsPlain(rest)) found.lxc = rest;
    if (parent == "lxc" && IsPlain(part)) found.lxc = part;
    parent = part;
  }
}

std::string Describe(const Found& found) {
  const std::string runtime = found.runtime.empty() ? "container" : found.runtime;
  std::vector<std::string> parts;
  if (!found.job.empty()) parts.push_back("slurm job " + found.job);
  if (!found.pod.empty()) parts.push_back("pod " + found.pod);
  if (!found.container.empty()) parts.push_back(runtime + " " + found.container);
  if (parts.empty() && !found.lxc.empty()) parts.push_back("lxc " + found.lxc);
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

}  // namespace

std::string ContainerOf(std::string_view text) {
  Found found;
  text = text.substr(0, kMaxText);
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    // "HIERARCHY:CONTROLLERS:PATH"
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos || !IsDigits(line.substr(0, first))) continue;
    TakePath(line.substr(second + 1), found);
  }
  return Describe(found);
}

std::string ContainerOfProcess(pid_t pid, const std::string& proc_root) {
  std::ifstream file(fmt::format("{}/{}/cgroup", proc_root, pid));
  std::string text(kMaxText, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  return ContainerOf(text);
}

}  // namespace gpumux::daemon
