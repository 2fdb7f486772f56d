// SPDX-License-Identifier: Apache-2.0
//
// `gpumux doctor` against faults that are really there: on the software GPU, in
// limits, file systems and processes of this machine.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string Quoted(const std::string& text) { return "'" + text + "'"; }

// The one finding of `gpumux doctor --only CHECK`, run by a shell after `before`.
Json Ask(Sandbox& box, const std::string& check, const std::string& before = ":", int exit_code = -1) {
  const std::string command =
      before + "; exec " + Quoted(box.Path(Sandbox::Program("gpumux"))) + " doctor --json --only " + check;
  const Outcome ran = box.Run({"/bin/bash", "-c", command});
  if (exit_code >= 0) {
    EXPECT_EQ(ran.exit_code, exit_code) << check << ": " << ran.out << ran.err;
  }
  const Json json = Json::parse(ran.out, nullptr, false);
  if (!json.is_object() || json["data"]["checks"].size() != 1) {
    ADD_FAILURE() << check << ": " << ran.out << ran.err;
    return {};
  }
  return json["data"]["checks"][0];
}

void Expect(const Json& finding, const std::string& status, const std::string& evidence,
            const std::string& fix) {
  if (!finding.is_object()) return;  // said already
  EXPECT_EQ(finding["status"], status) << finding;
  EXPECT_THAT(finding["evidence"].get<std::string>(), HasSubstr(evidence));
  EXPECT_THAT(finding["fix"].is_string() ? finding["fix"].get<std::string>() : "", HasSubstr(fix));
}

Json AskAbout(Sandbox& box, pid_t pid, const std::string& check) {
  const Outcome ran = box.RunGpumux({"doctor", "--json", "--pid", std::to_string(pid), "--only", check});
  const Json json = Json::parse(ran.out, nullptr, false);
  if (!json.is_object()) {
    ADD_FAILURE() << ran.out << ran.err;
    return {};
  }
  return json["data"]["checks"][0];
}

TEST(Doctor, AHealthyMachineHasNoFailure) {
  Sandbox box;
  const Outcome alone = box.RunGpumux({"doctor"});
  EXPECT_EQ(alone.exit_code, 0) << alone.out << alone.err;
  EXPECT_THAT(alone.out, HasSubstr("no daemon runs"));
  Process run = box.Gpumux({"run", "--mem", "1GiB", "--", "sleep", "100"});
  ASSERT_TRUE(WaitUntil("the tenant runs",
                        [&] { return box.DaemonPid() != 0 && !box.StatusData()["tenants"].empty(); }));
  const Outcome with = box.RunGpumux({"doctor"});
  EXPECT_EQ(with.exit_code, 0) << with.out << with.err;
  EXPECT_THAT(with.out, HasSubstr("you may use it"));
  run.Signal(SIGTERM);
  run.Wait();
}

TEST(Doctor, SeesTheLimitsThatItIsStartedWith) {
  Sandbox box;
  Expect(Ask(box, "limit-open-files", "ulimit -n 64", 1), "fail", "64 open files", "ulimit -n");
  Expect(Ask(box, "limit-memlock", "ulimit -l 0", 0), "warn", "0 bytes", "ulimit -l");
  Expect(Ask(box, "limit-address-space", "ulimit -v 33554432", 1), "fail", "32.0 GiB", "ulimit -v unlimited");
}

TEST(Doctor, SeesVariablesThatLeadNowhere) {
  Sandbox box;
  Expect(Ask(box, "mps-variables", "export CUDA_MPS_PIPE_DIRECTORY=/nowhere"), "warn", "/nowhere",
         "unset CUDA_MPS_PIPE_DIRECTORY");
  Expect(Ask(box, "driver-visible", "export CUDA_VISIBLE_DEVICES=7"), "warn", "there is 1 GPU",
         "unset CUDA_VISIBLE_DEVICES");
  const std::string rival =
      fs::path(Sandbox::Program("gpumux")).parent_path().parent_path() / "lib/gpumux/softgpu/libcuda.so.1";
  Expect(Ask(box, "guard-preload", "export LD_PRELOAD=" + rival), "warn",
         "stands in front of the CUDA driver", "unset LD_PRELOAD");
}

