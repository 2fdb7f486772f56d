// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace gpumux {

// Why an operation did not succeed. One short, closed list; `ExitStatus`,
// `HttpStatus` and `Name` (result.cc) are the only places that map it to
// something else.
enum class Code {
  kInvalid,        // the request itself is wrong: exit 2, HTTP 400
  kNotFound,       // no such tenant, GPU, file: exit 6, HTTP 404
  kDenied,         // policy, quota or rights: exit 4, HTTP 403
  kConflict,       // does not fit now and was not to wait: exit 4, HTTP 409
  kTimeout,        // waited as long as was asked: exit 5, HTTP 504
  kUnavailable,    // daemon, driver or NVML cannot be reached: exit 3, HTTP 503
  kUnsupported,    // this machine, driver or mode cannot do it: exit 7, HTTP 501
  kNotExecutable,  // the command exists but cannot be run: exit 126
  kNoCommand,      // the command does not exist: exit 127
  kInternal,       // a failure of gpumux itself: exit 125 from `run`, else 1
};

// An error as a value. `message` says what and why, in lower case and without
// a full stop; `hint` says what to do and may be empty.
struct Error {
  Code code = Code::kInternal;
  std::string message;
  std::string hint;

  // "message; hint" as one line.
  std::string ToString() const { return hint.empty() ? message : message + "; " + hint; }
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> Fail(Code code, std::string message, std::string hint = {}) {
  return tl::unexpected<Error>(Error{code, std::move(message), std::move(hint)});
}

// The exit status of a gpumux command that ends with `code` (docs/reference/exit-codes.md).
int ExitStatus(Code code);
int HttpStatus(Code code);
std::string_view Name(Code code);

}  // namespace gpumux
