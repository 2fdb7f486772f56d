// SPDX-License-Identifier: Apache-2.0
//
// Faults and deaths under MPS: who falls with whom, as measured on an H200 with
// driver 580.159.04; what a test says is guessed nobody has tried.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "mps_world.h"

namespace gpumux::test {
namespace {

using namespace cuda;

class SoftGpuMpsFaults : public MpsTest {};

constexpr int kRpcFailure = 806, kServerNotReady = 807, kTerminated = 810;

// A client that does kernels until it is told to stop, and then says with which
// code they came to an end.
void Neighbour(const Child::Step& step, int expected) {
  ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
  CUdeviceptr p;
  ASSERT_EQ(Alloc(&p, 1 << 20), CUDA_SUCCESS);
  ASSERT_EQ(Spin(100'000), CUDA_SUCCESS);
  ASSERT_EQ(Synchronize(), CUDA_SUCCESS);
  step.Report();
  step.Wait();
  const auto once = [] {
    const CUresult launched = Spin(100'000);
    return static_cast<int>(launched != CUDA_SUCCESS ? launched : Synchronize());
  };
  if (expected == 0) {
    for (int i = 0; i < 20; ++i) EXPECT_EQ(once(), 0);
    EXPECT_EQ(Free(p), CUDA_SUCCESS);
    return;
  }
  EXPECT_TRUE(Eventually([&] { return once() == expected; })) << "last: " << once();
  EXPECT_EQ(static_cast<int>(Alloc(&p, 1)), expected) << "for good";
}

// A client with two seconds of kernels on the GPU.
void Busy(const Child::Step& step) {
  ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
  CUdeviceptr p;
  ASSERT_EQ(Alloc(&p, 1 << 30), CUDA_SUCCESS);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(Spin(100'000'000), CUDA_SUCCESS);
  step.Report();
}
void Wait(const Child::Step& step) {
  Busy(step);
  step.Wait();
}

std::unique_ptr<Child> StartNeighbour(int expected) {
  auto child = std::make_unique<Child>([=](const Child::Step& step) { Neighbour(step, expected); });
  EXPECT_TRUE(child->WaitReport());
  return child;
}
void Finish(Child& child) {
  child.Continue();
  EXPECT_EQ(child.Join(), 0);
}

TEST_F(SoftGpuMpsFaults, AnIllegalAddressTakesTheServersClientsAlong) {
  StartDaemon();
  auto neighbour = StartNeighbour(700);
  setenv("CUDA_MPS_PIPE_DIRECTORY", "/nowhere", 1);
  auto outside = StartNeighbour(0);
  setenv("CUDA_MPS_PIPE_DIRECTORY", pipes().c_str(), 1);
  EXPECT_EQ(ServerState(), "ACTIVE\n");
  Child culprit([](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    ASSERT_EQ(Launch(GetFunction("fault"), 1, 1, nullptr, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(Synchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    step.Report();
    step.Wait();
  });
  ASSERT_TRUE(culprit.WaitReport());
  ASSERT_TRUE(Eventually([&] { return ServerState() == "FAULT\n"; }));
  InChild([] { EXPECT_EQ(static_cast<int>(InitWithContext()), kServerNotReady); });
  // The log calls every client the trigger.
  for (const pid_t pid : {culprit.pid(), neighbour->pid()}) {
    EXPECT_TRUE(Eventually([&] {
      return ServerLog().find("error trigging process " + std::to_string(pid) + " will be torn down") !=
             std::string::npos;
    })) << ServerLog();
  }
  EXPECT_NE(ServerLog().find("encountered a fatal GPU error."), std::string::npos);
  Finish(*outside);
  Finish(culprit);
  EXPECT_EQ(ServerState(), "FAULT\n") << "one of the fallen is still there";
  Finish(*neighbour);
  EXPECT_TRUE(Eventually([&] { return ServerState() == "ACTIVE\n"; }));
  InChild([] { EXPECT_EQ(InitWithContext(), CUDA_SUCCESS); });
}

struct Ending {
  const char* name;
  int signal;  // 0: by itself
};

TEST_F(SoftGpuMpsFaults, ADeathWithKernelsOnTheGpuTakesTheNeighboursAlong) {
  StartDaemon();
  for (const Ending& ending : {Ending{"killed", SIGKILL}, Ending{"terminated", SIGTERM},
                               Ending{"crashed", SIGSEGV}, Ending{"_exit", 0}}) {
    auto neighbour = StartNeighbour(700);
    Child dies([&](const Child::Step& step) {
      Busy(step);
      if (ending.signal == 0) _exit(0);
      step.Wait();
    });
    ASSERT_TRUE(dies.WaitReport());
    if (ending.signal != 0) kill(dies.pid(), ending.signal);
    dies.Join();
    Finish(*neighbour);
    EXPECT_TRUE(Eventually([&] { return ServerState() == "ACTIVE\n"; })) << ending.name;
  }
}

TEST_F(SoftGpuMpsFaults, ADeathBetweenKernelsHurtsNobody) {
  StartDaemon();
  auto neighbour = StartNeighbour(0);
  Child dies([](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    ASSERT_EQ(Spin(100'000), CUDA_SUCCESS);
    ASSERT_EQ(Synchronize(), CUDA_SUCCESS);
    step.Report();
    step.Wait();
  });
  ASSERT_TRUE(dies.WaitReport());
  dies.Kill();
  dies.Join();
  Finish(*neighbour);
  EXPECT_EQ(ServerState(), "ACTIVE\n");
}

TEST_F(SoftGpuMpsFaults, DuplicatesOfItsDescriptorsSaveTheNeighbours) {
  StartDaemon();
  const auto device = Gpu0();
  auto neighbour = StartNeighbour(0);
  const auto before = ReadMemory(device).used;
  Child dies([](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    CUdeviceptr p;
    ASSERT_EQ(Alloc(&p, 1 << 30), CUDA_SUCCESS);
    for (int i = 0; i < 10; ++i) ASSERT_EQ(Spin(20'000'000), CUDA_SUCCESS);
    step.Report();
    step.Wait();
  });
  ASSERT_TRUE(dies.WaitReport());
  const auto utilisation = [&] {
    nvml::nvmlUtilization_t rates = {};
    NVML(nvmlDeviceGetUtilizationRates, nvml::nvmlDevice_t, nvml::nvmlUtilization_t*)(device, &rates);
    return rates.gpu;
  };
  ASSERT_TRUE(Eventually([&] { return utilisation() > 0; }));
  HeldDevices held(dies.pid());
  EXPECT_EQ(held.size(), 2u) << "nvidiactl and nvidia0";
  dies.Kill();
  dies.Join();
  const auto used = ReadMemory(device).used;
  EXPECT_GT(used, before + (1 << 30)) << "its memory is held as well";
  EXPECT_EQ(Command("get_client_list " + std::to_string(ServerPid())),
            std::to_string(neighbour->pid()) + "\n");
  // Until its kernels have run: then nobody uses the GPU.
  EXPECT_TRUE(Eventually([&] { return utilisation() == 0; }));
  EXPECT_EQ(ReadMemory(device).used, used);
  held.Close();
  EXPECT_TRUE(Eventually([&] { return ReadMemory(device).used == before; })) << "and comes back";
  Finish(*neighbour);
  EXPECT_EQ(ServerState(), "ACTIVE\n");
}

TEST_F(SoftGpuMpsFaults, DuplicatesThatAreClosedTooEarlyDoNot) {  // guessed
  StartDaemon();
  auto neighbour = StartNeighbour(700);
  Child dies(Wait);
  ASSERT_TRUE(dies.WaitReport());
  HeldDevices held(dies.pid());
  dies.Kill();
  dies.Join();
  EXPECT_EQ(ServerState(), "ACTIVE\n");
  held.Close();
  Finish(*neighbour);
}

TEST_F(SoftGpuMpsFaults, OneDescriptorThatNobodyHoldsIsOneTooFew) {  // guessed
  setenv("GPUMUX_SOFTGPU", "2xH200", 1);
  StartDaemon();
  auto neighbour = StartNeighbour(700);
  Child dies([](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    step.Report();
    step.Wait();
    // A second GPU opens another descriptor.
    CUcontext second;
    ASSERT_EQ(CU(cuCtxCreate_v2, CUcontext*, unsigned, int)(&second, 0, 1), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxPopCurrent_v2, CUcontext*)(&second), CUDA_SUCCESS);
    for (int i = 0; i < 20; ++i) ASSERT_EQ(Spin(100'000'000), CUDA_SUCCESS);
    step.Report();
    step.Wait();
  });
  ASSERT_TRUE(dies.WaitReport());
  HeldDevices early(dies.pid());
  EXPECT_EQ(early.size(), 2u);
  dies.Continue();
  ASSERT_TRUE(dies.WaitReport());
  EXPECT_EQ(HeldDevices(dies.pid()).size(), 3u);
  dies.Kill();
  dies.Join();
  Finish(*neighbour);
}

TEST_F(SoftGpuMpsFaults, DevicesAreFoundByTheirLinks) {
  Child outside([](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    step.Report();
    step.Wait();
  });
  ASSERT_TRUE(outside.WaitReport());
  HeldDevices held(outside.pid());
  ASSERT_EQ(held.size(), 2u) << "without MPS too";
  for (const std::string& link : held.links()) {
    EXPECT_TRUE(link == dir() + "/dev/nvidiactl (deleted)" || link == dir() + "/dev/nvidia0 (deleted)")
        << link;
  }
  const auto device = Gpu0();
  outside.Kill();
  outside.Join();
  EXPECT_TRUE(Eventually([&] { return ReadMemory(device).used == 0; })) << "without MPS they hold nothing";
}

TEST_F(SoftGpuMpsFaults, ATerminatedClientFallsAlone) {
  StartDaemon();
  const auto device = Gpu0();
  auto neighbour = StartNeighbour(0);
  const auto before = ReadMemory(device).used;
  Child victim([](const Child::Step& step) {
    Busy(step);
    EXPECT_EQ(static_cast<int>(Synchronize()), kTerminated);
    CUdeviceptr p;
    EXPECT_EQ(static_cast<int>(Alloc(&p, 1)), kTerminated) << "for good";
    CUcontext context;
    EXPECT_EQ(static_cast<int>(CU(cuCtxCreate_v2, CUcontext*, unsigned, int)(&context, 0, 0)), kTerminated);
    step.Report();
    step.Wait();
  });
  ASSERT_TRUE(victim.WaitReport());
  const std::string server = std::to_string(ServerPid());
  EXPECT_EQ(Command("terminate_client " + server + " " + std::to_string(victim.pid())), "0\n");
  ASSERT_TRUE(victim.WaitReport());
  EXPECT_EQ(ReadMemory(device).used, before) << "guessed: at once";
  EXPECT_EQ(Command("get_client_list " + server), std::to_string(neighbour->pid()) + "\n");
  EXPECT_EQ(ServerState(), "ACTIVE\n");
  Finish(victim);  // with what it expected
  Finish(*neighbour);
  EXPECT_NE(Command("terminate_client " + server + " 1"), "") << "no client of this server";
}

TEST_F(SoftGpuMpsFaults, AServerThatIsKilledTakesItsClientsAlong) {
  StartDaemon();
  auto client = StartNeighbour(kRpcFailure);
  const pid_t server = ServerPid();
  kill(server, SIGKILL);
  Finish(*client);
  EXPECT_TRUE(Eventually([&] { return ServerPid() != server; }));
  InChild([] { EXPECT_EQ(InitWithContext(), CUDA_SUCCESS) << "the daemon starts another"; });
  EXPECT_NE(ServerPid(), server);
  EXPECT_GT(ServerPid(), 0);
}

TEST_F(SoftGpuMpsFaults, TheDaemonsDeathTakesServerAndClientsAlongAndNewcomersRunOutside) {
  StartDaemon();
  auto client = StartNeighbour(kRpcFailure);
  const pid_t server = ServerPid(), daemon = DaemonPid();
  kill(daemon, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return !IsAlive(daemon); }));
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    EXPECT_EQ(MpsAttribute(), 0);
  });
  EXPECT_TRUE(Eventually([&] { return !IsAlive(server); })) << "with a client that is still there";
  Finish(*client);
  StartDaemon();
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    EXPECT_EQ(MpsAttribute(), 1) << "a new daemon takes the directory over";
  });
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST_F(SoftGpuMpsFaults, AHungDaemonKeepsNewcomersWaitingUntilItGoesOn) {
  const std::string script = dir() + "/faults";
  setenv("GPUMUX_SOFTGPU_FAULTS", ("@" + script).c_str(), 1);
  StartDaemon();
  unsetenv("GPUMUX_SOFTGPU_FAULTS");
  auto before = StartNeighbour(0);
  std::ofstream(script) << "mps hangs\n";
  const auto connections = [&] { return Count(ControlLog(), "Accepting connection"); };
  const size_t seen = connections();
  Child late([](const Child::Step&) {
    EXPECT_EQ(InitWithContext(), CUDA_SUCCESS);
    EXPECT_EQ(MpsAttribute(), 1);
  });
  Child command([](const Child::Step&) { EXPECT_EQ(Command("get_default_client_priority"), "0\n"); });
  ASSERT_TRUE(Eventually([&] { return connections() > seen; }));
  Finish(*before);
  for (const Child* waits : {&late, &command}) EXPECT_TRUE(IsAlive(waits->pid()));
  const std::string asks = "NEW CLIENT " + std::to_string(late.pid());
  EXPECT_EQ(ControlLog().find(asks), std::string::npos) << "nobody has listened to it";
  unlink(script.c_str());
  EXPECT_EQ(late.Join(), 0);
  EXPECT_EQ(command.Join(), 0);
  EXPECT_NE(ControlLog().find(asks), std::string::npos);
}

}  // namespace
}  // namespace gpumux::test
