// SPDX-License-Identifier: Apache-2.0
#include "cli/environment.h"

#include <string_view>

namespace gpumux::cli {
namespace {

std::string PutInFront(const std::string& front, std::string_view list) {
  std::string out = front;
  while (!list.empty()) {
    const size_t end = std::min(list.find(':'), list.size());
    const std::string_view entry = list.substr(0, end);
    // An empty entry of LD_LIBRARY_PATH means the current folder: kept.
    if (entry != front) out.append(":").append(entry);
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return out;
}

}  // namespace

std::vector<std::string> TenantEnvironment(const char* const* ours,
                                           const std::map<std::string, std::string>& set,
                                           const std::map<std::string, std::string>& prepend) {
  std::map<std::string, std::string> changed = set;
  for (const auto& [name, front] : prepend) changed.try_emplace(name, front);
  std::vector<std::string> out;
  for (; ours && *ours; ++ours) {
    const std::string_view entry = *ours;
    const std::string name(entry.substr(0, entry.find('=')));
    if (set.contains(name)) continue;
    const auto front = prepend.find(name);
    if (front == prepend.end()) {
      out.emplace_back(entry);
    } else if (changed.contains(name)) {
      const std::string_view value = entry.size() > name.size() ? entry.substr(name.size() + 1) : "";
      changed[name] = PutInFront(front->second, value);
    }
  }
  // A variable that is set and prepended at once.
  for (const auto& [name, front] : prepend) {
    if (const auto both = set.find(name); both != set.end()) changed[name] = PutInFront(front, both->second);
  }
  for (const auto& [name, value] : changed) out.push_back(std::string(name).append("=").append(value));
  return out;
}

}  // namespace gpumux::cli
