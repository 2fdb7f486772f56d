// SPDX-License-Identifier: Apache-2.0
//
// A daemon in a process of its own, and peers that speak to it over its real
// sockets.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/shared_memory.h"
#include "core/policy.h"
#include "daemon/testing/fake_nvml.h"
#include "gpumux/abi/session.h"
#include "ipc/frame.h"
#include "ipc/session_client.h"

namespace gpumux::daemon {

// Polls until `condition` holds; false after `limit`.
bool WaitUntil(const std::function<bool()>& condition,
               std::chrono::milliseconds limit = std::chrono::seconds(20));

// A forked process that runs `body` and then exits with its result; killed and
// reaped at the end of its life.
class Child {
 public:
  explicit Child(const std::function<int()>& body);
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  ~Child();
  pid_t pid() const { return pid_; }
  void Kill(int signal = SIGKILL) const { ::kill(pid_, signal); }
  // The exit code, or 128 + the signal.
  int Wait();

 private:
  pid_t pid_;
};

struct DaemonProcess {
  struct Settings {
    unsigned gpus = 1;
    std::string software_dir = "";  // same for two daemons: they meet at the same GPU
    std::optional<std::chrono::nanoseconds> idle_exit = {};
    bool for_everyone = false;  // other users may connect
    std::optional<gid_t> socket_group = {};
    unsigned most_descriptors = 0;  // RLIMIT_NOFILE; 0: as it is
    core::Policy policy = {};
  };
  DaemonProcess(FakeFigures& figures, Settings settings);
  explicit DaemonProcess(FakeFigures& figures) : DaemonProcess(figures, Settings{}) {}
  ~DaemonProcess();

  std::string dir;
  std::string session;
  std::string api;
  std::unique_ptr<Child> process;
};

struct HttpAnswer {
  int status = 0;
  nlohmann::json body;
  std::string raw;
};
// One request on a connection of its own; `raw` is what came, whatever it was.
HttpAnswer Http(const std::string& socket, const std::string& method, const std::string& target,
                const std::string& body = "");
HttpAnswer HttpRaw(const std::string& socket, const std::string& bytes);

// `run`'s end of a session.
struct RunPeer {
  explicit RunPeer(const std::string& session, const nlohmann::json& request);
  ipc::SessionEvent Next(ipc::SessionEvent::Type type);  // skips others but for refusals and ends
  // Waits for the grant; its JSON.
  nlohmann::json Granted();
  ipc::SessionClient client;
  ipc::SessionEvent granted;
};
nlohmann::json Ask(std::optional<uint64_t> mem_bytes);

// The guard's end, with its pages.
class GuardPeer {
 public:
  // Refused or not: `welcome` is empty if refused.
  static GuardPeer Hello(const std::string& session, const std::string& hint, uint64_t flags = 0);
  gpumux_credit_reply Credit(uint64_t bytes, unsigned slot = 0);
  gpumux_context_reply Context(unsigned slot = 0);
  void Notice(uint32_t contexts, unsigned slot = 0);
  gpumux_memory_info Info(unsigned slot = 0);
  gpumux_process_gpu& gpu(unsigned slot = 0) { return process.as<gpumux_process_page>()->gpus[slot]; }
  // As a guard does after the driver took them.
  void Commit(uint64_t bytes) { std::atomic_ref<uint64_t>(gpu().committed_bytes).fetch_add(bytes); }
  void Return(uint64_t bytes) {
    std::atomic_ref<uint64_t>(gpu().in_use_bytes).fetch_sub(bytes);
    std::atomic_ref<int64_t>(gpu().credit_free_bytes).fetch_add(static_cast<int64_t>(bytes));
  }
  // Takes from the free credit, as a guard does before it asks.
  bool TakeFree(uint64_t bytes);
  void InForce() {
    std::atomic_ref<uint32_t>(process.as<gpumux_process_page>()->flags).store(GPUMUX_GUARD_IN_FORCE);
  }

  void Send(gpumux_message type, std::span<const std::byte> payload);
  // Blocks; nullopt: hung up.
  std::optional<std::vector<std::byte>> Receive();
  template <typename Reply, typename Request>
  Reply Call(gpumux_message type, const Request& request) {
    Send(type, std::as_bytes(std::span(&request, 1)));
    const auto packet = Receive();
    Reply reply{};
    if (!packet) return reply;
    return ipc::PayloadAs<Reply>(*ipc::DecodeFrame(*packet));
  }

  ipc::SeqpacketSocket socket;
  std::optional<gpumux_guard_welcome> welcome;
  gpumux_refused refused{};
  SharedMemory limits, tenant, process;
  uint32_t request_id = 0;
};

}  // namespace gpumux::daemon
