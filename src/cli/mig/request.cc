// SPDX-License-Identifier: Apache-2.0
#include "cli/mig/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/nearest.h"
#include "base/units.h"
#include "cli/envelope.h"
#include "cli/terminal.h"
#include "core/mig/profile_name.h"

namespace gpumux::cli {
namespace {

using core::mig::GpuState;
using core::mig::Want;
using Json = nlohmann::json;

constexpr const char* kWantExample = "write for example --want 3x1g.18gb,1x3g.71gb";
constexpr const char* kGpuExample = "write for example --gpu H200 or --gpu 2xH200,A30";
constexpr const char* kTenantExample =
    R"(a tenant is for example {"name": "serve", "count": 2, "mem": "14GiB"})";

struct Counted {
  uint32_t count = 1;
  std::string what;
};

// "3x1g.18gb"; "1g.18gb" is one. nullopt: no count, or nothing to count.
std::optional<Counted> ParseCounted(std::string_view item) {
  Counted counted;
  const size_t x = item.find('x');
  // "0x2335" is a name.
  const bool digits = x != 0 && x != std::string_view::npos && item[0] != '0' &&
                      std::ranges::all_of(item.substr(0, x), [](char c) { return c >= '0' && c <= '9'; });
  if (digits) {
    const auto [end, error] = std::from_chars(item.data(), item.data() + x, counted.count);
    if (error != std::errc() || counted.count == 0 || counted.count > core::mig::kMostTenants)
      return std::nullopt;
    item.remove_prefix(x + 1);
  }
  if (item.empty()) return std::nullopt;
  counted.what = item;
  return counted;
}

Result<std::vector<Counted>> ParseList(const std::string& option, const std::string& text,
                                       const char* example) {
  std::vector<Counted> list;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const auto counted = ParseCounted(std::string_view(text).substr(at, end - at));
    if (!counted)
      return Fail(Code::kInvalid,
                  fmt::format("{} {}: '{}' is no count and name", option, Plain(text, 80),
                              Plain(text.substr(at, end - at), 40)),
                  example);
    list.push_back(*counted);
    at = end + 1;
  }
  return list;
}

// "20%" as 0.2.
std::optional<double> ParseShare(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool percent = error == std::errc() && std::string_view(end, text.data() + text.size()) == "%";
  if (!percent || !(value > 0) || value > 100) return std::nullopt;
  return value / 100;
}

// One tenant of a file; `where` is "tenants[0]".
class TenantReader {
 public:
  TenantReader(const Json& tenant, std::string where) : tenant_(tenant), where_(std::move(where)) {}

  Result<Want> Read() {
    if (!tenant_.is_object()) return Wrong("", "is no object", kTenantExample);
    for (const auto& [key, value] : tenant_.items()) {
      if (const Status status = Take(key, value); !status) return tl::unexpected(status.error());
    }
    if (!want_.profile.empty() && (want_.bytes > 0 || want_.share > 0))
      return Wrong("profile", "says it all: leave out mem and share");
    if (want_.profile.empty() && want_.bytes == 0 && want_.share == 0)
      return Wrong("", "needs one of mem, share and profile", kTenantExample);
    return want_;
  }

 private:
  tl::unexpected<Error> Wrong(const std::string& key, std::string message, std::string hint = "") const {
    return Fail(Code::kInvalid,
                fmt::format("{}{}{}{} {}", where_, key.empty() ? "" : ".", Plain(key, 40),
                            key.empty() ? "" : ":", message),
                std::move(hint));
  }

  Status Take(const std::string& key, const Json& value) {
    if (key == "count") return TakeCount(value);
    if (key != "name" && key != "mem" && key != "share" && key != "isolate" && key != "profile") {
      const auto nearest = Nearest(key, {"name", "count", "mem", "share", "isolate", "profile"});
      return Wrong(key, "is not known",
                   nearest ? fmt::format("did you mean {}?", *nearest)
                           : "known are name, count, mem, share, isolate and profile");
    }
    if (!value.is_string()) return Wrong(key, "is no text");
    return TakeText(key, value.get_ref<const std::string&>());
  }

