// SPDX-License-Identifier: Apache-2.0
//
// Instances of a partitioned GPU (MIG) as places for tenants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/admission.h"

namespace gpumux::core {
namespace {

using testing::HasSubstr;

constexpr uint64_t kReserve = 600 * kMiB;

GpuSnapshot Whole(unsigned index, uint64_t bytes = 140 * kGiB) {
  GpuSnapshot gpu;
  gpu.uuid.bytes[1] = static_cast<uint8_t>(index);
  gpu.index = index;
  gpu.name = "NVIDIA H200";
  gpu.total_bytes = bytes;
  gpu.reserve_bytes = kReserve;
  gpu.promisable_bytes = bytes - kReserve;
  gpu.context = ContextCostOf(gpu.name);
  gpu.forbidden_modes[Mode::kMig] = {Code::kUnsupported, "it is no MIG instance", ""};
  return gpu;
}

GpuSnapshot Partitioned(unsigned index) {
  GpuSnapshot gpu = Whole(index);
  gpu.closed_error = {Code::kUnsupported, "GPU 0 is partitioned (MIG)", "gpumux mig status"};
  return gpu;
}

GpuSnapshot Instance(unsigned gpu_index, unsigned instance, uint64_t bytes) {
  GpuSnapshot gpu = Whole(gpu_index, bytes);
  gpu.uuid.bytes[2] = static_cast<uint8_t>(instance + 1);
  gpu.uuid.instance = true;
  gpu.index = {gpu_index, instance};
  gpu.forbidden_modes.clear();
  gpu.name = "NVIDIA H200 MIG 1g.18gb";
  return gpu;
}

std::vector<GpuSnapshot> Machine() {
  return {Partitioned(0), Instance(0, 0, 70 * kGiB), Instance(0, 1, 16 * kGiB), Instance(0, 2, 32 * kGiB)};
}

Request Ask(uint64_t bytes, std::optional<Mode> mode = Mode::kMig) {
  Request request;
  request.id = 1;
  request.mode = mode;
  if (bytes) request.mem = MemorySize{.bytes = bytes, .ratio = 0};
  return request;
}

std::string Where(const Decision& decision, const std::vector<GpuSnapshot>& gpus) {
  if (const auto* error = std::get_if<Error>(&decision)) return "refused: " + error->message;
  if (const auto* wait = std::get_if<Wait>(&decision)) return "waits: " + wait->reason;
  for (const GpuSnapshot& gpu : gpus) {
    if (gpu.uuid == std::get<Placement>(decision).shares[0].gpu) return gpu.index.Label();
  }
  return "nowhere";
}

std::string Where(const Request& request, const std::vector<GpuSnapshot>& gpus) {
  return Where(Admit(request, gpus, {}), gpus);
}

TEST(AdmissionMig, TakesTheSmallestInstanceThatHoldsItAndGivesAllOfIt) {
  const auto gpus = Machine();
  EXPECT_EQ(Where(Ask(10 * kGiB), gpus), "0:1");
  EXPECT_EQ(Where(Ask(20 * kGiB), gpus), "0:2");
  EXPECT_EQ(Where(Ask(40 * kGiB), gpus), "0:0");
  const Decision decision = Admit(Ask(10 * kGiB), gpus, {});
  const Share& share = std::get<Placement>(decision).shares[0];
  EXPECT_EQ(share.guaranteed_bytes, 16 * kGiB - kReserve);
  EXPECT_EQ(share.limit_bytes, share.guaranteed_bytes);
  // Spreading is for those who share.
  Request spread = Ask(10 * kGiB);
  spread.fill = Fill::kSpread;
  EXPECT_EQ(Where(spread, gpus), "0:1");
}

TEST(AdmissionMig, IsAloneOnItsInstance) {
  auto gpus = Machine();
  gpus[2].tenants = 1;
  gpus[2].mode = Mode::kTimeslice;
  EXPECT_EQ(Where(Ask(10 * kGiB), gpus), "0:2");
  for (auto& gpu : gpus) gpu.tenants = 1;
  EXPECT_THAT(Where(Ask(20 * kGiB), gpus), HasSubstr("needs GPU 0:0 to itself"));
  // And nobody joins it.
  gpus = Machine();
  for (size_t i = 1; i < gpus.size(); ++i) {
    gpus[i].tenants = 1;
    gpus[i].mode = Mode::kMig;
  }
  EXPECT_THAT(Where(Ask(1 * kGiB, Mode::kTimeslice), gpus), HasSubstr("is in mode mig, not timeslice"));
}

TEST(AdmissionMig, OthersShareAnInstance) {
  auto gpus = Machine();
  EXPECT_EQ(Where(Ask(10 * kGiB, Mode::kTimeslice), gpus), "0:1");
  EXPECT_EQ(Where(Ask(10 * kGiB, std::nullopt), gpus), "0:1");
  Request named = Ask(10 * kGiB, Mode::kTurns);
  named.gpu_list = {"0:2"};
  EXPECT_EQ(Where(named, gpus), "0:2");
  named.gpu_list = {gpus[3].uuid.ToString().substr(0, 20)};
  ASSERT_TRUE(named.gpu_list[0].starts_with("MIG-"));
  EXPECT_EQ(Where(named, gpus), "0:2");
}

TEST(AdmissionMig, APartitionedGpuItselfIsNotGiven) {
  Request named = Ask(10 * kGiB, Mode::kTimeslice);
  named.gpu_list = {"0"};
  EXPECT_EQ(Where(named, Machine()), "refused: GPU 0 is partitioned (MIG)");
}

TEST(AdmissionMig, AProgramHasOneInstanceAtATime) {
  Request two = Ask(10 * kGiB, Mode::kTimeslice);
  two.gpu_list = {"0:0", "0:2"};
  EXPECT_THAT(Where(two, Machine()), HasSubstr("a program has one at a time"));
  two.gpu_list.clear();
  two.gpu_count = 2;
  EXPECT_THAT(Where(two, Machine()), HasSubstr("refused"));
  // Beside whole GPUs these are given.
  auto gpus = Machine();
  gpus.push_back(Whole(1));
  gpus.push_back(Whole(2));
  EXPECT_EQ(Where(two, gpus), "1");
}

TEST(AdmissionMig, WithoutAnInstanceItIsRefused) {
  EXPECT_EQ(Where(Ask(10 * kGiB), {Whole(0)}),
            "refused: GPU 0 cannot be used in mode mig: it is no MIG instance");
  EXPECT_THAT(Where(Ask(100 * kGiB), Machine()), HasSubstr("refused: needs 100.0 GiB, GPU 0:"));
}

TEST(AdmissionMig, FullIsolationIsAnInstanceOrAWholeGpu) {
  Request full = Ask(10 * kGiB, std::nullopt);
  full.isolation = Isolation::kFull;
  EXPECT_EQ(Where(full, Machine()), "0:1");
  EXPECT_EQ(std::get<Placement>(Admit(full, Machine(), {})).mode, Mode::kMig);
  EXPECT_EQ(Where(full, {Whole(0)}), "0");
  EXPECT_EQ(std::get<Placement>(Admit(full, {Whole(0)}, {})).mode, Mode::kExclusive);
  // Where only the whole GPU is large enough.
  auto gpus = Machine();
  gpus.push_back(Whole(1));
  full.mem = MemorySize{.bytes = 100 * kGiB, .ratio = 0};
  EXPECT_EQ(Where(full, gpus), "1");
}

}  // namespace
}  // namespace gpumux::core
