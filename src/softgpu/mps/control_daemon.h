// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "softgpu/client/connection.h"
#include "softgpu/mps/log.h"
#include "softgpu/mps/protocol.h"
#include "softgpu/mps/settings.h"

namespace gpumux::softgpu::mps {

// The control daemon: one thread that accepts programs and commands, starts
// servers, and gives each program one. Who is a client it asks of the software
// GPU each time; it keeps what commands have set.
//
// One server at a time, which is of one user; a program of another waits until
// it has no clients and has ended, and so does everyone who comes after it. In
// multi-user mode the server is root's and takes all.
class ControlDaemon {
 public:
  struct Options {
    std::string pipes, logs;
    bool every_user = false;
  };
  explicit ControlDaemon(Options options) : options_(std::move(options)) {}
  ~ControlDaemon();

  // Makes files and sockets. False: what it printed says why.
  bool Open();
  // Until `quit` or SIGTERM; the exit status.
  int Run();

 private:
  using Clock = std::chrono::steady_clock;

  // What clients get. A server has its own, made of the daemon's when it starts.
  struct Settings {
    double percent = 100;
    bool below_normal = false;
    std::vector<Limit> limits;  // the last one for a device counts
  };
  struct Server {
    pid_t pid = 0;
    int process = -1;  // pidfd
    int socket = -1;
    uid_t uid = 0;
    bool ready = false;
    bool stopping = false;  // ends when it has no clients
    bool told_to_end = false;
    uint64_t number = 0;
    std::vector<uint32_t> gpus;
    Settings settings;
  };
  // Somebody on the control socket.
  struct Peer {
    int fd = -1;
    pid_t pid = 0;
    uid_t uid = 0;
    gid_t gid = 0;
    pid_t offered = 0;               // the server that it was given, and is about to join
    bool pending = false;            // a program that waits for a server
    std::optional<pid_t> waits_for;  // a command that waits for a server's end; 0: for all
    Clock::time_point deadline = Clock::time_point::max();  // then servers are ended with their clients
    bool gone = false;
  };

  void Accept();
  void OnPeer(Peer& peer);
  void OnServer(Server& server);
  void Hang();
  // Gives pending programs what there is, ends and starts servers.
  void Reconsider();
  void Answer(Peer& peer, const Offer& offer);
  Offer MakeOffer(const Server& server);
  static ServerOrders MakeOrders(const Settings& settings, bool every_user);
  bool StartServer(uid_t uid, gid_t gid);
  void Reap(Server& server);
  bool HasClients(const Server& server);
  void EndServer(Server& server, int signal);
  void Fail(int code);

  // Commands (control_commands.cc). What they print; nothing: the answer comes later.
  std::optional<std::string> Execute(Peer& peer, const std::string& line);
  std::optional<std::string> Shutdown(Peer& peer, const std::vector<std::string>& words);
  std::optional<std::string> Quit(Peer& peer, const std::vector<std::string>& words);
  std::string StartServerCommand(const std::vector<std::string>& words);
  std::string Status(const std::vector<std::string>& words);
  std::string ClientList(const std::vector<std::string>& words);
  std::string DeviceClientList(const std::vector<std::string>& words);
  std::string ListProcesses(const std::vector<std::string>& words);
  std::string DeviceQuery(const std::vector<std::string>& words);
  std::string Terminate(const std::vector<std::string>& words);
  std::string Percentage(const std::vector<std::string>& words);
  std::string MemoryLimit(const std::vector<std::string>& words);
  std::string Priority(const std::vector<std::string>& words);
  void Reply(Peer& peer, const std::string& text);

  Server* FindServer(std::string_view pid);
  std::vector<MpsClientEntry> Clients(const Server& server);
  std::string UuidOfGpu(uint32_t gpu) const { return UuidOf(gpus_[gpu].uuid).text; }
  bool MayCommand(const Peer& peer, const std::string& command) const;
  void Say(const std::string& text) { log_.Write("Control", getpid(), text); }

  Options options_;
  Log log_{-1};
  int log_fd_ = -1, server_log_ = -1, listener_ = -1, lock_ = -1, signals_ = -1;
  Connection gpu_;
  std::vector<Description> gpus_;
  Settings defaults_;
  std::list<Server> servers_;
  std::list<Peer> peers_;  // in the order in which they came
  std::optional<uid_t> asked_to_start_;
  bool quitting_ = false;
};

}  // namespace gpumux::softgpu::mps
