// SPDX-License-Identifier: Apache-2.0
//
// The commands of the control daemon. What they do follows NVIDIA's
// documentation; of what they print the plain lists and the columns of `ps` do,
// and the rest is made up (docs/design/software-gpu.md).
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include "softgpu/mps/control_daemon.h"
#include "softgpu/names.h"

namespace gpumux::softgpu::mps {

namespace {

using Words = std::vector<std::string>;

Words Split(const std::string& line) {
  std::istringstream stream(line);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

constexpr char kNoServer[] = "Server is not found\n";
constexpr char kUsage[] = "Invalid arguments\n";
constexpr char kNoPartitions[] = "Static partitioning is not enabled\n";

template <typename Number>
std::optional<Number> ParseNumber(const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string Decimal(double percent) {
  char text[32];
  snprintf(text, sizeof(text), "%.1f\n", percent);
  return text;
}

std::string SizeText(uint64_t bytes) {
  return bytes % (1 << 30) == 0 ? std::to_string(bytes >> 30) + "G\n" : std::to_string(bytes >> 20) + "M\n";
}

const char* StateName(MpsState state) {
  switch (state) {
    case MpsState::kActive:
      return "ACTIVE";
    case MpsState::kFault:
      return "FAULT";
    default:
      return "INITIALIZING";
  }
}

// A process's arguments, what cannot be printed as question marks.
std::string CommandLine(uint32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
  std::string text;
  std::getline(file, text);
  while (!text.empty() && text.back() == 0) text.pop_back();
  for (char& c : text) c = c == 0 ? ' ' : c >= ' ' && c < 127 ? c : '?';
  return text.substr(0, 100);
}

std::string PidNamespace(uint32_t pid) {
  struct stat st;
  const std::string path = "/proc/" + std::to_string(pid) + "/ns/pid";
  return stat(path.c_str(), &st) == 0 ? std::to_string(st.st_ino) : "-";
}

}  // namespace

void ControlDaemon::Reply(Peer& peer, const std::string& text) {
  for (size_t at = 0;; at += kMaxReplyText) {
    const std::string part = text.substr(at, kMaxReplyText);
    CommandReply head;
    head.last = at + kMaxReplyText >= text.size() ? 1 : 0;
    std::string packet(reinterpret_cast<const char*>(&head), sizeof(head));
    packet += part;
    if (send(peer.fd, packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
        static_cast<ssize_t>(packet.size())) {
      peer.gone = true;
    }
    if (head.last == 1 || peer.gone) return;
  }
}

// Whoever may reach the socket may ask; to change something one has to be the
// daemon's user or root.
bool ControlDaemon::MayCommand(const Peer& peer, const std::string& command) const {
  if (peer.uid == 0 || peer.uid == geteuid()) return true;
  return command.starts_with("get_") || command == "ps" || command == "device_query" || command == "lspart";
}

std::optional<std::string> ControlDaemon::Execute(Peer& peer, const std::string& line) {
  const Words words = Split(line);
  if (words.empty()) return "";
  const std::string& command = words[0];
  if (!MayCommand(peer, command)) return "Permission denied\n";
  if (command == "quit") return Quit(peer, words);
  if (command == "shutdown_server") return Shutdown(peer, words);
  if (command == "start_server") return StartServerCommand(words);
  if (command == "get_server_list") {
    std::string text;
    for (const Server& server : servers_) text += std::to_string(server.pid) + "\n";
    return text;
  }
  if (command == "get_server_status") return Status(words);
  if (command == "get_client_list") return ClientList(words);
  if (command == "get_device_client_list") return DeviceClientList(words);
  if (command == "ps") return ListProcesses(words);
  if (command == "device_query") return DeviceQuery(words);
  if (command == "terminate_client") return Terminate(words);
  if (command.ends_with("active_thread_percentage")) return Percentage(words);
  if (command.ends_with("device_pinned_mem_limit")) return MemoryLimit(words);
  if (command.ends_with("default_client_priority")) return Priority(words);
  if (command == "sm_partition" || command == "lspart") return kNoPartitions;
  return "Unknown command: " + command.substr(0, 60) + "\n";
}

std::optional<std::string> ControlDaemon::Quit(Peer& peer, const Words& words) {
  if (words.size() != 1 && (words.size() != 3 || words[1] != "-t")) return kUsage;
  if (words.size() == 3) {
    const auto seconds = ParseNumber<unsigned>(words[2]);
    if (!seconds) return kUsage;
    peer.deadline = Clock::now() + std::chrono::seconds(*seconds);
  }
  quitting_ = true;
  for (Server& server : servers_) server.stopping = true;
  peer.waits_for = 0;  // answered when the daemon ends
  return std::nullopt;
}

std::optional<std::string> ControlDaemon::Shutdown(Peer& peer, const Words& words) {
  if (words.size() < 2 || words.size() > 3 || (words.size() == 3 && words[2] != "-f")) return kUsage;
  Server* server = FindServer(words[1]);
  if (server == nullptr) return kNoServer;
  server->stopping = true;
  if (words.size() == 3) EndServer(*server, SIGKILL);
  peer.waits_for = server->pid;
  return std::nullopt;
}

std::string ControlDaemon::StartServerCommand(const Words& words) {
  const auto uid = words.size() >= 3 && words[1] == "-uid" ? ParseNumber<uid_t>(words[2]) : std::nullopt;
  if (!uid || words.size() > 3) return kUsage;  // -mlopart needs a GPU that none here is
  if (geteuid() != 0 && *uid != geteuid()) return "Permission denied\n";
  if (!servers_.empty()) return "Server already exists\n";
  return StartServer(options_.every_user ? 0 : *uid, static_cast<gid_t>(*uid)) ? ""
                                                                               : "Server failed to start\n";
}

std::string ControlDaemon::Status(const Words& words) {
  const Server* server = words.size() == 2 ? FindServer(words[1]) : nullptr;
  if (server == nullptr) return kNoServer;
  if (!server->ready) return "INITIALIZING\n";
  Request request;
  request.op = Op::kMpsState;
  request.key = server->number;
  const auto reply = gpu_.Call(request, -1, nullptr);
  if (!reply || reply->answer != softgpu::Answer::kOk) return kNoServer;
  return std::string(StateName(static_cast<MpsState>(reply->values[0]))) + "\n";
}

std::string ControlDaemon::ClientList(const Words& words) {
  const Server* server = words.size() == 2 ? FindServer(words[1]) : nullptr;
  if (server == nullptr) return kNoServer;
  std::string text;
  for (const auto& client : Clients(*server)) text += std::to_string(client.pid) + "\n";
  return text;
}

std::string ControlDaemon::DeviceClientList(const Words& words) {
  if (words.size() > 2 || (words.size() == 2 && FindServer(words[1]) == nullptr)) return kNoServer;
  std::string text;
  for (const Server& server : servers_) {
    if (words.size() == 2 && std::to_string(server.pid) != words[1]) continue;
    const auto clients = Clients(server);
    for (size_t i = 0; i < server.gpus.size(); ++i) {
      const uint32_t gpu = server.gpus[i];
      text += "[" + std::to_string(i) + "] 00:00.0, " + gpus_[gpu].name + "\n";  // the address as seen
      for (const auto& client : clients) {
        if ((client.gpus >> gpu & 1) != 0) text += std::to_string(client.pid) + ".1\n";
      }
    }
  }
  return text;
}

std::string ControlDaemon::ListProcesses(const Words& words) {
  if (words.size() != 1 && (words.size() != 3 || words[1] != "-p")) return kUsage;
  char row[512];
  snprintf(row, sizeof(row), "%-10s%-10s%-15s%-26s%-15s%-15s\n", "PID", "ID", "SERVER", "DEVICE", "NAMESPACE",
           "COMMAND");
  std::string text = row;
  for (const Server& server : servers_) {
    for (const auto& client : Clients(server)) {
      if (words.size() == 3 && words[2] != std::to_string(client.pid)) continue;
      for (uint32_t gpu : server.gpus) {
        if ((client.gpus >> gpu & 1) == 0) continue;
        snprintf(row, sizeof(row), "%-10u%-10d%-15d%-26s%-15s%-15s\n", client.pid, 0,
                 static_cast<int>(server.pid), UuidOfGpu(gpu).substr(0, 22).c_str(),
                 PidNamespace(client.pid).c_str(), CommandLine(client.pid).c_str());
        text += row;
      }
    }
  }
  return text;
}

std::string ControlDaemon::DeviceQuery(const Words& words) {
  const bool csv = words.back() == "--csv";
  const size_t count = words.size() - (csv ? 1 : 0);
  if (count > 2) return kUsage;
  if (count == 2 && FindServer(words[1]) == nullptr) return kNoServer;
  const auto row = [&](const std::string& a, const std::string& b, const std::string& c,
                       const std::string& d) {
    if (csv) return a + "," + b + "," + c + "," + d + "\n";
    char text[400];
    snprintf(text, sizeof(text), "%-16s%-15s%-42s%s\n", a.c_str(), b.c_str(), c.c_str(), d.c_str());
    return std::string(text);
  };
  std::string text;
  for (const Server& server : servers_) {
    if (count == 2 && std::to_string(server.pid) != words[1]) continue;
    if (!csv) text += "Server " + std::to_string(server.pid) + "\n";
    text += row("Device Ordinal", "PCI ID", "UUID", "Name");
    for (size_t i = 0; i < server.gpus.size(); ++i) {
      const uint32_t gpu = server.gpus[i];
      char bus[16];
      snprintf(bus, sizeof(bus), "0000:%02X:00.00", PciBus(gpu) & 0xff);
      text += row(std::to_string(i), bus, UuidOfGpu(gpu), gpus_[gpu].name);
    }
  }
  return text;
}

std::string ControlDaemon::Terminate(const Words& words) {
  const Server* server = words.size() == 3 ? FindServer(words[1]) : nullptr;
  if (server == nullptr) return kNoServer;
  const auto pid = ParseNumber<uint32_t>(words[2]);
  Request request;
  request.op = Op::kMpsTerminate;
  request.key = server->number;
  request.amount = pid.value_or(0);
  const auto reply = gpu_.Call(request, -1, nullptr);
  if (!reply || reply->answer != softgpu::Answer::kOk) return "Client is not found\n";
  return "0\n";
}

// {set,get}_default_active_thread_percentage, {set,get}_active_thread_percentage PID.
std::string ControlDaemon::Percentage(const Words& words) {
  const bool set = words[0].starts_with("set_"), of_daemon = words[0].find("_default_") != std::string::npos;
  if (!set && !words[0].starts_with("get_")) return "Unknown command: " + words[0] + "\n";
  if (words.size() != 1U + (set ? 1 : 0) + (of_daemon ? 0 : 1)) return kUsage;
  Server* server = of_daemon ? nullptr : FindServer(words[1]);
  if (!of_daemon && server == nullptr) return kNoServer;
  Settings& settings = of_daemon ? defaults_ : server->settings;
  if (set) {
    const auto percent = ParsePercentage(words.back());
    if (!percent) return kUsage;
    settings.percent = *percent;
  }
  return Decimal(settings.percent);
}

// {set,get}_default_device_pinned_mem_limit DEV [SIZE], the same without default PID first.
std::string ControlDaemon::MemoryLimit(const Words& words) {
  const bool set = words[0].starts_with("set_"), of_daemon = words[0].find("_default_") != std::string::npos;
  if (!set && !words[0].starts_with("get_")) return "Unknown command: " + words[0] + "\n";
  if (words.size() != 2U + (set ? 1 : 0) + (of_daemon ? 0 : 1)) return kUsage;
  Server* server = of_daemon ? nullptr : FindServer(words[1]);
  if (!of_daemon && server == nullptr) return kNoServer;
  Settings& settings = of_daemon ? defaults_ : server->settings;
  const std::string& device = words[of_daemon ? 1 : 2];
  if (set) {
    const auto bytes = ParseLimitSize(words.back());
    if (!bytes) return kUsage;
    // Not checked; and of an ordinal and a UUID of one device the later counts.
    std::erase_if(settings.limits, [&](const Limit& limit) { return limit.device == device; });
    settings.limits.push_back({device, *bytes});
    return "";
  }
  for (const Limit& limit : settings.limits) {
    if (limit.device == device) return SizeText(limit.bytes);
  }
  return "Limit is not set\n";
}

std::string ControlDaemon::Priority(const Words& words) {
  const bool set = words[0].starts_with("set_");
  if (words[0] != "set_default_client_priority" && words[0] != "get_default_client_priority") {
    return "Unknown command: " + words[0] + "\n";
  }
  if (words.size() != (set ? 2U : 1U)) return kUsage;
  if (set) {
    const auto priority = ParsePriority(words[1]);
    if (!priority) return kUsage;
    defaults_.below_normal = *priority;
    return "";
  }
  return defaults_.below_normal ? "1\n" : "0\n";
}

}  // namespace gpumux::softgpu::mps
