// SPDX-License-Identifier: Apache-2.0
//
// Arrays and mipmapped arrays. What each takes was measured on an H200
// (docs/results).
#include "rows.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

namespace {

constexpr int64_t kPage = 2 * kMiB;
constexpr int kFloat = 0x20;
constexpr CUDA_ARRAY_DESCRIPTOR kFlat = {1000, 1000, kFloat, 4};
constexpr CUDA_ARRAY_DESCRIPTOR_v1 kFlatV1 = {1000, 1000, kFloat, 4};
constexpr CUDA_ARRAY_DESCRIPTOR kSmall = {10, 10, kFloat, 1};
constexpr CUDA_ARRAY3D_DESCRIPTOR kLevels = {1024, 1024, 0, kFloat, 1, 0};

void DestroyOut() { MUST(named.cuArrayDestroy(As<CUarray>(out))); }
void DestroyMipmapOut() { MUST(named.cuMipmappedArrayDestroy(As<CUmipmappedArray>(out))); }

void AddShapes(std::vector<Row>* rows) {
  auto add = [&](const char* variant, int64_t takes, CUresult (*call)(const Hooked&)) {
    rows->push_back({.hook = "cuArray3DCreate_v2",
                     .variant = variant,
                     .takes = takes,
                     .charges = takes,
                     .call = call,
                     .undo = DestroyOut});
  };
  add("1D", 4 * kPage, [](const Hooked& d) {
    const CUDA_ARRAY3D_DESCRIPTOR shape = {65536, 0, 0, kFloat, 4, 0};
    return d.cuArray3DCreate_v2(Out<CUarray>(), &shape);
  });
  add("2D odd", 10 * kPage, [](const Hooked& d) {
    const CUDA_ARRAY3D_DESCRIPTOR shape = {1025, 1025, 0, kFloat, 4, 0};
    return d.cuArray3DCreate_v2(Out<CUarray>(), &shape);
  });
  add("2D bytes", 8 * kPage, [](const Hooked& d) {
    const CUDA_ARRAY3D_DESCRIPTOR shape = {4096, 4096, 0, 1, 1, 0};
    return d.cuArray3DCreate_v2(Out<CUarray>(), &shape);
  });
  add("layered", 4 * kPage, [](const Hooked& d) {
    const CUDA_ARRAY3D_DESCRIPTOR shape = {512, 512, 7, kFloat, 1, 1};
    return d.cuArray3DCreate_v2(Out<CUarray>(), &shape);
  });
  add("cube map", 3 * kPage, [](const Hooked& d) {
    const CUDA_ARRAY3D_DESCRIPTOR shape = {512, 512, 6, kFloat, 1, 4};
    return d.cuArray3DCreate_v2(Out<CUarray>(), &shape);
  });
  add("cube maps", 6 * kPage, [](const Hooked& d) {
    const CUDA_ARRAY3D_DESCRIPTOR shape = {512, 512, 12, kFloat, 1, 5};
    return d.cuArray3DCreate_v2(Out<CUarray>(), &shape);
  });
  add("without memory", 0, [](const Hooked& d) {
    const CUDA_ARRAY3D_DESCRIPTOR shape = {1024, 1024, 0, kFloat, 4, 0x80};
    return d.cuArray3DCreate_v2(Out<CUarray>(), &shape);
  });
}

}  // namespace

void AddArrayRows(std::vector<Row>* rows) {
  auto add = [&](Row row) { rows->push_back(std::move(row)); };
  add({.hook = "cuArrayCreate",
       .takes = 8 * kPage,
       .charges = 8 * kPage,
       .call = [](const Hooked& d) { return d.cuArrayCreate(Out<CUarray>(), &kFlatV1); },
       .undo = DestroyOut});
  add({.hook = "cuArrayCreate_v2",
       .takes = 8 * kPage,
       .charges = 8 * kPage,
       .call = [](const Hooked& d) { return d.cuArrayCreate_v2(Out<CUarray>(), &kFlat); },
       .undo = DestroyOut});
  add({.hook = "cuArrayCreate_v2",
       .variant = "small",
       .takes = kPage,
       .charges = kPage,
       .call = [](const Hooked& d) { return d.cuArrayCreate_v2(Out<CUarray>(), &kSmall); },
       .undo = DestroyOut});
  add({.hook = "cuArray3DCreate",
       .takes = 8 * kPage,
       .charges = 8 * kPage,
       .call =
           [](const Hooked& d) {
             const CUDA_ARRAY3D_DESCRIPTOR_v1 shape = {1000, 1000, 0, kFloat, 4, 0};
             return d.cuArray3DCreate(Out<CUarray>(), &shape);
           },
       .undo = DestroyOut});
  AddShapes(rows);
  add({.hook = "cuArrayDestroy",
       .takes = -8 * kPage,
       .charges = -8 * kPage,
       .prepare = [] { MUST(named.cuArrayCreate_v2(reinterpret_cast<CUarray*>(&held), &kFlat)); },
       .call = [](const Hooked& d) { return d.cuArrayDestroy(As<CUarray>(held)); }});
  add({.hook = "cuArrayDestroy",
       .variant = "small",
       .takes = -kPage,
       .charges = -kPage,
       .prepare = [] { MUST(named.cuArrayCreate_v2(reinterpret_cast<CUarray*>(&held), &kSmall)); },
       .call = [](const Hooked& d) { return d.cuArrayDestroy(As<CUarray>(held)); }});
  add({.hook = "cuMipmappedArrayCreate",
       .takes = 3 * kPage,
       .charges = 3 * kPage,
       .call = [](const Hooked& d) { return d.cuMipmappedArrayCreate(Out<CUmipmappedArray>(), &kLevels, 5); },
       .undo = DestroyMipmapOut});
  add({.hook = "cuMipmappedArrayDestroy",
       .takes = -3 * kPage,
       .charges = -3 * kPage,
       .prepare =
           [] {
             MUST(named.cuMipmappedArrayCreate(reinterpret_cast<CUmipmappedArray*>(&held), &kLevels, 5));
           },
       .call = [](const Hooked& d) { return d.cuMipmappedArrayDestroy(As<CUmipmappedArray>(held)); }});
}

}  // namespace gpumux::probe
