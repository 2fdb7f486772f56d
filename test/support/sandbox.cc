// SPDX-License-Identifier: Apache-2.0
#include "sandbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

namespace gpumux::test {

namespace fs = std::filesystem;

namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Every process whose environment names the sandbox's directory: also daemons
// and programs that outlived their parents.
std::vector<pid_t> ProcessesOf(const std::string& dir) {
  std::vector<pid_t> pids;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t pid = std::stoi(name);
    if (pid == getpid()) continue;
    if (ReadFile("/proc/" + name + "/environ").find(dir) != std::string::npos) pids.push_back(pid);
  }
  return pids;
}

}  // namespace

void Process::Signal(int signal) const { kill(pid_, signal); }

bool Process::Ended() {
  if (status_) return true;
  int status;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
  status_ = status;
  return true;
}

std::string Process::Out() const { return ReadFile(out_path_); }
std::string Process::Err() const { return ReadFile(err_path_); }

Outcome Process::Wait(std::chrono::seconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!Ended()) {
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "process " << pid_ << " did not end within " << limit.count() << " s; stderr:\n"
                    << Err();
      kill(pid_, SIGKILL);
      int status = 0;
      waitpid(pid_, &status, 0);
      status_ = status;
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  Outcome outcome;
  outcome.exit_code = WIFEXITED(*status_) ? WEXITSTATUS(*status_) : 128 + WTERMSIG(*status_);
  outcome.out = Out();
  outcome.err = Err();
  return outcome;
}

Sandbox::Sandbox(const std::string& spec) {
  char name[] = "/tmp/gpumux-test-XXXXXX";
  if (!mkdtemp(name)) {
    ADD_FAILURE() << "cannot make a directory under /tmp";
    return;
  }
  dir_ = name;
  chmod(dir_.c_str(), 0755);
  runtime_dir_ = dir_ + "/run";
  softgpu_dir_ = dir_ + "/gpu";
  mkdir(runtime_dir_.c_str(), 0700);
  mkdir(softgpu_dir_.c_str(), 0777);
  chmod(softgpu_dir_.c_str(), 01777);
  for (const char* key :
       {"PATH", "HOME", "LANG", "LC_ALL", "ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}) {
    if (const char* value = getenv(key)) env_[key] = value;
  }
  // Not the configuration of whoever runs the tests.
  std::ofstream(ConfigFile()) << "";
  env_["GPUMUX_CONFIG"] = ConfigFile();
  env_["GPUMUX_RUNTIME_DIR"] = runtime_dir_;
  env_["GPUMUX_SOFTGPU_DIR"] = softgpu_dir_;
  env_["GPUMUX_SOFTGPU"] = spec;
}

Sandbox::~Sandbox() {
  if (dir_.empty()) return;
  // Some may be about to start others: until none is left.
  for (int round = 0; round < 50; round++) {
    const auto pids = ProcessesOf(dir_);
    if (pids.empty()) break;
    for (pid_t pid : pids) kill(pid, SIGKILL);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (getenv("GPUMUX_TEST_KEEP")) return;
  std::error_code ignored;
  fs::remove_all(dir_, ignored);
}

void Sandbox::ShareGpuOf(const Sandbox& other) {
  softgpu_dir_ = other.softgpu_dir_;
  env_["GPUMUX_SOFTGPU_DIR"] = softgpu_dir_;
}

std::string Sandbox::TestProgram(const std::string& name) {
  return (fs::read_symlink("/proc/self/exe").parent_path() / name).string();
}

std::string Sandbox::Program(const std::string& name) {
  return (fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin" / name).string();
}

void Sandbox::SetUser(uid_t uid) {
  uid_ = uid;
  copy_ = dir_ + "/build";
  const fs::path build = fs::read_symlink("/proc/self/exe").parent_path().parent_path();
  std::error_code error;
  for (const char* part : {"bin", "lib", "test/guard_probe"}) {
    fs::create_directories(fs::path(copy_ + "/" + part).parent_path(), error);
    fs::copy(build / part, copy_ + "/" + part, fs::copy_options::recursive, error);
    if (error) ADD_FAILURE() << "copying " << part << ": " << error.message();
  }
}

std::string Sandbox::Path(const std::string& program) const {
  const std::string build = fs::read_symlink("/proc/self/exe").parent_path().parent_path();
  if (copy_.empty() || !program.starts_with(build)) return program;
  return copy_ + program.substr(build.size());
}

Process Sandbox::Start(const std::vector<std::string>& argv) {
  const std::string base = dir_ + "/output" + std::to_string(next_output_++);
  std::vector<std::string> arg_strings;
  for (const auto& a : argv) arg_strings.push_back(Path(a));
  std::vector<char*> args;
  for (auto& a : arg_strings) args.push_back(a.data());
  args.push_back(nullptr);
  std::vector<std::string> env_strings;
  for (const auto& [key, value] : env_) env_strings.push_back(key + "=" + value);
  std::vector<char*> env;
  for (auto& e : env_strings) env.push_back(e.data());
  env.push_back(nullptr);
  if (uid_ != 0 && chown(runtime_dir_.c_str(), uid_, uid_) != 0)
    ADD_FAILURE() << "chown: " << strerror(errno);
  const pid_t pid = fork();
  if (pid == 0) {
    const int in = open("/dev/null", O_RDONLY);
    const int out = open((base + ".out").c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0644);
    const int err = open((base + ".err").c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0644);
    dup2(in, 0);
    dup2(out, 1);
    dup2(err, 2);
    for (int fd = 3; fd < 1024; fd++) close(fd);
    if (uid_ != 0 && (setgid(uid_) != 0 || setuid(uid_) != 0)) _exit(99);
    execve(args[0], args.data(), env.data());
    _exit(98);
  }
  return Process(pid, base + ".out", base + ".err");
}

Outcome Sandbox::Run(const std::vector<std::string>& argv, std::chrono::seconds limit) {
  return Start(argv).Wait(limit);
}

Process Sandbox::Gpumux(std::vector<std::string> args) {
  args.insert(args.begin(), Program("gpumux"));
  return Start(args);
}

Outcome Sandbox::RunGpumux(std::vector<std::string> args, std::chrono::seconds limit) {
  return Gpumux(std::move(args)).Wait(limit);
}

nlohmann::json Sandbox::StatusData() {
  const Outcome o = RunGpumux({"status", "--json"});
  if (o.exit_code != 0) {
    ADD_FAILURE() << "status --json ended with " << o.exit_code << ": " << o.err;
    return {};
  }
  auto parsed = nlohmann::json::parse(o.out, nullptr, false);
  if (parsed.is_discarded() || !parsed.contains("data")) {
    ADD_FAILURE() << "not a status document: " << o.out;
    return {};
  }
  return parsed["data"];
}

std::vector<pid_t> Sandbox::Processes() const { return ProcessesOf(dir_); }

pid_t Sandbox::PidOf(const std::string& program) const {
  for (pid_t pid : ProcessesOf(runtime_dir_)) {
    std::error_code error;
    const auto exe = fs::read_symlink("/proc/" + std::to_string(pid) + "/exe", error);
    if (!error && exe.filename() == program) return pid;
  }
  return 0;
}

bool WaitUntil(const std::string& what, const std::function<bool()>& condition,
               std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "waited " << limit.count() << " ms in vain until " << what;
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace gpumux::test
