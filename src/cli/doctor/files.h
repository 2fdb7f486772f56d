// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpumux::cli::doctor {

// The first MiB of a text file; nullopt when it cannot be read.
std::optional<std::string> ReadText(const std::string& path);
// Names in a folder, sorted; empty when it cannot be read.
std::vector<std::string> Entries(const std::string& folder);
bool Exists(const std::string& path);

std::vector<std::string> Split(std::string_view text, char separator);  // empty parts left out
// The number that `text` begins with.
std::optional<uint64_t> NumberAt(std::string_view text);
// The value of a line "KEY: value" or "KEY<tab>value" of /proc; nullopt without the line.
std::optional<std::string> FieldOf(std::string_view text, std::string_view key);
// The first word of the form "580.159.04" or "13.0".
std::string VersionIn(std::string_view text);
// Of version numbers with dots.
bool OlderThan(std::string_view version, std::string_view other);

}  // namespace gpumux::cli::doctor
