// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "commands.h"
#include "driver.h"
#include "steps.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

int Families(uint64_t over) {
  StartUp();
  static CUdeviceptr p[8] = {};
  static size_t pitch = 0;
  static CUmemGenericAllocationHandle h = 0, h2 = 0;
  static CUdeviceptr va = 0;
  static CUmemoryPool pool = nullptr;
  static CUcontext other = nullptr;
  const CUmemAllocationProp prop = DeviceProp();
  Check(api.cuMemAddressReserve(&va, 64 * kMiB, 0, 0, 0), "cuMemAddressReserve");
  std::vector<Step> s;
  auto add = [&](const char* name, std::function<CUresult()> f) { s.push_back({name, std::move(f)}); };
  for (uint64_t bytes : {uint64_t{1}, uint64_t{512}, uint64_t{513}, kMiB, kMiB + 1, 2 * kMiB, 2 * kMiB + 1,
                         3 * kMiB, uint64_t{100'000'000}}) {
    static std::vector<std::string> names;
    const std::string n = std::to_string(bytes);
    s.push_back({"plain " + n, [bytes] { return api.cuMemAlloc_v2(&p[0], bytes); }});
    s.push_back({"plain again " + n, [bytes] { return api.cuMemAlloc_v2(&p[1], bytes); }});
    s.push_back({"free second " + n, [] { return api.cuMemFree_v2(p[1]); }});
    s.push_back({"free first " + n, [] { return api.cuMemFree_v2(p[0]); }});
  }
  add("plain over", [over] { return api.cuMemAlloc_v2(&p[0], over); });
  add("plain zero", [] { return api.cuMemAlloc_v2(&p[0], 0); });
  add("plain absurd", [] { return api.cuMemAlloc_v2(&p[0], ~0ull); });
  add("free nothing", [] { return api.cuMemFree_v2(0); });
  add("free wrong", [] { return api.cuMemFree_v2(0x1234); });

  add("pitch", [] { return api.cuMemAllocPitch_v2(&p[0], &pitch, 100'000, 3000, 16); });
  add("pitch free", [] { return api.cuMemFree_v2(p[0]); });
  add("pitch small", [] { return api.cuMemAllocPitch_v2(&p[0], &pitch, 100, 30, 4); });
  add("pitch small free", [] { return api.cuMemFree_v2(p[0]); });
  add("pitch over", [over] { return api.cuMemAllocPitch_v2(&p[0], &pitch, 1 << 16, over >> 16, 16); });

  add("async 1 byte", [] { return api.cuMemAllocAsync(&p[0], 1, nullptr); });
  add("async 31 MiB", [] { return api.cuMemAllocAsync(&p[1], 31 * kMiB, nullptr); });
  add("async 1 GiB and 1", [] { return api.cuMemAllocAsync(&p[2], 1024 * kMiB + 1, nullptr); });
  add("async free", [] {
    for (int i = 0; i < 3; i++) {
      if (CUresult r = api.cuMemFreeAsync(p[i], nullptr)) return r;
    }
    return CUDA_SUCCESS;
  });
  add("async synchronise", [] { return api.cuStreamSynchronize(nullptr); });
  add("async again", [] { return api.cuMemAllocAsync(&p[0], 5 * kMiB, nullptr); });
  add("async plain free", [] { return api.cuMemFree_v2(p[0]); });
  add("async over", [over] { return api.cuMemAllocAsync(&p[0], over, nullptr); });
  add("async zero", [] { return api.cuMemAllocAsync(&p[0], 0, nullptr); });

  add("pool create", [] {
    pool = NewPool();
    return CUDA_SUCCESS;
  });
  add("pool 5 MiB", [] { return api.cuMemAllocFromPoolAsync(&p[0], 5 * kMiB, pool, nullptr); });
  add("pool over", [over] { return api.cuMemAllocFromPoolAsync(&p[1], over, pool, nullptr); });
  add("pool threshold", [] {
    cuuint64_t keep = ~0ull;
    return api.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
  });
  add("pool free", [] { return api.cuMemFreeAsync(p[0], nullptr); });
  add("pool synchronise", [] { return api.cuCtxSynchronize(); });
  add("pool trim", [] { return api.cuMemPoolTrimTo(pool, 0); });
  add("pool 40 MiB", [] { return api.cuMemAllocFromPoolAsync(&p[0], 40 * kMiB, pool, nullptr); });
  add("pool destroy while used", [] { return api.cuMemPoolDestroy(pool); });
  add("pool last free", [] {
    if (CUresult r = api.cuMemFreeAsync(p[0], nullptr)) return r;
    return api.cuCtxSynchronize();
  });

  add("vmm create", [prop] { return api.cuMemCreate(&h, 6 * kMiB, &prop, 0); });
  add("vmm odd size", [prop] { return api.cuMemCreate(&h2, kMiB, &prop, 0); });
  add("vmm over", [prop, over] { return api.cuMemCreate(&h2, over / (2 * kMiB) * (2 * kMiB), &prop, 0); });
  add("vmm map", [] { return api.cuMemMap(va, 6 * kMiB, 0, h, 0); });
  add("vmm map twice", [] { return api.cuMemMap(va + 8 * kMiB, 6 * kMiB, 0, h, 0); });
  add("vmm release while mapped", [] { return api.cuMemRelease(h); });
  add("vmm unmap", [] { return api.cuMemUnmap(va, 6 * kMiB); });
  add("vmm retain",
      [] { return api.cuMemRetainAllocationHandle(&h2, reinterpret_cast<void*>(va + 8 * kMiB)); });
  add("vmm unmap last", [] { return api.cuMemUnmap(va + 8 * kMiB, 6 * kMiB); });
  add("vmm release last", [] { return api.cuMemRelease(h2); });
  add("vmm release again", [] { return api.cuMemRelease(h2); });

  add("managed", [] { return api.cuMemAllocManaged(&p[0], 100 * kMiB, CU_MEM_ATTACH_GLOBAL); });
  add("managed touch", [] { return api.cuMemsetD8_v2(p[0], 1, 100 * kMiB); });
  add("managed free", [] { return api.cuMemFree_v2(p[0]); });
  add("managed over", [over] { return api.cuMemAllocManaged(&p[0], over, CU_MEM_ATTACH_GLOBAL); });

  add("context", [] {
    if (CUresult r = api.cuCtxCreate_v2(&other, 0, device)) return r;
    return api.cuCtxSetCurrent(primary);
  });
  add("context's plain", [] {
    api.cuCtxSetCurrent(other);
    const CUresult r = api.cuMemAlloc_v2(&p[0], 10 * kMiB);
    api.cuCtxSetCurrent(primary);
    return r;
  });
  add("context destroyed with it", [] {
    const CUresult r = api.cuCtxDestroy_v2(other);
    api.cuCtxSetCurrent(primary);
    return r;
  });
  return Steps(s);
}

}  // namespace gpumux::probe
