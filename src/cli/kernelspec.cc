// SPDX-License-Identifier: Apache-2.0
//
// Makes every notebook kernel a tenant of its own: a kernelspec for Jupyter that
// starts it through `gpumux run`.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/envelope.h"
#include "cli/kernelspec_file.h"
#include "cli/program_lookup.h"
#include "cli/run_options.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;
using Takes = OptionSpec::Takes;

constexpr const char* kExample = "write for example gpumux kernelspec install --mem 8GiB";
constexpr const char* kUsualName = "gpumux";

// What stands behind `--` is for `run`.
struct Split {
  std::vector<std::string> own, run;
  bool has_run = false;
};
Split SplitAtDashes(const std::vector<std::string>& arguments) {
  const auto dashes = std::ranges::find(arguments, "--");
  Split split;
  split.own.assign(arguments.begin(), dashes);
  split.has_run = dashes != arguments.end();
  if (split.has_run) split.run.assign(dashes + 1, arguments.end());
  return split;
}

Result<std::string> KernelsDir(const ParsedCommandLine& line) {
  const auto prefix = line.Value("--prefix");
  if (prefix && line.Has("--user"))
    return Fail(Code::kInvalid, "--user and --prefix exclude each other", kExample);
  if (prefix && prefix->empty()) return Fail(Code::kInvalid, "--prefix is empty", kExample);
  if (prefix) return std::filesystem::absolute(*prefix).string() + "/share/jupyter/kernels";
  return UserKernels(std::getenv("JUPYTER_DATA_DIR"), std::getenv("XDG_DATA_HOME"), std::getenv("HOME"));
}

// Options that `run` would refuse when the kernel is started, in a log that nobody
// reads, are refused now.
Status CheckRunOptions(const KernelSpec& spec) {
  std::vector<std::string> arguments;
  if (!spec.mem.empty()) arguments = {"--mem", spec.mem};
  arguments.insert(arguments.end(), spec.run_options.begin(), spec.run_options.end());
  arguments.insert(arguments.end(), {"--", spec.python});
  const auto options = ParseRunOptions(arguments);
  if (!options) return tl::unexpected(options.error());
  if (options->help || options->command != std::vector<std::string>{spec.python})
    return Fail(Code::kInvalid, "what stands behind -- are options of gpumux run, and no program",
                "write for example gpumux kernelspec install --mem 8GiB -- --priority best-effort");
  if (options->json || options->summary)
    return Fail(Code::kInvalid, "--json and --summary would write into what the kernel says", kExample);
  if (!spec.mem.empty() && std::ranges::count(spec.run_options, "--no-mem") > 0)
    return Fail(Code::kInvalid, "--mem and --no-mem exclude each other", kExample);
  return {};
}

Result<KernelSpec> SpecOf(const ParsedCommandLine& line, const std::vector<std::string>& run_options) {
  KernelSpec spec;
  spec.name = line.Value("--name").value_or(kUsualName);
  if (const Status status = CheckKernelName(spec.name); !status) return tl::unexpected(status.error());
  spec.mem = line.Value("--mem").value_or("");
  if (line.Has("--mem") && spec.mem.empty()) return Fail(Code::kInvalid, "--mem is empty", kExample);
  const auto python = FindProgram(line.Value("--python").value_or("python3"));
  if (!python) return tl::unexpected(python.error());
  // Not resolved: a virtual environment is a link, and what it means is in its place.
  spec.python = std::filesystem::absolute(*python).lexically_normal().string();
  std::error_code error;
  spec.gpumux = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return Fail(Code::kInternal, "the path of this program is not known: " + error.message());
  spec.run_options = run_options;
  if (const Status status = CheckRunOptions(spec); !status) return tl::unexpected(status.error());
  return spec;
}

int Install(const ParsedCommandLine& line, const std::string& kernels,
            const std::vector<std::string>& run_options) {
  const auto spec = SpecOf(line, run_options);
  if (!spec) return Report(spec.error());
  if (const Status status = WriteKernel(kernels, *spec); !status) return Report(status.error());
  const std::string where = line.Has("--prefix") ? fmt::format(" --prefix {}", *line.Value("--prefix")) : "";
  return Print(fmt::format("{}/{}: every kernel of it is a tenant of its own, {}\n"
                           "It needs ipykernel for {}. To undo it: gpumux kernelspec remove {}{}\n",
                           Plain(kernels, 300), spec->name,
                           spec->mem.empty() ? "without a guarantee" : "with " + spec->mem,
                           Plain(spec->python, 200), spec->name, Plain(where, 300)))
             ? 0
             : 1;
}

