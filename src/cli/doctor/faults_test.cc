// SPDX-License-Identifier: Apache-2.0
//
// Faults that are planted in a machine, and what the doctor says of each. Those
// that a test can make on the machine itself are in test/cli/doctor_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <set>
#include <thread>

#include "base/unique_fd.h"
#include "base/units.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/doctor/check.h"
#include "cli/doctor/elf_file.h"
#include "cli/doctor/files.h"
#include "cli/doctor/planted_machine.h"
#include "cli/doctor/report.h"
#include "gpumux/abi/session.h"

namespace gpumux::cli::doctor {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct Fault {
  const char* check;
  const char* what;
  std::function<void(PlantedMachine&)> plant;
  Status status;
  const char* evidence;  // a part of it
  const char* fix;       // a part of it
  bool needs_root = false;
};

constexpr auto kFail = Status::kFail;
constexpr auto kWarn = Status::kWarn;
constexpr auto kError = Status::kError;

// A library of the build: its folder is beside that of the tests.
std::string BuildFile(const std::string& path) {
  return fs::read_symlink("/proc/self/exe").parent_path().parent_path() / path;
}
const std::string kOldCLibrary = BuildFile("test/libold_c_library.so");
const std::string kRival = BuildFile("lib/gpumux/softgpu/libcuda.so.1");

void AnswerOnce(const UniqueFd& listener, const std::string& body) {
  const UniqueFd peer(::accept(listener.get(), nullptr, nullptr));
  char request[4096];
  if (::read(peer.get(), request, sizeof request) <= 0) return;
  const std::string answer =
      "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  if (::write(peer.get(), answer.data(), answer.size()) < 0) return;
}

UniqueFd ListenAt(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << path;
  EXPECT_EQ(::listen(fd.get(), 4), 0);
  return fd;
}

std::string ApiSocket(const PlantedMachine& machine) {
  return PathsIn(*machine.environment.runtime_dir).api_socket;
}

// A daemon that has this to say.
void AddDaemon(PlantedMachine& machine, const std::string& version, unsigned session,
               const std::string& status) {
  const UniqueFd listener = ListenAt(ApiSocket(machine));
  // The first connection only tries whether anybody listens.
  std::jthread daemon([&] {
    ::close(::accept(listener.get(), nullptr, nullptr));
    AnswerOnce(listener, R"({"data":{"version":")" + version + R"(","session_version":)" +
                             std::to_string(session) + R"(,"pid":77}})");
    AnswerOnce(listener, R"({"data":)" + status + "}");
  });
  machine.LookAtDaemons();
}

void AddDaemon(PlantedMachine& machine, const std::string& status) {
  AddDaemon(machine, machine.environment.version, GPUMUX_SESSION_VERSION, status);
}

void WithoutDriver(PlantedMachine& machine) {
  machine.gpus.source = gpu::GpuSource{.simulated = true, .spec = "H200", .dir = "", .libraries_dir = ""};
  machine.environment.variables["GPUMUX_SOFTGPU"] = "";
}

void ReplaceVariable(PlantedMachine& machine, const std::string& text) {
  machine.Write("/proc/42/environ", text + '\0');
}

const std::string kOwned =
    R"json({"gpus":[{"index":0,"owner":{"uid":1001,"pid":9},)json"
    R"json("mem_promisable_bytes_reason":"GPU 0 is managed by the gpumuxd of bob (pid 9)"}]})json";
const std::string kUnmanaged = R"json({"gpus":[{"index":0,"uuid":"x","unmanaged_pids":[812]}]})json";
const std::string kNotInForce =
    R"json({"tenants":[{"id":"t-1","name":"train","mem_limit_bytes":1073741824,"members":[{"pid":42,"guard":"not in force"}]}]})json";

// clang-format off
const std::vector<Fault>& Faults() {
  static const std::vector<Fault> faults = {
      {"driver-present", "the module is not loaded", [](auto& m) { m.Remove("/proc/driver"); }, kFail, "kernel module is not loaded", "sudo modprobe nvidia"},
      {"driver-present", "a GPU without its driver", WithoutDriver, kFail, "0000:18:00.0", "sudo modprobe nvidia"},
      {"driver-nvml", "NVML is of another version", [](auto& m) { m.gpus.nvml.reset(); m.gpus.error = {Code::kUnavailable, "NVML does not answer (start of NVML): Driver/library version mismatch", ""}; }, kFail, "mismatch", "nvidia-smi"},
      {"driver-nvml", "no GPU", [](auto& m) { m.nvml->devices.clear(); }, kFail, "lists no GPU", "nvidia-smi -L"},
      {"driver-version", "an old driver", [](auto& m) { m.nvml->driver_version = "470.256.02"; }, kFail, "470.256.02", "newer driver"},
      {"driver-version", "a driver of the future", [](auto& m) { m.cuda->cuda_version = 14000; }, kWarn, "CUDA 14.0", "newer gpumux"},
      {"driver-version", "no libcuda", [](auto& m) { m.cuda = Fail(Code::kUnavailable, "libcuda.so.1: cannot open shared object file"); }, kFail, "libcuda.so.1", "libcuda1"},
      {"driver-match", "libcuda of another version", [](auto& m) { m.cuda->file = "/usr/lib/libcuda.so.570.86.10"; }, kFail, "libcuda is 570.86.10", "reboot"},
      {"driver-devices", "no /dev/nvidia-uvm", [](auto& m) { m.Remove("/dev/nvidia-uvm"); }, kFail, "/dev/nvidia-uvm does not exist", "sudo nvidia-modprobe -u"},
      {"driver-devices", "not for everyone", [](auto& m) { m.Write("/dev/nvidia1", ""); ::chmod((m.root + "/dev/nvidia1").c_str(), 0600); m.environment.uid = 4242; }, kFail, "/dev/nvidia1 may not be read", "ls -l /dev/nvidia1"},
      {"driver-visible", "an index that there is not", [](auto& m) { m.environment.variables["CUDA_VISIBLE_DEVICES"] = "0,3"; }, kWarn, "\"3\" ends the list", "unset CUDA_VISIBLE_DEVICES"},
      {"driver-visible", "a UUID that there is not", [](auto& m) { m.environment.variables["CUDA_VISIBLE_DEVICES"] = "GPU-77"; }, kWarn, "no such GPU", "unset CUDA_VISIBLE_DEVICES"},
      {"driver-visible", "a MIG device that there is not", [](auto& m) { m.environment.variables["CUDA_VISIBLE_DEVICES"] = "MIG-77"; }, kWarn, "no such MIG device", "unset CUDA_VISIBLE_DEVICES"},
      {"driver-visible", "a MIG device", [](auto& m) { m.nvml->partitions.devices->resize(1); m.nvml->partitions.devices->front().uuid = "MIG-7788"; m.environment.variables["CUDA_VISIBLE_DEVICES"] = "MIG-77"; }, Status::kOk, "MIG-77", ""},
      {"driver-visible", "twice", [](auto& m) { m.environment.variables["CUDA_VISIBLE_DEVICES"] = "0,0"; }, kWarn, "twice", "unset CUDA_VISIBLE_DEVICES"},
      {"driver-visible", "none", [](auto& m) { m.environment.variables["CUDA_VISIBLE_DEVICES"] = ""; }, kWarn, "no GPU", "unset CUDA_VISIBLE_DEVICES"},
      {"gpu-answers", "a GPU is lost", [](auto& m) { m.nvml->lost = true; }, kFail, "GPU 0", "dmesg"},
      {"gpu-answers", "a GPU that NVML does not list", [](auto& m) { m.Write("/proc/driver/nvidia/gpus/0000:99:00.0/information", ""); }, kFail, "2 GPUs and NVML lists 1", "nvidia-smi -L"},
      {"gpu-compute-mode", "EXCLUSIVE_PROCESS", [](auto& m) { m.nvml->mode = gpu::ComputeMode::kExclusiveProcess; }, kFail, "EXCLUSIVE_PROCESS", "sudo nvidia-smi -i 0 -c DEFAULT"},
      {"gpu-compute-mode", "PROHIBITED", [](auto& m) { m.nvml->mode = gpu::ComputeMode::kProhibited; }, kFail, "PROHIBITED", "sudo nvidia-smi -i 0 -c DEFAULT"},
      {"gpu-mig", "no instances", [](auto& m) { m.nvml->partitions.modes = gpu::MigModes{true, true}; }, kFail, "no program can use it", "sudo nvidia-smi mig -i 0 -cgi PROFILE -C"},
      {"gpu-mig", "some instances", [](auto& m) { m.nvml->partitions.modes = gpu::MigModes{true, true}; m.nvml->partitions.devices->resize(2); }, Status::kOk, "GPU 0 with 2 instances", ""},
      {"gpu-mig", "no MIG", [](auto& m) { m.nvml->partitions.modes = std::nullopt; }, Status::kOk, "no GPU here has MIG", ""},
      {"gpu-mig", "pending", [](auto& m) { m.nvml->partitions.modes = gpu::MigModes{false, true}; }, kWarn, "comes on with its next reset", "sudo nvidia-smi --gpu-reset -i 0"},
      {"gpu-mig", "a GPU that does not answer", [](auto& m) { m.nvml->partitions.modes = Fail(Code::kUnavailable, "GPU is lost"); }, Status::kError, "GPU is lost", ""},
      {"gpu-mig", "an old driver", [](auto& m) { m.nvml->partitions.modes = Fail(Code::kUnsupported, "this driver's NVML does not have nvmlDeviceGetMigMode"); }, Status::kSkip, "does not have", ""},
      {"gpu-persistence", "off", [](auto& m) { m.nvml->persistence = false; }, Status::kOk, "off on GPU 0", "sudo nvidia-smi -i 0 -pm 1"},
      {"gpu-xid", "off the bus", [](auto& m) { m.Write("/dev/kmsg", "4,9,1,-;NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus.\n"); }, kWarn, "79", "nvidia-smi -q"},
      {"gpu-xid", "a program's fault", [](auto& m) { m.Write("/dev/kmsg", "4,9,1,-;NVRM: Xid (PCI:0000:18:00): 31, pid=812, MMU Fault\n"); }, kWarn, "pid=812", "a program's fault"},
      {"gpu-strangers", "without a daemon", [](auto& m) { m.nvml->processes = {{812, kGiB}}; }, kWarn, "pid 812 on GPU 0 (1.0 GiB)", "gpumux run --mem"},
      {"gpu-strangers", "of ours", [](auto& m) { m.nvml->processes = {{811, kGiB}, {812, 5 * kGiB + 1}}; m.AddProcess(812, "train", m.environment.uid); }, kWarn, "pid 811", "gpumux reserve --pid 812 --mem 6GiB"},
      {"gpu-strangers", "of another user", [](auto& m) { m.nvml->processes = {{812, kGiB}}; m.AddProcess(812, "train", m.environment.uid + 1); }, kWarn, "pid 812", "gpumux run --mem"},
      {"gpu-strangers", "that the daemon lists", [](auto& m) { AddDaemon(m, kUnmanaged); }, kWarn, "pid 812", "gpumux run --mem"},
      {"daemon-runtime-dir", "open to others", [](auto& m) { ::chmod(m.environment.runtime_dir->c_str(), 0755); }, kFail, "mode 0755", "chmod 700"},
      {"daemon-runtime-dir", "somebody else's", [](auto& m) { m.environment.uid += 1; }, kFail, "belongs to uid", "GPUMUX_RUNTIME_DIR"},
      {"daemon-runtime-dir", "a link", [](auto& m) { m.Remove("/run/user/1000/gpumux"); fs::create_symlink("/tmp", *m.environment.runtime_dir); }, kFail, "symbolic link", "rm "},
      {"daemon-allowed", "not in the group", [](auto& m) { m.Write("/api.sock", ""); m.daemons = {{PathsIn(m.root), DaemonView::State::kNotAllowed, {Code::kDenied, "", ""}, "", ""}}; }, kFail, "ann may not use", "usermod -aG"},
      {"daemon-answers", "it does not", [](auto& m) { const UniqueFd silent = ListenAt(ApiSocket(m)); m.LookAtDaemons(); }, kFail, "does not answer", "gpumuxd.log"},
      {"daemon-stale", "nobody listens", [](auto& m) { { const UniqueFd closed = ListenAt(ApiSocket(m)); } m.LookAtDaemons(); }, kWarn, "api.sock was left", "gpumux run -- true"},
      {"daemon-version", "another protocol", [](auto& m) { AddDaemon(m, "9.9.9", 99, "{}"); }, kFail, "version 99 of the session protocol", "kill 77"},
      {"daemon-version", "another version", [](auto& m) { AddDaemon(m, "9.9.9", GPUMUX_SESSION_VERSION, "{}"); }, kWarn, "gpumuxd is 9.9.9", "kill 77"},
      {"daemon-owner", "another daemon", [](auto& m) { AddDaemon(m, kOwned); }, kWarn, "bob (pid 9)", "ps -p 9"},
      {"daemon-store", "a full disk", [](auto& m) { m.spaces[*m.environment.runtime_dir] = {kGiB, 0, 1000, false}; }, kFail, "is full", "df -h"},
      {"daemon-store", "no files left", [](auto& m) { m.spaces[*m.environment.runtime_dir] = {kGiB, kGiB, 0, false}; }, kFail, "is full", "df -h"},
      {"daemon-store", "nearly full", [](auto& m) { m.spaces[*m.environment.runtime_dir] = {kGiB, 2 * kMiB, 1000, false}; }, kWarn, "2 MiB left", "df -h"},
      {"daemon-store", "read-only", [](auto& m) { m.spaces[*m.environment.runtime_dir] = {kGiB, kGiB, 1000, true}; }, kFail, "read-only", "GPUMUX_RUNTIME_DIR"},
      {"daemon-store", "a store of somebody else", [](auto& m) { m.Write("/run/user/1000/gpumux/leases.db", ""); ::chmod((m.root + "/run/user/1000/gpumux/leases.db").c_str(), 0400); m.environment.uid += 1; }, kFail, "leases.db may not be written", "ls -l"},
      {"guard-present", "not installed", [](auto& m) { m.environment.guard_library = "/nowhere/libgpumux-guard.so"; }, kFail, "does not exist", "install gpumux again"},
      {"guard-present", "another library", [](auto& m) { m.environment.guard_library = kOldCLibrary; }, kFail, "is no guard", "install gpumux again"},
      {"guard-present", "no library", [](auto& m) { m.environment.guard_library = m.Write("/guard.so", "text"); }, kFail, "no 64-bit ELF", "install gpumux again"},
      {"guard-glibc", "an old system", [](auto& m) { m.environment.c_library = kOldCLibrary; }, kFail, "this is 2.12", "newer system"},
      {"guard-path", "a space", [](auto& m) { m.environment.guard_library = "/opt/my programs/lib/gpumux/libgpumux-guard.so"; }, kFail, "space", "at a path without"},
      {"guard-preload", "another interposer", [](auto& m) { m.environment.variables["LD_PRELOAD"] = kRival; }, kWarn, "stands in front of the CUDA driver", "unset LD_PRELOAD"},
      {"guard-preload", "for the whole machine", [](auto& m) { m.Write("/etc/ld.so.preload", "# ours\n" + kRival + "\n"); }, kWarn, "stands in front of the CUDA driver", "/etc/ld.so.preload"},
      {"guard-preload", "a file that has gone", [](auto& m) { m.environment.variables["LD_PRELOAD"] = "/nowhere/lib.so"; }, kWarn, "does not exist", "unset LD_PRELOAD"},
      {"guard-preload", "an audit library", [](auto& m) { m.environment.variables["LD_AUDIT"] = "/x.so"; }, kWarn, "LD_AUDIT", "unset LD_AUDIT"},
      {"mps-daemon", "another user's", [](auto& m) { m.AddProcess(55, "nvidia-cuda-mps", 1001); }, kWarn, "uid 1001", "sudo -u '#1001'", true},
      {"mps-daemon", "one's own", [](auto& m) { m.AddProcess(55, "nvidia-cuda-mps", m.environment.uid); }, kWarn, "pid 55", "echo quit | nvidia-cuda-mps-control"},
      {"mps-pipe-dir", "left", [](auto& m) { m.Write("/tmp/nvidia-mps/control", ""); }, kWarn, "no MPS daemon runs", "rm -r"},
      {"mps-variables", "a pipe directory that is not there", [](auto& m) { m.environment.variables["CUDA_MPS_PIPE_DIRECTORY"] = "/nowhere"; }, kWarn, "there is nothing", "unset CUDA_MPS_PIPE_DIRECTORY"},
      {"mps-variables", "a limit of nobody", [](auto& m) { m.environment.variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = "0=2G"; }, kWarn, "limits nothing", "unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"},
      {"limit-open-files", "very few", [](auto& m) { m.Limit(RLIMIT_NOFILE, 64); }, kFail, "64 open files", "ulimit -n"},
      {"limit-open-files", "few", [](auto& m) { m.Limit(RLIMIT_NOFILE, 256); }, kWarn, "256 open files", "ulimit -n"},
      {"limit-memlock", "none", [](auto& m) { m.Limit(RLIMIT_MEMLOCK, 0); }, kWarn, "0 bytes", "ulimit -l"},
      {"limit-processes", "all used", [](auto& m) { m.Limit(RLIMIT_NPROC, 10); m.AddProcess(60, "sh", m.environment.uid); }, kFail, "2 of 10", "ulimit -u"},
      {"limit-processes", "nearly all", [](auto& m) { m.Limit(RLIMIT_NPROC, 100); }, kWarn, "1 of 100", "ulimit -u"},
      {"limit-address-space", "limited", [](auto& m) { m.Limit(RLIMIT_AS, 32 * kGiB); }, kFail, "32.0 GiB", "ulimit -v unlimited"},
      {"limit-shm", "missing", [](auto& m) { m.Remove("/dev/shm"); }, kFail, "does not exist", "mount -t tmpfs"},
      {"limit-shm", "not for everyone", [](auto& m) { ::chmod((m.root + "/dev/shm").c_str(), 0755); m.environment.uid = 4242; }, kFail, "may not write", "chmod 1777 /dev/shm"},
      {"limit-shm", "Docker's", [](auto& m) { m.spaces[m.root + "/dev/shm"] = {64 * kMiB, 64 * kMiB, 1000, false}; }, kWarn, "64 MiB of 64 MiB", "--shm-size"},
      {"limit-shm", "full", [](auto& m) { m.spaces[m.root + "/dev/shm"] = {kGiB, 0, 1000, false}; }, kFail, "is full", "ls -lS /dev/shm"},
      {"cgroup-memory", "nearly used up", [](auto& m) { m.Write("/sys/fs/cgroup/user.slice/memory.max", "1073741824\n"); m.Write("/sys/fs/cgroup/user.slice/memory.current", "1070000000\n"); }, kWarn, "about to be killed", "raise the limit"},
      {"cgroup-memory", "version 1, small", [](auto& m) { m.Write("/proc/self/cgroup", "4:memory:/job\n"); m.Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "104857600\n"); }, kWarn, "of 100 MiB", "raise the limit"},
      {"cgroup-devices", "not allowed", [](auto& m) { m.Write("/proc/self/cgroup", "9:devices:/box\n"); m.Write("/sys/fs/cgroup/devices/box/devices.list", "c 1:3 rwm\n"); }, kFail, "c 195:*", "with its GPUs"},
      {"system-kernel", "an old kernel", [](auto& m) { m.Write("/proc/sys/kernel/osrelease", "4.18.0-553.el8\n"); }, kFail, "4.18.0", "newer kernel"},
      {"system-hidepid", "hidden", [](auto& m) { m.Write("/proc/self/mounts", "proc /proc proc rw,hidepid=invisible 0 0\n"); }, kWarn, "hidepid=invisible", "hidepid=0"},
      {"system-pid-namespace", "a container", [](auto& m) { m.Remove("/proc/self/ns/pid"); fs::create_symlink("pid:[4026532281]", m.root + "/proc/self/ns/pid"); }, kWarn, "pid namespace of its own", "--pid=host"},
      {"system-config", "an unknown key", [](auto& m) { m.environment.variables["GPUMUX_CONFIG"] = m.Write("/mine.toml", "[run]\nmen = \"1GiB\"\n"); }, kFail, "mine.toml:2", "gpumux config check"},
      {"system-config", "a variable", [](auto& m) { m.environment.variables["GPUMUX_MEM"] = "10"; }, kFail, "GPUMUX_MEM", "gpumux config check"},
      {"system-config", "a file of the machine that others may write", [](auto& m) { ::chmod(m.Write("/etc/gpumux/config.toml", "").c_str(), 0666); }, kFail, "config.toml", "gpumux config check"},
      {"system-clock", "not set", [](auto& m) { m.environment.now = {}; }, kWarn, "1970-01-01", "timedatectl"},
      // One process (42), which is a healthy tenant's before the fault.
      {"process-exists", "it has gone", [](auto& m) { m.environment.pid = 43; }, kError, "no process 43", "ps"},
      {"process-loadable", "set-user-id", [](auto& m) { m.Write("/proc/42/auxv", std::string("\x17\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0", 16)); }, kFail, "set-user-id", "without those rights"},
      {"process-loadable", "another user's", [](auto& m) { m.Remove("/proc/42/auxv"); }, kError, "may not be read", "sudo gpumux doctor --pid 42"},
      {"process-loadable", "static", [](auto& m) { m.Remove("/proc/42/exe"); fs::create_symlink(kOldCLibrary, m.root + "/proc/42/exe"); }, kFail, "statically linked", "link it dynamically"},
      {"process-glibc", "an old image", [](auto& m) { m.Remove("/proc/42/root/lib"); fs::create_directories(m.root + "/proc/42/root/lib64"); fs::create_symlink(kOldCLibrary, m.root + "/proc/42/root/lib64/libc.so.6"); }, kFail, "this is 2.12", "image"},
      {"process-glibc", "Alpine", [](auto& m) { m.Remove("/proc/42/root/lib"); m.Write("/proc/42/root/lib/ld-musl-x86_64.so.1", ""); }, kFail, "musl", "glibc"},
      {"process-environment", "not started by run", [](auto& m) { ReplaceVariable(m, "HOME=/"); }, kFail, "not started by gpumux run", "gpumux run"},
      {"process-environment", "bypassed", [](auto& m) { ReplaceVariable(m, "LD_PRELOAD=" + m.environment.guard_library); }, kFail, "GPUMUX_SESSION was taken out", "gpumux run"},
      {"process-environment", "no preload", [](auto& m) { ReplaceVariable(m, "GPUMUX_SESSION=/run/session.sock"); }, kFail, "LD_PRELOAD", "gpumux run"},
      {"process-environment", "no daemon any more", [](auto& m) { m.Remove("/run/session.sock"); }, kWarn, "/run/session.sock is not there", "gpumux run -- true"},
      {"process-guard", "not mapped", [](auto& m) { m.Write("/proc/42/maps", "7f0000000000-7f0000001000 r-xp 00000000 08:01 42 /bin/x\n"); }, kFail, "nothing is capped", "gpumux run"},
      {"process-guard", "replaced", [](auto& m) { m.Write("/proc/42/maps", "7f0000000000-7f0000001000 r-xp 00000000 08:01 42 " + m.environment.guard_library + " (deleted)\n"); }, kWarn, "was replaced", "start it anew"},
      {"process-guard", "another gpumux's", [](auto& m) { m.Write("/proc/42/maps", "7f0000000000-7f0000001000 r-xp 00000000 08:01 42 /opt/old/libgpumux-guard.so\n"); }, kWarn, "/opt/old", "gpumux version"},
      {"process-tenant", "a stranger", [](auto& m) { AddDaemon(m, R"({"tenants":[]})"); }, kFail, "in no tenant", "gpumux run"},
      {"process-enforced", "not in force", [](auto& m) { AddDaemon(m, kNotInForce); }, kFail, "not in force", "gpumux explain t-1"},
      {"process-driver", "of another version", [](auto& m) { m.Write("/proc/42/maps", "7f0000000000-7f0000001000 r-xp 00000000 08:01 42 /usr/lib/libcuda.so.535.54.03\n"); }, kFail, "libcuda 535.54.03", "LD_LIBRARY_PATH"},
      {"process-driver", "two of them", [](auto& m) { m.Write("/proc/42/maps", "7f00-7f01 r-xp 00000000 08:01 42 /a/libcuda.so.1\n7f02-7f03 r-xp 00000000 08:01 43 /b/libcuda.so.1\n"); }, kWarn, "two CUDA drivers", "LD_LIBRARY_PATH"},
      {"process-runtime", "may not be read", [](auto& m) { m.Remove("/proc/42/maps"); }, kError, "maps may not be read", "sudo gpumux doctor --pid 42"},
      {"process-others", "a profiler", [](auto& m) { m.Write("/proc/42/maps", "7f00-7f01 r-xp 00000000 08:01 42 /opt/nsys/libToolsInjection64.so\n"); }, kWarn, "profiler", "without the profiler"},
      {"process-others", "an injected library", [](auto& m) { ReplaceVariable(m, "CUDA_INJECTION64_PATH=/x.so"); }, kWarn, "CUDA_INJECTION64_PATH", "without that variable"},
      {"process-limits", "virtual memory", [](auto& m) { m.Write("/proc/42/limits", "Max open files            1024                 1024                 files\nMax address space         4294967296           unlimited            bytes\n"); }, kFail, "4.0 GiB", "ulimit -v"},
      {"process-limits", "few files", [](auto& m) { m.Write("/proc/42/limits", "Max open files            64                 64                 files\n"); }, kFail, "64 files", "ulimit -n"},
  };
  return faults;
}
// clang-format on