TEST(Doctor, SeesWhoseTheRuntimeDirectoryIs) {
  Sandbox box;
  Expect(Ask(box, "daemon-runtime-dir", ":", 0), "ok", box.runtime_dir(), "");
  ::chmod(box.runtime_dir().c_str(), 0755);
  Expect(Ask(box, "daemon-runtime-dir", ":", 1), "fail", "mode 0755", "chmod 700 " + box.runtime_dir());
}

TEST(Doctor, SeesTheSocketOfADaemonThatDied) {
  Sandbox box;
  ASSERT_EQ(box.RunGpumux({"run", "--", "true"}).exit_code, 0);
  const pid_t daemon = box.DaemonPid();
  ASSERT_GT(daemon, 0);
  Expect(Ask(box, "daemon-stale"), "ok", "", "");
  ::kill(daemon, SIGKILL);
  ASSERT_TRUE(WaitUntil("the daemon is dead", [&] { return box.DaemonPid() == 0; }));
  Expect(Ask(box, "daemon-stale"), "warn", "api.sock was left", "gpumux run -- true");
  // The fix is one.
  ASSERT_EQ(box.RunGpumux({"run", "--", "true"}).exit_code, 0);
  Expect(Ask(box, "daemon-stale"), "ok", "", "");
}

TEST(Doctor, SeesAProgramWithoutAPromise) {
  Sandbox box;
  const std::string libraries =
      fs::path(Sandbox::Program("gpumux")).parent_path().parent_path() / "lib/gpumux/softgpu";
  Process stranger =
      box.Start({"/usr/bin/env", "LD_LIBRARY_PATH=" + libraries, Sandbox::Program("gpumux-workload"),
                 "--alloc", "3GiB", "--hold", "100", "--ready", box.dir() + "/ready"});
  ASSERT_TRUE(WaitUntil("the stranger holds memory", [&] { return fs::exists(box.dir() + "/ready"); }));
  const std::string pid = std::to_string(stranger.pid());
  const std::string fix = "gpumux reserve --pid " + pid + " --mem 3840MiB";  // its context included
  Expect(Ask(box, "gpu-strangers"), "warn", "pid " + pid, fix);
  ASSERT_EQ(box.RunGpumux({"run", "--", "true"}).exit_code, 0);
  Expect(Ask(box, "gpu-strangers"), "warn", "pid " + pid, fix);
  Expect(AskAbout(box, stranger.pid(), "process-guard"), "fail", "nothing is capped", "gpumux run");
  Expect(AskAbout(box, stranger.pid(), "process-tenant"), "fail", "in no tenant", "gpumux run");
  Expect(AskAbout(box, stranger.pid(), "process-driver"), "ok", libraries, "");
  // The fix is one.
  ASSERT_EQ(box.RunGpumux({"reserve", "--pid", pid, "--mem", "3840MiB"}).exit_code, 0);
  Expect(Ask(box, "gpu-strangers"), "ok", "", "");
  stranger.Signal(SIGKILL);
  stranger.Wait();
}

TEST(Doctor, SaysByWhatATenantIsCovered) {
  Sandbox box;
  Process run =
      box.Gpumux({"run", "--mem", "4GiB", "--name", "serve", "--", Sandbox::Program("gpumux-workload"),
                  "--alloc", "1GiB", "--hold", "100", "--ready", box.dir() + "/ready"});
  ASSERT_TRUE(WaitUntil("the tenant holds memory", [&] { return fs::exists(box.dir() + "/ready"); }));
  const pid_t pid = box.StatusData()["tenants"][0]["pid"].get<pid_t>();
  const Outcome all = box.RunGpumux({"doctor", "--pid", std::to_string(pid)});
  EXPECT_EQ(all.exit_code, 0) << all.out;
  EXPECT_THAT(all.out, HasSubstr("serve ("));
  EXPECT_THAT(all.out, HasSubstr("limit 4.0 GiB"));
  Expect(AskAbout(box, pid, "process-enforced"), "ok", "the guard charges it", "");
  Expect(AskAbout(box, pid, "process-guard"), "ok", "libgpumux-guard.so", "");
  run.Signal(SIGTERM);
  run.Wait();
}

