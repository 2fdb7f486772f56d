// SPDX-License-Identifier: Apache-2.0
#include "cli/kernelspec_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "cli/envelope.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kMaxName = 64;
constexpr size_t kMaxFile = 64u << 10;  // a kernel.json of ours has less than one KiB

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxFile, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return text;
}

bool IsOurs(const std::string& kernel_json) {
  return At(At(Json::parse(kernel_json, nullptr, false), "metadata"), "gpumux").is_object();
}

enum class Owner { kNobody, kOurs, kAnother };
// An empty directory is nobody's.
Owner OwnerOf(const fs::path& dir) {
  std::error_code error;
  if (fs::exists(dir / "kernel.json", error))
    return IsOurs(ReadAll(dir / "kernel.json")) ? Owner::kOurs : Owner::kAnother;
  if (!fs::exists(fs::symlink_status(dir, error))) return Owner::kNobody;
  return fs::is_directory(dir, error) && fs::is_empty(dir, error) ? Owner::kNobody : Owner::kAnother;
}

tl::unexpected<Error> NotOurs(const fs::path& dir) {
  return Fail(Code::kConflict, fmt::format("{} was not made by gpumux kernelspec", Plain(dir.string(), 200)),
              "take another name: --name");
}

}  // namespace

nlohmann::ordered_json KernelJson(const KernelSpec& spec) {
  // --quiet: what `run` says is no output of the kernel. --own-group: Jupyter sends
  // signals to the whole group, and `run` passes on what it gets.
  std::vector<std::string> argv = {spec.gpumux, "run", "--quiet", "--own-group", "--name", spec.name};
  if (!spec.mem.empty()) argv.insert(argv.end(), {"--mem", spec.mem});
  argv.insert(argv.end(), spec.run_options.begin(), spec.run_options.end());
  argv.insert(argv.end(), {"--", spec.python, "-m", "ipykernel_launcher", "-f", "{connection_file}"});
  nlohmann::ordered_json json;
  json["argv"] = argv;
  json["display_name"] =
      spec.mem.empty() ? "Python 3 (GPU by gpumux)" : fmt::format("Python 3 (GPU, {})", spec.mem);
  json["language"] = "python";
  json["interrupt_mode"] = "signal";
  json["metadata"] = {
      {"debugger", true},
      {"gpumux",
       {{"version", GPUMUX_VERSION},
        {"mem", spec.mem.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(spec.mem)}}}};
  return json;
}

Result<std::string> UserKernels(const char* jupyter, const char* xdg, const char* home) {
  if (jupyter && *jupyter) return std::string(jupyter) + "/kernels";
  if (xdg && *xdg) return std::string(xdg) + "/jupyter/kernels";
  if (home && *home) return std::string(home) + "/.local/share/jupyter/kernels";
  return Fail(Code::kInvalid, "HOME is not set, so where Jupyter looks is not known", "use --prefix DIR");
}

Status CheckKernelName(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  };
  if (!name.empty() && name.size() <= kMaxName && name.front() != '.' && std::ranges::all_of(name, allowed))
    return {};
  return Fail(
      Code::kInvalid,
      fmt::format("--name: '{}' is not 1 to 64 small letters, digits, '.', '_' or '-'", Plain(name, 80)),
      "write for example --name gpu-8gib");
}

Status WriteKernel(const std::string& kernels, const KernelSpec& spec) {
  const fs::path dir = fs::path(kernels) / spec.name;
  if (OwnerOf(dir) == Owner::kAnother) return NotOurs(dir);
  std::error_code error;
  fs::create_directories(dir, error);
  const fs::path file = dir / "kernel.json", fresh = dir / fmt::format(".kernel.json.{}", ::getpid());
  if (!error) {
    std::ofstream out(fresh, std::ios::binary);
    out << KernelJson(spec).dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
    out.close();
    if (!out) error = std::error_code(errno, std::generic_category());
  }
  if (!error) fs::rename(fresh, file, error);
  if (!error) return {};
  std::error_code ignored;
  fs::remove(fresh, ignored);
  return Fail(Code::kInternal,
              fmt::format("cannot write {}: {}", Plain(file.string(), 200), error.message()));
}

Result<bool> RemoveKernel(const std::string& kernels, const std::string& name) {
  const fs::path dir = fs::path(kernels) / name;
  switch (OwnerOf(dir)) {
    case Owner::kNobody:
      return Fail(Code::kNotFound, fmt::format("there is no kernelspec {} in {}", name, Plain(kernels, 200)),
                  "see gpumux kernelspec list");
    case Owner::kAnother:
      return tl::unexpected(
          Fail(Code::kConflict, fmt::format("{} was not made by gpumux kernelspec", Plain(dir.string(), 200)),
               fmt::format("jupyter kernelspec remove {}", name))
              .value());
    case Owner::kOurs:
      break;
  }
  std::error_code error;
  fs::remove(dir / "kernel.json", error);
  if (error)
    return Fail(Code::kInternal,
                fmt::format("cannot remove {}: {}", Plain(dir.string(), 200), error.message()));
  fs::remove(dir, error);
  return !error;
}

Json FoundKernel::content() const { return Json::parse(text, nullptr, false); }

std::vector<FoundKernel> KernelsIn(const std::string& kernels) {
  std::vector<FoundKernel> found;
  std::error_code error;
  for (fs::directory_iterator it(kernels, error), end; !error && it != end; it.increment(error)) {
    const fs::path file = it->path() / "kernel.json";
    std::error_code missing;
    if (!fs::is_regular_file(file, missing)) continue;
    FoundKernel kernel{it->path().filename().string(), it->path().string(), ReadAll(file)};
    if (IsOurs(kernel.text)) found.push_back(std::move(kernel));
  }
  std::ranges::sort(found, {}, &FoundKernel::name);
  return found;
}

}  // namespace gpumux::cli
