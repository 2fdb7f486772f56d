// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/planted_machine.h"

#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/units.h"

namespace gpumux::cli::doctor {

namespace fs = std::filesystem;

namespace {
constexpr uid_t kUser = 1000;  // of tests that run as root
}

FakeNvml::FakeNvml(unsigned gpus) {
  for (unsigned i = 0; i < gpus; ++i) {
    gpu::Device device{.uuid = {}, .index = i, .name = "NVIDIA H200", .pci_bus_id = "00000000:18:00.0"};
    device.uuid.bytes = {0xd0, 0xc7, static_cast<uint8_t>(i)};
    devices.push_back(device);
  }
}

Result<gpu::DeviceMemory> FakeNvml::Memory(const gpu::Uuid&) {
  if (lost) return Fail(Code::kUnavailable, "NVML does not answer (memory): GPU is lost");
  return gpu::DeviceMemory{
      .total_bytes = 140 * kGiB, .reserved_bytes = 0, .used_bytes = 0, .free_bytes = 140 * kGiB};
}

PlantedMachine::PlantedMachine() {
  // In memory where that is possible: it is many small files.
  std::string name =
      std::string(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + "/gpumux-doctor-XXXXXX";
  root = ::mkdtemp(name.data());
  const char* module =
      "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Aug  5 23:40:54 UTC 2026\n";
  Write("/proc/driver/nvidia/version", module);
  Write("/proc/driver/nvidia/gpus/0000:18:00.0/information", "");
  Write("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
  Write("/proc/self/mounts", "proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\n");
  Write("/proc/self/cgroup", "0::/user.slice\n");
  Write("/sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n");
  Write("/sys/fs/cgroup/user.slice/memory.max", "max\n");
  Write("/sys/bus/pci/devices/0000:18:00.0/vendor", "0x10de\n");
  Write("/sys/bus/pci/devices/0000:18:00.0/class", "0x030200\n");
  for (const char* device : {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"})
    ::chmod(Write(device, "").c_str(), 0666);
  Write("/dev/kmsg", "6,1,0,-;Linux version 6.1.0\n");
  fs::create_directories(root + "/dev/shm");
  ::chmod((root + "/dev/shm").c_str(), 01777);
  fs::create_directories(root + "/proc/self/ns");
  fs::create_symlink("pid:[4026531836]", root + "/proc/self/ns/pid");

  const Environment here = RealEnvironment();
  environment.root = root;
  environment.uid = ::geteuid() == 0 ? kUser : ::geteuid();
  environment.groups = {environment.uid};
  environment.user = "ann";
  environment.now = std::chrono::sys_days(std::chrono::year(2026) / std::chrono::November / 30);
  environment.version = here.version;
  environment.guard_library = here.guard_library;
  environment.c_library = here.c_library;
  environment.runtime_dir = root + "/run/user/1000/gpumux";
  fs::create_directories(*environment.runtime_dir);
  ::chmod(environment.runtime_dir->c_str(), 0700);
  if (::geteuid() == 0 && ::chown(environment.runtime_dir->c_str(), kUser, kUser) != 0) std::abort();
  gpus.source = gpu::GpuSource{};
  auto fake = std::make_unique<FakeNvml>(1);
  nvml = fake.get();
  gpus.nvml = std::move(fake);
  environment.gpus = [this]() -> const GpuView& { return gpus; };
  environment.cuda = [this]() -> const Result<CudaView>& { return cuda; };
  environment.daemons = [this]() -> const std::vector<DaemonView>& { return daemons; };
  environment.limit = [this](int resource) {
    const auto found = limits.find(resource);
    return found == limits.end() ? doctor::Limit{UINT64_MAX, UINT64_MAX}
                                 : doctor::Limit{found->second, UINT64_MAX};
  };
  environment.space = [this](const std::string& path) -> Result<Space> {
    const auto found = spaces.find(path);
    return found == spaces.end() ? Space{10 * kGiB, 9 * kGiB, 1'000'000, false} : found->second;
  };
}

PlantedMachine::~PlantedMachine() {
  std::error_code ignored;
  fs::remove_all(root, ignored);
}

std::string PlantedMachine::Write(const std::string& path, const std::string& text) {
  const std::string file = root + path;
  fs::create_directories(fs::path(file).parent_path());
  std::ofstream(file, std::ios::binary) << text;
  return file;
}

void PlantedMachine::Remove(const std::string& path) { fs::remove_all(root + path); }

void PlantedMachine::LookAtDaemons() {
  daemons = doctor::LookAtDaemons({PathsIn(*environment.runtime_dir)}, std::chrono::milliseconds(200));
}

void PlantedMachine::AddProcess(pid_t pid, const std::string& name, uid_t uid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  const std::string id = std::to_string(uid);
  Write(folder + "/stat",
        std::to_string(pid) + " (" + name + ") S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n");
  Write(folder + "/status",
        "Name:\t" + name + "\nUid:\t" + id + "\t" + id + "\t" + id + "\t" + id + "\nThreads:\t1\n");
}

void PlantedMachine::AddTenantProcess(pid_t pid, const std::string& program) {
  const std::string folder = "/proc/" + std::to_string(pid);
  AddProcess(pid, "python3", environment.uid);
  const Elf64_auxv_t secure{.a_type = AT_SECURE, .a_un = {.a_val = 0}};
  Write(folder + "/auxv", std::string(reinterpret_cast<const char*>(&secure), sizeof secure));
  fs::create_symlink(program, root + folder + "/exe");
  fs::create_directories(root + folder + "/root/lib/x86_64-linux-gnu");
  fs::create_symlink(environment.c_library, root + folder + "/root/lib/x86_64-linux-gnu/libc.so.6");
  Write("/run/session.sock", "");
  Write(folder + "/environ", std::string("GPUMUX_SESSION=/run/session.sock") + '\0' +
                                 "LD_PRELOAD=" + environment.guard_library + '\0');
  Write(folder + "/maps",
        "7f0000000000-7f0000001000 r-xp 00000000 08:01 42 " + environment.guard_library +
            "\n7f0000100000-7f0000101000 r-xp 00000000 08:01 43 /usr/lib/libcuda.so.580.159.04\n"
            "7f0000200000-7f0000201000 rw-p 00000000 00:00 0 \n");
  Write(folder + "/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max open files            20000                20000                files     \n"
        "Max address space         unlimited            unlimited            bytes     \n");
  environment.pid = pid;
}

}  // namespace gpumux::cli::doctor
