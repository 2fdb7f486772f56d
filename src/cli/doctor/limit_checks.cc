// SPDX-License-Identifier: Apache-2.0
//
// Limits of this user and this container that break CUDA or gpumux in ways that
// do not name them.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/process.h"
#include "base/units.h"
#include "cli/doctor/check.h"
#include "cli/doctor/files.h"
#include "cli/terminal.h"

namespace gpumux::cli::doctor {
namespace {

std::string Shown(uint64_t limit) { return limit == UINT64_MAX ? "unlimited" : fmt::format("{}", limit); }

// A program with a CUDA context has dozens of descriptors open, a data loader with
// many workers hundreds.
Verdict OpenFiles(const Environment& environment) {
  const Limit limit = environment.limit(RLIMIT_NOFILE);
  const std::string shown =
      fmt::format("{} open files (hard limit {})", Shown(limit.soft), Shown(limit.hard));
  if (limit.soft < 128) return Bad(shown + ": CUDA alone needs dozens", "ulimit -n 1024");
  if (limit.soft < 1024) return Warn(shown + ": little for frameworks with many workers", "ulimit -n 1024");
  return Ok(shown);
}

Verdict Memlock(const Environment& environment) {
  const Limit limit = environment.limit(RLIMIT_MEMLOCK);
  // CUDA's own pinned memory is not counted; that of RDMA and io_uring is.
  if (limit.soft < 64 * kKiB)
    return Warn(fmt::format("{} bytes may be locked: registering memory for RDMA (NCCL) and io_uring fails",
                            limit.soft),
                "ulimit -l unlimited (as root, or in /etc/security/limits.conf: memlock)");
  return Ok(limit.soft == UINT64_MAX ? "unlimited" : FormatBytes(limit.soft));
}

// Processes and threads of the user, as the kernel counts them for the limit.
uint64_t ThreadsOf(const Environment& environment) {
  uint64_t threads = 0;
  for (const pid_t pid : ListProcesses(environment.Proc())) {
    const auto status = ReadProcessStatus(pid, environment.Proc());
    if (!status) continue;
    const auto uid = FieldOf(*status, "Uid:");
    if (!uid || NumberAt(*uid) != environment.uid) continue;
    threads += NumberAt(FieldOf(*status, "Threads:").value_or("")).value_or(1);
  }
  return threads;
}

Verdict Processes(const Environment& environment) {
  const Limit limit = environment.limit(RLIMIT_NPROC);
  if (limit.soft == UINT64_MAX) return Ok("unlimited");
  const uint64_t threads = ThreadsOf(environment);
  const std::string shown = fmt::format("{} of {} processes and threads are there", threads, limit.soft);
  if (environment.uid == 0) return Ok(shown + ", and root is not held to it");
  if (threads + 32 > limit.soft)
    return Bad(shown + ": programs cannot start threads, which CUDA does", "ulimit -u 4096");
  if (threads + 256 > limit.soft)
    return Warn(shown + ": little for frameworks with many workers", "ulimit -u 4096");
  return Ok(shown);
}

Verdict AddressSpace(const Environment& environment) {
  const Limit limit = environment.limit(RLIMIT_AS);
  if (limit.soft != UINT64_MAX)
    return Bad(
        fmt::format(
            "virtual memory is limited to {}: CUDA reserves addresses for all memory of GPU and machine, "
            "and fails with out of memory",
            FormatBytes(limit.soft)),
        "ulimit -v unlimited");
  return Ok("unlimited");
}

Verdict SharedMemory(const Environment& environment) {
  const std::string path = environment.At("/dev/shm");
  const std::string larger = "mount -o remount,size=50% /dev/shm (containers: --shm-size=8g or --ipc=host)";
  if (!Exists(path))
    return Bad("/dev/shm does not exist",
               "sudo mkdir -m 1777 /dev/shm && sudo mount -t tmpfs tmpfs /dev/shm");
  if (!environment.MayUse(path))
    return Bad(fmt::format("{} may not write to /dev/shm", environment.user), "sudo chmod 1777 /dev/shm");
  const auto space = environment.space(path);
  if (!space) return CannotTell(space.error().message);
  if (space->read_only) return Bad("/dev/shm is mounted read-only", "sudo mount -o remount,rw /dev/shm");
  const std::string shown =
      fmt::format("{} of {} free", FormatBytes(space->free_bytes), FormatBytes(space->total_bytes));
  if (space->free_bytes < kMiB) return Bad("/dev/shm is full: " + shown, "ls -lS /dev/shm; " + larger);
  // Docker's default of 64 MiB: PyTorch's data loaders and NCCL die of it with a bus error.
  if (space->free_bytes <= 64 * kMiB)
    return Warn(shown + " in /dev/shm: too little for data loaders and NCCL", larger);
  return Ok(shown);
}

// The folder of this process's control group, of version 2 or of one controller of version 1.
std::string CgroupDir(const Environment& environment, const char* controller) {
  const std::string text = ReadText(environment.At("/proc/self/cgroup")).value_or("");
  for (const std::string& line : Split(text, '\n')) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (*controller == 0 ? names == ",," : names.find(fmt::format(",{},", controller)) != std::string::npos)
      return environment.At(*controller == 0 ? "/sys/fs/cgroup"
                                             : fmt::format("/sys/fs/cgroup/{}", controller)) +
             path;
  }
  return "";
}

std::optional<uint64_t> NumberIn(const std::string& file) {
  const auto text = ReadText(file);
  return text ? NumberAt(*text) : std::nullopt;
}

Verdict CgroupMemory(const Environment& environment) {
  std::string dir = CgroupDir(environment, "memory");
  const bool old = !dir.empty();
  if (!old) dir = CgroupDir(environment, "");
  if (dir.empty()) return Skip("no control groups");
  const auto most = NumberIn(dir + (old ? "/memory.limit_in_bytes" : "/memory.max"));
  const auto used = NumberIn(dir + (old ? "/memory.usage_in_bytes" : "/memory.current"));
  // Version 1 says "no limit" with a number that no machine has.
  if (!most || *most > kTiB * 1024) return Ok("no limit of memory");
  const std::string shown =
      fmt::format("{} of {} of the machine's memory", FormatBytes(used.value_or(0)), FormatBytes(*most));
  if (used && *used > *most - *most / 20)
    return Warn(shown + " are used: programs are about to be killed",
                "raise the limit of the container, job or service");
  // A CUDA context takes some hundred MiB of the machine's memory as well.
  if (*most < 512 * kMiB)
    return Warn(shown + ": little for a CUDA program, of which every context takes some too",
                "raise the limit of the container, job or service");
  return Ok(shown);
}

Verdict CgroupDevices(const Environment& environment) {
  const std::string dir = CgroupDir(environment, "devices");
  // Version 2 has programs in the kernel for it, which nobody can read; driver-devices tries instead.
  if (dir.empty()) return Skip("control groups of version 2: see driver-devices");
  const auto list = ReadText(dir + "/devices.list");
  if (!list) return Skip("cannot be read");
  constexpr const char* kNvidia = "195";  // the major number of /dev/nvidia0 and /dev/nvidiactl
  for (const std::string& line : Split(*list, '\n')) {
    if (line.starts_with("a *:*") || line.starts_with("c *:*") ||
        line.starts_with(fmt::format("c {}:", kNvidia)))
      return Ok("NVIDIA's devices are allowed");
  }
  if (environment.gpus().simulated())
    return Ok("NVIDIA's devices are not allowed, and the software GPU needs none");
  return Bad("the control group does not allow NVIDIA's devices (c 195:*)",
             "start the container with its GPUs");
}

Verdict CgroupVersion(const Environment& environment) {
  if (Exists(environment.At("/sys/fs/cgroup/cgroup.controllers"))) return Ok("version 2");
  if (Entries(environment.At("/sys/fs/cgroup")).empty()) return Ok("not mounted; gpumux needs none");
  return Ok("version 1 or hybrid; gpumux works with either");
}

}  // namespace

std::span<const Check> LimitChecks() {
  static constexpr Check kChecks[] = {
      {"limit-open-files", "limits", "open files (ulimit -n)", OpenFiles},
      {"limit-memlock", "limits", "locked memory (ulimit -l)", Memlock},
      {"limit-processes", "limits", "processes and threads (ulimit -u)", Processes},
      {"limit-address-space", "limits", "virtual memory (ulimit -v)", AddressSpace},
      {"limit-shm", "limits", "/dev/shm: there, writable, large enough", SharedMemory},
      {"cgroup-memory", "limits", "the control group's limit of memory", CgroupMemory},
      {"cgroup-devices", "limits", "the control group lets the devices through", CgroupDevices},
      {"cgroup-version", "limits", "which version of control groups", CgroupVersion},
  };
  return kChecks;
}

}  // namespace gpumux::cli::doctor
