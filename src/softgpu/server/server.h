// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/device_memory.h"
#include "sim/gpu_model.h"
#include "sim/gpu_spec_parser.h"
#include "softgpu/protocol.h"
#include "softgpu/server/mig.h"
#include "softgpu/server/mps.h"
#include "softgpu/server/shares.h"

namespace gpumux::softgpu {

// One thread that owns the state of all GPUs of a directory: who holds how much
// memory, and the schedule. Every message is checked; a client that sends
// anything else than the protocol allows loses its connection and with it all
// that it held.
class Server {
 public:
  // `listener` is a listening SOCK_SEQPACKET socket, `identity` names the directory `dir`.
  Server(int listener, const sim::Machine& machine, uint64_t identity, std::string dir);
  ~Server();

  // Until nobody has been connected for `idle`.
  void Run(std::chrono::milliseconds idle);

 private:
  // What programs run on: a GPU, or a compute instance of one, which shares its memory with the others
  // of its GPU instance.
  struct Gpu {
    explicit Gpu(const sim::GpuSpec& of) : Gpu(of, std::make_shared<sim::DeviceMemory>(of)) {}
    Gpu(const sim::GpuSpec& of, std::shared_ptr<sim::DeviceMemory> shared)
        : spec(of), pool(std::move(shared)), memory(*pool), model(of) {}
    sim::GpuSpec spec;
    std::shared_ptr<sim::DeviceMemory> pool;
    sim::DeviceMemory& memory;
    sim::GpuModel model;
    Description description;
    uint64_t compute_mode = 0;  // NVML's number
    // Of a GPU.
    uint64_t faults = 0;  // kernels that went wrong on it or its instances
    MigGpu mig;
    std::string model_key;
    // Of a compute instance: clients that may have contexts there.
    std::set<uint64_t> openers;
  };
  enum class Kind { kListener, kTimer, kPeer, kProcess, kExport, kDevice };
  // What an epoll token stands for. Tokens are never used twice, so an event
  // for something closed a moment ago finds nothing.
  struct Source {
    Kind kind;
    int fd;
    Role role = Role::kNvml;
    bool greeted = false;
    pid_t pid = 0;
    uid_t uid = 0;
    uint64_t client = 0;
    uint64_t inode = 0;  // kExport
  };
  // A process that uses CUDA. Its number is also its name in the models.
  struct Client {
    pid_t pid = 0;
    uint64_t control = 0;  // tokens; 0: none
    uint64_t work = 0;
    uint64_t process = 0;
    std::vector<uint64_t> devices;  // our ends of what stands for its /dev/nvidia*
    uid_t uid = 0;
    bool mps_server = false;
    int failure = 0;      // the driver's code, once its contexts have failed
    bool closed = false;  // nobody holds one of its devices any more
    bool ended = false;   // it has, but others hold its devices
    uint64_t in_flight = 0;
    std::deque<Completion> unsent;
    bool waits_for_room = false;  // its socket is full
  };

  uint64_t Add(Source source, uint32_t events);
  uint64_t Add(Source source);
  void Remove(uint64_t token);
  void Accept();
  void OnPeer(uint64_t token);
  // Each is false if the peer has to go.
  bool OnHello(uint64_t token, Source& source, const void* data, size_t size);
  bool OnControl(Source& source, const void* data, size_t size, int descriptor);
  bool OnShare(Source& source, const Request& request, int descriptor);
  bool OnWork(Source& source, const void* data, size_t size);
  bool SendProcesses(const Source& source, uint32_t gpu);
  Reply Change(uint64_t client, const Request& request);
  Reply AddContext(uint64_t client, Gpu& gpu);
  int OpenDevice(uint64_t client, uint32_t gpu);

  // By bus, or a compute instance's place; null: there is none (any more).
  Gpu* FindGpu(uint32_t number);
  // Every GPU, and every compute instance.
  template <typename Do>
  void ForEach(Do act) {
    for (auto& gpu : gpus_) act(*gpu);
    for (auto& [place, gpu] : instances_) act(*gpu);
  }

  // MIG (server_mig.cc).
  void StartMig(const sim::Machine& machine);
  bool OnMig(Source& source, const Request& request, int descriptor);
  Reply ChangeMig(const Source& source, const Request& request, int descriptor);
  Reply OpenInstance(uint64_t client, const Request& request);
  uint32_t AsSeenBy(uint64_t client, uint32_t gpu);
  bool SendMigState(const Source& source, const Gpu& gpu);
  uint64_t MigRights(const Source& source, int descriptor) const;
  nvml::nvmlReturn_t DestroyInstance(Gpu& gpu, const Request& request);
  nvml::nvmlReturn_t ResetGpus(const Source& source, const Request& request);
  bool InUse(const Gpu& gpu) const;
  bool InUse(uint32_t place) const;
  void AddInstancePlaces(uint32_t gpu);
  void AddPlace(uint32_t gpu, const MigGpu::Instance& instance, const MigGpu::Compute& compute);
  // Those that no GPU has any more.
  void DropPlaces();
  void SaveMig();
  uint64_t UsedBytes(const Gpu& gpu) const;
  void ListProcesses(Gpu& on, ProcessList* list);

  // MPS (server_mps.cc).
  bool OnMps(const Source& source, const Request& request);
  Reply JoinMps(const Source& source, const Request& request);
  Answer SetPortion(uint64_t client, const Request& request);
  bool SendMpsClients(const Source& source, uint64_t server);
  Answer Terminate(const Source& source, const Request& request);
  void OnFault(uint64_t client, uint32_t gpu);
  void Spread(const std::vector<uint64_t>& failed, int code);
  void LeaveMps(uint64_t client);
  void EndMpsServer(uint64_t server);
  void Tell(uint64_t server, const MpsEvent& event);
  bool HasWork(uint64_t client) const;
  uint64_t GpusOf(uint64_t client) const;

  void DropPeer(uint64_t token);
  // The process has ended.
  void DropClient(uint64_t client);
  void ReadLaunches(const Client& client);
  // Nothing holds what it held any more.
  void Forget(uint64_t client);
  void RunModels();
  void Flush(Client& client);
  void SetTimer();

  int epoll_;
  int timer_;
  uint64_t identity_;
  std::string dir_;
  uint32_t mps_clients_;  // a GPU
  uint64_t next_token_ = 1;
  uint64_t next_client_ = 1;
  std::map<uint64_t, Source> sources_;
  std::map<uint64_t, Client> clients_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::map<uint32_t, std::unique_ptr<Gpu>> instances_;            // compute instances, by place
  std::map<uint32_t, std::shared_ptr<sim::DeviceMemory>> pools_;  // of GPU instances, by number
  uint32_t next_place_ = kFirstPlace;
  std::string saved_mig_;  // as the file has it
  MpsServers mps_;
  Shares shares_{[this](uint32_t gpu) -> sim::DeviceMemory& { return FindGpu(gpu)->memory; }};
  size_t peers_ = 0;
  std::chrono::nanoseconds armed_{0};
};

}  // namespace gpumux::softgpu
