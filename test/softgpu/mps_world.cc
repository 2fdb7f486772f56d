// SPDX-License-Identifier: Apache-2.0
#include "mps_world.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace gpumux::test {

MpsTest::MpsTest() : pipes_(dir() + "/pipes"), logs_(dir() + "/logs") {
  setenv("CUDA_MPS_PIPE_DIRECTORY", pipes_.c_str(), 1);
  setenv("CUDA_MPS_LOG_DIRECTORY", logs_.c_str(), 1);
  for (const char* name : {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                           "CUDA_MPS_CLIENT_PRIORITY", "GPUMUX_SOFTGPU_FAULTS"}) {
    unsetenv(name);
  }
}

MpsTest::~MpsTest() {
  const pid_t daemon = DaemonPid();
  if (daemon > 0 && IsAlive(daemon)) {
    kill(daemon, SIGCONT);
    Control("", "quit -t 0\n");
    if (!Eventually([&] { return !IsAlive(daemon); })) {
      ADD_FAILURE() << "the control daemon does not end";
      kill(daemon, SIGKILL);
    }
  }
  unsetenv("CUDA_MPS_PIPE_DIRECTORY");
  unsetenv("CUDA_MPS_LOG_DIRECTORY");
}

MpsTest::Printed MpsTest::Control(const std::string& options, const std::string& input) {
  const std::string command = "printf '%s' '" + input + "' | " SOFTGPU_MPS_CONTROL " " + options + " 2>&1";
  Printed printed;
  fflush(nullptr);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {"", -1};
  char buffer[4096];
  size_t n;
  while ((n = fread(buffer, 1, sizeof(buffer), pipe)) > 0) printed.text.append(buffer, n);
  const int status = pclose(pipe);
  printed.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return printed;
}

void MpsTest::StartDaemon(const std::string& options) {
  const Printed printed = Control(options);
  ASSERT_EQ(printed.status, 0) << printed.text;
  ASSERT_EQ(printed.text, "");
}

std::string MpsTest::Command(const std::string& line) {
  const Printed printed = Control("", line + "\n");
  EXPECT_EQ(printed.status, 0) << line << ": " << printed.text;
  return printed.text;
}

pid_t MpsTest::ServerPid() { return atoi(Command("get_server_list").c_str()); }
pid_t MpsTest::DaemonPid() const { return atoi(ReadFile(pipes_ + "/nvidia-cuda-mps-control.pid").c_str()); }
std::string MpsTest::ServerState() { return Command("get_server_status " + std::to_string(ServerPid())); }
std::string MpsTest::ServerLog() const { return ReadFile(logs_ + "/server.log"); }
std::string MpsTest::ControlLog() const { return ReadFile(logs_ + "/control.log"); }

pid_t MpsTest::SoftgpudPid() const {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string arguments = ReadFile(entry.path().string() + "/cmdline");
    if (arguments.find("gpumux-softgpud") != std::string::npos &&
        arguments.find(dir()) != std::string::npos) {
      return atoi(entry.path().filename().c_str());
    }
  }
  return 0;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool IsAlive(pid_t pid) {
  // "pid (name) state ..."
  const std::string stat = ReadFile("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.size() > name_end + 2 && stat[name_end + 2] != 'Z';
}

int MpsAttribute() {
  int value = -1;
  EXPECT_EQ(CU(cuDeviceGetAttribute, int*, int, int)(&value, 133, 0), cuda::CUDA_SUCCESS);
  return value;
}

int Sms() {
  int value = -1;
  EXPECT_EQ(CU(cuDeviceGetAttribute, int*, int, int)(&value, 16, 0), cuda::CUDA_SUCCESS);
  return value;
}

unsigned long long FreeMiB() {
  size_t free = 0, total = 0;
  EXPECT_EQ(CU(cuMemGetInfo_v2, size_t*, size_t*)(&free, &total), cuda::CUDA_SUCCESS);
  EXPECT_EQ(total, 150'109'880'320) << "whatever the limit";
  return free >> 20;
}

HeldDevices::HeldDevices(pid_t pid) {
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  const std::string dir = "/proc/" + std::to_string(pid) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    std::error_code error;
    const std::string link = std::filesystem::read_symlink(entry.path(), error).string();
    if (link.find("/dev/nvidia") == std::string::npos) continue;
    const int held =
        static_cast<int>(syscall(SYS_pidfd_getfd, process, atoi(entry.path().filename().c_str()), 0));
    EXPECT_GE(held, 0) << link;
    if (held < 0) continue;
    held_.push_back(held);
    links_.push_back(link);
  }
  close(process);
}

void HeldDevices::Close() {
  for (int held : held_) close(held);
  held_.clear();
}

}  // namespace gpumux::test
