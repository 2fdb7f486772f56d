// SPDX-License-Identifier: Apache-2.0
//
// NVIDIA MIG: which instances a GPU can have, and which to make for whom. One file a verb.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/nearest.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/mig/commands.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

using Takes = OptionSpec::Takes;

constexpr const char* kExample = "write for example gpumux mig plan --gpu H200 --want 3x1g.18gb,1x3g.71gb";

struct Verb {
  const char* name;
  int (*main)(const ParsedCommandLine&);
  std::vector<std::string> options;  // those that it takes, besides --json
  size_t words = 0;                  // after its name
};

const std::vector<Verb>& Verbs() {
  static const std::vector<Verb> verbs = {
      {"status", MigStatus, {}},
      {"profiles", MigProfiles, {"--gpu"}},
      {"plan", MigPlan, {"--gpu", "--want", "--for", "--no-disturb"}},
      {"export", MigExport, {"--gpu", "--label"}, 1},
      {"import", MigImport, {"--gpu", "--label"}, 1},
      {"apply", MigApply, {"--gpu", "--dry-run", "--drain", "--wait", "--keep"}, 1},
      {"destroy", MigDestroy, {"--gpu", "--all", "--dry-run", "--drain", "--wait", "--keep"}, 8},
      {"enable", MigEnable, {}, 1},
      {"disable", MigDisable, {}, 1},
      {"forget", MigForget, {}, 1},
      {"cancel", MigCancel, {}},
  };
  return verbs;
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const Verb& verb : Verbs()) names.emplace_back(verb.name);
  return names;
}

Result<const Verb*> FindVerb(const ParsedCommandLine& line) {
  if (line.words.empty())
    return Fail(Code::kInvalid, fmt::format("say what to do: {}", fmt::join(Names(), ", ")), kExample);
  for (const Verb& verb : Verbs()) {
    if (line.words[0] == verb.name) return &verb;
  }
  const auto nearest = Nearest(line.words[0], Names());
  return Fail(Code::kInvalid, fmt::format("mig does not know '{}'", Plain(line.words[0], 40)),
              nearest ? fmt::format("did you mean {}?", *nearest) : kExample);
}

Status Judge(const ParsedCommandLine& line, const Verb& verb) {
  if (line.words.size() > verb.words + 1)
    return Fail(Code::kInvalid, fmt::format("'{}' is one word too many", Plain(line.words.back(), 40)),
                kExample);
  for (const auto& [option, values] : line.values) {
    if (option == "--json" || std::ranges::count(verb.options, option) > 0) continue;
    return Fail(Code::kInvalid, fmt::format("{} is not for mig {}", option, verb.name), kExample);
  }
  return {};
}

}  // namespace

const CommandSpec& MigSpec() {
  static const CommandSpec spec{
      .usage = "gpumux mig [options] VERB [ARGUMENT...]",
      .summary = "NVIDIA MIG: which instances there are and could be; plans, makes and removes them.",
      .options =
          {{"--gpu", Takes::kValue, "MODEL",
            "GPUs to look at, such as H200 or 2xH200,A30; apply, destroy: which of this machine"},
           {"--want", Takes::kValue, "LIST", "plan: instances, such as 3x1g.18gb,1x3g.71gb"},
           {"--for", Takes::kValue, "FILE", "plan: tenants, as JSON"},
           {"--no-disturb", Takes::kNothing, "", "plan: instances in use stay where they are"},
           {"--label", Takes::kValue, "NAME", "import, export: the configuration's name"},
           {"--dry-run", Takes::kNothing, "", "apply, destroy: say what would be done, and to whom"},
           {"--drain",
            Takes::kValue,
            "HOW",
            "apply, destroy: wait for those who use what has to go, or stop their tenants",
            {"wait", "stop"}},
           {"--wait", Takes::kValue, "T", "with --drain: at most so long"},
           {"--keep", Takes::kNothing, "", "apply, destroy: make them again after a reset or a boot"},
           {"--all", Takes::kNothing, "", "destroy: every instance of the GPU"},
           {"--json", Takes::kNothing, "",
            "one JSON object (schemas gpumux.mig-status/1, mig-profiles/1, mig-plan/1, mig-change/1)"}},
      .footer =
          "status, profiles, plan, export and import change nothing; plan and import end with 0 if all of it "
          "fits, else with 1.\n"
          "apply LIST|FILE    the GPU has exactly these instances then (3x1g.18gb,3g.71gb, or with places "
          "1g.18gb@0,3g.71gb@4), or those of a plan that --json wrote; what is there already stays.\n"
          "destroy START...   those that begin at these memory slices go.\n"
          "enable, disable [GPU]   MIG mode; says when it counts.  forget [GPU]   undoes --keep.  cancel   a "
          "change that waits.\n"
          "export writes what this machine has, or a plan of --json, as a file of NVIDIA's mig-parted; "
          "import "
          "makes a plan of one.\n\n"
          "Examples:\n"
          "  gpumux mig status\n"
          "  gpumux mig profiles --gpu H200\n"
          "  gpumux mig plan --gpu H200 --want 3x1g.18gb,1x3g.71gb\n"
          "  gpumux mig plan --gpu 8xH100-80 --for tenants.json\n"
          "  gpumux mig import config.yaml --label all-1g --gpu H200\n"
          "  sudo gpumux mig apply 3x1g.18gb,1x3g.71gb --dry-run\n"
          "  sudo gpumux mig apply plan.json --drain wait --wait 1h\n",
      .words = CommandSpec::Words::kSome,
      .choices = Names()};
  return spec;
}

int MigMain(const std::vector<std::string>& arguments) {
  const auto line = ParseArguments(MigSpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(MigSpec())) ? 0 : 1;
  const bool json = line->Has("--json");
  const auto verb = FindVerb(*line);
  if (!verb) return Report(verb.error(), json);
  if (const Status status = Judge(*line, **verb); !status) return Report(status.error(), json);
  return (*verb)->main(*line);
}

}  // namespace gpumux::cli
