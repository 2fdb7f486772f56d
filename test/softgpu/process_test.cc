// SPDX-License-Identifier: Apache-2.0
//
// Several processes on one software GPU: who dies leaves nothing, and the
// server survives whatever is said to it.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "child.h"
#include "cuda_functions.h"
#include "softgpu/protocol.h"

namespace gpumux::test {
namespace {

using namespace cuda;

class SoftGpuProcesses : public SoftGpuTest {};

constexpr unsigned long long kGiB = 1ULL << 30;
// Of the device: each context, and once while any process uses CUDA.
constexpr unsigned long long Contexts(unsigned n) { return n * 548'995'072ull + 3'407'872; }

// Holds 10 GiB until it is killed.
void HoldTen(const Child::Step& step) {
  ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
  CUdeviceptr p;
  ASSERT_EQ(Alloc(&p, 10 * kGiB), CUDA_SUCCESS);
  step.Report();
  step.Wait();
}

TEST_F(SoftGpuProcesses, EveryoneSeesWhatTheOthersHold) {
  Child one(HoldTen), two(HoldTen);
  ASSERT_TRUE(one.WaitReport());
  ASSERT_TRUE(two.WaitReport());
  const auto device = Gpu0();
  EXPECT_EQ(ReadMemory(device).used, 20 * kGiB + Contexts(2));
  EXPECT_EQ(OwnBytes(device, one.pid()), static_cast<long long>(10 * kGiB + 543'162'368));
  EXPECT_EQ(OwnBytes(device, two.pid()), static_cast<long long>(10 * kGiB + 543'162'368));
  EXPECT_EQ(OwnBytes(device, getpid()), -1);
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    size_t free, total;
    ASSERT_EQ(CU(cuMemGetInfo_v2, size_t*, size_t*)(&free, &total), CUDA_SUCCESS);
    EXPECT_EQ(free, 150'109'880'320 - 20 * kGiB - Contexts(3));
    EXPECT_EQ(free, ReadMemory(Gpu0()).free);
    CUdeviceptr p;
    EXPECT_EQ(Alloc(&p, 120 * kGiB), CUDA_ERROR_OUT_OF_MEMORY);
  });
}

TEST_F(SoftGpuProcesses, AKilledProcessLeavesNothing) {
  const auto device = Gpu0();
  Child stays(HoldTen);
  ASSERT_TRUE(stays.WaitReport());
  for (int i = 0; i < 5; ++i) {
    Child dies([&](const Child::Step& step) {
      ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
      CUdeviceptr p;
      ASSERT_EQ(Alloc(&p, 30 * kGiB), CUDA_SUCCESS);
      for (int k = 0; k < 100; ++k) ASSERT_EQ(Spin(50'000'000), CUDA_SUCCESS);
      step.Report();
      step.Wait();
    });
    ASSERT_TRUE(dies.WaitReport());
    EXPECT_EQ(ReadMemory(device).used, 40 * kGiB + Contexts(2));
    dies.Kill();
    EXPECT_EQ(dies.Join(), -SIGKILL);
    EXPECT_TRUE(Eventually([&] { return ReadMemory(device).used == 10 * kGiB + Contexts(1); }));
    EXPECT_EQ(OwnBytes(device, dies.pid()), -1);
  }
  EXPECT_EQ(OwnBytes(device, stays.pid()), static_cast<long long>(10 * kGiB + 543'162'368));
}

TEST_F(SoftGpuProcesses, AForkedChildThatOutlivesItHoldsNothing) {
  const auto device = Gpu0();
  int survivor[2];
  ASSERT_EQ(pipe(survivor), 0);
  Child dies([&](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUdeviceptr p;
    ASSERT_EQ(Alloc(&p, 10 * kGiB), CUDA_SUCCESS);
    // Holds every descriptor of its parent, the connections too.
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      close(survivor[1]);
      EXPECT_EQ(Alloc(&p, 1), CUDA_ERROR_NOT_INITIALIZED) << "the driver does not survive a fork";
      EXPECT_EQ(CU(cuInit, unsigned)(0), CUDA_ERROR_NOT_INITIALIZED);
      char byte;
      const ssize_t n = read(survivor[0], &byte, 1);  // until the test closes it
      _exit(n == 0 && !::testing::Test::HasFailure() ? 0 : 1);
    }
    step.Report();
    step.Wait();
  });
  close(survivor[0]);
  ASSERT_TRUE(dies.WaitReport());
  EXPECT_EQ(ReadMemory(device).used, 10 * kGiB + Contexts(1));
  dies.Kill();
  dies.Join();
  EXPECT_TRUE(Eventually([&] { return ReadMemory(device).used == 0; }));
  close(survivor[1]);
}

