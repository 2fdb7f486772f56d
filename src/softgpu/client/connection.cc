// SPDX-License-Identifier: Apache-2.0
#include "softgpu/client/connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "sim/gpu_spec_parser.h"
#include "softgpu/client/start_server.h"
#include "softgpu/descriptors.h"

namespace gpumux::softgpu {

namespace {

int64_t NowMs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int ConnectTo(const std::string& dir) {
  const std::string path = dir + "/" + kSocketName;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return -1;
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  int rc;
  do {
    rc = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  } while (rc != 0 && errno == EINTR);
  if (rc == 0) return fd;
  close(fd);
  return -1;
}

bool SendAll(int fd, const void* data, size_t size) {
  ssize_t n;
  do {
    n = send(fd, data, size, MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(size);
}

ssize_t Receive(int fd, void* data, size_t size) {
  ssize_t n;
  do {
    n = recv(fd, data, size, 0);
  } while (n < 0 && errno == EINTR);
  return n;
}

bool Greet(int fd, Role role, uint64_t client, HelloReply* reply) {
  Hello hello;
  hello.role = role;
  hello.client = client;
  return SendAll(fd, &hello, sizeof(hello)) && Receive(fd, reply, sizeof(*reply)) == sizeof(*reply) &&
         reply->answer == Answer::kOk && reply->gpus <= kMaxGpus;
}

}  // namespace

Location FindLocation() {
  Location location;
  const char* spec = getenv("GPUMUX_SOFTGPU");
  location.spec = spec != nullptr && *spec != 0 ? spec : "H200";
  location.off = location.spec == "off";
  if (const char* dir = getenv("GPUMUX_SOFTGPU_DIR"); dir != nullptr && *dir != 0) {
    location.dir = dir;
  } else if (const char* runtime = getenv("GPUMUX_RUNTIME_DIR"); runtime != nullptr && *runtime != 0) {
    location.dir = std::string(runtime) + "/softgpu";
  } else if (const char* xdg = getenv("XDG_RUNTIME_DIR"); xdg != nullptr && *xdg != 0) {
    location.dir = std::string(xdg) + "/gpumux/softgpu";
  } else {
    // Anyone may have made this one before us.
    const std::string own = "/tmp/gpumux-" + std::to_string(getuid());
    location.dir = own + "/softgpu";
    struct stat st;
    location.foreign = lstat(own.c_str(), &st) == 0 && (!S_ISDIR(st.st_mode) || st.st_uid != getuid());
  }
  if (sim::IsGpuDocumentPath(location.spec) && location.spec.front() != '/') {
    if (char* here = getcwd(nullptr, 0); here != nullptr) {
      location.spec = std::string(here) + "/" + location.spec;
      free(here);
    }
  }
  if (location.dir.front() != '/') {
    // The server works from another directory.
    char* here = getcwd(nullptr, 0);
    if (here != nullptr) location.dir = std::string(here) + "/" + location.dir;
    free(here);
  }
  return location;
}

Connection::~Connection() { Close(); }

void Connection::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

bool Connection::Usable() const { return fd_ >= 0 && pid_ == getpid(); }

bool Connection::Open(Role role) {
  const Location location = FindLocation();
  if (location.off || location.foreign) return false;
  Close();
  // A server that ends when idle may do so between our connect and our
  // greeting: then there is none, and the next round starts one.
  const int64_t deadline = NowMs() + 15'000;
  for (int round = 0; NowMs() < deadline; ++round) {
    int fd = ConnectTo(location.dir);
    if (fd >= 0) {
      if (Greet(fd, role, 0, &hello_)) {
        fd_ = fd;
        pid_ = getpid();
        dir_ = location.dir;
        return true;
      }
      close(fd);
    }
    switch (StartServer(location)) {
      case Start::kListens:
        break;
      case Start::kRefused:
        return false;
      case Start::kFailed:
        if (round >= 3) return false;
        poll(nullptr, 0, 20);
    }
  }
  return false;
}

int Connection::OpenSecond(Role role) {
  const int fd = ConnectTo(dir_);
  if (fd < 0) return -1;
  HelloReply reply;
  if (Greet(fd, role, hello_.client, &reply)) return fd;
  close(fd);
  return -1;
}

std::optional<Reply> Connection::Call(Op op, uint32_t gpu, uint64_t amount) {
  Request request;
  request.op = op;
  request.gpu = gpu;
  request.amount = amount;
  return Call(request, -1, nullptr);
}

std::optional<Reply> Connection::Call(const Request& request, int send, int* receive) {
  std::lock_guard lock(mutex_);
  if (!Usable()) return std::nullopt;
  Reply reply;
  int descriptor = -1;
  if (!SendWithDescriptor(fd_, &request, sizeof(request), send, 0) ||
      ReceiveWithDescriptor(fd_, &reply, sizeof(reply), &descriptor, 0) != sizeof(reply)) {
    if (descriptor >= 0) close(descriptor);
    Close();
    return std::nullopt;
  }
  if (receive != nullptr) {
    *receive = descriptor;
  } else if (descriptor >= 0) {
    close(descriptor);
  }
  return reply;
}

bool Connection::Processes(uint32_t gpu, ProcessList* list) {
  std::lock_guard lock(mutex_);
  if (!Usable()) return false;
  Request request;
  request.op = Op::kProcesses;
  request.gpu = gpu;
  if (!SendAll(fd_, &request, sizeof(request))) return false;
  const ssize_t n = Receive(fd_, list, sizeof(*list));
  constexpr ssize_t kHead = offsetof(ProcessList, entries);
  return n >= kHead && list->answer == Answer::kOk && list->count <= kMaxListed &&
         n == kHead + static_cast<ssize_t>(list->count * sizeof(ProcessEntry));
}

bool Connection::MpsClients(uint64_t mps_server, MpsClientList* list) {
  std::lock_guard lock(mutex_);
  if (!Usable()) return false;
  Request request;
  request.op = Op::kMpsClients;
  request.key = mps_server;
  if (!SendAll(fd_, &request, sizeof(request))) return false;
  const ssize_t n = Receive(fd_, list, sizeof(*list));
  constexpr ssize_t kHead = offsetof(MpsClientList, entries);
  return n >= kHead && list->answer == Answer::kOk && list->count <= kMaxListed &&
         n == kHead + static_cast<ssize_t>(list->count * sizeof(MpsClientEntry));
}

bool Connection::DescribeLocked(uint32_t place, Description* description) {
  Request request;
  request.op = Op::kDescribe;
  request.gpu = place;
  if (!Usable() || !SendAll(fd_, &request, sizeof(request)) ||
      Receive(fd_, description, sizeof(*description)) != sizeof(*description) ||
      description->answer != Answer::kOk)
    return false;
  description->name[sizeof(description->name) - 1] = 0;
  description->driver_version[sizeof(description->driver_version) - 1] = 0;
  return true;
}

bool Connection::Describe(uint32_t place, Description* description) {
  std::lock_guard lock(mutex_);
  return DescribeLocked(place, description);
}

bool Connection::Describe(std::vector<Description>* gpus) {
  std::lock_guard lock(mutex_);
  gpus->clear();
  for (uint32_t i = 0; i < hello_.gpus; ++i) {
    Description gpu;
    if (!DescribeLocked(i, &gpu)) return false;
    gpus->push_back(gpu);
  }
  return true;
}

template <typename Message>
bool Connection::Ask(Op op, uint32_t gpu, Message* message) {
  std::lock_guard lock(mutex_);
  if (!Usable()) return false;
  Request request;
  request.op = op;
  request.gpu = gpu;
  return SendAll(fd_, &request, sizeof(request)) &&
         Receive(fd_, message, sizeof(*message)) == sizeof(*message) && message->answer == Answer::kOk;
}

bool Connection::Mig(uint32_t gpu, MigState* state) {
  return Ask(Op::kMigState, gpu, state) && state->instance_count <= kMaxMigInstances &&
         state->compute_count <= kMaxMigInstances;
}

bool Connection::MigProfiles(uint32_t gpu, MigProfileList* list) {
  return Ask(Op::kMigProfiles, gpu, list) && list->count <= kMaxMigProfiles;
}

}  // namespace gpumux::softgpu