std::vector<Check> Everything() {
  std::vector<Check> all = MachineChecks();
  all.insert(all.end(), ProcessChecks().begin(), ProcessChecks().end());
  return all;
}

const Check& CheckOf(const std::string& id) {
  static const std::vector<Check> all = Everything();
  for (const Check& check : all) {
    if (check.id == id) return check;
  }
  ADD_FAILURE() << "no check " << id;
  return all.front();
}

Verdict Plant(const Fault& fault) {
  PlantedMachine machine;
  machine.AddTenantProcess(42, fs::read_symlink("/proc/self/exe"));
  fault.plant(machine);
  return CheckOf(fault.check).run(machine.environment);
}

// Of all faults, in their order; each is planted once.
const std::vector<Verdict>& Verdicts() {
  static const std::vector<Verdict> verdicts = [] {
    std::vector<Verdict> all;
    for (const Fault& fault : Faults()) all.push_back(Plant(fault));
    return all;
  }();
  return verdicts;
}

TEST(DoctorFaults, EachIsFoundAndItsFixIsNamed) {
  for (size_t i = 0; i < Faults().size(); ++i) {
    const Fault& fault = Faults()[i];
    const Verdict& verdict = Verdicts()[i];
    if (fault.needs_root && ::geteuid() != 0) continue;
    SCOPED_TRACE(std::string(fault.check) + ": " + fault.what);
    EXPECT_STREQ(Name(verdict.status), Name(fault.status)) << verdict.evidence;
    EXPECT_THAT(verdict.evidence, HasSubstr(fault.evidence));
    EXPECT_THAT(verdict.fix, HasSubstr(fault.fix));
  }
}

