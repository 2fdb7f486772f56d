// SPDX-License-Identifier: Apache-2.0
#include "cli/set_request.h"

#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/run_options.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;

Json Size(const MemorySize& size) {
  return size.bytes > 0 ? Json{{"bytes", size.bytes}} : Json{{"ratio", size.ratio}};
}

}  // namespace

Result<Json> MemoryRequest(const std::string& range) {
  RunOptions memory;
  if (const Status taken = TakeMem(range, memory); !taken) return tl::unexpected(taken.error());
  Json body{{"mem", Size(*memory.mem)}};
  if (memory.mem_limit) body["mem_limit"] = Size(*memory.mem_limit);
  return body;
}

Result<Json> TimeRequest(const std::string& text) {
  const auto time = ParseDuration(text);
  if (!time) return Fail(Code::kInvalid, "--time: " + time.error().message, time.error().hint);
  return Json{{"time_seconds", static_cast<double>(time->count()) / 1000}};
}

}  // namespace gpumux::cli
