// SPDX-License-Identifier: Apache-2.0
//
// MIG through NVML: its mode, what fits, what is refused and how, what a reset leaves.
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "child.h"
#include "mig_functions.h"
#include "softgpu/client/connection.h"

namespace gpumux::test {
namespace {

using namespace nvml;

class SoftGpuMig : public SoftGpuTest {
 protected:
  // As the machine's reset or the driver's unloading; the answer, as NVML's code.
  static int Reset(bool unload, uint32_t gpu = 0) {
    softgpu::Connection connection;
    if (!connection.Open(softgpu::Role::kNvml)) return -1;
    const auto reply = connection.Call(softgpu::Op::kMigReset, gpu, unload ? 1 : 0);
    if (!reply) return -1;
    return reply->answer == softgpu::Answer::kOk ? 0 : static_cast<int>(reply->values[0]);
  }
  static nvmlDevice_t WithMig(unsigned index = 0) {
    const auto gpu = GpuHandle(index);
    EXPECT_EQ(SetMig(gpu, true), NVML_SUCCESS);
    return gpu;
  }
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "skipped: MIG is changed by root";
  }
};

// Of this directory's server.
pid_t ServerPid(const std::string& dir) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  snprintf(address.sun_path, sizeof address.sun_path, "%s/gpu.sock", dir.c_str());
  ucred peer = {};
  socklen_t size = sizeof peer;
  const bool known = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  close(fd);
  return known ? peer.pid : 0;
}

// A process with a context on GPU 0 until it is told to end.
std::unique_ptr<Child> Holder() {
  auto child = std::make_unique<Child>([](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), cuda::CUDA_SUCCESS);
    step.Report();
    step.Wait();
  });
  EXPECT_TRUE(child->WaitReport());
  return child;
}

