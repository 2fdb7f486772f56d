// SPDX-License-Identifier: Apache-2.0
#include "cli/mig/text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/envelope.h"
#include "cli/mig/bar.h"
#include "cli/mig/request.h"
#include "core/mig/profile_name.h"

namespace gpumux::cli {
namespace {

using core::mig::Layout;
using core::mig::Placed;

const gpu::MigModel& Gpu(std::string_view key) { return **gpu::FindMigModel(key); }

Placed One(std::string_view gpu, std::string_view name, uint32_t start) {
  return {start, *(*core::mig::FindProfile(Gpu(gpu), name))->id};
}

MigPlanned Planned(std::vector<core::mig::GpuState> gpus, const std::vector<core::mig::Want>& wants) {
  MigPlanned planned;
  planned.uuids.resize(gpus.size());
  planned.gpus = std::move(gpus);
  planned.wants = wants;
  planned.plan = *core::mig::MakePlan(planned.gpus, wants);
  return planned;
}

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(MigBar, ShowsInstancesOverTheSlicesTheyTake) {
  EXPECT_EQ(MigBar(Gpu("H200"), {One("H200", "1g.18gb", 1), One("H200", "3g.71gb", 4)}),
            "|       |1g.18gb|       |       |3g.71gb........................|\n"
            "0       1       2       3       4       5       6       7\n");
  EXPECT_EQ(MigBar(Gpu("H200"), {One("H200", "1g.18gb+me", 0), One("H200", "2g.35gb", 2)}),
            "|1g+me..|       |2g.35gb........|       |       |       |       |\n"
            "0       1       2       3       4       5       6       7\n");
  EXPECT_EQ(MigBar(Gpu("RTX-PRO-6000"),
                   {One("RTX-PRO-6000", "1g.24gb-me", 3), One("RTX-PRO-6000", "2g.48gb+me.all", 6)}),
            "|   |   |   |1g.24gb-me.|2g.48gb+me.all.........|\n"
            "0   1   2   3   4   5   6   7   8   9   10  11\n");
  EXPECT_EQ(MigBar(Gpu("Thor"), {}), "|\n\n");
}

TEST(MigText, ProfilesSayWhatTheyAreFrom) {
  const std::string text = MigProfilesText(Gpu("H200"), {});
  EXPECT_TRUE(Has(text, "not read from the device")) << text;
  EXPECT_TRUE(Has(
      text, "3g.71gb      9     2   60   69.50 GiB        3  0,4:4~            3/3/0/3/0            high"))
      << text;
  const std::string unknown = MigProfilesText(Gpu("Thor"), {});
  EXPECT_TRUE(
      Has(unknown, "1g.0gb       -     1    -       -        1  -            -                    low"))
      << unknown;
  EXPECT_TRUE(Has(unknown, "not known what enabling needs")) << unknown;
  gpu::MigModel device = Gpu("H200");
  device.from_device = true;
  EXPECT_TRUE(Has(MigProfilesText(device, {}), "Read from the device."));
  EXPECT_FALSE(Has(MigProfilesText(device, {}), "From the table"));
}

TEST(MigText, APlanNamesWhoIsDisturbedAndWhatIsLost) {
  const auto planned =
      Planned({{"GPU 0",
                &Gpu("H200"),
                {{One("H200", "1g.18gb", 3), {"train", "pid 812"}}, {One("H200", "1g.18gb", 6)}}}},
              {{"big", 1, "4g.71gb"}, {"small", 2, "", 4ull << 30, 0, true}});
  const auto text = MigPlanText(planned, {});
  ASSERT_TRUE(text) << text.error().ToString();
  for (const char* part :
       {"Fits: 3 of 3 wanted.\n", "  |4g.71gb........................|1g.18gb|       |1g.18gb|       |\n",
        "  4g.71gb at 0   64  69.50 GiB  big\n",
        "  1g.18gb at 4   16  16.00 GiB  train, pid 812, moved here from 3\n",
        "  1g.18gb at 6   16  16.00 GiB  small x2\n",
        "  Not in any instance: 36 of 132 SMs (27 %), 38.2 GiB of 139.8 GiB (27 %)\n",
        "  Room left for one of: 1g.18gb, 1g.18gb+me\n",
        "  Has to be stopped first: train, pid 812 (1g.18gb at 3)\n", "  Steps: 1. destroy 1g.18gb at 3\n",
        "\n         2. create 4g.71gb at 0\n         3. create 1g.18gb at 4\n", "no NCCL between instances",
        "Profiles are from the table, not read from the device.\n"}) {
    EXPECT_TRUE(Has(*text, part)) << part << "\nin\n" << *text;
  }
}

TEST(MigText, APlanSaysWhatDoesNotFitAndWhy) {
  const auto text = *MigPlanText(Planned({{"GPU 0", &Gpu("H200")}}, {{"a", 3, "3g.71gb"}}), {});
  EXPECT_TRUE(text.starts_with("Does not fit: 2 of 3 wanted, and no layout has more.\n")) << text;
  EXPECT_TRUE(
      Has(text,
          "\nNot placed:\n  a (1 of 3): 3g.71gb needs placement 0 or 4; 0 is taken by 3g.71gb at 0, 4 by "
          "3g.71gb at 4\n"))
      << text;
  const auto several =
      *MigPlanText(Planned({{"GPU 0", &Gpu("B200")}, {"GPU 1", &Gpu("B200")}}, {{"a", 3, "7g.180gb"}}), {});
  EXPECT_TRUE(several.starts_with("Does not fit: 2 of 3 wanted.\n")) << several;
  EXPECT_TRUE(Has(several, "SMs not known, memory not known")) << several;
}

TEST(MigPlanDocument, IsReadBackAsItWasWritten) {
  const auto planned =
      Planned({{"GPU 0", &Gpu("H200")}, {"GPU 1", &Gpu("A30")}}, {{"a", 2, "3g.71gb"}, {"b", 3, "1g.6gb"}});
  const auto json = MigPlanJson(planned);
  ASSERT_TRUE(json);
  const auto read = ReadMigPlan(Envelope("mig-plan", false, *json));
  ASSERT_TRUE(read) << read.error().ToString();
  ASSERT_EQ(read->size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ((*read)[i].layout, planned.plan.gpus[i].layout);
    EXPECT_EQ((*read)[i].model, planned.gpus[i].model->key);
    EXPECT_EQ((*read)[i].uuid, "");
  }
}

TEST(MigPlanDocument, IsRefusedWithThePlaceThatIsWrong) {
  const auto why = [](const std::string& gpus) {
    const auto plan = ReadMigPlan(R"({"schema": "gpumux.mig-plan/1", "data": {"gpus": )" + gpus + "}}");
    return plan ? "" : plan.error().message;
  };
  EXPECT_EQ(why(R"([{"model": "H200", "instances": []}])"), "");
  EXPECT_EQ(why("[]"), "data.gpus: no list of GPUs");
  EXPECT_EQ(why("[7]"), "data.gpus[0].instances: no list of instances");
  EXPECT_EQ(why(R"([{"instances": []}])"), "data.gpus[0].model: no GPU");
  EXPECT_EQ(why(R"([{"model": "H200", "instances": [{"start": 0}]}])"),
            "data.gpus[0].instances[0].profile_id: no number, or too large");
  EXPECT_EQ(why(R"([{"model": "H200", "instances": [{"profile_id": 9, "start": -1}]}])"),
            "data.gpus[0].instances[0].start: no number, or too large");
  EXPECT_EQ(why(R"([{"model": "H200", "instances": [{"profile_id": 9, "start": 4294967296}]}])"),
            "data.gpus[0].instances[0].start: no number, or too large");
  EXPECT_EQ(ReadMigPlan("{").error().ToString(),
            "the plan: no JSON; a plan is what gpumux mig plan --json prints");
  EXPECT_EQ(ReadMigPlan(R"({"schema": "gpumux.mig-plan/2"})").error().message,
            "schema: not gpumux.mig-plan/1");
}

}  // namespace
}  // namespace gpumux::cli
