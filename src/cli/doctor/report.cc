// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/table.h"

namespace gpumux::cli::doctor {
namespace {

constexpr const char* kGuide = "docs/guide/troubleshooting.md";
constexpr Status kAll[] = {Status::kOk, Status::kWarn, Status::kFail, Status::kSkip, Status::kError};

size_t Count(const std::vector<Finding>& findings, Status status) {
  return static_cast<size_t>(std::count_if(findings.begin(), findings.end(), [&](const Finding& finding) {
    return finding.verdict.status == status;
  }));
}

const char* Colour(Status status) {
  switch (status) {
    case Status::kOk:
      return "\x1b[32m";
    case Status::kWarn:
      return "\x1b[33m";
    case Status::kSkip:
      return "\x1b[2m";
    case Status::kFail:
    case Status::kError:
      return "\x1b[31m";
  }
  return "";
}

// Status words of one width; what failed stands out without colour as well.
std::string Word(Status status, bool color) {
  const std::string text = fmt::format("{:<5}", status == Status::kFail ? "FAIL" : Name(status));
  return color ? Colour(status) + text + "\x1b[0m" : text;
}

// Words of `text` in lines of at most `width` columns (0: no limit), all but the first indented.
std::string Wrapped(const std::string& text, size_t width, size_t indent) {
  std::string out, line;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (width > 0 && !line.empty() && DisplayWidth(line) + 1 + DisplayWidth(word) > width) {
      out += line + "\n" + std::string(indent, ' ');
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    at = end + 1;
  }
  return out + line;
}

bool Wrong(Status status) {
  return status == Status::kWarn || status == Status::kFail || status == Status::kError;
}

std::string Summary(const std::vector<Finding>& findings) {
  std::string out = fmt::format("{} check{}:", findings.size(), findings.size() == 1 ? "" : "s");
  const char* separator = " ";
  const auto add = [&](size_t count, const std::string& words) {
    if (count == 0) return;
    out += fmt::format("{}{} {}", separator, count, words);
    separator = ", ";
  };
  const size_t warnings = Count(findings, Status::kWarn);
  add(Count(findings, Status::kOk), "ok");
  add(warnings, warnings == 1 ? "warning" : "warnings");
  add(Count(findings, Status::kFail), "failed");
  add(Count(findings, Status::kError), "could not look");
  add(Count(findings, Status::kSkip), "skipped");
  return out + "\n";
}

}  // namespace

const char* Name(Status status) {
  switch (status) {
    case Status::kOk:
      return "ok";
    case Status::kWarn:
      return "warn";
    case Status::kFail:
      return "fail";
    case Status::kSkip:
      return "skip";
    case Status::kError:
      return "error";
  }
  return "error";
}

std::string Render(const std::vector<Finding>& findings, const Terminal& terminal, bool quiet) {
  constexpr size_t kLeastWidth = 24;
  size_t id_width = 0;
  for (const Finding& finding : findings)
    id_width = std::max(id_width, std::string_view(finding.check.id).size());
  const size_t indent = id_width + 2 + 5 + 1;
  const size_t columns = static_cast<size_t>(std::max(0, terminal.width));
  const size_t width = columns == 0 ? 0 : std::max(kLeastWidth, columns > indent ? columns - indent : 0);
  std::string out;
  for (const Finding& finding : findings) {
    const Verdict& verdict = finding.verdict;
    if (quiet && !Wrong(verdict.status)) continue;
    out += fmt::format("{:<{}}  {} {}\n", finding.check.id, id_width, Word(verdict.status, terminal.color),
                       Wrapped(Plain(verdict.evidence, 1000), width, indent));
    if (!verdict.fix.empty())
      out += fmt::format("{}fix: {}\n", std::string(indent, ' '), Plain(verdict.fix, 1000));
  }
  if (quiet) return out;
  out += Summary(findings);
  const auto first = std::find_if(findings.begin(), findings.end(),
                                  [](const Finding& finding) { return Wrong(finding.verdict.status); });
  if (first != findings.end()) out += fmt::format("more about it: {}#{}\n", kGuide, first->check.id);
  return out;
}

std::string FindingsJson(const std::vector<Finding>& findings, std::optional<pid_t> pid) {
  using Json = nlohmann::ordered_json;
  Json data;
  data["pid"] = pid ? Json(*pid) : Json(nullptr);
  data["checks"] = Json::array();
  for (const Finding& finding : findings) {
    data["checks"].push_back(
        {{"id", finding.check.id},
         {"group", finding.check.group},
         {"status", Name(finding.verdict.status)},
         {"evidence", finding.verdict.evidence},
         {"fix", finding.verdict.fix.empty() ? Json(nullptr) : Json(finding.verdict.fix)},
         {"doc", fmt::format("{}#{}", kGuide, finding.check.id)}});
  }
  Json counts;
  for (const Status status : kAll) counts[Name(status)] = Count(findings, status);
  data["counts"] = std::move(counts);
  return data.dump(-1, ' ', false, Json::error_handler_t::replace);
}

int ExitStatusOf(const std::vector<Finding>& findings, bool strict) {
  if (Count(findings, Status::kFail) > 0) return 1;
  if (strict && Count(findings, Status::kWarn) > 0) return 1;
  return Count(findings, Status::kError) > 0 ? 3 : 0;
}

}  // namespace gpumux::cli::doctor
