// SPDX-License-Identifier: Apache-2.0
#include "cli/tenant_lookup.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/envelope.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;

Result<Json> List(const ApiClient& client, const char* path) {
  const auto body = client.Get(path);
  if (!body) return tl::unexpected(body.error());
  const Json json = Json::parse(*body, nullptr, false);
  const Json& tenants = At(At(json, "data"), "tenants");
  if (!tenants.is_array()) return Fail(Code::kInternal, "the daemon's answer is not understood");
  return tenants;
}

bool HasEnded(const Json& tenant) { return TextAt(tenant, "state") == "ended"; }

bool NeedsNoQuoting(const std::string& text) {
  return !text.empty() && text[0] != '-' && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

}  // namespace

Result<Json> FindTenant(const ApiClient& client, const std::string& word, Among among) {
  const auto tenants = List(client, among == Among::kEndedToo ? "/v1/tenants?all=1" : "/v1/tenants");
  if (!tenants) return tl::unexpected(tenants.error());
  std::vector<const Json*> live;
  const Json* ended = nullptr;
  for (const Json& tenant : *tenants) {
    if (TextAt(tenant, "id") == word) return tenant;
    if (TextAt(tenant, "name") != word) continue;
    if (HasEnded(tenant))
      ended = &tenant;
    else
      live.push_back(&tenant);
  }
  if (live.size() == 1) return *live[0];
  if (live.empty() && ended) return *ended;
  if (live.empty()) {
    return Fail(Code::kNotFound, fmt::format("there is no tenant '{}'", Plain(word, 60)),
                "see gpumux status");
  }
  std::string ids;
  for (const Json* tenant : live) ids += (ids.empty() ? "" : ", ") + TextAt(*tenant, "id");
  return Fail(Code::kConflict, fmt::format("{} tenants are called '{}'", live.size(), Plain(word, 60)),
              fmt::format("name one by its id: {}", ids));
}

Result<ChangedTenant> ChangeTenant(const std::string& word, const std::string& action, const Json& request) {
  const auto endpoints = FindEndpoints();
  if (!endpoints) return tl::unexpected(endpoints.error());
  const auto client = ApiClient::Connect(*endpoints);
  if (!client) return tl::unexpected(client.error());
  const auto target = FindTenant(*client, word, Among::kLive);
  if (!target) return tl::unexpected(target.error());
  ChangedTenant changed{.id = TextAt(*target, "id"), .name = TextAt(*target, "name"), .answer = ""};
  auto body = client->Post(fmt::format("/v1/tenants/{}/{}", PathPart(changed.id), action), request.dump());
  if (!body) return tl::unexpected(body.error());
  changed.answer = std::move(*body);
  return changed;
}

Result<std::vector<std::string>> TenantWords(const ApiClient& client) {
  const auto tenants = List(client, "/v1/tenants");
  if (!tenants) return tl::unexpected(tenants.error());
  std::map<std::string, int> words;
  for (const Json& tenant : *tenants) {
    for (const char* key : {"id", "name"}) ++words[TextAt(tenant, key)];
  }
  std::vector<std::string> out;
  for (const auto& [word, count] : words) {
    if (count == 1 && NeedsNoQuoting(word)) out.push_back(word);
  }
  return out;
}

}  // namespace gpumux::cli