TEST(Doctor, CouldNotLookIsNeitherGoodNorBad) {
  Sandbox box;
  Process gone = box.Start({"/bin/true"});
  gone.Wait();
  const Outcome ran = box.RunGpumux({"doctor", "--pid", std::to_string(gone.pid())});
  EXPECT_EQ(ran.exit_code, 3) << ran.out;
  EXPECT_EQ(box.RunGpumux({"doctor", "--pid", "x"}).exit_code, 2);
  EXPECT_EQ(box.RunGpumux({"doctor", "--only", "gpu-moed"}).exit_code, 2);
}

TEST(Doctor, StrictCountsAWarning) {
  Sandbox box;
  box.SetEnv("CUDA_MPS_PIPE_DIRECTORY", "/nowhere");
  EXPECT_EQ(box.RunGpumux({"doctor", "--only", "mps-variables"}).exit_code, 0);
  EXPECT_EQ(box.RunGpumux({"doctor", "--only", "mps-variables", "--strict"}).exit_code, 1);
  const Outcome quiet = box.RunGpumux({"doctor", "--quiet", "--only", "mps"});
  EXPECT_THAT(quiet.out, ::testing::HasSubstr("mps-variables  warn"));
  EXPECT_EQ(box.RunGpumux({"doctor", "--quiet", "--only", "limit-shm"}).out, "");
}

// Programs of another folder, as links: what they find beside them is up to the test.
class DoctorElsewhere : public ::testing::Test {
 protected:
  std::string Install(const std::string& folder, bool with_guard) {
    const std::string prefix = box_.dir() + "/" + folder;
    const fs::path build = fs::path(Sandbox::Program("gpumux")).parent_path().parent_path();
    fs::create_directories(prefix + "/bin");
    fs::create_directories(prefix + "/lib/gpumux");
    std::error_code error;
    fs::create_hard_link(Sandbox::Program("gpumux"), prefix + "/bin/gpumux", error);
    if (error) fs::copy(Sandbox::Program("gpumux"), prefix + "/bin/gpumux");
    fs::create_directory_symlink(build / "lib/gpumux/softgpu", prefix + "/lib/gpumux/softgpu");
    if (with_guard)
      fs::create_symlink(build / "lib/gpumux/libgpumux-guard.so", prefix + "/lib/gpumux/libgpumux-guard.so");
    return prefix + "/bin/gpumux";
  }
  Json Finding(const std::string& program, const std::string& check) {
    const Outcome ran = box_.Run({program, "doctor", "--json", "--only", check});
    EXPECT_EQ(ran.exit_code, 1) << ran.out << ran.err;
    return Json::parse(ran.out, nullptr, false)["data"]["checks"][0];
  }
  Sandbox box_;
};

TEST_F(DoctorElsewhere, SeesThatTheGuardIsMissing) {
  Expect(Finding(Install("bare", false), "guard-present"), "fail", "does not exist", "install gpumux again");
}

TEST_F(DoctorElsewhere, SeesAPathThatCannotBePreloaded) {
  Expect(Finding(Install("my programs", true), "guard-path"), "fail", "my programs", "without them");
}

class DoctorOfRoot : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::getuid() != 0) GTEST_SKIP() << "needs root";
  }
  Sandbox box_;
};

