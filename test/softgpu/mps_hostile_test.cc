// SPDX-License-Identifier: Apache-2.0
//
// Whatever is said to the control daemon of MPS, or about MPS to the server of
// the software GPU, clients that are there go on.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "mps_world.h"
#include "softgpu/mps/protocol.h"
#include "softgpu/protocol.h"

namespace gpumux::test {
namespace {

using namespace cuda;
using softgpu::Op;
using softgpu::Request;
using softgpu::Role;
using softgpu::mps::ControlOp;
using softgpu::mps::ControlRequest;

class SoftGpuMpsHostile : public MpsTest {};

int Connect(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << path;
  return fd;
}
template <typename T>
std::string Raw(const T& message) {
  return std::string(reinterpret_cast<const char*>(&message), sizeof(message));
}
void Send(int fd, const std::string& data) {
  send(fd, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}
// Whether the other side hangs up after `messages`.
bool Dropped(const std::string& path, const std::vector<std::string>& messages) {
  const int fd = Connect(path);
  for (const std::string& message : messages) Send(fd, message);
  shutdown(fd, SHUT_WR);
  char buffer[65536];
  ssize_t n = 0;
  size_t answers = 0;
  while ((n = recv(fd, buffer, sizeof(buffer), 0)) > 0) ++answers;
  close(fd);
  return answers < messages.size();
}

void Bystander(const Child::Step& step) {
  ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
  step.Report();
  step.Wait();
  ASSERT_EQ(Spin(1000), CUDA_SUCCESS);
  EXPECT_EQ(Synchronize(), CUDA_SUCCESS);
}

TEST_F(SoftGpuMpsHostile, TheDaemonDropsWhoeverBreaksTheProtocol) {
  StartDaemon();
  Child bystander(Bystander);
  ASSERT_TRUE(bystander.WaitReport());
  const std::string path = pipes() + "/control";
  ControlRequest command, other, odd;
  command.op = ControlOp::kCommand;
  other.version = 99;
  odd.op = static_cast<ControlOp>(7);
  EXPECT_FALSE(Dropped(path, {Raw(command) + "get_server_list"})) << "a good one is served";
  EXPECT_TRUE(Dropped(path, {"x"}));
  EXPECT_TRUE(Dropped(path, {Raw(other)}));
  EXPECT_TRUE(Dropped(path, {Raw(odd)}));
  EXPECT_TRUE(Dropped(path, {Raw(command) + std::string(100'000, 'x')}));
  EXPECT_TRUE(Dropped(path, {Raw(ControlRequest{}), Raw(ControlRequest{})})) << "one offer a program";
  std::mt19937 random(1);
  const std::string words[] = {"get_client_list",
                               "terminate_client",
                               "ps",
                               "-p",
                               "get_default_device_pinned_mem_limit",
                               "set_default_device_pinned_mem_limit",
                               "0",
                               "99999999999999999999",
                               "-1",
                               "GPU-",
                               "5G",
                               "set_active_thread_percentage",
                               "nan",
                               "device_query",
                               "--csv",
                               "start_server",
                               "-uid",
                               "get_server_status",
                               "get_device_client_list",
                               "lspart",
                               "sm_partition"};
  for (int i = 0; i < 300; ++i) {
    std::string line;
    for (size_t n = random() % 5; n > 0; --n) line += words[random() % std::size(words)] + " ";
    if (random() % 4 == 0) line += static_cast<char>(random());
    const int fd = Connect(path);
    Send(fd, random() % 3 == 0 ? line : Raw(command) + line);
    close(fd);
  }
  EXPECT_EQ(Command("get_client_list " + std::to_string(ServerPid())),
            std::to_string(bystander.pid()) + "\n");
  bystander.Continue();
  EXPECT_EQ(bystander.Join(), 0);
}

TEST_F(SoftGpuMpsHostile, TheServerOfTheGpuBelievesNobody) {
  StartDaemon();
  Child bystander(Bystander);
  ASSERT_TRUE(bystander.WaitReport());
  const std::string path = dir() + "/gpu.sock";
  softgpu::Hello cuda, nvml, watch, server;
  cuda.role = Role::kCuda;
  server.role = Role::kMpsServer;
  watch.role = Role::kMpsWatch;
  const auto op = [](Op what, uint64_t amount = 0, uint64_t key = 0) {
    return Raw(Request{what, 0, amount, key});
  };
  for (uint64_t client = 0; client < 8; ++client) {
    watch.client = client;
    EXPECT_TRUE(Dropped(path, {Raw(watch)})) << "another process's server";
  }
  EXPECT_TRUE(Dropped(path, {Raw(nvml), op(Op::kMpsReady)}));
  EXPECT_TRUE(Dropped(path, {Raw(cuda), op(Op::kMpsReady)}));
  EXPECT_TRUE(Dropped(path, {Raw(nvml), op(Op::kMpsJoin, 0, 1)}));
  EXPECT_TRUE(Dropped(path, {Raw(nvml), op(Op::kReserveManaged, 1)}));
  EXPECT_TRUE(Dropped(path, {Raw(nvml), op(Op::kOpenDevice)}));
  EXPECT_FALSE(
      Dropped(path, {Raw(cuda), op(Op::kMpsJoin, 0, 12345), op(Op::kMpsPortion, 1, 1), op(Op::kOpenDevice)}));
  EXPECT_FALSE(Dropped(path, {Raw(server), op(Op::kMpsState, 0, 12345)}));
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    const int fd = Connect(path);
    Send(fd, Raw(random() % 3 == 0 ? server : random() % 2 == 0 ? cuda : nvml));
    for (int k = 0; k < 3; ++k) {
      // From kOpenDevice to kMpsTerminate, of this directory's first numbers.
      const auto what = static_cast<uint32_t>(Op::kOpenDevice) + random() % 12;
      Send(fd, Raw(Request{static_cast<Op>(what), static_cast<uint32_t>(random() % 2), random() % 2,
                           random() % 8}));
    }
    close(fd);
  }
  // Whoever is root may end a client; the bystander's pid was not among them.
  EXPECT_EQ(ServerState(), "ACTIVE\n");
  EXPECT_TRUE(Eventually([&] {
    return Command("get_client_list " + std::to_string(ServerPid())) ==
           std::to_string(bystander.pid()) + "\n";
  }));
  bystander.Continue();
  EXPECT_EQ(bystander.Join(), 0);
}

}  // namespace
}  // namespace gpumux::test
