// SPDX-License-Identifier: Apache-2.0
#include "daemon/testing/peers.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/log.h"
#include "daemon/daemon.h"

namespace gpumux::daemon {

bool WaitUntil(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

Child::Child(const std::function<int()>& body) {
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(99);
  ::_exit(body());
}

Child::~Child() {
  if (pid_ <= 0) return;
  Kill();
  Wait();
}

int Child::Wait() {
  if (pid_ <= 0) return -1;
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

DaemonProcess::DaemonProcess(FakeFigures& figures, Settings settings) {
  char name[] = "/tmp/gpumuxd-test-XXXXXX";
  dir = ::mkdtemp(name);
  if (settings.for_everyone) ::chmod(dir.c_str(), 0711);
  const RuntimePaths paths = PathsIn(dir);
  session = paths.session_socket;
  api = paths.api_socket;
  // The guard only has to be there: no program is preloaded in these tests.
  std::ofstream(dir + "/libgpumux-guard.so") << "";
  process = std::make_unique<Child>([&] {
    (void)SetLogFile(paths.log);
    if (settings.most_descriptors > 0) {
      const rlimit limit{settings.most_descriptors, settings.most_descriptors};
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
    }
    const SystemClock clock;
    FakeNvml nvml(figures, settings.gpus);
    gpu::GpuSource source{.simulated = true,
                          .spec = "H200",
                          .dir = settings.software_dir.empty() ? dir : settings.software_dir,
                          .libraries_dir = "/nowhere"};
    Daemon daemon({.paths = paths,
                   .guard_library = dir + "/libgpumux-guard.so",
                   .keeper_program = "",
                   .idle_exit = settings.idle_exit,
                   .for_everyone = settings.for_everyone,
                   .policy = settings.policy,
                   .socket_group = settings.socket_group},
                  source, nvml, clock);
    if (Status status = daemon.Start(); !status) return 1;
    daemon.Run();
    return 0;
  });
  EXPECT_TRUE(WaitUntil([&] { return ipc::ConnectUnix(session, SOCK_SEQPACKET).has_value(); }));
}

DaemonProcess::~DaemonProcess() {
  if (testing::Test::HasFailure()) {
    std::ifstream log(dir + "/gpumuxd.log");
    std::cerr << "--- log of the daemon\n" << log.rdbuf();
  }
  process.reset();
  std::error_code error;
  std::filesystem::remove_all(dir, error);
}

HttpAnswer HttpRaw(const std::string& socket, const std::string& bytes) {
  HttpAnswer answer;
  auto fd = ipc::ConnectUnix(socket, SOCK_STREAM);
  if (!fd) return answer;
  (void)::send(fd->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  char buffer[65536];
  for (;;) {
    const ssize_t size = ::recv(fd->get(), buffer, sizeof buffer, 0);
    if (size <= 0) break;
    answer.raw.append(buffer, size);
  }
  if (answer.raw.starts_with("HTTP/1.1 ")) answer.status = std::stoi(answer.raw.substr(9, 3));
  const size_t end = answer.raw.find("\r\n\r\n");
  if (end != std::string::npos)
    answer.body = nlohmann::json::parse(answer.raw.substr(end + 4), nullptr, false);
  return answer;
}

HttpAnswer Http(const std::string& socket, const std::string& method, const std::string& target,
                const std::string& body) {
  return HttpRaw(socket, method + " " + target +
                             " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
                             std::to_string(body.size()) + "\r\n\r\n" + body);
}

RunPeer::RunPeer(const std::string& session, const nlohmann::json& request)
    : client(ipc::SessionClient::Connect(session).value()) {
  EXPECT_TRUE(client.SendRequest(request.dump()));
}

ipc::SessionEvent RunPeer::Next(ipc::SessionEvent::Type type) {
  for (;;) {
    auto event = client.Next(std::chrono::seconds(20));
    if (!event || !*event) {
      ADD_FAILURE() << (event ? "nothing came" : event.error().ToString());
      return {};
    }
    using Type = ipc::SessionEvent::Type;
    if ((*event)->type == type || (*event)->type == Type::kRefused || (*event)->type == Type::kClosed) {
      return std::move(**event);
    }
  }
}

nlohmann::json RunPeer::Granted() {
  granted = Next(ipc::SessionEvent::Type::kGranted);
  EXPECT_EQ(granted.type, ipc::SessionEvent::Type::kGranted) << granted.refusal;
  return nlohmann::json::parse(granted.json, nullptr, false);
}

nlohmann::json Ask(std::optional<uint64_t> mem_bytes) {
  nlohmann::json request{{"name", "test"},
                         {"command", {"/bin/true", "x"}},
                         {"cwd", "/"},
                         {"gpus", {{"count", 1}}},
                         {"mode", "auto"},
                         {"isolate", "fault"},
                         {"strict", false},
                         {"wait", true},
                         {"wait_seconds", nullptr},
                         {"time_seconds", nullptr},
                         {"labels", nlohmann::json::object()}};
  request["mem"] = mem_bytes ? nlohmann::json{{"bytes", *mem_bytes}} : nlohmann::json(nullptr);
  request["mem_limit"] = nullptr;
  return request;
}

GuardPeer GuardPeer::Hello(const std::string& session, const std::string& hint, uint64_t flags) {
  GuardPeer guard;
  guard.socket = ipc::SeqpacketSocket::Connect(session).value();
  gpumux_guard_hello hello{};
  hello.pages_version = GPUMUX_PAGES_VERSION;
  hello.ns_pid = ::getpid();
  hello.flags = flags;
  ipc::SetField(hello.tenant_hint, hint);
  guard.Send(GPUMUX_GUARD_HELLO, std::as_bytes(std::span(&hello, 1)));
  auto received = guard.socket.Receive();
  if (!received || received->what != ipc::Received::What::kPacket) return guard;
  const auto frame = ipc::DecodeFrame(received->bytes);
  if (frame->type == GPUMUX_REFUSED) {
    guard.refused = ipc::PayloadAs<gpumux_refused>(*frame);
    return guard;
  }
  guard.welcome = ipc::PayloadAs<gpumux_guard_welcome>(*frame);
  guard.limits = SharedMemory::Map(std::move(received->fds.at(0)), GPUMUX_PAGE_BYTES, false).value();
  guard.tenant = SharedMemory::Map(std::move(received->fds.at(1)), GPUMUX_PAGE_BYTES, true).value();
  guard.process = SharedMemory::Map(std::move(received->fds.at(2)), GPUMUX_PAGE_BYTES, true).value();
  return guard;
}

void GuardPeer::Send(gpumux_message type, std::span<const std::byte> payload) {
  (void)socket.Send(*ipc::EncodeFrame(type, ++request_id, payload));
}

std::optional<std::vector<std::byte>> GuardPeer::Receive() {
  auto received = socket.Receive();
  if (!received || received->what != ipc::Received::What::kPacket) return std::nullopt;
  return std::move(received->bytes);
}

gpumux_credit_reply GuardPeer::Credit(uint64_t bytes, unsigned slot) {
  const auto reply = Call<gpumux_credit_reply>(GPUMUX_CREDIT_REQUEST, gpumux_credit_request{slot, 0, bytes});
  if (reply.granted) std::atomic_ref<uint64_t>(gpu(slot).in_use_bytes).fetch_add(bytes);
  return reply;
}

gpumux_context_reply GuardPeer::Context(unsigned slot) {
  return Call<gpumux_context_reply>(GPUMUX_CONTEXT_REQUEST, gpumux_context_request{slot, 0});
}

void GuardPeer::Notice(uint32_t contexts, unsigned slot) {
  const gpumux_context_notice notice{slot, contexts};
  Send(GPUMUX_CONTEXT_NOTICE, std::as_bytes(std::span(&notice, 1)));
}

gpumux_memory_info GuardPeer::Info(unsigned slot) {
  return Call<gpumux_memory_info>(GPUMUX_MEMORY_INFO_REQUEST, gpumux_memory_info_request{slot, 0});
}

bool GuardPeer::TakeFree(uint64_t bytes) {
  std::atomic_ref<int64_t> word(gpu().credit_free_bytes);
  int64_t free = word.load();
  while (free >= static_cast<int64_t>(bytes)) {
    if (word.compare_exchange_weak(free, free - static_cast<int64_t>(bytes))) {
      std::atomic_ref<uint64_t>(gpu().in_use_bytes).fetch_add(bytes);
      return true;
    }
  }
  return false;
}

}  // namespace gpumux::daemon
