// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/mps.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sim/mps.h"
#include "softgpu/driver/driver.h"
#include "softgpu/driver/error_codes.h"
#include "softgpu/mps/protocol.h"
#include "softgpu/mps/settings.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

// Whether the pipe directory is one of this software GPU.
bool IsOurs(const std::string& pipes, uint64_t identity) {
  FILE* file = fopen((pipes + "/" + mps::kMarkFile).c_str(), "re");
  if (file == nullptr) return false;
  uint64_t marked = 0;
  const bool ours = fscanf(file, "%" SCNx64, &marked) == 1 && marked == identity;
  fclose(file);
  return ours;
}

int ConnectToDaemon(const std::string& pipes) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = pipes + "/" + mps::kControlSocket;
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

bool Ask(int fd, mps::Offer* offer) {
  const mps::ControlRequest request;
  ssize_t n;
  do {
    n = send(fd, &request, sizeof(request), MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  if (n != sizeof(request)) return false;
  do {
    n = recv(fd, offer, sizeof(*offer), 0);
  } while (n < 0 && errno == EINTR);
  return n == sizeof(*offer) && offer->magic == mps::kControlMagic && offer->gpus <= kMaxGpus;
}

}  // namespace

MpsServerOffer AskForMps(const Connection& connection) {
  MpsServerOffer result;
  const std::string pipes = mps::PipeDirectory(getenv("CUDA_MPS_PIPE_DIRECTORY"), connection.dir());
  if (!IsOurs(pipes, connection.identity())) return result;
  const int fd = ConnectToDaemon(pipes);
  if (fd < 0) return result;
  mps::Offer offer;
  if (!Ask(fd, &offer)) {
    close(fd);
    result.error = CUDA_ERROR_MPS_CONNECTION_FAILED;
    return result;
  }
  result.socket = fd;
  result.error = static_cast<CUresult>(offer.error);
  result.server = offer.server;
  result.percent = offer.percent;
  result.below_normal = offer.below_normal != 0;
  for (uint32_t i = 0; i < offer.gpus; ++i) {
    if (offer.gpu[i] >= connection.gpus()) result.error = CUDA_ERROR_MPS_CONNECTION_FAILED;
    result.gpus.push_back(offer.gpu[i]);
    result.limits.push_back(offer.limit[i]);
  }
  return result;
}

CUresult JoinMps(Connection& connection, const MpsServerOffer& offer,
                 const std::vector<std::unique_ptr<Device>>& devices) {
  const auto variable = [](const char* name) {
    const char* value = getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  const bool below =
      offer.below_normal || mps::ParsePriority(variable("CUDA_MPS_CLIENT_PRIORITY")).value_or(false);
  Request request;
  request.op = Op::kMpsJoin;
  request.key = offer.server;
  request.amount = below ? 1 : 0;
  const auto joined = connection.Call(request, -1, nullptr);
  if (!joined) return CUDA_ERROR_MPS_CONNECTION_FAILED;
  if (joined->answer == Answer::kFailed) return static_cast<CUresult>(joined->values[0]);
  if (joined->answer != Answer::kOk) return CUDA_ERROR_MPS_CONNECTION_FAILED;

  const double own = mps::ParsePercentage(variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")).value_or(100);
  std::vector<std::string> uuids;
  for (const auto& device : devices) uuids.push_back(device->uuid.text);
  const auto limits = mps::ClientLimits(variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), uuids);
  for (size_t i = 0; i < devices.size(); ++i) {
    Device& device = *devices[i];
    const auto at = std::find(offer.gpus.begin(), offer.gpus.end(), device.gpu) - offer.gpus.begin();
    uint64_t limit = offer.limits[static_cast<size_t>(at)];
    if (limits[i] != 0) limit = limit == 0 ? limits[i] : std::min(limit, limits[i]);
    device.mps = true;
    device.limited = limit != 0;
    device.description.sms = sim::MpsSms(device.description.sms, std::min(offer.percent, own));
    request.op = Op::kMpsPortion;
    request.gpu = device.gpu;
    request.amount = limit;
    request.key = static_cast<uint64_t>(device.description.sms);
    const auto set = connection.Call(request, -1, nullptr);
    if (!set || set->answer != Answer::kOk) return CUDA_ERROR_MPS_CONNECTION_FAILED;
  }
  return CUDA_SUCCESS;
}

}  // namespace gpumux::softgpu