// What an administrator does with `nvidia-smi -c`; NVML's numbers of the modes.
void SetComputeMode(const Sandbox& box, int mode) {
  const std::string library = fs::path(Sandbox::Program("gpumux")).parent_path().parent_path() /
                              "lib/gpumux/softgpu/libnvidia-ml.so.1";
  const pid_t setter = ::fork();
  if (setter == 0) {
    ::setenv("GPUMUX_SOFTGPU", "H200", 1);
    ::setenv("GPUMUX_SOFTGPU_DIR", box.softgpu_dir().c_str(), 1);
    void* nvml = ::dlopen(library.c_str(), RTLD_NOW);
    if (!nvml) ::_exit(1);
    const auto init = reinterpret_cast<int (*)()>(::dlsym(nvml, "nvmlInit_v2"));
    const auto handle =
        reinterpret_cast<int (*)(unsigned, void**)>(::dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"));
    const auto set = reinterpret_cast<int (*)(void*, int)>(::dlsym(nvml, "nvmlDeviceSetComputeMode"));
    void* device = nullptr;
    ::_exit(init() == 0 && handle(0, &device) == 0 && set(device, mode) == 0 ? 0 : 2);
  }
  int status = -1;
  ::waitpid(setter, &status, 0);
  EXPECT_EQ(status, 0);
}
constexpr int kDefault = 0, kProhibited = 2, kExclusiveProcess = 3;

TEST_F(DoctorOfRoot, SeesTheComputeMode) {
  ASSERT_EQ(box_.RunGpumux({"status"}).exit_code, 0);  // the software GPU runs
  SetComputeMode(box_, kExclusiveProcess);
  Expect(Ask(box_, "gpu-compute-mode", ":", 1), "fail", "EXCLUSIVE_PROCESS",
         "sudo nvidia-smi -i 0 -c DEFAULT");
  SetComputeMode(box_, kProhibited);
  Expect(Ask(box_, "gpu-compute-mode", ":", 1), "fail", "PROHIBITED", "sudo nvidia-smi -i 0 -c DEFAULT");
}

// The trap of it: a second tenant would be admitted, and its cuInit would fail.
TEST_F(DoctorOfRoot, RunRefusesAGpuThatLetsOneProcessIn) {
  Process first =
      box_.Gpumux({"run", "--mem", "100GiB", "--name", "first", "--", Sandbox::Program("gpumux-workload"),
                   "--alloc", "1GiB", "--hold", "1000", "--ready", box_.dir() + "/ready"});
  ASSERT_TRUE(WaitUntil("the first works", [&] { return fs::exists(box_.dir() + "/ready"); }));
  Process waits = box_.Gpumux({"run", "--mem", "100GiB", "--name", "waits", "--", "true"});
  ASSERT_TRUE(
      WaitUntil("the second waits", [&] { return waits.Err().find("waiting") != std::string::npos; }));
  // The daemon has run all the time and has to see that the mode changed.
  SetComputeMode(box_, kExclusiveProcess);
  const Outcome second = box_.RunGpumux({"run", "--mem", "1GiB", "--", "true"});
  EXPECT_EQ(second.exit_code, 7) << second.err;
  EXPECT_THAT(second.err, HasSubstr("one process in at a time"));
  EXPECT_THAT(second.err, HasSubstr("nvidia-smi -c DEFAULT"));
  const Outcome waited = waits.Wait();
  EXPECT_EQ(waited.exit_code, 7) << waited.err;
  EXPECT_THAT(waited.err, HasSubstr("nvidia-smi -c DEFAULT"));
  first.Signal(SIGTERM);
  first.Wait();
  EXPECT_EQ(box_.RunGpumux({"run", "--mode", "exclusive", "--", Sandbox::Program("gpumux-workload"),
                            "--alloc", "1GiB"})
                .exit_code,
            0);
  SetComputeMode(box_, kProhibited);
  EXPECT_EQ(box_.RunGpumux({"run", "--mode", "exclusive", "--", "true"}).exit_code, 7);
  SetComputeMode(box_, kDefault);
  EXPECT_EQ(box_.RunGpumux({"run", "--mem", "1GiB", "--", "true"}).exit_code, 0);
}

TEST_F(DoctorOfRoot, SeesAFullFileSystem) {
  const std::string full = box_.dir() + "/full";
  fs::create_directory(full);
  if (::mount("tmpfs", full.c_str(), "tmpfs", 0, "size=128k,mode=0700") != 0) GTEST_SKIP() << "may not mount";
  std::ofstream(full + "/everything") << std::string(256 * 1024, 'x');
  Expect(Ask(box_, "daemon-store", "export GPUMUX_RUNTIME_DIR=" + full, 1), "fail", "is full", "df -h");
  EXPECT_EQ(::mount("", full.c_str(), "", MS_REMOUNT | MS_RDONLY, ""), 0);
  Expect(Ask(box_, "daemon-store", "export GPUMUX_RUNTIME_DIR=" + full, 1), "fail", "read-only",
         "GPUMUX_RUNTIME_DIR");
  EXPECT_EQ(::umount2(full.c_str(), MNT_DETACH), 0);
}

TEST_F(DoctorOfRoot, SeesAnotherUsersMps) {
  // A daemon by its name alone, which is how anybody finds it.
  const std::string control = box_.dir() + "/nvidia-cuda-mps-control";
  fs::copy("/bin/sleep", control);
  const pid_t mps = ::fork();
  if (mps == 0) {
    if (::setuid(65534) != 0) ::_exit(1);
    ::execl(control.c_str(), control.c_str(), "100", nullptr);
    ::_exit(1);
  }
  Json finding;
  WaitUntil("it has its name", [&] {
    finding = Ask(box_, "mps-daemon");
    return finding["status"] == "warn";
  });
  Expect(finding, "warn", "uid 65534", "sudo -u '#65534'");
  ::kill(mps, SIGKILL);
  ::waitpid(mps, nullptr, 0);
}

TEST_F(DoctorOfRoot, SeesThatAProcessIsSetUserId) {
  const std::string program = box_.dir() + "/sleep";
  fs::copy("/bin/sleep", program);
  ::chmod(program.c_str(), 04755);
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::setuid(65534) != 0) ::_exit(1);
    ::execl(program.c_str(), program.c_str(), "100", nullptr);
    ::_exit(1);
  }
  Json finding;
  WaitUntil("it runs with its owner's rights", [&] {
    finding = AskAbout(box_, pid, "process-loadable");
    return finding["status"] == "fail";
  });
  Expect(finding, "fail", "set-user-id", "without those rights");
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