TEST(DoctorFaults, NothingIsWrongWithACleanMachine) {
  PlantedMachine machine;
  machine.AddTenantProcess(42, fs::read_symlink("/proc/self/exe"));
  for (const Check& check : Everything()) {
    const Verdict verdict = check.run(machine.environment);
    EXPECT_TRUE(verdict.status == Status::kOk || verdict.status == Status::kSkip)
        << check.id << ": " << Name(verdict.status) << " " << verdict.evidence;
    EXPECT_EQ(verdict.fix, "") << check.id;
    EXPECT_NE(verdict.evidence, "") << check.id;
  }
}

TEST(DoctorFaults, EveryCheckHasBeenSeenToFindSomething) {
  // What can only be told, and never be wrong.
  std::set<std::string> planted = {"cgroup-version"};
  for (const Fault& fault : Faults()) planted.insert(fault.check);
  for (const Check& check : Everything()) EXPECT_TRUE(planted.contains(check.id)) << check.id;
}

// "gpumux explain t-1": the command exists, and has the options.
void ExpectThatItParses(const std::string& fix) {
  const size_t at = fix.find("gpumux ");
  std::vector<std::string> words = Split(std::string_view(fix).substr(at + 7), ' ');
  ASSERT_FALSE(words.empty()) << fix;
  for (std::string& word : words) word = word.substr(0, word.find_first_of(",;:)"));
  for (const Command& command : AllCommands()) {
    if (command.name != words[0]) continue;
    const auto parsed = ParseArguments(command.spec(), {words.begin() + 1, words.end()});
    EXPECT_TRUE(parsed.has_value()) << fix << ": " << (parsed ? "" : parsed.error().ToString());
    return;
  }
  ADD_FAILURE() << fix << ": there is no command " << words[0];
}