TEST_F(SoftGpuProcesses, AnEndedContextIsNoLongerListedAnExitingProcessNeither) {
  const auto device = Gpu0();
  Child exits([](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    step.Report();
    step.Wait();
    exit(0);
  });
  ASSERT_TRUE(exits.WaitReport());
  EXPECT_GT(OwnBytes(device, exits.pid()), 0);
  exits.Continue();
  EXPECT_EQ(exits.Join(), 0);
  EXPECT_TRUE(Eventually([&] { return ReadMemory(device).used == 0; }));
}

std::string Uuid(int ordinal) {
  CUuuid uuid = {};
  EXPECT_EQ(CU(cuDeviceGetUuid_v2, CUuuid*, int)(&uuid, ordinal), CUDA_SUCCESS);
  return std::string(uuid.bytes, 16);
}
std::string NvmlUuid(unsigned index) {
  NVML(nvmlInit_v2, )();
  nvml::nvmlDevice_t device;
  EXPECT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2, unsigned, nvml::nvmlDevice_t*)(index, &device), 0);
  char text[96];
  EXPECT_EQ(NVML(nvmlDeviceGetUUID, nvml::nvmlDevice_t, char*, unsigned)(device, text, sizeof(text)), 0);
  return text;
}

TEST_F(SoftGpuProcesses, HaveTheGpusTheyAreToSee) {
  setenv("GPUMUX_SOFTGPU", "3xH200", 1);
  const std::string first = NvmlUuid(0), third = NvmlUuid(2);
  const struct {
    std::string list;
    int devices;
  } cases[] = {{third + "," + first, 2},
               {"2", 1},
               {"0,1,2", 3},
               {"1,7,0", 1},
               {"", 0},
               {"7", 0},
               {"-1,0", 0},
               {"0,0", 0},
               {third.substr(0, 12), 1},
               {"GPU-", 0}};
  for (const auto& c : cases) {
    setenv("CUDA_VISIBLE_DEVICES", c.list.c_str(), 1);
    InChild([&] {
      const CUresult result = CU(cuInit, unsigned)(0);
      EXPECT_EQ(result, c.devices > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE) << c.list;
      int count = 0;
      if (result == CUDA_SUCCESS) {
        EXPECT_EQ(CU(cuDeviceGetCount, int*)(&count), CUDA_SUCCESS);
      }
      EXPECT_EQ(count, c.devices) << c.list;
      if (c.list == third + "," + first) {
        int all = 0;
        // Memory of the first visible device is that of the third GPU.
        ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
        nvml::nvmlDevice_t device;
        NVML(nvmlDeviceGetHandleByUUID, const char*, nvml::nvmlDevice_t*)(third.c_str(), &device);
        EXPECT_EQ(ReadMemory(device).used, Contexts(1));
        NVML(nvmlDeviceGetCount_v2, unsigned*)(reinterpret_cast<unsigned*>(&all));
        EXPECT_EQ(all, 3) << "NVML shows all";
      }
    });
  }
}

TEST_F(SoftGpuProcesses, NoTwoDirectoriesShareAGpu) {
  setenv("GPUMUX_SOFTGPU", "2xH200", 1);
  const std::string a = dir() + "/a", b = dir() + "/b";
  std::vector<std::string> uuids;
  for (const std::string& d : {a, b}) {
    setenv("GPUMUX_SOFTGPU_DIR", d.c_str(), 1);
    int out[2];
    ASSERT_EQ(pipe(out), 0);
    InChild([&] {
      ASSERT_EQ(CU(cuInit, unsigned)(0), CUDA_SUCCESS);
      const std::string both = Uuid(0) + Uuid(1);
      EXPECT_EQ(write(out[1], both.data(), 32), 32);
    });
    char both[32];
    ASSERT_EQ(read(out[0], both, 32), 32);
    uuids.emplace_back(both, 16);
    uuids.emplace_back(both + 16, 16);
    close(out[0]);
    close(out[1]);
  }
  EXPECT_EQ(std::set<std::string>(uuids.begin(), uuids.end()).size(), 4u);
}

