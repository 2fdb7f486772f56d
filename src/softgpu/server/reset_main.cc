// SPDX-License-Identifier: Apache-2.0
//
// gpumux-softgpu-reset GPU|driver: what `nvidia-smi --gpu-reset -i GPU`, or unloading and loading the driver,
// does to a software GPU that nobody uses. Of the software GPU that GPUMUX_SOFTGPU_DIR names.
#include <charconv>
#include <cstdio>
#include <cstring>

#include "gpumux/abi/nvml/nvml.h"
#include "softgpu/client/connection.h"

namespace gpumux::softgpu {
namespace {

int Main(int argc, char** argv) {
  uint32_t gpu = 0;
  const bool driver = argc == 2 && strcmp(argv[1], "driver") == 0;
  if (argc == 2 && !driver) {
    const char* end = argv[1] + strlen(argv[1]);
    const auto [rest, error] = std::from_chars(argv[1], end, gpu);
    if (error != std::errc() || rest != end) argc = 0;
  }
  if (argc != 2) {
    fprintf(stderr, "usage: gpumux-softgpu-reset GPU|driver\n");
    return 2;
  }
  Connection connection;
  if (!connection.Open(Role::kNvml)) {
    fprintf(stderr, "gpumux-softgpu-reset: there is no software GPU\n");
    return 3;
  }
  if (gpu >= connection.gpus()) {
    fprintf(stderr, "gpumux-softgpu-reset: there is no GPU %u\n", gpu);
    return 6;
  }
  const auto reply = connection.Call(Op::kMigReset, gpu, driver ? 1 : 0);
  if (reply && reply->answer == Answer::kOk) return 0;
  const bool busy = reply && reply->values[0] == nvml::NVML_ERROR_IN_USE;
  const bool denied = reply && reply->values[0] == nvml::NVML_ERROR_NO_PERMISSION;
  fprintf(stderr, "gpumux-softgpu-reset: %s\n",
          busy     ? "In use by another client"
          : denied ? "Insufficient Permissions"
                   : "the software GPU does not answer");
  return 1;
}

}  // namespace
}  // namespace gpumux::softgpu

int main(int argc, char** argv) { return gpumux::softgpu::Main(argc, argv); }