  Status TakeCount(const Json& value) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() == 0 ||
        value.get<uint64_t>() > core::mig::kMostTenants)
      return Wrong("count", fmt::format("is no number from 1 to {}", core::mig::kMostTenants));
    want_.count = value.get<uint32_t>();
    return {};
  }

  Status TakeText(const std::string& key, const std::string& text) {
    if (key == "name") {
      want_.name = Plain(text, 64);
    } else if (key == "mem") {
      const auto size = ParseMemorySize(text);
      if (!size) return Wrong(key, size.error().message, size.error().hint);
      if (size->bytes == 0) return Wrong(key, "a part of a GPU is no size here", "write for example 14GiB");
      want_.bytes = size->bytes;
    } else if (key == "share") {
      const auto share = ParseShare(text);
      if (!share) return Wrong(key, fmt::format("'{}' is no part", Plain(text, 40)), "write for example 20%");
      want_.share = *share;
    } else if (key == "isolate") {
      if (text != "full" && text != "none")
        return Wrong(key, fmt::format("'{}' is neither full nor none", Plain(text, 40)),
                     "full: an instance of its own; none: may share one with others that may");
      want_.shares = text == "none";
    } else {
      const auto name = core::mig::ParseProfileName(text);
      if (!name) return Wrong(key, name.error().message, name.error().hint);
      want_.profile = name->ToString();
    }
    return {};
  }

  const Json& tenant_;
  std::string where_;
  Want want_;
};

}  // namespace

Result<std::vector<GpuState>> ParseMigGpus(const std::string& text) {
  const auto list = ParseList("--gpu", text, kGpuExample);
  if (!list) return tl::unexpected(list.error());
  std::vector<GpuState> gpus;
  for (const Counted& counted : *list) {
    const auto model = gpu::FindMigModel(counted.what);
    if (!model) return tl::unexpected(model.error());
    if (gpus.size() + counted.count > kMostPlannedGpus)
      return Fail(Code::kInvalid,
                  fmt::format("--gpu {}: more than {} GPUs", Plain(text, 80), kMostPlannedGpus));
    for (uint32_t i = 0; i < counted.count; ++i) gpus.push_back({fmt::format("GPU {}", gpus.size()), *model});
  }
  return gpus;
}

Result<std::vector<Want>> ParseMigWants(const std::string& text) {
  const auto list = ParseList("--want", text, kWantExample);
  if (!list) return tl::unexpected(list.error());
  std::vector<Want> wants;
  for (const Counted& counted : *list) {
    const bool id = std::ranges::all_of(counted.what, [](char c) { return c >= '0' && c <= '9'; });
    const auto name = core::mig::ParseProfileName(counted.what);
    if (!id && !name) return tl::unexpected(name.error());
    wants.push_back({counted.what, counted.count, counted.what});
  }
  return wants;
}

Result<std::vector<Want>> ParseMigTenants(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return Fail(Code::kInvalid, "this is no JSON", kTenantExample);
  const Json& tenants = json.is_array() ? json : At(json, "tenants");
  if (!tenants.is_array() || tenants.empty() || (json.is_object() && json.size() > 1))
    return Fail(Code::kInvalid, R"(this is not {"tenants": [...]} with a tenant or more)", kTenantExample);
  std::vector<Want> wants;
  for (const Json& tenant : tenants) {
    auto want = TenantReader(tenant, fmt::format("tenants[{}]", wants.size())).Read();
    if (!want) return tl::unexpected(want.error());
    if (want->name.empty()) want->name = fmt::format("tenant {}", wants.size() + 1);
    wants.push_back(std::move(*want));
  }
  return wants;
}

Result<std::string> ReadMigFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return Fail(Code::kInvalid, fmt::format("{} is a directory", Plain(path, 200)));
  std::ifstream file(path, std::ios::binary);
  if (!file) return Fail(Code::kNotFound, fmt::format("{}: {}", Plain(path, 200), std::strerror(errno)));
  std::string text(kMaxMigFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  if (text.size() > kMaxMigFileBytes)
    return Fail(Code::kInvalid,
                fmt::format("{} is larger than {} KiB", Plain(path, 200), kMaxMigFileBytes >> 10));
  return text;
}

}  // namespace gpumux::cli