TEST_F(SoftGpuProcesses, SayWhatTheyAre) {
  InChild([] {
    ASSERT_EQ(CU(cuInit, unsigned)(0), CUDA_SUCCESS);
    char name[100];
    ASSERT_EQ(CU(cuDeviceGetName, char*, int, int)(name, sizeof(name), 0), CUDA_SUCCESS);
    EXPECT_NE(std::string(name).find("simulated"), std::string::npos);
    int version = 0;
    EXPECT_EQ(CU(cuDriverGetVersion, int*)(&version), CUDA_SUCCESS);
    EXPECT_EQ(version, 13000);
    const auto attribute = CU(cuDeviceGetAttribute, int*, int, int);
    int value = 0;
    const struct {
      int id, value;
    } known[] = {{1, 1024}, {10, 32}, {16, 132}, {39, 2048}, {75, 9}, {76, 0}, {102, 1}, {115, 1}, {133, 0}};
    for (const auto& k : known) {
      EXPECT_EQ(attribute(&value, k.id, 0), CUDA_SUCCESS);
      EXPECT_EQ(value, k.value) << k.id;
    }
    EXPECT_EQ(attribute(&value, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(attribute(&value, 1000, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(attribute(&value, 1, 1), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(NvmlUuid(0).size(), 40u);
    nvml::nvmlUtilization_t rates;
    EXPECT_EQ(
        NVML(nvmlDeviceGetUtilizationRates, nvml::nvmlDevice_t, nvml::nvmlUtilization_t*)(Gpu0(), &rates), 0);
    EXPECT_EQ(rates.gpu, 0u);
    unsigned power;
    EXPECT_EQ(NVML(nvmlDeviceGetPowerUsage, nvml::nvmlDevice_t, unsigned*)(Gpu0(), &power),
              nvml::NVML_ERROR_NOT_SUPPORTED);
  });
}

// --- the server

// Processes whose command line names the server and our directory.
std::vector<pid_t> Servers(const std::string& dir) {
  std::vector<pid_t> pids;
  std::error_code error;  // processes come and go meanwhile
  for (std::filesystem::directory_iterator it("/proc", error), end; it != end && !error;
       it.increment(error)) {
    const auto entry = *it;
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    std::string line(4096, '\0');
    // A process that ends meanwhile is an error of reading, which this takes for the end.
    file.read(line.data(), static_cast<std::streamsize>(line.size()));
    line.resize(static_cast<size_t>(file.gcount()));
    if (line.find("gpumux-softgpud") != std::string::npos && line.find(dir + '\0') != std::string::npos) {
      pids.push_back(std::stoi(name));
    }
  }
  return pids;
}

TEST_F(SoftGpuProcesses, StartOneServerHoweverManyStartAtOnce) {
  setenv("GPUMUX_SESSION", "/nowhere", 1);
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 8; ++i) {
    children.push_back(std::make_unique<Child>([](const Child::Step& step) {
      ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
      step.Report();
      step.Wait();
    }));
  }
  for (auto& child : children) ASSERT_TRUE(child->WaitReport());
  unsetenv("GPUMUX_SESSION");
  const auto servers = Servers(dir());
  ASSERT_EQ(servers.size(), 1u);
  EXPECT_EQ(ReadMemory(Gpu0()).used, Contexts(8)) << "all on one GPU";
  // It is nobody's child, keeps nothing of its starter open and nothing of its
  // environment that belongs to a tenant.
  EXPECT_NE(getsid(servers[0]), getsid(0));
  const std::string proc = "/proc/" + std::to_string(servers[0]);
  for (const auto& fd : std::filesystem::directory_iterator(proc + "/fd")) {
    std::error_code error;
    EXPECT_EQ(std::filesystem::read_symlink(fd, error).string().find("pipe:"), std::string::npos);
  }
  std::ifstream environment(proc + "/environ", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(environment)), {});
  EXPECT_EQ(text.find("GPUMUX_SESSION="), std::string::npos);
  // Another user may connect.
  struct stat st;
  ASSERT_EQ(stat((dir() + "/gpu.sock").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0666u);
  for (auto& child : children) {
    child->Continue();
    EXPECT_EQ(child->Join(), 0);
  }
}

TEST_F(SoftGpuProcesses, MayNameTheDirectoryFromWhereTheyAre) {
  const std::string parent = std::filesystem::path(dir()).parent_path();
  InChild([&] {
    ASSERT_EQ(chdir(parent.c_str()), 0);
    const std::string relative = std::filesystem::path(dir()).filename();
    setenv("GPUMUX_SOFTGPU_DIR", relative.c_str(), 1);
    EXPECT_EQ(CU(cuInit, unsigned)(0), CUDA_SUCCESS);
    setenv("GPUMUX_SOFTGPU_DIR", "/nowhere", 1);
    EXPECT_EQ(InitWithContext(), CUDA_SUCCESS) << "the server of cuInit, whatever the environment says now";
    setenv("GPUMUX_SOFTGPU_DIR", dir().c_str(), 1);
    EXPECT_EQ(ReadMemory(Gpu0()).used, Contexts(1)) << "the same GPU";
  });
}

TEST_F(SoftGpuProcesses, OfTwoUsersShareOneGpu) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  constexpr uid_t kOther = 65534;
  ASSERT_EQ(chmod(dir().c_str(), 0777), 0);
  // Whoever of the two starts the server, the other finds it.
  for (const bool other_starts : {true, false}) {
    const std::string shared = dir() + (other_starts ? "/a" : "/b");
    ASSERT_EQ(mkdir(shared.c_str(), 0777), 0);
    ASSERT_EQ(chmod(shared.c_str(), 0777), 0);
    setenv("GPUMUX_SOFTGPU_DIR", shared.c_str(), 1);
    const auto as_other = [&](const Child::Step& step) {
      ASSERT_EQ(setresuid(kOther, kOther, kOther), 0);
      HoldTen(step);
    };
    auto first =
        std::make_unique<Child>(other_starts ? std::function<void(const Child::Step&)>(as_other) : HoldTen);
    ASSERT_TRUE(first->WaitReport());
    Child second(other_starts ? std::function<void(const Child::Step&)>(HoldTen) : as_other);
    ASSERT_TRUE(second.WaitReport());
    InChild([&] {
      const auto device = Gpu0();
      EXPECT_EQ(ReadMemory(device).used, 20 * kGiB + Contexts(2));
      first->Kill();
      EXPECT_TRUE(Eventually([&] { return ReadMemory(device).used == 10 * kGiB + Contexts(1); }));
      EXPECT_GT(OwnBytes(device, second.pid()), 0);
    });
  }
}

TEST_F(SoftGpuProcesses, TheServerEndsAfterItsLastClientAndComesBack) {
  InChild([] { EXPECT_EQ(InitWithContext(), CUDA_SUCCESS); });
  EXPECT_EQ(Servers(dir()).size(), 1u);
  EXPECT_TRUE(Eventually([&] { return Servers(dir()).empty(); }));
  EXPECT_FALSE(std::filesystem::exists(dir() + "/gpu.sock"));
  InChild([] { EXPECT_EQ(InitWithContext(), CUDA_SUCCESS); });
}

TEST_F(SoftGpuProcesses, AKilledServerIsALostGpuToItsClientsAndIsReplaced) {
  const auto device = Gpu0();
  Child client([](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    ASSERT_EQ(Spin(60'000'000'000), CUDA_SUCCESS);
    step.Report();
    step.Wait();
    EXPECT_NE(Synchronize(), CUDA_SUCCESS) << "does not hang";
    CUdeviceptr p;
    EXPECT_NE(Alloc(&p, 1 << 30), CUDA_SUCCESS);
  });
  ASSERT_TRUE(client.WaitReport());
  const auto servers = Servers(dir());
  ASSERT_EQ(servers.size(), 1u);
  ASSERT_EQ(kill(servers[0], SIGKILL), 0);
  client.Continue();
  EXPECT_EQ(client.Join(), 0);
  EXPECT_TRUE(Eventually([&] { return ReadMemory(device).free == 150'109'880'320u; }))
      << "NVML connects anew";
  InChild([] { EXPECT_EQ(InitWithContext(), CUDA_SUCCESS); });
}

int RawConnection(const std::string& dir) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  strcpy(address.sun_path, (dir + "/gpu.sock").c_str());
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}
// Whether the server hangs up on whoever sends `message` after `hello`.
bool Dropped(const std::string& dir, const std::vector<std::string>& messages) {
  const int fd = RawConnection(dir);
  bool dropped = false;
  for (size_t i = 0; i < messages.size() && !dropped; ++i) {
    dropped = send(fd, messages[i].data(), messages[i].size(), MSG_NOSIGNAL) < 0;
    char reply[65536];
    if (!dropped && (i + 1 == messages.size() || i == 0)) dropped = recv(fd, reply, sizeof(reply), 0) <= 0;
  }
  close(fd);
  return dropped;
}
template <typename T>
std::string Raw(const T& message) {
  return std::string(reinterpret_cast<const char*>(&message), sizeof(message));
}

TEST_F(SoftGpuProcesses, TheServerDropsWhoeverBreaksTheProtocol) {
  using softgpu::Hello;
  using softgpu::Op;
  using softgpu::Request;
  using softgpu::Role;
  const auto device = Gpu0();
  Child bystander(HoldTen);
  ASSERT_TRUE(bystander.WaitReport());
  Hello nvml, cuda, work;
  cuda.role = Role::kCuda;
  work.role = Role::kWork;
  work.client = 1;  // the bystander's
  Hello old = nvml, odd = nvml;
  old.version = 99;
  odd.role = static_cast<Role>(77);
  EXPECT_FALSE(Dropped(dir(), {Raw(nvml), Raw(Request{Op::kMemory, 0, 0})})) << "a good one is served";
  EXPECT_TRUE(Dropped(dir(), {std::string(1, 'x')}));
  EXPECT_TRUE(Dropped(dir(), {std::string(200, 'x')}));
  EXPECT_TRUE(Dropped(dir(), {std::string(100'000, 'x')}));
  EXPECT_TRUE(Dropped(dir(), {Raw(old), Raw(Request{Op::kMemory, 0, 0})})) << "another build";
  EXPECT_TRUE(Dropped(dir(), {Raw(odd)}));
  EXPECT_TRUE(Dropped(dir(), {Raw(work)})) << "another process's client";
  EXPECT_TRUE(Dropped(dir(), {Raw(nvml), Raw(Request{Op::kMemory, 1, 0})})) << "no such GPU";
  EXPECT_TRUE(Dropped(dir(), {Raw(nvml), Raw(Request{Op::kTake, 0, 4096})})) << "NVML holds nothing";
  EXPECT_TRUE(Dropped(dir(), {Raw(cuda), Raw(Request{Op::kTake, 0, ~0ULL})}));
  EXPECT_TRUE(Dropped(dir(), {Raw(cuda), Raw(Request{static_cast<Op>(1234), 0, 0})}));
  EXPECT_TRUE(Dropped(dir(), {Raw(cuda), Raw(softgpu::Launch{})})) << "not on this connection";
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    std::string noise(random() % 120, 0);
    for (char& c : noise) c = static_cast<char>(random());
    const int fd = RawConnection(dir());
    const std::string hello = Raw(random() % 2 ? cuda : nvml);
    EXPECT_EQ(send(fd, hello.data(), hello.size(), MSG_NOSIGNAL), static_cast<ssize_t>(hello.size()));
    if (random() % 2) {
      const uint32_t op = random() % 40;
      memcpy(noise.data(), &op, std::min<size_t>(noise.size(), 4));
    }
    send(fd, noise.data(), noise.size(), MSG_NOSIGNAL);
    close(fd);
  }
  EXPECT_TRUE(Eventually([&] { return ReadMemory(device).used == 10 * kGiB + Contexts(1); }));
  EXPECT_EQ(OwnBytes(device, bystander.pid()), static_cast<long long>(10 * kGiB + 543'162'368));
}

TEST_F(SoftGpuProcesses, AWrongSpecIsAnErrorAndOffIsNoGpu) {
  for (const char* spec : {"H201", "0xH200", "x", "65xH200", "-1xH200", "2xH200x"}) {
    setenv("GPUMUX_SOFTGPU", spec, 1);
    InChild([&] {
      EXPECT_EQ(CU(cuInit, unsigned)(0), CUDA_ERROR_SYSTEM_NOT_READY) << spec;
      EXPECT_NE(NVML(nvmlInit_v2, )(), 0);
    });
  }
  setenv("GPUMUX_SOFTGPU", "off", 1);
  InChild([] {
    EXPECT_EQ(CU(cuInit, unsigned)(0), CUDA_ERROR_NO_DEVICE);
    EXPECT_EQ(NVML(nvmlInit_v2, )(), nvml::NVML_ERROR_DRIVER_NOT_LOADED);
  });
}

}  // namespace
}  // namespace gpumux::test
