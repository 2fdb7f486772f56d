// SPDX-License-Identifier: Apache-2.0
//
// One process: does its promise hold for it, and by what.
#include <elf.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "base/process.h"
#include "base/units.h"
#include "cli/doctor/check.h"
#include "cli/doctor/daemon_answers.h"
#include "cli/doctor/elf_file.h"
#include "cli/doctor/files.h"
#include "cli/doctor/guard_fit.h"
#include "cli/terminal.h"
#include "gpumux/abi/session.h"

namespace gpumux::cli::doctor {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGuardName = "libgpumux-guard.so";
constexpr const char* kStartAnew = "start it anew: gpumux run --mem SIZE -- PROGRAM";

std::string Folder(const Environment& environment) {
  return fmt::format("{}/{}", environment.Proc(), environment.pid.value_or(0));
}

// What a library of this name is mapped as, in the order of addresses.
struct Mapped {
  std::string path;
  bool deleted = false;
};

Result<std::vector<Mapped>> Libraries(const Environment& environment) {
  const auto maps = ReadText(Folder(environment) + "/maps");
  if (!maps)
    return Fail(Code::kDenied,
                fmt::format("{}/maps may not be read by {}", Folder(environment), environment.user));
  std::vector<Mapped> found;
  std::set<std::string> seen;
  for (const std::string& line : Split(*maps, '\n')) {
    const size_t slash = line.find('/');
    if (slash == std::string::npos) continue;
    Mapped mapped{line.substr(slash), false};
    constexpr std::string_view kDeleted = " (deleted)";
    if (mapped.path.ends_with(kDeleted)) {
      mapped.path.resize(mapped.path.size() - kDeleted.size());
      mapped.deleted = true;
    }
    if (seen.insert(mapped.path).second) found.push_back(std::move(mapped));
  }
  return found;
}

Verdict MayNotLook(const Environment& environment, const Error& error) {
  if (environment.uid == 0) return CannotTell(error.message);
  return CannotTell(error.message, fmt::format("sudo gpumux doctor --pid {}", environment.pid.value_or(0)));
}

std::string NameOf(const std::string& path) { return fs::path(path).filename(); }

bool HasLibrary(const std::vector<Mapped>& libraries, std::string_view prefix) {
  for (const Mapped& library : libraries) {
    if (NameOf(library.path).starts_with(prefix)) return true;
  }
  return false;
}

Verdict Exists(const Environment& environment) {
  const auto stat = ReadProcessStat(environment.pid.value_or(0), environment.Proc());
  if (!stat) return CannotTell(fmt::format("there is no process {}", environment.pid.value_or(0)), "ps -e");
  if (stat->state == 'Z')
    return CannotTell(fmt::format("process {} has ended and waits for its parent", stat->pid));
  const auto owner = ProcessOwner(stat->pid, environment.Proc());
  return Ok(fmt::format("{}, of uid {}", Plain(stat->name, 20), owner ? std::to_string(*owner) : "?"));
}

// Whether the kernel lets a preload into it at all.
Verdict Loadable(const Environment& environment) {
  const auto auxv = ReadText(Folder(environment) + "/auxv");
  if (!auxv || auxv->empty())
    return MayNotLook(environment, {Code::kDenied, Folder(environment) + "/auxv may not be read", ""});
  for (size_t at = 0; at + sizeof(Elf64_auxv_t) <= auxv->size(); at += sizeof(Elf64_auxv_t)) {
    Elf64_auxv_t entry;
    std::memcpy(&entry, auxv->data() + at, sizeof entry);
    if (entry.a_type == AT_SECURE && entry.a_un.a_val != 0)
      return Bad(
          "set-user-id, set-group-id or with capabilities of its file: the loader ignores LD_PRELOAD for it",
          "run a copy without those rights; else it counts as unmanaged");
  }
  const auto program = ReadElf(Folder(environment) + "/exe");
  if (!program) return MayNotLook(environment, program.error());
  if (program->interpreter.empty())
    return Bad("statically linked: no library can be put into it, and nothing is capped",
               "link it dynamically; else it counts as unmanaged");
  if (program->interpreter.find("ld-musl") != std::string::npos)
    return Bad("linked with musl: the guard needs glibc", "use a build for glibc");
  return Ok("dynamically linked: " + Plain(program->interpreter, 80));
}

Verdict Fits(const Environment& environment) {
  const std::string root = Folder(environment) + "/root";
  std::error_code error;
  if (!fs::exists(root + "/", error))
    return MayNotLook(environment, {Code::kDenied, root + " may not be entered", ""});
  return GuardFits(environment, root);
}

std::optional<std::string> ValueIn(const std::vector<std::string>& variables, const std::string& name) {
  for (const std::string& variable : variables) {
    if (variable.starts_with(name + "=")) return variable.substr(name.size() + 1);
  }
  return std::nullopt;
}

Verdict Variables(const Environment& environment) {
  const auto variables = ReadEnvironment(environment.pid.value_or(0), environment.Proc());
  if (variables.empty())
    return MayNotLook(environment, {Code::kDenied, "its environment is empty or may not be read", ""});
  const auto session = ValueIn(variables, GPUMUX_ENV_SESSION);
  const std::string preload = ValueIn(variables, "LD_PRELOAD").value_or("");
  const bool preloads = preload.find(kGuardName) != std::string::npos;
  if (!session && !preloads)
    return Bad("it was not started by gpumux run, nor by a program that was", kStartAnew);
  if (!session)
    return Bad(fmt::format("{} was taken out of its environment: the guard does nothing", GPUMUX_ENV_SESSION),
               kStartAnew);
  if (!preloads) return Bad("LD_PRELOAD does not name the guard", kStartAnew);
  if (!doctor::Exists(environment.At(*session)))
    return Warn(fmt::format("its daemon's socket {} is not there (now)", Plain(*session, 160)),
                "gpumux run -- true");
  return Ok(fmt::format("{}={}", GPUMUX_ENV_SESSION, Plain(*session, 160)));
}

Verdict Guard(const Environment& environment) {
  const auto libraries = Libraries(environment);
  if (!libraries) return MayNotLook(environment, libraries.error());
  for (const Mapped& library : *libraries) {
    if (NameOf(library.path) != kGuardName) continue;
    if (library.deleted)
      return Warn(fmt::format("{} was replaced since it started: it has the guard of the earlier gpumux",
                              library.path),
                  kStartAnew);
    if (library.path != environment.guard_library && fs::path(environment.guard_library).is_absolute()) {
      std::error_code error;
      if (fs::canonical(environment.guard_library, error) != library.path)
        return Warn(fmt::format("it has another gpumux's guard: {}", Plain(library.path, 160)),
                    "gpumux version");
    }
    return Ok(library.path);
  }
  return Bad("the guard is not in it: nothing is capped", kStartAnew);
}

Verdict Tenant(const Environment& environment) {
  const auto membership = MembershipOf(environment, environment.pid.value_or(0));
  if (!membership) return Skip(membership.error().message);
  if (!*membership) return Bad("it is in no tenant of the daemon: what it takes is unmanaged", kStartAnew);
  return Ok(fmt::format("{} ({}), limit {}", (*membership)->tenant_name, (*membership)->tenant_id,
                        (*membership)->mem_limit));
}

Verdict InForce(const Environment& environment) {
  const auto membership = MembershipOf(environment, environment.pid.value_or(0));
  if (!membership) return Skip(membership.error().message);
  if (!*membership) return Skip("it is in no tenant");
  const std::string& guard = (*membership)->guard;
  if (guard.empty()) return Ok("it has not used CUDA yet: there is nothing to enforce");
  if (guard == "in force") return Ok("the daemon grants it memory, and the guard charges it");
  return Bad(fmt::format("it is on the GPU and its guard is {}: its limit is not enforced", guard),
             fmt::format("gpumux explain {}", (*membership)->tenant_id));
}

Verdict Driver(const Environment& environment) {
  const auto libraries = Libraries(environment);
  if (!libraries) return MayNotLook(environment, libraries.error());
  std::vector<std::string> drivers;
  for (const Mapped& library : *libraries) {
    if (NameOf(library.path).starts_with("libcuda.so")) drivers.push_back(library.path);
  }
  if (drivers.empty()) return Ok("no CUDA driver is loaded (yet)");
  if (drivers.size() > 1)
    return Warn(fmt::format("two CUDA drivers are loaded: {}", fmt::join(drivers, ", ")),
                "mend LD_LIBRARY_PATH");
  const std::string version = VersionIn(NameOf(drivers[0]).substr(std::strlen("libcuda.so")));
  const std::string module = ReadText(environment.At("/proc/driver/nvidia/version")).value_or("");
  const std::string kernel = VersionIn(module.substr(0, module.find('\n')));
  if (!version.empty() && !kernel.empty() && version != kernel)
    return Bad(fmt::format("it has libcuda {}, and the kernel module is {}", version, kernel),
               "mount the host's libcuda into the container, or mend LD_LIBRARY_PATH");
  return Ok(drivers[0]);
}

// How it comes to the driver. The guard covers each of these ways.
Verdict Runtime(const Environment& environment) {
  const auto libraries = Libraries(environment);
  if (!libraries) return MayNotLook(environment, libraries.error());
  if (HasLibrary(*libraries, "libcudart.so") || HasLibrary(*libraries, "libcudart-"))
    return Ok("CUDA runtime, a library");
  const auto program = ReadElf(Folder(environment) + "/exe");
  if (program && program->sections.contains(".nv_fatbin"))
    return Ok("CUDA runtime, linked statically (the guard covers it)");
  return Ok("no CUDA runtime: the driver alone, or not yet");
}

Verdict Others(const Environment& environment) {
  const auto libraries = Libraries(environment);
  if (!libraries) return MayNotLook(environment, libraries.error());
  for (const Mapped& library : *libraries) {
    const std::string name = NameOf(library.path);
    if (IsProfiler(library.path))
      return Warn(
          fmt::format(
              "a profiler is attached ({}): it may look up the driver past the guard, and slows it down",
              Plain(name, 80)),
          "run it without the profiler when the limit matters");
  }
  const auto variables = ReadEnvironment(environment.pid.value_or(0), environment.Proc());
  if (const auto injected = ValueIn(variables, "CUDA_INJECTION64_PATH"); injected && !injected->empty())
    return Warn(fmt::format("CUDA_INJECTION64_PATH is {}: the driver loads it, and it sees every call",
                            Plain(*injected, 160)),
                "run it without that variable when the limit matters");
  std::string preload = ValueIn(variables, "LD_PRELOAD").value_or("");
  for (char& c : preload) c = c == ':' ? ' ' : c;
  for (const std::string& entry : Split(preload, ' ')) {
    if (NameOf(entry) == kGuardName) continue;
    const std::string rival = RivalIn(Folder(environment) + "/root" + entry);
    if (!rival.empty())
      return Warn(fmt::format("{} is preloaded too: {}", Plain(entry, 160), rival), "unset LD_PRELOAD");
  }
  return Ok("nothing else minds CUDA");
}

Verdict Limits(const Environment& environment) {
  const auto text = ReadText(Folder(environment) + "/limits");
  if (!text)
    return MayNotLook(environment, {Code::kDenied, Folder(environment) + "/limits may not be read", ""});
  const std::string addresses = FieldOf(*text, "Max address space").value_or("");
  const std::string files = FieldOf(*text, "Max open files").value_or("");
  if (const auto bytes = NumberAt(addresses))
    return Bad(fmt::format("its virtual memory is limited to {}: CUDA fails with out of memory",
                           FormatBytes(*bytes)),
               "ulimit -v unlimited, before it is started");
  const auto most = NumberAt(files);
  if (most && *most < 128)
    return Bad(fmt::format("it may have {} files open: CUDA alone needs dozens", *most),
               "ulimit -n 1024, before it is started");
  return Ok(
      fmt::format("open files {}, virtual memory unlimited", most ? std::to_string(*most) : "unlimited"));
}

}  // namespace

std::span<const Check> ProcessChecks() {
  static constexpr Check kChecks[] = {
      {"process-exists", "process", "the process runs", Exists},
      {"process-loadable", "process", "the loader lets a preload into it: dynamic, glibc, no set-user-id",
       Loadable},
      {"process-glibc", "process", "the C library that it has is new enough for the guard", Fits},
      {"process-environment", "process", "the variables of gpumux run are in its environment", Variables},
      {"process-guard", "process", "the guard is mapped into it", Guard},
      {"process-tenant", "process", "the daemon counts it to a tenant", Tenant},
      {"process-enforced", "process", "its guard is in force", InForce},
      {"process-driver", "process", "which CUDA driver it has loaded", Driver},
      {"process-runtime", "process", "how it comes to the driver", Runtime},
      {"process-others", "process", "profilers and other libraries in front of CUDA", Others},
      {"process-limits", "process", "the limits that it runs under", Limits},
  };
  return kChecks;
}

}  // namespace gpumux::cli::doctor
