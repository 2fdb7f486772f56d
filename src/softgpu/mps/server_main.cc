// SPDX-License-Identifier: Apache-2.0
//
// nvidia-cuda-mps-server: what an MPS server is to the machine: a process with a
// context on each GPU, that is there as long as its clients need it, writes
// server.log, and takes them along when it is killed. Who shares what with whom
// is kept by gpumux-softgpud. Started by the control daemon alone.
#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "softgpu/client/connection.h"
#include "softgpu/driver/visible_devices.h"
#include "softgpu/mps/log.h"
#include "softgpu/mps/protocol.h"
#include "softgpu/mps/settings.h"
#include "softgpu/server/codes.h"

namespace gpumux::softgpu::mps {
namespace {

class MpsServer {
 public:
  int Run();

 private:
  // Contexts on all GPUs that the environment shows; the driver's code.
  int MakeContexts(ServerReady* ready);
  void OnEvent(const MpsEvent& event);
  void SayFault(uint32_t gpu);
  void SayTerms(const ServerOrders& orders, const ServerReady& ready);
  void Say(const std::string& text) { log_.Write("Server", getpid(), text); }
  static std::string Name(uint32_t pid) { return "{PID: " + std::to_string(pid) + ", Context ID: 0}"; }

  Log log_{kServerLog};
  Connection gpu_;
  std::vector<Description> gpus_;
  std::multiset<uint32_t> clients_;
  std::vector<uint32_t> failed_;
};

int MpsServer::MakeContexts(ServerReady* ready) {
  if (!gpu_.Open(Role::kMpsServer) || !gpu_.Describe(&gpus_)) return kMpsConnectionFailed;
  const auto variable = [](const char* name) {
    const char* value = getenv(name);
    return value != nullptr ? std::optional<std::string_view>(value) : std::nullopt;
  };
  std::vector<VisibleGpu> all;
  for (const Description& gpu : gpus_) all.push_back({UuidOf(gpu.uuid).text, gpu.sms});
  for (uint32_t gpu : VisibleDevices(variable("CUDA_VISIBLE_DEVICES"), variable("CUDA_DEVICE_ORDER"), all)) {
    Say("Creating server context on device " + std::to_string(ready->gpus) + " (" + gpus_[gpu].name + ")");
    const auto reply = gpu_.Call(Op::kAddContext, gpu);
    if (!reply) return kMpsConnectionFailed;
    if (reply->answer == Answer::kBusy) return kDeviceUnavailable;
    if (reply->answer != Answer::kOk) return kMpsConnectionFailed;
    ready->gpu[ready->gpus++] = gpu;
  }
  ready->number = gpu_.client();
  return ready->gpus > 0 ? 0 : 100;  // no device
}

void MpsServer::OnEvent(const MpsEvent& event) {
  send(kServerSocket, &event, sizeof(event), MSG_NOSIGNAL | MSG_DONTWAIT);
  const std::string name = Name(event.pid);
  switch (event.kind) {
    case MpsEvent::Kind::kJoined:
      clients_.insert(event.pid);
      Say("Received new client request for " + name);
      Say("Client " + name + " connected");
      Say("Creating worker thread for client " + name);
      break;
    case MpsEvent::Kind::kLeft:
      if (auto client = clients_.find(event.pid); client != clients_.end()) clients_.erase(client);
      Say("Client " + name + " disconnected");
      break;
    case MpsEvent::Kind::kTerminated:
      Say("Client " + name + " terminated");
      break;
    case MpsEvent::Kind::kFault:
      SayFault(event.gpu);
      break;
    case MpsEvent::Kind::kFailed:
      break;
    case MpsEvent::Kind::kRecovered:
      Say("All affected clients have exited, server contexts are created again");
      Say("Server status is ACTIVE");
      break;
  }
}

// As a real one (H200, driver 580): every client is called the trigger, and the one that is
// named first need not be it. So nothing here tells whose fault it was.
void MpsServer::SayFault(uint32_t gpu) {
  const std::set<uint32_t> processes(clients_.begin(), clients_.end());
  if (processes.empty()) return;
  const auto named = [](uint32_t pid) { return "{PID: " + std::to_string(pid) + ", Context ID: 1}"; };
  Say("Client {PID: " + std::to_string(*processes.begin()) + ", Context: 1} encountered a fatal GPU error.");
  Say("Server is handling a fatal GPU error.");
  for (const uint32_t pid : processes)
    Say("Client " + named(pid) + " on device " + std::to_string(gpu) + " to be torn down");
  for (const uint32_t pid : processes) {
    Say("All clients belonging to error trigging process " + std::to_string(pid) + " will be torn down");
    Say("Client " + named(pid) + " on the error-trigging process " + std::to_string(pid) +
        " to be torn down");
  }
  Say("The following devices will be reset:");
  Say(std::to_string(gpu));
  Say("The following client process have a sticky error set:");
  for (const uint32_t pid : processes) Say(std::to_string(pid));
}

void MpsServer::SayTerms(const ServerOrders& orders, const ServerReady& ready) {
  char text[120];
  snprintf(text, sizeof(text), "Active Threads Percentage set to %.1f", orders.percent);
  Say(text);
  std::vector<std::string> uuids;
  for (uint32_t i = 0; i < ready.gpus; ++i) uuids.push_back(UuidOf(gpus_[ready.gpu[i]].uuid).text);
  for (const Limit& limit : ParseLimits(orders.limits).value_or(std::vector<Limit>())) {
    const auto device = FindDevice(limit.device, uuids);
    if (!device) continue;
    snprintf(text, sizeof(text), "Device pinned memory limit for device %zu set to 0x%llx bytes", *device,
             static_cast<unsigned long long>(limit.bytes));
    Say(text);
  }
  Say("Server Priority set to " + std::to_string(orders.below_normal));
}

int MpsServer::Run() {
  ServerOrders orders;
  if (recv(kServerSocket, &orders, sizeof(orders), 0) != sizeof(orders)) return 1;
  orders.limits[sizeof(orders.limits) - 1] = 0;
  log_.Write("Other", getpid(), "Startup");
  log_.Write("Other", getpid(), "Initializing server process");
  ServerReady ready;
  ready.error = MakeContexts(&ready);
  const int watch = ready.error == 0 ? gpu_.OpenWatch() : -1;
  if (ready.error == 0 && watch < 0) ready.error = kMpsConnectionFailed;
  if (ready.error == 0) gpu_.Call(Op::kMpsReady, 0, orders.every_user);
  if (ready.error != 0) {
    Say("Failed to start : error " + std::to_string(ready.error));
  } else {
    Say("CUDA MPS Server for Linux/Unix. Binary version: " + std::to_string(gpus_.front().cuda_version));
    Say("Display Driver version: " + std::string(gpus_.front().driver_version));
    SayTerms(orders, ready);
    Say("Server has started");
  }
  if (send(kServerSocket, &ready, sizeof(ready), MSG_NOSIGNAL) != sizeof(ready) || ready.error != 0) return 1;

  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const int signal = signalfd(-1, &signals, SFD_CLOEXEC);
  for (;;) {
    pollfd fds[] = {{watch, POLLIN, 0}, {signal, POLLIN, 0}, {kServerSocket, POLLIN, 0}};
    if (poll(fds, 3, -1) < 0) continue;
    if (fds[0].revents != 0) {
      MpsEvent event;
      if (recv(watch, &event, sizeof(event), 0) != sizeof(event) || event.op != Op::kMpsEvent ||
          event.gpu >= gpus_.size()) {
        return 1;  // the GPU is gone
      }
      OnEvent(event);
    }
    if (fds[1].revents != 0) break;
    // Nothing comes from the daemon but its end, which is the server's too: its clients lose it.
    if (fds[2].revents != 0) break;
  }
  Say("Exiting");
  return 0;
}

}  // namespace
}  // namespace gpumux::softgpu::mps

int main() {
  using namespace gpumux::softgpu::mps;
  if (fcntl(kServerSocket, F_GETFD) < 0 || fcntl(kServerLog, F_GETFD) < 0) {
    fprintf(stderr, "nvidia-cuda-mps-server (software GPU): is started by nvidia-cuda-mps-control\n");
    return 1;
  }
  fcntl(kServerSocket, F_SETFD, FD_CLOEXEC);
  fcntl(kServerLog, F_SETFD, FD_CLOEXEC);
  return MpsServer().Run();
}