TEST(DoctorFaults, FixesThatAreOursParse) {
  size_t ours = 0;
  for (const Verdict& verdict : Verdicts()) {
    const std::string& fix = verdict.fix;
    for (const char* prefix : {"gpumux ", "sudo gpumux ", "start it anew: gpumux "}) {
      if (!fix.starts_with(prefix)) continue;
      ++ours;
      ExpectThatItParses(fix);
    }
  }
  EXPECT_GE(ours, 10u);
}

TEST(DoctorFaults, IdsAreUniqueAndBeginWithAWordOfTheirOwn) {
  std::set<std::string> ids;
  for (const Check& check : Everything()) {
    EXPECT_TRUE(ids.insert(check.id).second) << check.id;
    EXPECT_NE(std::string(check.id).find('-'), std::string::npos) << check.id;
  }
}

TEST(DoctorFaults, AnotherRootIsAskedForItsOwnCLibrary) {
  PlantedMachine machine;
  machine.AddTenantProcess(42, fs::read_symlink("/proc/self/exe"));
  machine.environment.c_library = kOldCLibrary;  // ours is too old, the process's is not
  EXPECT_EQ(CheckOf("process-glibc").run(machine.environment).status, Status::kOk);
  EXPECT_EQ(CheckOf("guard-glibc").run(machine.environment).status, Status::kFail);
}

}  // namespace
}  // namespace gpumux::cli::doctor