int List(const std::string& kernels, bool json) {
  Json list = Json::array();
  std::string out;
  for (const FoundKernel& kernel : KernelsIn(kernels)) {
    const Json content = kernel.content();
    const Json& mem = At(At(At(content, "metadata"), "gpumux"), "mem");
    Json shown{{"name", kernel.name},
               {"path", kernel.path},
               {"display_name", At(content, "display_name")},
               {"argv", At(content, "argv")},
               {"mem", mem}};
    if (mem.is_null()) shown["mem_reason"] = "no guarantee";
    out += fmt::format("{}  {}  {}\n", Plain(kernel.name, 64), TextAt(content, "display_name", 60),
                       Plain(kernel.path, 300));
    list.push_back(std::move(shown));
  }
  if (json)
    return Print(Envelope("kernelspec", false, {{"kernels", kernels}, {"kernelspecs", std::move(list)}}) +
                 "\n")
               ? 0
               : 1;
  return Print(out.empty() ? fmt::format("none in {}\n", Plain(kernels, 300)) : out) ? 0 : 1;
}

int Remove(const std::string& kernels, const std::string& name) {
  if (const Status status = CheckKernelName(name); !status) return Report(status.error());
  const auto whole = RemoveKernel(kernels, name);
  if (!whole) return Report(whole.error());
  return Print(fmt::format("{}/{}: removed{}\n", Plain(kernels, 300), name,
                           *whole ? "" : ", but for what others put there"))
             ? 0
             : 1;
}

// Options that the verb does not take.
Status JudgeOptions(const ParsedCommandLine& line, const std::string& verb, bool has_run) {
  if (verb != "list" && line.Has("--json"))
    return Fail(Code::kInvalid, "--json is for kernelspec list", kExample);
  for (const char* option : {"--mem", "--name", "--python"}) {
    if (verb != "install" && line.Has(option))
      return Fail(Code::kInvalid, fmt::format("{} is for kernelspec install", option), kExample);
  }
  if (verb != "install" && has_run)
    return Fail(Code::kInvalid, "options of run are for kernelspec install", kExample);
  return {};
}

Status Judge(const ParsedCommandLine& line, bool has_run) {
  if (line.words.empty()) return Fail(Code::kInvalid, "say what to do: install, list or remove", kExample);
  const std::string& verb = line.words[0];
  if (verb != "install" && verb != "list" && verb != "remove")
    return Fail(Code::kInvalid, fmt::format("kernelspec does not know '{}'", Plain(verb, 40)), kExample);
  const size_t words = verb == "remove" ? 2 : 1;
  if (line.words.size() < words)
    return Fail(Code::kInvalid, "say which to remove", "write for example gpumux kernelspec remove gpumux");
  if (line.words.size() > words)
    return Fail(Code::kInvalid, fmt::format("'{}' is one word too many", Plain(line.words.back(), 40)),
                kExample);
  return JudgeOptions(line, verb, has_run);
}

}  // namespace

const CommandSpec& KernelspecSpec() {
  static const CommandSpec spec{
      .usage = "gpumux kernelspec [options] install|list|remove [NAME] [-- RUN OPTIONS]",
      .summary = "Makes each notebook kernel of Jupyter a tenant of its own.",
      .options = {{"--mem", Takes::kValue, "A[:B]", "install: GPU memory of each kernel, as for run"},
                  {"--name", Takes::kValue, "NAME",
                   "install: of the kernelspec, and of its tenants (gpumux)"},
                  {"--user", Takes::kNothing, "", "in the user's own directory of Jupyter (the default)"},
                  {"--prefix", Takes::kValue, "DIR", "in DIR/share/jupyter, as of a virtual environment"},
                  {"--python", Takes::kValue, "PATH", "install: the interpreter, with ipykernel (python3)"},
                  {"--json", Takes::kNothing, "", "list: one JSON object (schema gpumux.kernelspec/1)"}},
      .footer =
          "What stands behind -- are further options of gpumux run. A kernelspec that gpumux did not make is "
          "neither overwritten nor removed.\n\n"
          "Examples:\n"
          "  gpumux kernelspec install --mem 8GiB\n"
          "  gpumux kernelspec install --mem 8GiB:20GiB --name gpu-20 -- --priority best-effort\n"
          "  gpumux kernelspec list\n"
          "  gpumux kernelspec remove gpu-20\n",
      .words = CommandSpec::Words::kSome,
      .choices = {"install", "list", "remove"}};
  return spec;
}

int KernelspecMain(const std::vector<std::string>& arguments) {
  const Split split = SplitAtDashes(arguments);
  const auto line = ParseArguments(KernelspecSpec(), split.own);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(KernelspecSpec())) ? 0 : 1;
  const bool json = line->Has("--json");
  if (const Status status = Judge(*line, split.has_run); !status) return Report(status.error(), json);
  const auto kernels = KernelsDir(*line);
  if (!kernels) return Report(kernels.error(), json);
  if (line->words[0] == "list") return List(*kernels, json);
  if (line->words[0] == "remove") return Remove(*kernels, line->words[1]);
  return Install(*line, *kernels, split.run);
}

}  // namespace gpumux::cli