TEST_F(SoftGpuMig, IsOffAtFirstAndEnabledAtOnceOnAnIdleHopper) {
  const auto gpu = GpuHandle(0);
  EXPECT_EQ(Modes(gpu), "0 0");
  nvmlGpuInstanceProfileInfo_t info;
  EXPECT_EQ(NVML(nvmlDeviceGetGpuInstanceProfileInfo, nvmlDevice_t, unsigned, nvmlGpuInstanceProfileInfo_t*)(
                gpu, 0, &info),
            NVML_ERROR_NOT_SUPPORTED);
  nvmlGpuInstance_t instance = nullptr;
  EXPECT_EQ(CreateGi(gpu, k1g, &instance), NVML_ERROR_NOT_SUPPORTED);
  unsigned count = 9;
  EXPECT_EQ(NVML(nvmlDeviceGetMaxMigDeviceCount, nvmlDevice_t, unsigned*)(gpu, &count), NVML_SUCCESS);
  EXPECT_EQ(count, 0u);

  auto holder = Holder();
  EXPECT_EQ(SetMig(gpu, true), NVML_ERROR_IN_USE);
  EXPECT_EQ(Modes(gpu), "0 1");
  holder->Continue();
  EXPECT_EQ(holder->Join(), 0);
  EXPECT_TRUE(Eventually([&] { return SetMig(gpu, true) == NVML_SUCCESS; }));
  EXPECT_EQ(Modes(gpu), "1 1");
  EXPECT_EQ(NVML(nvmlDeviceGetMaxMigDeviceCount, nvmlDevice_t, unsigned*)(gpu, &count), NVML_SUCCESS);
  EXPECT_EQ(count, 7u);
  EXPECT_EQ(CreateGi(gpu, k1g, &instance), NVML_SUCCESS);
  // Off takes instances along.
  EXPECT_EQ(SetMig(gpu, false), NVML_SUCCESS);
  EXPECT_EQ(Modes(gpu), "0 0");
  EXPECT_EQ(DestroyGi(instance), NVML_ERROR_INVALID_ARGUMENT);
  nvmlReturn_t activation;
  EXPECT_EQ(NVML(nvmlDeviceSetMigMode, nvmlDevice_t, unsigned, nvmlReturn_t*)(gpu, 2, &activation),
            NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(SoftGpuMig, WaitsForAResetOnAmpere) {
  setenv("GPUMUX_SOFTGPU", "A100-40", 1);
  const auto gpu = GpuHandle(0);
  EXPECT_EQ(SetMig(gpu, true), NVML_ERROR_RESET_REQUIRED);
  EXPECT_EQ(Modes(gpu), "0 1");
  nvmlGpuInstance_t instance = nullptr;
  EXPECT_EQ(CreateGi(gpu, k1g, &instance), NVML_ERROR_NOT_SUPPORTED) << "pending is not on";
  {
    auto holder = Holder();
    EXPECT_EQ(SetMig(gpu, true), NVML_ERROR_IN_USE);
    EXPECT_EQ(Reset(false), NVML_ERROR_IN_USE);
    EXPECT_EQ(Modes(gpu), "0 1");
  }
  EXPECT_TRUE(Eventually([] { return Reset(false) == 0; }));
  EXPECT_EQ(Modes(gpu), "1 1");
  EXPECT_EQ(CreateGi(gpu, k3g, &instance), NVML_SUCCESS);
  // Kept in the board, but not its instances.
  EXPECT_EQ(Reset(true), 0);
  EXPECT_EQ(Modes(gpu), "1 1");
  nvmlGpuInstanceInfo_t info;
  EXPECT_EQ(NVML(nvmlGpuInstanceGetInfo, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t*)(instance, &info),
            NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(SoftGpuMig, OnHopperTheModeGoesWithTheDriver) {
  const auto gpu = WithMig();
  const std::string uuid = MakeMigDevice(gpu, k1g, k1c);
  EXPECT_EQ(uuid.substr(0, 4), "MIG-");
  nvmlDevice_t device = nullptr;
  ASSERT_EQ(MigByIndex(gpu, 0, &device), NVML_SUCCESS);
  EXPECT_EQ(Reset(false), 0);
  EXPECT_EQ(Modes(gpu), "1 1");
  EXPECT_EQ(UuidText(device), "error 2") << "a handle of an instance that is no more";
  EXPECT_EQ(MigByIndex(gpu, 0, &device), NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(MakeMigDevice(gpu, k1g, k1c), uuid) << "the same GPU and ids: the same device";
  EXPECT_EQ(Reset(true), 0);
  EXPECT_EQ(Modes(gpu), "0 0");
}

// As nvidia-smi prints it for an H200; SMs and MiB, of the table that was read from a real one.
TEST_F(SoftGpuMig, ProfilesInEveryLayout) {
  const auto gpu = WithMig();
  const struct {
    unsigned number, id, slices, most, sms, mib;
    const char* name;
  } expected[] = {
      {0, 19, 1, 7, 16, 16384, "MIG 1g.18gb"},   {1, 14, 2, 3, 32, 33024, "MIG 2g.35gb"},
      {2, 9, 3, 2, 60, 71168, "MIG 3g.71gb"},    {3, 5, 4, 1, 64, 71168, "MIG 4g.71gb"},
      {4, 0, 7, 1, 132, 143104, "MIG 7g.141gb"}, {7, 20, 1, 1, 16, 16384, "MIG 1g.18gb+me"},
      {9, 15, 1, 4, 26, 33024, "MIG 1g.35gb"},
  };
  const auto by_number = NVML(nvmlDeviceGetGpuInstanceProfileInfo, nvmlDevice_t, unsigned, void*);
  const auto versioned = NVML(nvmlDeviceGetGpuInstanceProfileInfoV, nvmlDevice_t, unsigned, void*);
  const auto by_id = NVML(nvmlDeviceGetGpuInstanceProfileInfoByIdV, nvmlDevice_t, unsigned, void*);
  std::set<unsigned> known;
  for (const auto& row : expected) {
    known.insert(row.number);
    nvmlGpuInstanceProfileInfo_t first = {};
    nvmlGpuInstanceProfileInfo_v2_t second = {};
    nvmlGpuInstanceProfileInfo_v3_t third = {};
    second.version = kGpuInstanceProfileV2;
    third.version = kGpuInstanceProfileV3;
    ASSERT_EQ(by_number(gpu, row.number, &first), NVML_SUCCESS) << row.name;
    ASSERT_EQ(versioned(gpu, row.number, &second), NVML_SUCCESS) << row.name;
    ASSERT_EQ(by_id(gpu, row.id, &third), NVML_SUCCESS) << row.name;
    const auto same = [&](const auto& info) {
      EXPECT_EQ(info.id, row.id) << row.name;
      EXPECT_EQ(info.sliceCount, row.slices) << row.name;
      EXPECT_EQ(info.instanceCount, row.most) << row.name;
      EXPECT_EQ(info.multiprocessorCount, row.sms) << row.name;
      EXPECT_EQ(info.memorySizeMB, row.mib) << row.name;
    };
    same(first);
    same(second);
    same(third);
    EXPECT_STREQ(second.name, row.name);
    EXPECT_STREQ(third.name, row.name);
    EXPECT_EQ(third.capabilities, 0u);
  }
  nvmlGpuInstanceProfileInfo_t info;
  for (unsigned number = 0; number < 17; ++number) {
    if (known.contains(number)) continue;
    EXPECT_EQ(by_number(gpu, number, &info), NVML_ERROR_NOT_SUPPORTED) << number;
  }
  EXPECT_EQ(by_number(gpu, 17, &info), NVML_ERROR_INVALID_ARGUMENT);
  nvmlGpuInstanceProfileInfo_v2_t wrong = {};
  wrong.version = 4u << 24 | sizeof(wrong);
  EXPECT_EQ(versioned(gpu, 0, &wrong), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(by_id(gpu, 77, &wrong), NVML_ERROR_INVALID_ARGUMENT);

  const auto placements = NVML(nvmlDeviceGetGpuInstancePossiblePlacements_v2, nvmlDevice_t, unsigned,
                               nvmlGpuInstancePlacement_t*, unsigned*);
  unsigned count = 0;
  ASSERT_EQ(placements(gpu, k3g, nullptr, &count), NVML_SUCCESS);
  ASSERT_EQ(count, 2u);
  nvmlGpuInstancePlacement_t two[2];
  ASSERT_EQ(placements(gpu, k3g, two, &count), NVML_SUCCESS);
  EXPECT_EQ(two[0].start, 0u);
  EXPECT_EQ(two[1].start, 4u);
  EXPECT_EQ(two[1].size, 4u);
}

TEST_F(SoftGpuMig, WhatFitsAndWhatDoesNot) {
  const auto gpu = WithMig();
  nvmlGpuInstance_t three = nullptr, one = nullptr, other = nullptr;
  EXPECT_EQ(Room(gpu, k1g), 7u);
  ASSERT_EQ(CreateGi(gpu, k1g, 0, 1, &one), NVML_SUCCESS);
  EXPECT_EQ(Room(gpu, k1g), 6u);
  EXPECT_EQ(Room(gpu, k7g), 0u);
  EXPECT_EQ(Room(gpu, k3g), 1u);
  EXPECT_EQ(Room(gpu, k4g), 0u) << "it begins at 0 alone, where the small one is";
  EXPECT_EQ(CreateGi(gpu, k4g, &other), NVML_ERROR_INSUFFICIENT_RESOURCES);
  EXPECT_EQ(CreateGi(gpu, k3g, 0, 4, &three), NVML_ERROR_INSUFFICIENT_RESOURCES);
  EXPECT_EQ(CreateGi(gpu, k3g, 2, 4, &three), NVML_ERROR_INVALID_ARGUMENT) << "no placement of it";
  EXPECT_EQ(CreateGi(gpu, k3g, 4, 3, &three), NVML_ERROR_INVALID_ARGUMENT) << "nor is this size";
  EXPECT_EQ(CreateGi(gpu, 77, &three), NVML_ERROR_INVALID_ARGUMENT);
  ASSERT_EQ(CreateGi(gpu, k3g, &three), NVML_SUCCESS);
  // Memory slices are left, compute slices are not: 1 + 3 + 3.
  ASSERT_EQ(CreateGi(gpu, k1g, 1, 1, &other), NVML_SUCCESS);
  ASSERT_EQ(CreateGi(gpu, k2g, 2, 2, &other), NVML_SUCCESS);
  EXPECT_EQ(Room(gpu, k1g), 0u);
  EXPECT_EQ(DestroyGi(one), NVML_SUCCESS);
  EXPECT_EQ(DestroyGi(one), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(Room(gpu, k1g), 1u);
  // The media engines are there once.
  EXPECT_EQ(Room(gpu, k1gMe), 1u);
  nvmlGpuInstanceInfo_t info;
  ASSERT_EQ(NVML(nvmlGpuInstanceGetInfo, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t*)(three, &info),
            NVML_SUCCESS);
  EXPECT_EQ(info.device, gpu);
  EXPECT_EQ(info.profileId, k3g);
  EXPECT_EQ(info.placement.start, 4u);
  EXPECT_EQ(info.placement.size, 4u);
  nvmlGpuInstance_t found = nullptr;
  const auto by_id = NVML(nvmlDeviceGetGpuInstanceById, nvmlDevice_t, unsigned, nvmlGpuInstance_t*);
  EXPECT_EQ(by_id(gpu, info.id, &found), NVML_SUCCESS);
  EXPECT_EQ(found, three);
  EXPECT_EQ(by_id(gpu, 99, &found), NVML_ERROR_NOT_FOUND);
  nvmlGpuInstance_t list[8];
  unsigned count = 8;
  const auto all = NVML(nvmlDeviceGetGpuInstances, nvmlDevice_t, unsigned, nvmlGpuInstance_t*, unsigned*);
  EXPECT_EQ(all(gpu, k3g, list, &count), NVML_SUCCESS);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(list[0], three);
}

TEST_F(SoftGpuMig, AllMediaEnginesAreOneInstances) {
  setenv("GPUMUX_SOFTGPU", "RTX-PRO-6000", 1);
  const auto gpu = WithMig();
  constexpr unsigned kOne = 14, kOneMe = 21, kOneAll = 65, kOneNone = 67;
  nvmlGpuInstance_t all = nullptr, other = nullptr;
  ASSERT_EQ(CreateGi(gpu, kOneAll, &all), NVML_SUCCESS);
  EXPECT_EQ(Room(gpu, kOne), 0u);
  EXPECT_EQ(Room(gpu, kOneMe), 0u);
  EXPECT_EQ(Room(gpu, kOneNone), 3u);
  EXPECT_EQ(CreateGi(gpu, kOneNone, &other), NVML_SUCCESS);
  EXPECT_EQ(DestroyGi(all), NVML_SUCCESS);
  EXPECT_EQ(Room(gpu, kOne), 3u);
}

TEST_F(SoftGpuMig, ComputeInstancesShareAGpuInstance) {
  const auto gpu = WithMig();
  nvmlGpuInstance_t three = nullptr;
  nvmlComputeInstance_t two = nullptr, one = nullptr, none = nullptr;
  ASSERT_EQ(CreateGi(gpu, k3g, &three), NVML_SUCCESS);
  ASSERT_EQ(CreateCi(three, k2c, &two), NVML_SUCCESS);
  ASSERT_EQ(CreateCi(three, k1c, &one), NVML_SUCCESS);
  EXPECT_EQ(CreateCi(three, k1c, &none), NVML_ERROR_INSUFFICIENT_RESOURCES);
  EXPECT_EQ(CreateCi(three, k4c, &none), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(DestroyGi(three), NVML_ERROR_IN_USE);
  const auto info_of = NVML(nvmlComputeInstanceGetInfo_v2, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t*);
  nvmlComputeInstanceInfo_t info;
  ASSERT_EQ(info_of(one, &info), NVML_SUCCESS);
  EXPECT_EQ(info.gpuInstance, three);
  EXPECT_EQ(info.profileId, k1c);
  EXPECT_EQ(info.placement.start, 2u);
  nvmlDevice_t device = nullptr, parent = nullptr;
  ASSERT_EQ(MigByIndex(gpu, 0, &device), NVML_SUCCESS);
  EXPECT_EQ(NameText(device), "NVIDIA H200 MIG 2c.3g.71gb (software GPU, simulated)");
  nvmlDeviceAttributes_t attributes;
  ASSERT_EQ(NVML(nvmlDeviceGetAttributes_v2, nvmlDevice_t, nvmlDeviceAttributes_t*)(device, &attributes),
            NVML_SUCCESS);
  EXPECT_EQ(attributes.multiprocessorCount, 32u);
  EXPECT_EQ(attributes.gpuInstanceSliceCount, 3u);
  EXPECT_EQ(attributes.computeInstanceSliceCount, 2u);
  EXPECT_EQ(attributes.memorySizeMB, 71168u);
  // The list has holes.
  EXPECT_EQ(DestroyCi(two), NVML_SUCCESS);
  EXPECT_EQ(DestroyCi(two), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(MigByIndex(gpu, 0, &device), NVML_ERROR_NOT_FOUND);
  ASSERT_EQ(MigByIndex(gpu, 1, &device), NVML_SUCCESS);
  EXPECT_EQ(MigByIndex(gpu, 7, &device), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(CreateCi(three, k2c, &two), NVML_SUCCESS);
  nvmlDevice_t again = nullptr;
  EXPECT_EQ(MigByIndex(gpu, 0, &again), NVML_SUCCESS) << "the hole is filled first";
  EXPECT_EQ(DestroyCi(two), NVML_SUCCESS);
  EXPECT_EQ(NVML(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, nvmlDevice_t, nvmlDevice_t*)(device, &parent),
            NVML_SUCCESS);
  EXPECT_EQ(parent, gpu);
  unsigned is = 9, id = 99;
  EXPECT_EQ(NVML(nvmlDeviceIsMigDeviceHandle, nvmlDevice_t, unsigned*)(device, &is), NVML_SUCCESS);
  EXPECT_EQ(is, 1u);
  EXPECT_EQ(NVML(nvmlDeviceGetComputeInstanceId, nvmlDevice_t, unsigned*)(device, &id), NVML_SUCCESS);
  EXPECT_EQ(id, info.id);
  EXPECT_EQ(NVML(nvmlDeviceGetComputeInstanceId, nvmlDevice_t, unsigned*)(gpu, &id),
            NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(NVML(nvmlDeviceGetIndex, nvmlDevice_t, unsigned*)(device, &id), NVML_SUCCESS);
  EXPECT_EQ(id, 1u);
  nvmlDevice_t by_uuid = nullptr;
  EXPECT_EQ(NVML(nvmlDeviceGetHandleByUUID, const char*, nvmlDevice_t*)(UuidText(device).c_str(), &by_uuid),
            NVML_SUCCESS);
  EXPECT_EQ(by_uuid, device);
  EXPECT_EQ(UuidText(device).size(), 40u);
}

TEST_F(SoftGpuMig, WhatThePartsAnswerAndTheWholeDoesNot) {
  const auto gpu = WithMig();
  MakeMigDevice(gpu, k1g, k1c);
  nvmlUtilization_t rates;
  unsigned number = 0;
  EXPECT_EQ(NVML(nvmlDeviceGetUtilizationRates, nvmlDevice_t, nvmlUtilization_t*)(gpu, &rates),
            NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(NVML(nvmlDeviceGetNumGpuCores, nvmlDevice_t, unsigned*)(gpu, &number), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(NVML(nvmlDeviceSetComputeMode, nvmlDevice_t, int)(gpu, 3), NVML_ERROR_NOT_SUPPORTED);
  nvmlDevice_t device = nullptr;
  ASSERT_EQ(MigByIndex(gpu, 0, &device), NVML_SUCCESS);
  EXPECT_EQ(NVML(nvmlDeviceGetUtilizationRates, nvmlDevice_t, nvmlUtilization_t*)(device, &rates),
            NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(NVML(nvmlDeviceGetMinorNumber, nvmlDevice_t, unsigned*)(device, &number),
            NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(ReadMemory(device).free, 16384ull << 20);
}

TEST_F(SoftGpuMig, NoRightsWithoutRootOrACapabilityFile) {
  const auto root = WithMig();
  nvmlGpuInstance_t one = nullptr;
  ASSERT_EQ(CreateGi(root, k1g, &one), NVML_SUCCESS);
  std::filesystem::permissions(dir(), std::filesystem::perms::all);
  const auto as_nobody = [&](const std::function<void(nvmlDevice_t)>& body) {
    InChild([&] {
      ASSERT_EQ(setgid(65534), 0);
      ASSERT_EQ(setuid(65534), 0);
      body(GpuHandle(0));
    });
  };
  const auto all = [](nvmlDevice_t gpu) {
    nvmlGpuInstance_t list[8];
    unsigned count = 8;
    return NVML(nvmlDeviceGetGpuInstances, nvmlDevice_t, unsigned, nvmlGpuInstance_t*, unsigned*)(
        gpu, k1g, list, &count);
  };
  // NVML is loaded before the child is another user: from a build that this one may not reach.
  ASSERT_NE(dlopen(SOFTGPU_LIBNVML, RTLD_NOW), nullptr);
  as_nobody([&](nvmlDevice_t gpu) {
    unsigned count = 0;
    nvmlGpuInstance_t made = nullptr;
    EXPECT_EQ(Modes(gpu), "1 1");
    EXPECT_EQ(SetMig(gpu, false), NVML_ERROR_NO_PERMISSION);
    EXPECT_EQ(RoomFor(gpu, k1g, &count), NVML_ERROR_NO_PERMISSION);
    EXPECT_EQ(CreateGi(gpu, k1g, &made), NVML_ERROR_NO_PERMISSION);
    EXPECT_EQ(all(gpu), NVML_ERROR_NO_PERMISSION);
    nvmlMemory_t memory;
    EXPECT_EQ(NVML(nvmlDeviceGetMemoryInfo, nvmlDevice_t, nvmlMemory_t*)(gpu, &memory),
              NVML_ERROR_NO_PERMISSION);
  });
  const std::string caps = dir() + "/dev/nvidia-caps";
  std::filesystem::create_directories(caps);
  std::ofstream(caps + "/nvidia-cap2").put('x');
  as_nobody([&](nvmlDevice_t gpu) {
    nvmlGpuInstance_t made = nullptr;
    EXPECT_EQ(all(gpu), NVML_SUCCESS) << "mig/monitor is enough to look";
    EXPECT_EQ(Room(gpu, k1g), 6u);
    EXPECT_EQ(CreateGi(gpu, k1g, &made), NVML_ERROR_NO_PERMISSION);
  });
  std::ofstream(caps + "/nvidia-cap1").put('x');
  chmod((caps + "/nvidia-cap1").c_str(), 0400);
  as_nobody([&](nvmlDevice_t gpu) {
    nvmlGpuInstance_t made = nullptr;
    EXPECT_EQ(CreateGi(gpu, k1g, &made), NVML_ERROR_NO_PERMISSION) << "a file that it cannot read";
  });
  chmod((caps + "/nvidia-cap1").c_str(), 0444);
  as_nobody([&](nvmlDevice_t gpu) {
    nvmlGpuInstance_t made = nullptr;
    EXPECT_EQ(CreateGi(gpu, k1g, &made), NVML_SUCCESS);
    EXPECT_EQ(DestroyGi(made), NVML_SUCCESS);
    EXPECT_EQ(SetMig(gpu, false), NVML_ERROR_NO_PERMISSION) << "the mode is root's all the same";
  });
}

TEST_F(SoftGpuMig, GpusWithoutIt) {
  const std::string spec = dir() + "/gpus.json";
  std::ofstream(spec)
      << R"({"gpus": [{"model": "L4"}, {"model": "RTX-PRO-5000"}, {"model": "H200", "memory": "100GiB"}]})";
  setenv("GPUMUX_SOFTGPU", spec.c_str(), 1);
  // Of the second nobody knows the placements, of the third the profiles.
  for (unsigned index : {0u, 1u, 2u}) {
    const auto gpu = GpuHandle(index);
    nvmlGpuInstance_t instance = nullptr;
    nvmlDevice_t device = nullptr;
    EXPECT_EQ(Modes(gpu), "error 3") << index;
    EXPECT_EQ(SetMig(gpu, true), NVML_ERROR_NOT_SUPPORTED) << index;
    EXPECT_EQ(CreateGi(gpu, k1g, &instance), NVML_ERROR_NOT_SUPPORTED) << index;
    EXPECT_EQ(MigByIndex(gpu, 0, &device), NVML_ERROR_NOT_FOUND) << index;
  }
}

// The server ends when nobody is connected, and that is no reset.
TEST_F(SoftGpuMig, OutlivesItsServer) {
  const auto before = WithMig();
  const std::string uuid = MakeMigDevice(before, k2g, k2c);
  const pid_t server = ServerPid(dir());
  NVML(nvmlShutdown, )();
  std::ifstream state(dir() + "/mig.state");
  std::string text((std::istreambuf_iterator<char>(state)), {});
  EXPECT_NE(text.find("gpu-instance"), std::string::npos) << text;
  ASSERT_GT(server, 0);
  kill(server, SIGKILL);
  const auto gpu = GpuHandle(0);
  nvmlDevice_t device = nullptr;
  EXPECT_EQ(Modes(gpu), "1 1");
  ASSERT_EQ(MigByIndex(gpu, 0, &device), NVML_SUCCESS);
  EXPECT_EQ(UuidText(device), uuid);
  nvmlDeviceAttributes_t attributes;
  ASSERT_EQ(NVML(nvmlDeviceGetAttributes_v2, nvmlDevice_t, nvmlDeviceAttributes_t*)(device, &attributes),
            NVML_SUCCESS);
  EXPECT_EQ(attributes.multiprocessorCount, 32u);
}

TEST_F(SoftGpuMig, AProgramResets) {
  const auto gpu = WithMig();
  MakeMigDevice(gpu, k1g, k1c);
  const auto run = [](const std::string& what) {
    return WEXITSTATUS(system((std::string(SOFTGPU_RESET) + " " + what + " 2>/dev/null").c_str()));
  };
  {
    auto holder = Holder();
    EXPECT_EQ(run("0"), 1) << "in use";
  }
  nvmlDevice_t device = nullptr;
  EXPECT_EQ(MigByIndex(gpu, 0, &device), NVML_SUCCESS);
  EXPECT_TRUE(Eventually([&] { return run("0") == 0; }));
  EXPECT_EQ(MigByIndex(gpu, 0, &device), NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(Modes(gpu), "1 1");
  EXPECT_EQ(run("driver"), 0);
  EXPECT_EQ(Modes(gpu), "0 0");
  EXPECT_EQ(run("1"), 6);
  EXPECT_EQ(run("0x"), 2);
}

// Whatever is said to the server about MIG, by whom: it lives, and what it then says of MIG is possible.
TEST_F(SoftGpuMig, HostileRequests) {
  WithMig();
  const pid_t server = ServerPid(dir());
  std::mt19937_64 random(20261130);
  const uint64_t numbers[] = {0,
                              1,
                              2,
                              4,
                              5,
                              9,
                              14,
                              19,
                              20,
                              1ULL << 32,
                              softgpu::kFirstPlace,
                              softgpu::kFirstPlace + 1,
                              ~0ULL,
                              1ULL << 63,
                              0xffff'ffff,
                              5ULL << 32 | 1};
  const auto any = [&] {
    const uint64_t pick = random() % (std::size(numbers) + 3);
    return pick < std::size(numbers) ? numbers[pick] : random() >> (random() % 64);
  };
  constexpr auto kFirst = static_cast<uint32_t>(softgpu::Op::kMigState);
  constexpr auto kLast = static_cast<uint32_t>(softgpu::Op::kMigOpen);
  softgpu::Connection connection;
  int answered = 0;
  for (int i = 0; i < 1000; ++i) {
    const softgpu::Role role = i % 3 == 0 ? softgpu::Role::kCuda : softgpu::Role::kNvml;
    ASSERT_TRUE(connection.Usable() || connection.Open(role));
    const softgpu::Request request{.op = static_cast<softgpu::Op>(kFirst + random() % (kLast - kFirst + 1)),
                                   .gpu = static_cast<uint32_t>(random() % 4 == 0 ? any() : 0),
                                   .amount = any(),
                                   .key = any()};
    // An answer of another length than a Reply's ends the connection here, too.
    answered += connection.Call(request, -1, nullptr).has_value() ? 1 : 0;
  }
  EXPECT_GT(answered, 100);
  EXPECT_EQ(ServerPid(dir()), server) << "it was another one in the end";
  connection.Close();
  const auto gpu = GpuHandle(0);
  EXPECT_TRUE(
      Eventually([&] { return SetMig(gpu, false) == NVML_SUCCESS && SetMig(gpu, true) == NVML_SUCCESS; }));
  EXPECT_EQ(Room(gpu, k1g), 7u);
}

}  // namespace
}  // namespace gpumux::test