// A program of one instruction that matters, without a loader: pause().
std::string StaticProgram(const std::string& path) {
  // clang-format off
  const unsigned char bytes[] = {
      0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,   // 64-bit, little-endian
      2, 0, 0x3e, 0, 1, 0, 0, 0, 0x78, 0, 0x40, 0, 0, 0, 0, 0,   // a program for x86-64, entry 0x400078
      0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,         // segments at 0x40, no sections
      0, 0, 0, 0, 0x40, 0, 0x38, 0, 1, 0, 0x40, 0, 0, 0, 0, 0,   // one segment
      1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,            // to be loaded, readable and executable
      0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0,      // at 0x400000
      0x81, 0, 0, 0, 0, 0, 0, 0, 0x81, 0, 0, 0, 0, 0, 0, 0,      // 129 bytes
      0, 0x10, 0, 0, 0, 0, 0, 0,
      0xb8, 0x22, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7};              // mov eax, 34; syscall; once more
  // clang-format on
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes), sizeof bytes);
  ::chmod(path.c_str(), 0755);
  return path;
}

TEST(Doctor, SeesThatAProgramHasNoLoader) {
  Sandbox box;
  Process run =
      box.Gpumux({"run", "--name", "static", "--mem", "1GiB", "--", StaticProgram(box.dir() + "/static")});
  pid_t pid = 0;
  ASSERT_TRUE(WaitUntil("it runs", [&] {
    const Json tenants = box.StatusData()["tenants"];
    if (!tenants.empty() && tenants[0]["pid"].is_number()) pid = tenants[0]["pid"].get<pid_t>();
    std::error_code error;
    return pid > 0 && fs::read_symlink("/proc/" + std::to_string(pid) + "/exe", error).filename() == "static";
  }));
  Expect(AskAbout(box, pid, "process-loadable"), "fail", "statically linked", "link it dynamically");
  Expect(AskAbout(box, pid, "process-guard"), "fail", "nothing is capped", "gpumux run");
  run.Signal(SIGTERM);
  run.Wait();
}

}  // namespace
}  // namespace gpumux::test
