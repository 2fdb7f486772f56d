// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

namespace gpumux {

namespace {
struct Row {
  Code code;
  int exit_status;
  int http_status;
  std::string_view name;
};
constexpr Row kRows[] = {
    {Code::kInvalid, 2, 400, "invalid"},         {Code::kNotFound, 6, 404, "not_found"},
    {Code::kDenied, 4, 403, "denied"},           {Code::kConflict, 4, 409, "conflict"},
    {Code::kTimeout, 5, 504, "timeout"},         {Code::kUnavailable, 3, 503, "unavailable"},
    {Code::kUnsupported, 7, 501, "unsupported"}, {Code::kNotExecutable, 126, 500, "not_executable"},
    {Code::kNoCommand, 127, 500, "no_command"},  {Code::kInternal, 1, 500, "internal"},
};
const Row& Find(Code code) {
  for (const Row& row : kRows) {
    if (row.code == code) return row;
  }
  return kRows[std::size(kRows) - 1];
}
}  // namespace

int ExitStatus(Code code) { return Find(code).exit_status; }
int HttpStatus(Code code) { return Find(code).http_status; }
std::string_view Name(Code code) { return Find(code).name; }

}  // namespace gpumux
