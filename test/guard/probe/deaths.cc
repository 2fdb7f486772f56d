// SPDX-License-Identifier: Apache-2.0
//
// Killed anywhere, and what lives on beside it.
#include <signal.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "commands.h"
#include "driver.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

// Allocates and frees at random by every family until it is killed by its own
// second thread, `us` microseconds after it began.
int Killed(uint64_t seed, uint64_t us) {
  std::mt19937_64 random(seed);
  std::thread killer([us] {
    const uint64_t end = NowNs() + us * 1000;
    while (NowNs() < end) {
    }
    kill(getpid(), SIGKILL);
  });
  StartUp();
  const CUmemAllocationProp prop = DeviceProp();
  CUmemoryPool pool = NewPool();
  std::vector<CUdeviceptr> plain, streamed;
  std::vector<CUmemGenericAllocationHandle> handles;
  for (;;) {
    const uint64_t bytes = (1 + random() % 64) * kMiB;
    CUdeviceptr p = 0;
    CUmemGenericAllocationHandle h;
    switch (random() % 8) {
      case 0:
        if (api.cuMemAlloc_v2(&p, bytes) == CUDA_SUCCESS) plain.push_back(p);
        break;
      case 1:
        if (api.cuMemAlloc_v2(&p, bytes % 700'000 + 1) == CUDA_SUCCESS) plain.push_back(p);
        break;
      case 2:
        if (api.cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS) plain.push_back(p);
        break;
      case 3:
        if (api.cuMemAllocAsync(&p, bytes, nullptr) == CUDA_SUCCESS) streamed.push_back(p);
        break;
      case 4:
        if (api.cuMemAllocFromPoolAsync(&p, bytes, pool, nullptr) == CUDA_SUCCESS) streamed.push_back(p);
        break;
      case 5:
        if (api.cuMemCreate(&h, 2 * bytes, &prop, 0) == CUDA_SUCCESS) handles.push_back(h);
        break;
      case 6:
        if (!plain.empty()) api.cuMemFree_v2(plain.back()), plain.pop_back();
        if (!handles.empty()) api.cuMemRelease(handles.back()), handles.pop_back();
        break;
      default:
        if (!streamed.empty()) api.cuMemFreeAsync(streamed.back(), nullptr), streamed.pop_back();
        api.cuStreamSynchronize(nullptr);
    }
  }
}

// Takes `bytes`, writes and reads them again and again, and frees and takes
// them in between, until `stop` exists: any refusal, wrong value or other total
// than at first is an error.
int Survive(uint64_t bytes, const char* stop) {
  StartUp();
  uint64_t rounds = 0;
  std::vector<unsigned char> back(4096);
  size_t free_bytes = 0, total_bytes = 0, total_now = 0;
  Check(api.cuMemGetInfo_v2(&free_bytes, &total_bytes), "total");
  // What a guard in force says of its tenant; without one, the GPU.
  std::printf("working with %zu\n", total_bytes);
  std::fflush(stdout);
  while (access(stop, F_OK) != 0) {
    CUdeviceptr p = 0;
    if (CUresult r = api.cuMemAlloc_v2(&p, bytes)) {
      std::printf("refused %d in round %" PRIu64 "\n", r, rounds);
      return 5;
    }
    const unsigned char value = static_cast<unsigned char>(1 + rounds % 200);
    Check(api.cuMemsetD8_v2(p, value, 4096), "fill");
    Check(api.cuMemcpyDtoH_v2(back.data(), p, 4096), "copy");
    for (unsigned char b : back) {
      if (b != value) {
        std::printf("wrong value in round %" PRIu64 "\n", rounds);
        return 6;
      }
    }
    Check(api.cuMemFree_v2(p), "free");
    Check(api.cuMemGetInfo_v2(&free_bytes, &total_now), "total");
    if (total_now != total_bytes) {
      std::printf("total %zu instead of %zu in round %" PRIu64 "\n", total_now, total_bytes, rounds);
      return 7;
    }
    rounds++;
    usleep(1000);
  }
  std::printf("rounds %" PRIu64 "\n", rounds);
  return 0;
}

// Waits for its daemon's death, then takes memory until it is refused.
int Orphan() {
  StartUp();
  std::printf("ready\n");
  const char* hold = getenv("PROBE_HOLD_FILE");
  while (hold && access(hold, F_OK) != 0) usleep(2000);
  uint64_t taken = 0;
  CUdeviceptr p = 0;
  CUresult r;
  while ((r = api.cuMemAlloc_v2(&p, 32 * kMiB)) == CUDA_SUCCESS) taken += 32 * kMiB;
  std::printf("taken %" PRIu64 " then %d\n", taken, r);
  return 0;
}

}  // namespace gpumux::probe
