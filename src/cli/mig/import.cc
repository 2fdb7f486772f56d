// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/mig/commands.h"
#include "cli/mig/config.h"
#include "cli/mig/request.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

Result<std::vector<MigFileEntry>> ConfigIn(const ParsedCommandLine& line) {
  if (line.words.size() < 2)
    return Fail(Code::kInvalid, "say which file to import",
                "write for example gpumux mig import config.yaml --label all-1g");
  const std::string& path = line.words[1];
  const auto text = ReadMigFile(path);
  if (!text) return tl::unexpected(text.error());
  const auto file = ParseMigFile(*text);
  if (!file)
    return Fail(file.error().code, fmt::format("{}: {}", Plain(path, 200), file.error().message),
                file.error().hint);
  return FindMigConfig(*file, line.Value("--label"));
}

// The file of a plan, or of what the machine has.
Result<std::vector<MigExported>> Exported(const ParsedCommandLine& line, MigGpus& machine) {
  std::vector<MigExported> gpus;
  if (line.words.size() < 2) {
    auto found = MigGpusOf(line);
    if (!found) return tl::unexpected(found.error());
    machine = std::move(*found);
    for (size_t i = 0; i < machine.gpus.size(); ++i) {
      core::mig::Layout layout;
      for (const auto& present : machine.gpus[i].present) layout.push_back(present.instance);
      gpus.push_back(
          {machine.indices[i], machine.gpus[i].model, machine.enabled[i], layout, machine.divided[i]});
    }
    return gpus;
  }
  const auto text = ReadMigFile(line.words[1] == "-" ? "/dev/stdin" : line.words[1]);
  if (!text) return tl::unexpected(text.error());
  const auto plan = ReadMigPlan(*text);
  if (!plan) return tl::unexpected(plan.error());
  for (const MigPlanOfGpu& gpu : *plan) {
    const auto model = gpu::FindMigModel(gpu.model);
    if (!model) return tl::unexpected(model.error());
    gpus.push_back({static_cast<uint32_t>(gpus.size()), *model, gpu.enabled, gpu.layout, gpu.divided});
  }
  return gpus;
}

}  // namespace

int MigImport(const ParsedCommandLine& line) {
  const bool json = line.Has("--json");
  const auto config = ConfigIn(line);
  if (!config) return Report(config.error(), json);
  const auto machine = MigGpusOf(line);
  if (!machine) return Report(machine.error(), json);
  const auto planned = PlanOfConfig(*config, *machine);
  if (!planned) return Report(planned.error(), json);
  return ShowMigPlan(*planned, machine->note, json);
}

int MigExport(const ParsedCommandLine& line) {
  const std::string label = line.Value("--label").value_or("current");
  if (!IsMigLabel(label))
    return Report(Error{Code::kInvalid, fmt::format("--label {} is no label", Plain(label, 60)),
                        "letters, digits, '.', '_' and '-'"});
  MigGpus machine;
  const auto gpus = Exported(line, machine);
  if (!gpus) return Report(gpus.error());
  const auto config = ConfigOf(*gpus);
  if (!config) return Report(config.error());
  return Print(MigFileText({{{label, *config}}})) ? 0 : 1;
}

}  // namespace gpumux::cli
