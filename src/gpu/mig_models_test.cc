// SPDX-License-Identifier: Apache-2.0
#include "gpu/mig_models.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/units.h"

namespace gpumux::gpu {
namespace {

const MigModel& Model(std::string_view name) {
  const auto model = FindMigModel(name);
  EXPECT_TRUE(model.has_value()) << name << ": " << model.error().ToString();
  return model ? **model : MigModels()[0];
}
const MigProfile& Profile(const MigModel& model, std::string_view name) {
  for (const MigProfile& profile : model.profiles) {
    if (profile.name == name) return profile;
  }
  ADD_FAILURE() << model.key << " has no " << name;
  return model.profiles[0];
}

TEST(MigModels, HasWhatIsPublished) {
  EXPECT_EQ(MigModels().size(), 18u);
  size_t profiles = 0;
  for (const MigModel& model : MigModels()) profiles += model.profiles.size();
  EXPECT_EQ(profiles, 127u);
  struct Fact {
    const char *gpu, *profile;
    uint32_t id, sms;
    double gib;
  };
  // Of printed output (the header's sources), in GiB as nvidia-smi writes them.
  const Fact facts[] = {
      {"A100-40", "1g.5gb", 19, 14, 4.75},
      {"A100-40", "7g.40gb", 0, 98, 39.25},
      {"A100-80", "3g.40gb", 9, 42, 39.25},
      {"A30", "1g.6gb", 14, 14, 5.81},
      {"A30", "4g.24gb", 0, 56, 23.44},
      {"H100-80", "1g.20gb", 15, 26, 19.62},
      {"H100-80", "4g.40gb", 5, 64, 39.50},
      {"H100-NVL-94", "3g.47gb", 9, 60, 46.38},
      {"H200", "1g.18gb", 19, 16, 16.00},
      {"H200", "1g.35gb", 15, 26, 32.25},
      {"H200", "3g.71gb", 9, 60, 69.50},
      {"H200", "7g.141gb", 0, 132, 139.75},
      {"GH200-144", "1g.18gb", 19, 16, 17.50},
      {"B200", "2g.45gb", 14, 36, 44.25},
      {"GB200", "1g.47gb", 15, 32, 45.50},
      {"RTX-PRO-6000", "1g.24gb-me", 67, 46, 23.62},
      {"RTX-PRO-6000", "4g.96gb+gfx", 32, 188, 95.00},
  };
  for (const Fact& fact : facts) {
    const MigProfile& profile = Profile(Model(fact.gpu), fact.profile);
    EXPECT_EQ(profile.id, fact.id) << fact.gpu << " " << fact.profile;
    EXPECT_EQ(profile.sms, fact.sms) << fact.gpu << " " << fact.profile;
    EXPECT_NEAR(static_cast<double>(profile.bytes.value_or(0)) / kGiB, fact.gib, 0.006)
        << fact.gpu << " " << fact.profile;
  }
}

TEST(MigModels, EveryRowIsPossible) {
  std::set<std::string_view> sources;
  for (const MigSource& source : MigSources()) EXPECT_TRUE(sources.insert(source.key).second) << source.key;
  std::set<std::string> keys;
  std::set<uint16_t> devices;
  for (const MigModel& model : MigModels()) {
    SCOPED_TRACE(model.key);
    EXPECT_TRUE(keys.insert(model.key).second);
    for (const uint16_t device : model.pci_device) EXPECT_TRUE(devices.insert(device).second) << device;
    EXPECT_GT(model.compute_slices, 0u);
    std::set<uint32_t> ids, numbers;
    std::set<std::string> names;
    for (const MigProfile& profile : model.profiles) {
      SCOPED_TRACE(profile.name);
      EXPECT_TRUE(names.insert(profile.name).second);
      EXPECT_TRUE(!profile.id || ids.insert(*profile.id).second);
      EXPECT_TRUE(numbers.insert(profile.nvml_profile.value()).second);
      EXPECT_LE(profile.compute_slices, model.compute_slices);
      EXPECT_TRUE(profile.name.ends_with(MigAttributeSuffix(profile.attribute)));
      EXPECT_EQ(profile.name[0] - '0', static_cast<int>(profile.compute_slices));
      std::string_view rest = profile.sources;
      EXPECT_FALSE(rest.empty());
      while (!rest.empty()) {
        const std::string_view key = rest.substr(0, rest.find(' '));
        EXPECT_TRUE(sources.contains(key)) << key;
        rest.remove_prefix(std::min(key.size() + 1, rest.size()));
      }
      EXPECT_LE(profile.sms.value_or(0), model.whole_sms.value_or(0));
      if (!profile.placements_known()) continue;
      ASSERT_TRUE(model.memory_slices);
      for (size_t i = 0; i < profile.starts.size(); ++i) {
        EXPECT_LE(profile.starts[i] + *profile.memory_slices, *model.memory_slices);
        EXPECT_TRUE(i == 0 || profile.starts[i - 1] < profile.starts[i]);
      }
      // As many as the slices allow; of those with all the media engines, or with the only ones, one.
      const bool once = profile.attribute == MigAttribute::kMe || profile.attribute == MigAttribute::kMeAll;
      const auto most = static_cast<uint32_t>(profile.starts.size());
      EXPECT_EQ(profile.max_instances,
                once ? 1u : std::min(most, model.compute_slices / profile.compute_slices));
    }
  }
}

TEST(MigModels, SaysWhatIsNotKnown) {
  for (const MigModel& model : MigModels()) {
    const bool unknown = model.key == "RTX-PRO-5000" || model.key == "RTX-PRO-4500" || model.key == "Thor";
    EXPECT_EQ(model.placements_known(), !unknown) << model.key;
  }
  const MigProfile& b300 = Profile(Model("B300"), "1g.34gb");
  EXPECT_FALSE(b300.sms);
  EXPECT_FALSE(b300.bytes);
  EXPECT_EQ(b300.confidence, MigConfidence::kLow);
  EXPECT_TRUE(b300.inferred & kInferredId);
  EXPECT_TRUE(Profile(Model("H200"), "3g.71gb").inferred & kInferredPlacements);
  EXPECT_FALSE(Profile(Model("H200"), "3g.71gb").inferred & kInferredSms);
}

TEST(MigModels, SaysWhatEnablingNeeds) {
  EXPECT_EQ(Model("A100-80").enable.needs_reset, true);
  EXPECT_EQ(Model("A100-80").enable.survives_reboot, true);
  EXPECT_EQ(Model("H200").enable.needs_reset, false);
  EXPECT_EQ(Model("H200").enable.survives_reboot, false);
  EXPECT_EQ(Model("Thor").enable.needs_reset, std::nullopt);
  EXPECT_TRUE(Model("RTX-PRO-6000").enable.needs_display_mode);
}

TEST(MigModels, AreFoundByWhatPeopleAndNvmlCallThem) {
  const std::map<std::string_view, std::string_view> names = {
      {"H200", "H200"},
      {"h200", "H200"},
      {"NVIDIA H200", "H200"},
      {"NVIDIA H200 NVL", "H200"},
      {"NVIDIA H100 80GB HBM3", "H100-80"},
      {"H100 SXM5 80GB", "H100-80"},
      {"NVIDIA H100 PCIe", "H100-PCIe-80"},
      {"NVIDIA H100 NVL", "H100-NVL-94"},
      {"NVIDIA A100-SXM4-40GB", "A100-40"},
      {"NVIDIA A100-PCIE-40GB", "A100-40"},
      {"NVIDIA A100 80GB PCIe", "A100-80"},
      {"NVIDIA A800 80 GB", "A100-80"},
      {"A30", "A30"},
      {"NVIDIA GH200 480GB", "GH200-96"},
      {"NVIDIA GH200 144G HBM3e", "GH200-144"},
      {"NVIDIA H20", "H20"},
      {"NVIDIA B200", "B200"},
      {"NVIDIA GB200", "GB200"},
      {"NVIDIA B300 SXM6 AC", "B300"},
      {"NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX-PRO-6000"},
      {"rtx-pro-5000", "RTX-PRO-5000"},
      {"NVIDIA Thor", "Thor"},
      {"0x2335", "H200"},
      {"0x233510DE", "H200"},
      {"0x20b5", "A100-80"},
  };
  for (const auto& [name, key] : names) EXPECT_EQ(Model(name).key, key) << name;
  EXPECT_EQ(FindMigModelByPci(0x2901)->key, "B200");
  EXPECT_EQ(FindMigModelByPci(0x26b9), nullptr);
}

TEST(MigModels, SayWhyAGpuIsNotFound) {
  struct Case {
    const char* name;
    Code code;
    const char* text;
  };
  const Case cases[] = {
      {"NVIDIA L40S", Code::kUnsupported,
       "NVIDIA L40S has no MIG: L40S is not in NVIDIA's list of GPUs that can be partitioned"},
      {"Tesla T4", Code::kUnsupported,
       "Tesla T4 has no MIG: T4 is not in NVIDIA's list of GPUs that can be partitioned"},
      {"NVIDIA GeForce RTX 4090", Code::kUnsupported,
       "NVIDIA GeForce RTX 4090 has no MIG: GeForce is not in NVIDIA's list of GPUs that can be partitioned"},
      {"RTX PRO 4000", Code::kUnsupported,
       "RTX PRO 4000 has no MIG: RTX PRO 4000 is not in NVIDIA's list of GPUs that can be partitioned"},
      {"RTX 6000 Ada", Code::kUnsupported,
       "RTX 6000 Ada has no MIG: RTX is not in NVIDIA's list of GPUs that can be partitioned"},
      {"A100", Code::kInvalid, "'A100' is more than one GPU; say A100-40 or A100-80"},
      {"NVIDIA H100", Code::kInvalid,
       "'NVIDIA H100' is more than one GPU; say H100-80, H100-PCIe-80, H100-NVL-94 or GH200-96"},
      {"H2000", Code::kNotFound,
       "no GPU called 'H2000' is in the table of GPUs with MIG; did you mean H200?"},
      {"sxm5", Code::kNotFound,
       "no GPU called 'sxm5' is in the table of GPUs with MIG; gpumux mig profiles lists them"},
      {"", Code::kNotFound,
       "no GPU called '' is in the table of GPUs with MIG; gpumux mig profiles lists them"},
      {"\x1b[2J", Code::kNotFound,
       "no GPU called '?[2J' is in the table of GPUs with MIG; gpumux mig profiles lists them"},
      {"0xffff", Code::kNotFound,
       "no GPU called '0xffff' is in the table of GPUs with MIG; gpumux mig profiles lists them"},
      {"0x23351234", Code::kNotFound,
       "no GPU called '0x23351234' is in the table of GPUs with MIG; gpumux mig profiles lists them"},
  };
  for (const Case& c : cases) {
    const auto model = FindMigModel(c.name);
    ASSERT_FALSE(model) << c.name;
    EXPECT_EQ(model.error().code, c.code) << c.name;
    EXPECT_EQ(model.error().ToString(), c.text);
  }
  EXPECT_EQ(WhyNoMig("NVIDIA RTX PRO 6000 Blackwell Server Edition"), std::nullopt);
  EXPECT_EQ(WhyNoMig("something"), std::nullopt);
}

}  // namespace
}  // namespace gpumux::gpu
