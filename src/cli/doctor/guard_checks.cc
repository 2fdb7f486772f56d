// SPDX-License-Identifier: Apache-2.0
//
// The guard: is it there, can it be loaded, and who else wants its place.
#include <fmt/format.h>

#include <filesystem>

#include "cli/doctor/check.h"
#include "cli/doctor/elf_file.h"
#include "cli/doctor/files.h"
#include "cli/doctor/guard_fit.h"
#include "cli/terminal.h"

namespace gpumux::cli::doctor {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGuardName = "libgpumux-guard.so";
constexpr const char* kInstallAgain = "install gpumux again";

// Where distributions have it.
constexpr const char* kCLibraries[] = {"/lib/x86_64-linux-gnu/libc.so.6",
                                       "/usr/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6",
                                       "/usr/lib64/libc.so.6", "/usr/lib/libc.so.6"};
constexpr const char* kMusl = "/lib/ld-musl-x86_64.so.1";

Verdict Present(const Environment& environment) {
  const auto file = ReadElf(environment.guard_library);
  if (!file) {
    if (file.error().code == Code::kNotFound)
      return Bad(environment.guard_library + " does not exist", kInstallAgain);
    return Bad(file.error().message, kInstallAgain);
  }
  if (!file->x86_64) return Bad(environment.guard_library + " is for another processor", kInstallAgain);
  if (!file->defines.contains("dlsym")) return Bad(environment.guard_library + " is no guard", kInstallAgain);
  return Ok(environment.guard_library);
}

Verdict Fits(const Environment& environment) { return GuardFits(environment, ""); }

Verdict PathCanBePreloaded(const Environment& environment) {
  // The loader splits LD_PRELOAD at both, and there is no way to quote.
  const std::string& path = environment.guard_library;
  if (path.find_first_of(" :") != std::string::npos)
    return Bad(fmt::format("the path \"{}\" has a space or a colon in it: LD_PRELOAD cannot name it", path),
               "install gpumux at a path without them");
  return Ok("LD_PRELOAD can name it");
}

Verdict OtherPreloads(const Environment& environment) {
  std::vector<std::string> wanted;
  std::string preload = environment.Variable("LD_PRELOAD").value_or("");
  for (char& c : preload) c = c == ':' ? ' ' : c;
  for (const std::string& entry : Split(preload, ' ')) wanted.push_back(entry);
  for (const std::string& line : Split(ReadText(environment.At("/etc/ld.so.preload")).value_or(""), '\n'))
    for (const std::string& entry : Split(line.substr(0, line.find('#')), ' ')) wanted.push_back(entry);
  for (const std::string& entry : wanted) {
    const std::string shown = Plain(entry, 160);
    if (entry.find('/') == std::string::npos) continue;  // by name: the loader searches for it
    if (!Exists(entry))
      return Warn(fmt::format("{} is to be preloaded and does not exist: every program complains", shown),
                  "unset LD_PRELOAD, or mend /etc/ld.so.preload");
    const std::string rival = fs::path(entry).filename() == kGuardName ? "" : RivalIn(entry);
    if (!rival.empty())
      return Warn(fmt::format("{} is preloaded too: {}", shown, rival),
                  "unset LD_PRELOAD, or mend /etc/ld.so.preload");
  }
  if (const auto audit = environment.Variable("LD_AUDIT"); audit && !audit->empty())
    return Warn(
        fmt::format("LD_AUDIT is {}: it sees and may change what the guard looks up", Plain(*audit, 80)),
        "unset LD_AUDIT");
  return Ok(wanted.empty() ? "nothing else is preloaded"
                           : fmt::format("{} preloaded, none that minds CUDA", wanted.size()));
}

}  // namespace

Verdict GuardFits(const Environment& environment, const std::string& root) {
  const auto guard = ReadElf(environment.guard_library);
  if (!guard) return Skip("the guard cannot be read");
  const std::string needs = NewestOf(guard->needs_glibc);
  std::string library = root.empty() ? environment.c_library : "";
  for (const char* candidate : kCLibraries) {
    if (library.empty() && Exists(root + candidate)) library = root + candidate;
  }
  if (library.empty()) {
    if (Exists(root + kMusl))
      return Bad("musl is the C library there, and the guard needs glibc: nothing is capped",
                 "use an image with glibc (Debian, Ubuntu, Red Hat)");
    return CannotTell("no C library was found" + (root.empty() ? "" : " in " + root));
  }
  const auto libc = ReadElf(library);
  if (!libc) return CannotTell(libc.error().message);
  const std::string has = NewestOf(libc->provides_glibc);
  if (has.empty()) return CannotTell(library + " does not say its version");
  if (OlderThan(has, needs))
    return Bad(fmt::format("the guard needs glibc {} or later, and this is {}", needs, has),
               "use a newer system or image");
  return Ok(fmt::format("glibc {}, needs {} or later", has, needs));
}

std::string RivalIn(const std::string& file) {
  const auto elf = ReadElf(file);
  if (!elf) return "";
  for (const char* name : {"cuMemAlloc_v2", "cuMemAlloc", "cuGetProcAddress", "cuLaunchKernel"}) {
    if (elf->defines.contains(name))
      return "it stands in front of the CUDA driver as well, and may undo the guard's view";
  }
  if (elf->defines.contains("dlsym")) return "it replaces dlsym as well";
  return "";
}

// Not libcupti: PyTorch has it loaded whether anybody profiles or not.
bool IsProfiler(const std::string& file) {
  for (const char* part :
       {"libToolsInjection", "libcuda-injection", "libTreeLauncher", "libInterceptorInjectionTarget",
        "libnvperf_target", "nsight", "libsanitizer-public", "nvbit"}) {
    if (file.find(part) != std::string::npos) return true;
  }
  return false;
}

std::span<const Check> GuardChecks() {
  static constexpr Check kChecks[] = {
      {"guard-present", "guard", "the guard's library is where it has to be", Present},
      {"guard-glibc", "guard", "the system's C library is new enough for it", Fits},
      {"guard-path", "guard", "LD_PRELOAD can name its path", PathCanBePreloaded},
      {"guard-preload", "guard", "other libraries that want its place", OtherPreloads},
  };
  return kChecks;
}

}  // namespace gpumux::cli::doctor
