// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/result.h"

namespace gpumux {

// The file is there whole or not at all, whatever dies when, and on the disk when this returns;
// nobody else may read it. kUnavailable: `path` is as it was, or new and not sure to outlive a crash.
Status WriteWholeFile(const std::string& path, const std::string& text);

// Its text, of at most so many bytes. kNotFound: there is none. kInvalid: it is larger, or no file.
Result<std::string> ReadWholeFile(const std::string& path, size_t most);

}  // namespace gpumux
