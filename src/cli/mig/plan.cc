// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/envelope.h"
#include "cli/mig/commands.h"
#include "cli/mig/machine.h"
#include "cli/mig/request.h"
#include "cli/mig/text.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

constexpr const char* kExample = "write for example gpumux mig plan --gpu H200 --want 3x1g.18gb,1x3g.71gb";
constexpr int kDoesNotFit = 1;

Result<std::vector<core::mig::Want>> Wanted(const ParsedCommandLine& line) {
  const auto want = line.Value("--want"), file = line.Value("--for");
  if (want.has_value() == file.has_value())
    return Fail(Code::kInvalid, "a plan needs --want or --for, and not both", kExample);
  if (want) return ParseMigWants(*want);
  const auto text = ReadMigFile(*file);
  if (!text) return tl::unexpected(text.error());
  auto wants = ParseMigTenants(*text);
  if (!wants) wants.error().message = fmt::format("{}: {}", Plain(*file, 200), wants.error().message);
  return wants;
}

}  // namespace

int MigPlan(const ParsedCommandLine& line) {
  const bool json = line.Has("--json");
  auto wants = Wanted(line);
  if (!wants) return Report(wants.error(), json);
  auto machine = MigGpusOf(line);
  if (!machine) return Report(machine.error(), json);
  auto plan = core::mig::MakePlan(machine->gpus, *wants, {.may_disturb = !line.Has("--no-disturb")});
  if (!plan) return Report(plan.error(), json);
  return ShowMigPlan({machine->gpus, machine->uuids, *wants, *plan, machine->simulated}, machine->note, json);
}

int ShowMigPlan(const MigPlanned& planned, const std::string& note, bool json) {
  const int exit = planned.plan.unplaced.empty() ? 0 : kDoesNotFit;
  if (json) {
    const auto data = MigPlanJson(planned);
    if (!data) return Report(data.error(), json);
    return Print(Envelope("mig-plan", planned.simulated, *data) + "\n") ? exit : 1;
  }
  const auto text = MigPlanText(planned, TerminalOf(STDOUT_FILENO));
  if (!text) return Report(text.error());
  return Print(*text + note) ? exit : 1;
}

}  // namespace gpumux::cli
