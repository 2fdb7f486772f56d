// SPDX-License-Identifier: Apache-2.0
#include "cli/promise_text.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/japanese.h"
#include "core/context_cost.h"
#include "modes/sharing_mode.h"

namespace gpumux::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

PromiseGpu H200() {
  PromiseGpu gpu;
  gpu.device.name = "NVIDIA H200";
  gpu.driver_version = "580.159.04";
  gpu.compute_mode = gpu::ComputeMode::kDefault;
  gpu.total_bytes = 150'754'820'096;
  gpu.reserve_bytes = 600 * kMiB;
  gpu.no_mode_because = "no daemon runs";
  return gpu;
}

const Json& ModeOf(const Json& promise, const std::string& name) {
  static const Json kNone;
  for (const Json& mode : promise["modes"])
    if (mode["mode"] == name) return mode;
  return kNone;
}

bool HasLetters(std::string_view text) {
  return std::ranges::any_of(text, [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
}

TEST(LanguageOf, IsThatOfTheFirstVariableThatIsSet) {
  EXPECT_EQ(LanguageOf(nullptr, nullptr, "ja_JP.UTF-8"), Language::kJapanese);
  EXPECT_EQ(LanguageOf("", nullptr, "ja"), Language::kJapanese);
  EXPECT_EQ(LanguageOf("C", nullptr, "ja_JP.UTF-8"), Language::kEnglish);
  EXPECT_EQ(LanguageOf(nullptr, "ja_JP", "en_US"), Language::kJapanese);
  EXPECT_EQ(LanguageOf(nullptr, nullptr, "jam_JM"), Language::kEnglish);
  EXPECT_EQ(LanguageOf(nullptr, nullptr, nullptr), Language::kEnglish);
}

TEST(Japanese, HasEverySentenceOfEveryCapabilityRecord) {
  for (const core::Mode each : core::kModes) {
    const modes::Capability& mode = modes::ModeOf(each).capability();
    for (const std::string_view text :
         {mode.memory_enforced_by, mode.memory_guaranteed_by, mode.compute_promise, mode.compute_enforced_by,
          mode.neighbour_fault, mode.neighbour_death, mode.neighbour_load, mode.neighbour_reads,
          mode.undivided, mode.switching_cost, mode.share_option, mode.after_fault})
      EXPECT_TRUE(Japanese(text)) << core::Name(each) << ": " << text;
    for (const auto compute : {gpu::ComputeMode::kProhibited, gpu::ComputeMode::kExclusiveProcess}) {
      for (const auto& [instance, partitioned] : {std::pair{false, false}, {true, false}, {false, true}}) {
        const Status status = modes::SupportsOn(
            each, {.compute_mode = compute, .instance = instance, .partitioned = partitioned});
        if (status) continue;
        EXPECT_TRUE(Japanese(status.error().message)) << status.error().message;
        EXPECT_TRUE(Japanese(status.error().hint)) << status.error().hint;
      }
    }
  }
}

// Every line of the Japanese text that has words at all has Japanese ones.
TEST(Promise, IsWhollyInItsLanguage) {
  PromiseGpu usual = H200(), closed = H200(), other = H200();
  closed.compute_mode = gpu::ComputeMode::kExclusiveProcess;
  closed.outside_bytes = kGiB;
  other.device.name = "NVIDIA L4";
  other.mig = true;
  other.total_bytes = kGiB;
  other.mode = core::Mode::kTurns;
  PromiseGpu instance = H200();
  instance.device.instance = gpu::InstanceOf{};
  for (const PromiseGpu& gpu : {usual, closed, other, instance}) {
    const Json japanese = PromiseJson(gpu, std::nullopt, Language::kJapanese);
    const std::string text = RenderPromise(japanese, true, "1", "2026-11-30", Language::kJapanese);
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find('\n', at);
      const std::string_view line = std::string_view(text).substr(at, end - at);
      const bool ascii =
          std::ranges::all_of(line, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
      const bool only_figures = line.starts_with("# GPU") || line.find("| `--mem ") != line.npos;
      EXPECT_FALSE(ascii && HasLetters(line) && !only_figures) << line;
      EXPECT_THAT(line, Not(HasSubstr("By:")));
      EXPECT_THAT(line, Not(HasSubstr(" the ")));
      at = end + 1;
    }
    const std::string english = RenderPromise(PromiseJson(gpu, std::nullopt, Language::kEnglish), true, "1",
                                              "2026-11-30", Language::kEnglish);
    for (const char* line : {"保証", "上限", "モード"}) EXPECT_THAT(english, Not(HasSubstr(line)));
  }
}

TEST(Promise, SaysOfAModeWhatItsRecordSays) {
  const Json promise = PromiseJson(H200(), std::nullopt, Language::kEnglish);
  ASSERT_EQ(promise["modes"].size(), std::size(core::kModes));
  const std::string text = RenderPromise(promise, false, "1", "2026-11-30", Language::kEnglish);
  for (const core::Mode each : core::kModes) {
    const modes::Capability& record = modes::ModeOf(each).capability();
    const std::string mode = ModeOf(promise, std::string(core::Name(each))).dump();
    // Only an instance has it, and what a GPU cannot have is not described.
    if (each == core::Mode::kMig) continue;
    for (const std::string_view said :
         {record.memory_enforced_by, record.memory_guaranteed_by, record.compute_promise,
          record.compute_enforced_by, record.neighbour_fault, record.neighbour_death, record.neighbour_load,
          record.neighbour_reads, record.undivided, record.share_option, record.after_fault}) {
      EXPECT_THAT(mode, HasSubstr(std::string(said))) << core::Name(each);
      EXPECT_THAT(text, HasSubstr(std::string(said))) << core::Name(each);
    }
  }
  EXPECT_EQ(ModeOf(promise, "turns")["share_max_ratio"], 1);
  EXPECT_TRUE(ModeOf(promise, "timeslice")["share_min_ratio"].is_null());
  EXPECT_TRUE(ModeOf(promise, "timeslice")["share_min_ratio_reason"].is_string());
  EXPECT_THAT(text, Not(HasSubstr("SIMULATED")));
}

TEST(Promise, OfAnInstanceSaysWhatMigKeepsAndOfAGpuWhatWouldHelp) {
  PromiseGpu gpu = H200();
  EXPECT_EQ(ModeOf(PromiseJson(gpu, std::nullopt, Language::kEnglish), "mig")["why_not"],
            "it is no MIG instance");
  gpu.device.instance = gpu::InstanceOf{};
  const Json mig = ModeOf(PromiseJson(gpu, std::nullopt, Language::kEnglish), "mig");
  EXPECT_TRUE(mig["possible"].get<bool>());
  EXPECT_THAT(mig.dump(), HasSubstr("against hostile programs too"));
  EXPECT_EQ(mig["equal_parts"].size(), 1u);
  EXPECT_FALSE(ModeOf(PromiseJson(gpu, std::nullopt, Language::kEnglish), "mps")["possible"].get<bool>());
  gpu.device.instance.reset();
  gpu.mig = true;
  for (const Json& mode : PromiseJson(gpu, std::nullopt, Language::kEnglish)["modes"])
    EXPECT_FALSE(mode["possible"].get<bool>()) << mode["mode"];
}

TEST(Promise, OffersNoSizesInAModeThatTheGpusSettingsForbid) {
  PromiseGpu gpu = H200();
  gpu.compute_mode = gpu::ComputeMode::kExclusiveProcess;
  const Json promise = PromiseJson(gpu, std::nullopt, Language::kEnglish);
  const Json& timeslice = ModeOf(promise, "timeslice");
  EXPECT_EQ(timeslice["possible"], false);
  EXPECT_TRUE(timeslice["equal_parts"].empty());
  EXPECT_THAT(timeslice["why_not"].get<std::string>(), HasSubstr("Exclusive_Process"));
  EXPECT_EQ(ModeOf(promise, "exclusive")["possible"], true);
  const std::string text = RenderPromise(promise, false, "1", "2026-11-30", Language::kEnglish);
  EXPECT_THAT(text, HasSubstr("Not possible now: its compute mode is Exclusive_Process"));
}

TEST(Promise, SaysWhereFiguresWereMeasuredAndWhatIsInTheWay) {
  PromiseGpu gpu = H200();
  const auto notes = [&] { return PromiseJson(gpu, std::nullopt, Language::kEnglish)["notes"].dump(); };
  EXPECT_THAT(notes(), HasSubstr("measured on an NVIDIA H200.\""));
  EXPECT_THAT(notes(), Not(HasSubstr("safe guess")));
  EXPECT_THAT(notes(), Not(HasSubstr("outside gpumux hold")));
  gpu.device.name = "NVIDIA L4";
  gpu.outside_bytes = 3 * kGiB;
  EXPECT_THAT(notes(), HasSubstr("not on this model"));
  EXPECT_THAT(notes(), HasSubstr("safe guess"));
  EXPECT_THAT(notes(), HasSubstr("outside gpumux hold 3.0 GiB"));
}

TEST(EqualParts, FitTogetherAndLeaveRoomForAProgram) {
  PromiseGpu gpu = H200();
  gpu.outside_bytes = 10 * kGiB + 12345;
  const uint64_t left = gpu.total_bytes - gpu.reserve_bytes - gpu.outside_bytes;
  const core::ContextCost cost = core::ContextCostOf(gpu.device.name);
  const auto parts = EqualParts(gpu, core::Mode::kTimeslice);
  ASSERT_EQ(parts.size(), 8u);
  for (const EqualPart& part : parts) {
    EXPECT_LE(part.tenants * part.mem_bytes, left);
    EXPECT_GT(part.tenants * (part.mem_bytes + kGiB / 5), left) << "more would fit";
    EXPECT_EQ(part.program_bytes, part.mem_bytes - cost.ChargeBytes());
    // Written as a person would, it is no more than was computed.
    const auto written =
        ParseMemorySize(fmt::format("{:.1f}GiB", static_cast<double>(part.mem_bytes) / kGiB));
    ASSERT_TRUE(written);
    EXPECT_LE(part.tenants * written->bytes, left);
  }
  EXPECT_EQ(EqualParts(gpu, core::Mode::kExclusive).size(), 1u);
  // The server of MPS has its part.
  for (const EqualPart& part : EqualParts(gpu, core::Mode::kMps))
    EXPECT_LE(part.tenants * part.mem_bytes + cost.mps_server_bytes, left);
}

TEST(EqualParts, AreNoneWhereNoContextFits) {
  PromiseGpu gpu = H200();
  gpu.outside_bytes = gpu.total_bytes - gpu.reserve_bytes - 200 * kMiB;
  EXPECT_TRUE(EqualParts(gpu, core::Mode::kTimeslice).empty());
  gpu.outside_bytes = UINT64_MAX;
  EXPECT_TRUE(EqualParts(gpu, core::Mode::kTimeslice).empty());
  gpu.outside_bytes = gpu.total_bytes - gpu.reserve_bytes - 2 * kGiB;
  const auto parts = EqualParts(gpu, core::Mode::kTimeslice);
  ASSERT_FALSE(parts.empty());
  EXPECT_LE(parts.back().tenants, 3u);  // half a GiB is each one's context
}

}  // namespace
}  // namespace gpumux::cli
