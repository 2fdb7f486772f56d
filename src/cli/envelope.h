// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gpumux::cli {

// {"schema":"gpumux.<name>/1","generated_at":<RFC 3339 with offset>,"simulated":bool,"data":data}
std::string Envelope(const std::string& name, bool simulated, const nlohmann::json& data);

// A member, or null. Never throws, whatever `object` is.
const nlohmann::json& At(const nlohmann::json& object, const char* key);
// A text member without control characters; "" when there is none.
std::string TextAt(const nlohmann::json& object, const char* key, size_t width = 200);

// How people call a GPU or an instance of one: "0", "0:2"; "?" when it does not say.
std::string GpuLabel(const nlohmann::json& gpu);

// "0,2" as ["0","2"]: GPUs as people name them.
nlohmann::json GpuListOf(const std::string& text);

}  // namespace gpumux::cli
