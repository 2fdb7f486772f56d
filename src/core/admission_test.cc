// SPDX-License-Identifier: Apache-2.0
#include "core/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumux::core {
namespace {

using testing::HasSubstr;

constexpr uint64_t kTotal = 150754820096;
constexpr uint64_t kReserve = 644939776;
constexpr uint64_t kUsable = kTotal - kReserve;

GpuSnapshot Gpu(unsigned index, uint64_t guaranteed = 0, std::optional<Mode> mode = {}) {
  GpuSnapshot gpu;
  gpu.uuid.bytes[0] = 0xa0;
  gpu.uuid.bytes[1] = static_cast<uint8_t>(index);
  gpu.index = index;
  gpu.name = "NVIDIA H200";
  gpu.total_bytes = kTotal;
  gpu.reserve_bytes = kReserve;
  gpu.guaranteed_bytes = guaranteed;
  gpu.promisable_bytes = kUsable - guaranteed;
  gpu.mode = guaranteed && !mode ? Mode::kTimeslice : mode;
  gpu.tenants = gpu.mode ? 1 : 0;
  gpu.context = ContextCostOf(gpu.name);
  return gpu;
}

Request Ask(uint64_t bytes) {
  Request request;
  request.id = 1;
  if (bytes) request.mem = MemorySize{.bytes = bytes, .ratio = 0};
  return request;
}

const Placement& Placed(const Decision& decision) {
  EXPECT_TRUE(std::holds_alternative<Placement>(decision))
      << (std::holds_alternative<Wait>(decision) ? std::get<Wait>(decision).reason
                                                 : std::get<Error>(decision).message);
  return std::get<Placement>(decision);
}

TEST(Admission, PromisesGuaranteeAndLimit) {
  const Decision decision = Admit(Ask(40 * kGiB), {Gpu(0)}, {});
  const Placement& placement = Placed(decision);
  EXPECT_EQ(placement.mode, Mode::kTimeslice);
  ASSERT_EQ(placement.shares.size(), 1u);
  EXPECT_EQ(placement.shares[0].guaranteed_bytes, 40 * kGiB);
  EXPECT_EQ(placement.shares[0].limit_bytes, 40 * kGiB);
}

TEST(Admission, TakesARatioOfWhatAnEmptyGpuCanPromise) {
  Request request = Ask(0);
  request.mem = MemorySize{.bytes = 0, .ratio = 0.4};
  request.mem_limit = MemorySize{.bytes = 0, .ratio = 1};
  const Decision decision = Admit(request, {Gpu(0, 60 * kGiB)}, {});
  const Placement& placement = Placed(decision);
  EXPECT_EQ(placement.shares[0].guaranteed_bytes, 60043952128u);  // 0.4 * 150109880320
  EXPECT_EQ(placement.shares[0].limit_bytes, kUsable);
}

TEST(Admission, GivesNoGuaranteeWithoutMem) {
  const Decision decision = Admit(Ask(0), {Gpu(0, 60 * kGiB)}, {});
  const Placement& placement = Placed(decision);
  EXPECT_EQ(placement.shares[0].guaranteed_bytes, 0u);
  EXPECT_FALSE(placement.shares[0].limit_bytes);
}

TEST(Admission, PacksGuaranteesAndSpreadsTheRest) {
  const std::vector<GpuSnapshot> gpus = {Gpu(0, 20 * kGiB), Gpu(1, 60 * kGiB), Gpu(2, 120 * kGiB)};
  EXPECT_EQ(Placed(Admit(Ask(40 * kGiB), gpus, {})).shares[0].gpu, gpus[1].uuid);
  EXPECT_EQ(Placed(Admit(Ask(0), gpus, {})).shares[0].gpu, gpus[0].uuid);
}

TEST(Admission, WaitsAndSaysTheSum) {
  GpuSnapshot gpu = Gpu(0, 61 * kGiB);
  gpu.unmanaged_bytes = kGiB;
  gpu.strangers = {"pid 812"};
  gpu.promisable_bytes -= kGiB;
  const Decision decision = Admit(Ask(100 * kGiB), {gpu}, {});
  ASSERT_TRUE(std::holds_alternative<Wait>(decision));
  EXPECT_EQ(std::get<Wait>(decision).reason,
            "needs 100.0 GiB, 77.8 GiB can be promised (61.0 of 139.8 GiB guaranteed, 1.0 GiB held by "
            "unmanaged pid 812)");
  EXPECT_EQ(std::get<Wait>(decision).wants, std::set{gpu.uuid});
}

TEST(Admission, RefusesWhatNoGpuCouldEverPromise) {
  for (const auto& gpus : {std::vector{Gpu(0)}, std::vector{Gpu(0), Gpu(1)}}) {
    const Decision decision = Admit(Ask(200 * kGiB), gpus, {});
    ASSERT_TRUE(std::holds_alternative<Error>(decision));
    EXPECT_EQ(std::get<Error>(decision).code, Code::kDenied);
    EXPECT_THAT(std::get<Error>(decision).message, HasSubstr("needs 200.0 GiB"));
    EXPECT_THAT(std::get<Error>(decision).message, HasSubstr("can never promise more than 139.8 GiB"));
  }
}

TEST(Admission, RefusesLessThanAContextNeeds) {
  const uint64_t least = 548995072 + 32 * kMiB;
  const Decision decision = Admit(Ask(least - 1), {Gpu(0)}, {});
  ASSERT_TRUE(std::holds_alternative<Error>(decision));
  EXPECT_EQ(ExitStatus(std::get<Error>(decision).code), 4);
  EXPECT_THAT(std::get<Error>(decision).message, HasSubstr("a context alone takes 524 MiB"));
  Placed(Admit(Ask(least), {Gpu(0)}, {}));
}

TEST(Admission, KeepsOneModeAGpu) {
  Request exclusive = Ask(40 * kGiB);
  exclusive.mode = Mode::kExclusive;
  EXPECT_TRUE(std::holds_alternative<Wait>(Admit(exclusive, {Gpu(0, 1 * kGiB)}, {})));
  const Decision empty = Admit(exclusive, {Gpu(0, 1 * kGiB), Gpu(1)}, {});
  EXPECT_EQ(Placed(empty).shares[0].guaranteed_bytes, kUsable);
  EXPECT_EQ(Placed(empty).mode, Mode::kExclusive);
  // And the other way round: an exclusive GPU takes nobody else in.
  EXPECT_TRUE(std::holds_alternative<Wait>(Admit(Ask(0), {Gpu(0, 0, Mode::kExclusive)}, {})));
}

TEST(Admission, ChoosesAModeThatKeepsWhatWasAsked) {
  EXPECT_EQ(Placed(Admit(Ask(kGiB), {Gpu(0)}, {})).mode, Mode::kTimeslice);
  Request together = Ask(kGiB);
  together.isolation = Isolation::kNone;
  EXPECT_EQ(Placed(Admit(together, {Gpu(0)}, {})).mode, Mode::kMps);
  EXPECT_THAT(Placed(Admit(together, {Gpu(0)}, {})).mode_reason, HasSubstr("--isolate none"));
  // Where it cannot be: the next.
  GpuSnapshot without = Gpu(0);
  without.forbidden_modes[Mode::kMps] = {Code::kUnsupported, "no MPS here", ""};
  EXPECT_EQ(Placed(Admit(together, {without}, {})).mode, Mode::kTimeslice);
}

TEST(Admission, JoinsWhatIsThereRatherThanToWait) {
  const Placement joined = Placed(Admit(Ask(kGiB), {Gpu(0, kGiB, Mode::kTurns)}, {}));
  EXPECT_EQ(joined.mode, Mode::kTurns);
  EXPECT_EQ(joined.mode_reason,
            "auto: GPU 0 takes turns already, and a neighbour's GPU fault does not reach this program");
  Request together = Ask(kGiB);
  together.isolation = Isolation::kNone;
  EXPECT_EQ(Placed(Admit(together, {Gpu(0, kGiB, Mode::kTimeslice)}, {})).mode, Mode::kTimeslice);
  // Nobody who wants to be safe from others' faults comes to where they are not.
  EXPECT_TRUE(std::holds_alternative<Wait>(Admit(Ask(kGiB), {Gpu(0, kGiB, Mode::kMps)}, {})));
}

TEST(Admission, WaitsForTheModeThatItsGpuHas) {
  Request together = Ask(100 * kGiB);
  together.isolation = Isolation::kNone;
  const Decision decision = Admit(together, {Gpu(0, 61 * kGiB, Mode::kTimeslice)}, {});
  const auto* wait = std::get_if<Wait>(&decision);
  ASSERT_TRUE(wait);
  EXPECT_EQ(wait->needs.mode, Mode::kTimeslice);
  EXPECT_THAT(wait->reason, HasSubstr("needs 100.0 GiB"));
}

TEST(Admission, GuaranteesNoMoreThanAllOfAGpusTime) {
  Request request = Ask(kGiB);
  request.mode = Mode::kTurns;
  request.share_min = 0.3;
  GpuSnapshot gpu = Gpu(0, kGiB, Mode::kTurns);
  gpu.turns = {0.7, {"a", "b"}};
  EXPECT_TRUE(std::holds_alternative<Placement>(Admit(request, {gpu}, {})));
  gpu.turns.min_ratio = 0.75;
  const Decision full = Admit(request, {gpu}, {});
  const auto* wait = std::get_if<Wait>(&full);
  ASSERT_TRUE(wait);
  EXPECT_EQ(wait->reason, "needs 30 % of GPU 0's time, of which 75 % are guaranteed to others (a, b)");
  EXPECT_EQ(wait->wants.size(), 1u);
  // On another GPU there is room; and who has no minimum always finds it.
  const Decision other = Admit(request, {gpu, Gpu(1)}, {});
  EXPECT_EQ(std::get<Placement>(other).shares[0].gpu, Gpu(1).uuid);
  request.share_min = std::nullopt;
  EXPECT_TRUE(std::holds_alternative<Placement>(Admit(request, {gpu}, {})));
}

TEST(Admission, ChoosesExclusiveForFullIsolation) {
  Request request = Ask(40 * kGiB);
  request.isolation = Isolation::kFull;
  EXPECT_EQ(Placed(Admit(request, {Gpu(0)}, {})).mode, Mode::kExclusive);
  request.mode = Mode::kTimeslice;
  EXPECT_EQ(std::get<Error>(Admit(request, {Gpu(0)}, {})).code, Code::kUnsupported);
}

TEST(Admission, FindsGpusByIndexUuidAndPrefix) {
  const std::vector<GpuSnapshot> gpus = {Gpu(0), Gpu(1), Gpu(2)};
  Request request = Ask(kGiB);
  request.gpu_list = {"2", gpus[0].uuid.ToString()};
  const Decision both = Admit(request, gpus, {});
  ASSERT_EQ(Placed(both).shares.size(), 2u);
  EXPECT_EQ(Placed(both).shares[0].gpu, gpus[2].uuid);  // in the order that was asked for
  EXPECT_EQ(Placed(both).shares[1].gpu, gpus[0].uuid);
  request.gpu_list = {"gpu-A001"};
  EXPECT_EQ(Placed(Admit(request, gpus, {})).shares[0].gpu, gpus[1].uuid);

  const auto code = [&](std::vector<std::string> list) {
    request.gpu_list = std::move(list);
    return std::get<Error>(Admit(request, gpus, {})).code;
  };
  EXPECT_EQ(code({"3"}), Code::kNotFound);
  EXPECT_EQ(code({"-1"}), Code::kNotFound);
  EXPECT_EQ(code({""}), Code::kNotFound);
  EXPECT_EQ(code({"GPU-"}), Code::kNotFound);
  EXPECT_EQ(code({"99999999999999999999"}), Code::kNotFound);
  EXPECT_EQ(code({"GPU-a"}), Code::kInvalid);  // names all three
  EXPECT_EQ(code({"1", "GPU-a001"}), Code::kInvalid);
}

TEST(Admission, TakesAllGpusOrNone) {
  Request request = Ask(100 * kGiB);
  request.gpu_count = 2;
  const Decision waits = Admit(request, {Gpu(0), Gpu(1, 60 * kGiB)}, {});
  ASSERT_TRUE(std::holds_alternative<Wait>(waits));
  EXPECT_EQ(std::get<Wait>(waits).wants.size(), 2u);
  EXPECT_EQ(Placed(Admit(request, {Gpu(0), Gpu(1)}, {})).shares.size(), 2u);
  EXPECT_EQ(std::get<Error>(Admit(request, {Gpu(0)}, {})).code, Code::kDenied);
  request.gpu_count = 0;
  EXPECT_EQ(std::get<Error>(Admit(request, {Gpu(0)}, {})).code, Code::kDenied);
  EXPECT_EQ(std::get<Error>(Admit(Ask(kGiB), {}, {})).code, Code::kDenied);
}

TEST(Admission, SaysWhoseAForeignGpuIs) {
  GpuSnapshot foreign = Gpu(0);
  foreign.closed_error = {Code::kDenied, "GPU 0 is managed by the gpumuxd of user alice (pid 7)", ""};
  const Decision decision = Admit(Ask(kGiB), {foreign}, {});
  EXPECT_EQ(std::get<Error>(decision).message, foreign.closed_error.message);
  EXPECT_EQ(Placed(Admit(Ask(kGiB), {foreign, Gpu(1)}, {})).shares[0].gpu, Gpu(1).uuid);
}

TEST(Admission, AvoidsGpusWhoseSettingsForbidTheMode) {
  GpuSnapshot closed = Gpu(0);
  for (const Mode mode : {Mode::kTimeslice, Mode::kTurns})
    closed.forbidden_modes[mode] = {Code::kUnsupported, "its compute mode is Exclusive_Process", ""};
  EXPECT_EQ(std::get<Error>(Admit(Ask(kGiB), {closed}, {})).code, Code::kUnsupported);
  EXPECT_EQ(Placed(Admit(Ask(kGiB), {closed, Gpu(1)}, {})).shares[0].gpu, Gpu(1).uuid);
  Request exclusive = Ask(kGiB);
  exclusive.mode = Mode::kExclusive;
  Placed(Admit(exclusive, {closed}, {}));
}

TEST(Admission, RefusesALimitBelowTheGuarantee) {
  Request request = Ask(40 * kGiB);
  request.mem_limit = MemorySize{.bytes = 30 * kGiB, .ratio = 0};
  EXPECT_EQ(std::get<Error>(Admit(request, {Gpu(0)}, {})).code, Code::kInvalid);
}

}  // namespace
}  // namespace gpumux::core
