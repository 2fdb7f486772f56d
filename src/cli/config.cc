// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/envelope.h"
#include "cli/terminal.h"
#include "config/example.h"
#include "config/socket_group.h"
#include "config/sources.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;
using Takes = OptionSpec::Takes;

constexpr const char* kExample = "write for example gpumux config show, check or example";

std::string OriginOf(const config::Setting& setting) {
  if (setting.from == config::Setting::From::kVariable) return setting.origin;
  return fmt::format("{}:{}", setting.origin, setting.at.line);
}

bool HasAnyName(const config::Path& path) {
  return std::find(path.begin(), path.end(), config::kAnyName) != path.end();
}

// Every key that can be named, and what was set of those that stand for many.
template <typename F>
void ForEach(const config::Settings& settings, F&& visit) {
  for (const config::Key& key : config::AllKeys()) {
    if (!HasAnyName(key.path)) {
      visit(key, key.path, config::Find(settings, key.path));
      continue;
    }
    for (const auto& [path, setting] : settings) {
      if (setting.key == &key) visit(key, path, &setting);
    }
  }
}

std::string ShowText(const config::Loaded& loaded, bool origin) {
  std::string out;
  ForEach(loaded.settings,
          [&](const config::Key& key, const config::Path& path, const config::Setting* setting) {
            const std::string name = config::FormatPath(path);
            if (setting) {
              out += fmt::format("{} = {}", name, config::FormatValue(setting->value));
              if (origin) out += "  # " + Plain(OriginOf(*setting), 200);
            } else {
              out += fmt::format("# {} is not set: {}", name, key.unset);
            }
            out += "\n";
          });
  return out;
}

Json OriginJson(const config::Setting* setting) {
  if (!setting) return {{"kind", "default"}};
  if (setting->from == config::Setting::From::kVariable)
    return {{"kind", "environment"}, {"variable", setting->origin}};
  return {{"kind", "file"},
          {"file", setting->origin},
          {"line", setting->at.line},
          {"column", setting->at.column}};
}

std::string ShowJson(const config::Loaded& loaded) {
  Json settings = Json::array(), problems = Json::array();
  ForEach(
      loaded.settings, [&](const config::Key& key, const config::Path& path, const config::Setting* setting) {
        Json entry{{"key", config::FormatPath(path)}, {"value", nullptr}, {"origin", OriginJson(setting)}};
        if (setting) {
          std::visit([&](const auto& value) { entry["value"] = value; }, setting->value);
        } else {
          entry["value_reason"] = key.unset;
        }
        settings.push_back(std::move(entry));
      });
  for (const config::Problem& problem : loaded.problems) {
    problems.push_back({{"file", problem.file},
                        {"line", problem.at.line ? Json(problem.at.line) : Json()},
                        {"column", problem.at.line ? Json(problem.at.column) : Json()},
                        {"message", problem.message},
                        {"hint", problem.hint}});
  }
  return Envelope(
      "config", false,
      {{"files", loaded.files}, {"settings", std::move(settings)}, {"problems", std::move(problems)}});
}

void SayProblems(const config::Loaded& loaded) {
  for (const config::Problem& problem : loaded.problems) Say(Plain(problem.ToString(), 1000));
}

// What is wrong ends with 1: the command did what it was asked to.
int Check(const std::vector<std::string>& files, config::Reader reader) {
  config::Loaded loaded;
  if (files.empty()) {
    loaded = config::Load(reader);
  } else {
    if (::access(files[0].c_str(), F_OK) != 0)
      return Report({Code::kNotFound, fmt::format("there is no file {}", Plain(files[0], 200)), ""});
    loaded = config::LoadFile(files[0], reader);
  }
  if (const auto group = config::SocketGroupOf(loaded.settings); !group)
    loaded.problems.push_back(group.error());
  SayProblems(loaded);
  if (!loaded.problems.empty()) return 1;
  std::string out;
  for (const std::string& file : loaded.files) out += Plain(file, 4096) + ": ok\n";
  return Print(out.empty() ? "there is no configuration file; everything has its default\n" : out) ? 0 : 1;
}

int Show(const ParsedCommandLine& line, config::Reader reader) {
  const config::Loaded loaded = config::Load(reader);
  if (line.Has("--json")) return Print(ShowJson(loaded) + "\n") && loaded.problems.empty() ? 0 : 1;
  SayProblems(loaded);
  return Print(ShowText(loaded, line.Has("--origin"))) && loaded.problems.empty() ? 0 : 1;
}

Status Judge(const ParsedCommandLine& line) {
  if (line.words.empty()) return Fail(Code::kInvalid, "say what to do with the configuration", kExample);
  const std::string& verb = line.words[0];
  if (verb != "show" && verb != "check" && verb != "example")
    return Fail(Code::kInvalid, fmt::format("config does not know '{}'", Plain(verb, 40)), kExample);
  if (line.words.size() > (verb == "check" ? 2 : 1))
    return Fail(Code::kInvalid, fmt::format("'{}' is one word too many", Plain(line.words.back(), 40)),
                kExample);
  for (const char* option : {"--origin", "--json"}) {
    if (verb != "show" && line.Has(option))
      return Fail(Code::kInvalid, fmt::format("{} is for config show", option), kExample);
  }
  if (verb == "example" && line.Has("--machine"))
    return Fail(Code::kInvalid, "--machine is for config show and check", kExample);
  return {};
}

}  // namespace

const CommandSpec& ConfigSpec() {
  static const CommandSpec spec{
      .usage = "gpumux config [options] show|check|example [FILE]",
      .summary = "Shows what is configured, checks it, or prints an example of a configuration file.",
      .options = {{"--origin", Takes::kNothing, "", "show: where each value was set"},
                  {"--json", Takes::kNothing, "", "show: one JSON object, origins included"},
                  {"--machine", Takes::kNothing, "", "show, check: what the machine's daemon reads"}},
      .footer =
          "check looks at FILE, or at every file that is read; it ends with 1 if something is wrong.\n\n"
          "Examples:\n"
          "  gpumux config show --origin\n"
          "  gpumux config check new.toml\n"
          "  gpumux config example > ~/.config/gpumux/config.toml\n",
      .words = CommandSpec::Words::kSome,
      .choices = {"show", "check", "example"}};
  return spec;
}

int ConfigMain(const std::vector<std::string>& arguments) {
  const auto line = ParseArguments(ConfigSpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(ConfigSpec())) ? 0 : 1;
  if (const Status status = Judge(*line); !status) return Report(status.error());
  const auto reader = line->Has("--machine") ? config::Reader::kMachineDaemon : config::Reader::kUser;
  if (line->words[0] == "example") return Print(config::ExampleText()) ? 0 : 1;
  if (line->words[0] == "show") return Show(*line, reader);
  return Check({line->words.begin() + 1, line->words.end()}, reader);
}

}  // namespace gpumux::cli
