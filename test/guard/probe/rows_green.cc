// SPDX-License-Identifier: Apache-2.0
//
// Green contexts of a primary context that is there: its own rows are in
// rows_contexts.cc, and one that a green context makes is in green.cc.
#include "rows.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

namespace {

constexpr int64_t kPage = 2 * static_cast<int64_t>(kMiB);
constexpr int kSms = 1;
constexpr unsigned kDefaultStream = 1;

struct Resource {  // CUdevResource
  uint64_t words[18];
};

CUdevResourceDesc desc = nullptr;

template <typename... P>
CUresult Call(const char* name, P... p) {
  return Find<CUresult (*)(P...)>(name)(p...);
}

// 32 SMs, which took 4 MiB on an H200 (docs/results).
void Describe() {
  CUcontext context = nullptr;
  Resource all = {}, part = {};
  unsigned groups = 1;
  MUST(named.cuDevicePrimaryCtxRetain(&context, device));
  MUST(Call("cuDeviceGetDevResource", device, &all, kSms));
  MUST(Call("cuDevSmResourceSplitByCount", &part, &groups, static_cast<const Resource*>(&all),
            static_cast<Resource*>(nullptr), 0u, 32u));
  MUST(Call("cuDevResourceGenerateDesc", &desc, &part, 1u));
}
void Make() {
  Describe();
  MUST(named.cuGreenCtxCreate(reinterpret_cast<CUgreenCtx*>(&held), desc, device, kDefaultStream));
}
// The next stream takes a page.
void MakeWithStream() {
  CUstream first = nullptr;
  Make();
  MUST(named.cuGreenCtxStreamCreate(&first, As<CUgreenCtx>(held), CU_STREAM_NON_BLOCKING, 0));
}
// What a green context took, and its streams, end with the primary context.
void Release() { MUST(named.cuDevicePrimaryCtxRelease_v2(device)); }

}  // namespace

void AddGreenRows(std::vector<Row>* rows) {
  rows->push_back({.hook = "cuGreenCtxCreate",
                   .takes = 2 * kPage,
                   .charges = 2 * kPage,
                   .needs = 4 * kPage,
                   .prepare = Describe,
                   .call =
                       [](const Hooked& d) {
                         return d.cuGreenCtxCreate(Out<CUgreenCtx>(), desc, device, kDefaultStream);
                       },
                   .undo = [] { MUST(named.cuGreenCtxDestroy(As<CUgreenCtx>(out))); },
                   .clean = Release});
  rows->push_back({.hook = "cuGreenCtxDestroy",
                   .prepare = Make,
                   .call = [](const Hooked& d) { return d.cuGreenCtxDestroy(As<CUgreenCtx>(held)); },
                   .clean = Release});
  rows->push_back({.hook = "cuGreenCtxStreamCreate",
                   .takes = kPage,
                   .charges = kPage,
                   .needs = 2 * kPage,
                   .prepare = MakeWithStream,
                   .call =
                       [](const Hooked& d) {
                         return d.cuGreenCtxStreamCreate(Out<CUstream>(), As<CUgreenCtx>(held),
                                                         CU_STREAM_NON_BLOCKING, 0);
                       },
                   .clean =
                       [] {
                         MUST(named.cuGreenCtxDestroy(As<CUgreenCtx>(held)));
                         Release();
                       }});
}

}  // namespace gpumux::probe
