// SPDX-License-Identifier: Apache-2.0
//
// Whoever changes partitions beside gpumux, as nvidia-smi does:
//
//   create PROFILE ID:START ...   a GPU instance of the profile, by its id, at each START, with a compute
//                                 instance of all of it: `create 19:0 19:1`
//   destroy START ...             the one that begins there, with its compute instances
//   list                          "START PROFILE" for each
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "gpu/nvml_mig.h"
#include "gpu/source.h"

namespace gpumux {
namespace {

template <typename T>
T Must(Result<T> result) {
  if (result) return std::move(*result);
  fprintf(stderr, "%s\n", result.error().ToString().c_str());
  exit(1);
}

void Must(const Status& status) {
  if (status) return;
  fprintf(stderr, "%s\n", status.error().ToString().c_str());
  exit(1);
}

void Create(gpu::Mig& mig, const gpu::Uuid& gpu, const char* text) {
  char* rest = nullptr;
  const auto profile = static_cast<uint32_t>(strtoul(text, &rest, 10));
  const auto start = static_cast<uint32_t>(strtoul(rest + 1, nullptr, 10));
  uint32_t size = 0;
  for (const gpu::MigProfile& each : Must(mig.Profiles(gpu))) {
    if (each.id == profile) size = each.memory_slices.value_or(0);
  }
  const auto made = Must(mig.Create(gpu, profile, gpu::MigPlacement{start, size}));
  gpu::MigComputeProfile largest;
  for (const auto& each : Must(mig.ComputeProfiles(gpu, made.id))) {
    if (each.slices > largest.slices) largest = each;
  }
  (void)Must(mig.CreateCompute(gpu, made.id, largest.id));
}

void Destroy(gpu::Mig& mig, const gpu::Uuid& gpu, const char* text) {
  for (const auto& instance : Must(mig.Instances(gpu))) {
    if (instance.placement.start != strtoul(text, nullptr, 10)) continue;
    for (const auto& compute : Must(mig.ComputeInstances(gpu, instance.id)))
      Must(mig.DestroyCompute(gpu, instance.id, compute.id));
    Must(mig.Destroy(gpu, instance.id));
  }
}

int Main(int argc, char** argv) {
  auto nvml = Must(gpu::Nvml::Open(Must(gpu::FindGpuSource())));
  const gpu::Uuid gpu = nvml->Devices().at(0).uuid;
  gpu::Mig& mig = nvml->mig();
  const std::string command = argc > 1 ? argv[1] : "";
  for (int i = 2; i < argc; ++i) command == "create" ? Create(mig, gpu, argv[i]) : Destroy(mig, gpu, argv[i]);
  if (command == "list") {
    for (const auto& each : Must(mig.Instances(gpu))) printf("%u %u\n", each.placement.start, each.profile);
  }
  return command == "create" || command == "destroy" || command == "list" ? 0 : 2;
}

}  // namespace
}  // namespace gpumux

int main(int argc, char** argv) { return gpumux::Main(argc, argv); }
