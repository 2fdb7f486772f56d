// SPDX-License-Identifier: Apache-2.0
//
// The daemon: which one is ours, may we use it, does it answer, does it fit
// this command, and may it write what it has to.
#include <fmt/format.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/units.h"
#include "cli/doctor/check.h"
#include "cli/doctor/daemon_answers.h"
#include "cli/doctor/files.h"
#include "cli/envelope.h"
#include "cli/terminal.h"
#include "gpumux/abi/session.h"

namespace gpumux::cli::doctor {
namespace {

using State = DaemonView::State;

// The row of a lease takes some KiB, and the log a few more.
constexpr uint64_t kLeastFreeBytes = 1 * kMiB;
constexpr uint64_t kFewFreeBytes = 16 * kMiB;

nlohmann::json VersionData(const DaemonView& daemon) {
  return At(nlohmann::json::parse(daemon.version, nullptr, false), "data");
}

bool OfTheMachine(const Environment& environment, const DaemonView& daemon) {
  return daemon.paths.dir == environment.Variable("GPUMUX_SYSTEM_DIR").value_or(MachinePaths().dir);
}

Verdict RuntimeDir(const Environment& environment) {
  if (!environment.runtime_dir)
    return Bad(environment.runtime_dir.error().message, "unset GPUMUX_RUNTIME_DIR");
  const std::string& dir = *environment.runtime_dir;
  struct stat info{};
  if (::lstat(dir.c_str(), &info) != 0) return Ok(dir + " will be made by the first gpumux run");
  const std::string own = "; or set GPUMUX_RUNTIME_DIR to a folder of your own";
  if (!S_ISDIR(info.st_mode))
    return Bad(dir + (S_ISLNK(info.st_mode) ? " is a symbolic link" : " is no folder"), "rm " + dir + own);
  if (info.st_uid != environment.uid)
    return Bad(fmt::format("{} belongs to uid {}: sockets in it could be anyone's", dir, info.st_uid),
               "sudo rm -r " + dir + own);
  if ((info.st_mode & 0077) != 0)
    return Bad(fmt::format("others may enter {} (mode {:04o})", dir, info.st_mode & 07777),
               "chmod 700 " + dir);
  return Ok(dir);
}

std::string GroupOf(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return "gpumux";
  const group* entry = ::getgrgid(info.st_gid);
  return entry ? entry->gr_name : fmt::format("{}", info.st_gid);
}

Verdict Allowed(const Environment& environment) {
  const DaemonView* daemon = Answering(environment);
  if (daemon)
    return Ok(fmt::format("gpumuxd of {} at {}: you may use it",
                          OfTheMachine(environment, *daemon) ? "the machine" : environment.user,
                          daemon->paths.api_socket));
  for (const DaemonView& view : environment.daemons()) {
    if (view.state == State::kNotAllowed)
      return Bad(fmt::format("{} may not use {}", environment.user, view.paths.api_socket),
                 fmt::format("sudo usermod -aG {} {}, then log in again", GroupOf(view.paths.api_socket),
                             environment.user));
  }
  return Ok("no daemon runs; gpumux run starts one");
}

Verdict AnswersInTime(const Environment& environment) {
  for (const DaemonView& daemon : environment.daemons()) {
    if (daemon.state != State::kSilent) continue;
    return Bad(
        fmt::format("something listens on {}, but: {}", daemon.paths.api_socket,
                    Plain(daemon.error.message, 200)),
        fmt::format("see {}; end that gpumuxd, the next one takes its tenants over", daemon.paths.log));
  }
  const DaemonView* daemon = Answering(environment);
  if (!daemon) return Skip("no daemon runs");
  return Ok(fmt::format("pid {}", At(VersionData(*daemon), "pid").dump()));
}

Verdict Stale(const Environment& environment) {
  for (const DaemonView& daemon : environment.daemons()) {
    if (daemon.state != State::kStale) continue;
    return Warn(fmt::format("{} was left by a daemon that died", daemon.paths.api_socket),
                OfTheMachine(environment, daemon) ? "sudo systemctl restart gpumuxd" : "gpumux run -- true");
  }
  return Ok("none");
}

Verdict Version(const Environment& environment) {
  const DaemonView* daemon = Answering(environment);
  if (!daemon) return Skip("no daemon runs");
  const nlohmann::json data = VersionData(*daemon);
  const std::string theirs = TextAt(data, "version", 40);
  const nlohmann::json& session = At(data, "session_version");
  const nlohmann::json& pid = At(data, "pid");
  const std::string fix = OfTheMachine(environment, *daemon) ? "sudo systemctl restart gpumuxd"
                          : pid.is_number()                  ? fmt::format(
                                                  "kill {}; the next gpumux run starts one that fits, "
                                                                   "and it takes the tenants over",
                                                  pid.dump())
                                            : "end that gpumuxd; the next gpumux run starts one that fits";
  if (session != GPUMUX_SESSION_VERSION)
    return Bad(
        fmt::format("gpumuxd {} speaks version {} of the session protocol, this command ({}) version {}",
                    theirs, session.dump(), environment.version, GPUMUX_SESSION_VERSION),
        fix);
  if (theirs != environment.version)
    return Warn(fmt::format("gpumuxd is {}, this command is {}", theirs, environment.version), fix);
  return Ok(theirs);
}

Verdict Owner(const Environment& environment) {
  const DaemonView* daemon = Answering(environment);
  if (!daemon) return Skip("no daemon runs");
  const nlohmann::json status = nlohmann::json::parse(daemon->status, nullptr, false);
  for (const nlohmann::json& gpu : At(At(status, "data"), "gpus")) {
    const nlohmann::json& owner = At(gpu, "owner");
    if (!owner.is_object()) continue;
    return Warn(
        fmt::format("GPU {}: {}", At(gpu, "index").dump(), TextAt(gpu, "mem_promisable_bytes_reason")),
        fmt::format("ps -p {}: let one daemon serve all, the machine's for example",
                    At(owner, "pid").dump()));
  }
  return Ok("our daemon owns every GPU's ledger");
}

Verdict Store(const Environment& environment) {
  if (!environment.runtime_dir) return Skip("no runtime directory");
  const std::string& dir = *environment.runtime_dir;
  const auto space = environment.space(dir);
  if (!space) {
    if (space.error().code == Code::kNotFound) return Skip(dir + " is not there yet");
    return CannotTell(space.error().message);
  }
  if (space->read_only)
    return Bad(dir + " is on a file system that is mounted read-only",
               "set GPUMUX_RUNTIME_DIR to a folder that can be written");
  if (space->free_bytes < kLeastFreeBytes || space->free_files < 8)
    return Bad(
        fmt::format("the file system of {} is full: leases cannot be stored, and nothing is promised", dir),
        "df -h " + dir);
  for (const std::string& place : {dir, dir + "/sim"}) {
    for (const std::string& file : {PathsIn(place).store, PathsIn(place).log}) {
      if (Exists(file) && !environment.MayUse(file))
        return Bad(fmt::format("{} may not be written by {}", file, environment.user), "ls -l " + file);
    }
  }
  if (space->free_bytes < kFewFreeBytes)
    return Warn(fmt::format("{} left on the file system of {}", FormatBytes(space->free_bytes), dir),
                "df -h " + dir);
  return Ok(fmt::format("{} free", FormatBytes(space->free_bytes)));
}

}  // namespace

std::span<const Check> DaemonChecks() {
  static constexpr Check kChecks[] = {
      {"daemon-runtime-dir", "daemon", "the runtime directory is ours alone", RuntimeDir},
      {"daemon-allowed", "daemon", "a daemon, and that this user may use it", Allowed},
      {"daemon-answers", "daemon", "whoever listens on the socket answers", AnswersInTime},
      {"daemon-stale", "daemon", "sockets that nobody listens on", Stale},
      {"daemon-version", "daemon", "daemon and command are of one version", Version},
      {"daemon-owner", "daemon", "no other daemon has the ledger of a GPU", Owner},
      {"daemon-store", "daemon", "leases and log can be written: rights, room", Store},
  };
  return kChecks;
}

}  // namespace gpumux::cli::doctor
