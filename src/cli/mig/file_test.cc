// SPDX-License-Identifier: Apache-2.0
#include "cli/mig/file.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cli/mig/config.h"
#include "cli/mig/request.h"

namespace gpumux::cli {
namespace {

using core::mig::GpuState;
using core::mig::Placed;

const gpu::MigModel& Gpu(std::string_view key) { return **gpu::FindMigModel(key); }

// With every key of mig-parted's, in every form that it may have.
constexpr const char* kFile = R"(version: v1
mig-configs:
  "all-disabled":
    - devices: all
      mig-enabled: false
  "all-enabled":
    - devices: all
      mig-enabled: true
      mig-devices: {}
  "by-part":
    - device-filter: ["0x20B010DE", "0x20B210DE:0x147F10DE"]
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb": 2
        "2g.20gb": 1
    - device-filter: "0x233510DE"
      devices: [0, 3]
      mig-enabled: true
      mig-devices:
        "1c.3g.71gb": 3
        "1g.18gb+me": 1
        "3g.71gb": 1
)";

TEST(MigFile, IsReadAndWrittenBack) {
  const auto file = ParseMigFile(kFile);
  ASSERT_TRUE(file) << file.error().ToString();
  ASSERT_EQ(file->configs.size(), 3u);
  EXPECT_EQ(file->configs[0].first, "all-disabled");
  EXPECT_FALSE(file->configs[0].second[0].enabled);
  EXPECT_FALSE(file->configs[0].second[0].devices);
  const auto& by_part = file->configs[2].second;
  ASSERT_EQ(by_part.size(), 2u);
  EXPECT_EQ(by_part[0].filter, (std::vector<MigPciId>{{0x20b0, 0x10de}, {0x20b2, 0x10de, 0x147f10de}}));
  EXPECT_EQ(by_part[1].devices, (std::vector<uint32_t>{0, 3}));
  ASSERT_EQ(by_part[1].instances.size(), 3u);
  EXPECT_EQ(by_part[1].instances[0].first.ToString(), "1c.3g.71gb");
  EXPECT_EQ(by_part[1].instances[0].second, 3u);
  EXPECT_EQ(MigFileText(*file), kFile);
  EXPECT_EQ(ParseMigFile(MigFileText(*file)), *file);
}

TEST(MigFile, IsYamlInAnyForm) {
  const auto flow = ParseMigFile(
      R"({version: v1, mig-configs: {a: [{devices: all, mig-enabled: true, mig-devices: {1g.18gb: 7}}]}} # so)");
  ASSERT_TRUE(flow) << flow.error().ToString();
  EXPECT_EQ(flow->configs[0].second[0].instances[0].second, 7u);
  EXPECT_TRUE(
      ParseMigFile("version: v1\nmig-configs:\n  a:\n  - &x {devices: all, mig-enabled: false}\n  - *x\n"));
}

std::string Entry(const std::string& lines) { return "version: v1\nmig-configs:\n  a:\n    - " + lines; }

TEST(MigFile, IsRefusedWithTheLineThatIsWrong) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "the file is no map"},
      {"- 1", "line 1: the file is no map"},
      {"a: [", "line 1: no YAML: "},
      {"version: v2\nmig-configs: {a: []}", "line 1: the version is not v1"},
      {"mig-configs: {a: []}", "line 1: the version is not v1"},
      {"version: v1", "line 1: the file has no mig-configs"},
      {"version: v1\nmig-config: {}",
       "line 2: the file: 'mig-config' is not known; did you mean mig-configs?"},
      {"version: v1\nversion: v1", "line 2: the file: 'version' is there twice"},
      {"version: v1\nmig-configs: {}", "line 2: mig-configs has no configurations, or too many"},
      {"version: v1\nmig-configs:\n  a: []", "line 3: a is no list of entries"},
      {"version: v1\nmig-configs:\n  a b: [x]", "line 3: 'a b' is no label"},
      {"version: v1\nmig-configs:\n  a: [x]", "line 3: an entry is no map"},
      {Entry("{}"), "line 4: an entry needs devices"},
      {Entry("devices: all"), "line 4: an entry needs mig-enabled"},
      {Entry("devices: some\n      mig-enabled: true"),
       "line 4: devices: 'some' is neither all nor a list of numbers"},
      {Entry("devices: [0, x]\n      mig-enabled: true"), "line 4: devices: 'x' is no number of a GPU"},
      {Entry("devices: [-1]\n      mig-enabled: true"), "line 4: devices: '-1' is no number of a GPU"},
      {Entry("devices: [64]\n      mig-enabled: true"), "line 4: devices: '64' is no number of a GPU"},
      {Entry("devices: all\n      mig-enabled: yes"), "line 5: mig-enabled: 'yes' is neither true nor false"},
      {Entry("devices: all\n      mig-enabled: true"),
       "line 4: an entry with mig-enabled: true needs mig-devices"},
      {Entry("devices: all\n      mig-enabled: false\n      mig-devices: {1g.5gb: 1}"),
       "line 6: an entry with mig-enabled: false has no mig-devices"},
      {Entry("devices: all\n      mig-enabled: true\n      mig-devices: {1g.5gb: 0}"),
       "line 6: mig-devices: all counts are 0"},
      {Entry("devices: all\n      mig-enabled: true\n      mig-devices: {1g.5gb: -1}"),
       "line 6: mig-devices: 1g.5gb: '-1' is no count up to 64"},
      {Entry("devices: all\n      mig-enabled: true\n      mig-devices: {1g.5gb: [1]}"),
       "line 6: mig-devices: 1g.5gb: 'a list or a map' is no count up to 64"},
      {Entry("devices: all\n      mig-enabled: true\n      mig-devices: {large: 1}"),
       "line 6: mig-devices: 'large' is no MIG profile"},
      {Entry("devices: all\n      mig-enabled: true\n      mig-devices: {1g.5gb: 1, 1G.5GB: 1}"),
       "line 6: mig-devices: 1g.5gb is there twice"},
      {Entry("devices: all\n      mig-enabled: false\n      device-filter: 2335"),
       "line 6: device-filter: '2335' is no PCI id"},
      {Entry("devices: all\n      mig-enabled: false\n      device-filter: []"),
       "line 6: device-filter is neither a PCI id nor a list of them"},
      {Entry("devices: all\n      mig-enabled: false\n      device-filter: {a: b}"),
       "line 6: device-filter is neither a PCI id nor a list of them"},
      {Entry("devices: all\n      mig-enabled: false\n      hooks: x"),
       "line 6: an entry: 'hooks' is not known"},
  };
  for (const auto& [text, why] : cases) {
    const auto file = ParseMigFile(text);
    ASSERT_FALSE(file) << text;
    EXPECT_EQ(file.error().code, Code::kInvalid) << text;
    EXPECT_TRUE(file.error().ToString().starts_with(why)) << file.error().ToString() << "\nfor\n" << text;
  }
  EXPECT_FALSE(ParseMigFile(std::string(100'000, '[')));
  EXPECT_FALSE(ParseMigFile(std::string(100'000, '{')));
}

TEST(MigFile, FindsTheConfigurationThatIsMeant) {
  const auto file = *ParseMigFile(kFile);
  EXPECT_EQ(FindMigConfig(file, "all-enabled")->size(), 1u);
  EXPECT_EQ(FindMigConfig(file, std::nullopt).error().ToString(),
            "the file has several configurations; say --label, one of all-disabled, all-enabled, by-part");
  EXPECT_EQ(FindMigConfig(file, "all-enable").error().ToString(),
            "the file has no configuration 'all-enable'; did you mean all-enabled?");
  EXPECT_EQ(FindMigConfig(file, "x").error().ToString(),
            "the file has no configuration 'x'; it has all-disabled, all-enabled, by-part");
  const MigFile one{{file.configs[0]}};
  EXPECT_TRUE(FindMigConfig(one, std::nullopt));
}

// Every entry that is for a GPU is applied, one after the other.
TEST(MigFile, TheLastEntryForAGpuCounts) {
  const auto config = *FindMigConfig(*ParseMigFile(kFile), "by-part");
  EXPECT_EQ(EntryFor(config, 5, Gpu("A100-80")), &config[0]);
  EXPECT_EQ(EntryFor(config, 3, Gpu("H200")), &config[1]);
  EXPECT_EQ(EntryFor(config, 1, Gpu("H200")), nullptr);
  EXPECT_EQ(EntryFor(config, 0, Gpu("A30")), nullptr);
  auto more = config;
  more.push_back({});
  EXPECT_EQ(EntryFor(more, 3, Gpu("H200")), &more[2]);
}

MigGpus Machine(std::vector<GpuState> gpus) {
  MigGpus machine;
  for (uint32_t i = 0; i < gpus.size(); ++i) {
    machine.uuids.emplace_back();
    machine.indices.push_back(i);
    machine.enabled.push_back(true);
    machine.divided.emplace_back();
  }
  machine.gpus = std::move(gpus);
  return machine;
}

Placed One(std::string_view name, uint32_t start) {
  return {start, *(*core::mig::FindProfile(Gpu("H200"), name))->id};
}

std::vector<MigFileEntry> Config(const std::string& instances) {
  const auto file =
      ParseMigFile(Entry("devices: all\n      mig-enabled: true\n      mig-devices: {" + instances + "}"));
  EXPECT_TRUE(file) << file.error().ToString();
  return file->configs[0].second;
}

TEST(MigConfig, MakesExactlyTheInstancesOfTheFile) {
  const GpuState gpu{
      "GPU 0", &Gpu("H200"), {{One("1g.18gb", 0), {"train"}}, {One("1g.18gb", 1)}, {One("2g.35gb", 4)}}};
  const auto planned = PlanOfConfig(Config("1g.18gb: 2, 4g.71gb: 0, 3g.71gb: 1"), Machine({gpu}));
  ASSERT_TRUE(planned) << planned.error().ToString();
  EXPECT_TRUE(planned->plan.unplaced.empty());
  // The one in use stays, an idle one that is wanted too; the 2g is in the file no more.
  EXPECT_EQ(planned->plan.gpus[0].layout,
            (core::mig::Layout{One("1g.18gb", 0), One("1g.18gb", 1), One("3g.71gb", 4)}));
  const auto none = PlanOfConfig(Config("2g.35gb: 1"), Machine({gpu}));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().ToString(),
            "GPU 0: in use, and not in the configuration: 1g.18gb at 0 (train); end what runs there first");
  EXPECT_EQ(PlanOfConfig(Config("1g.5gb: 1"), Machine({gpu})).error().code, Code::kNotFound);
}

TEST(MigConfig, LeavesAloneAGpuThatNoEntryIsFor) {
  const GpuState gpu{"GPU 0", &Gpu("H200"), {{One("2g.35gb", 4)}}};
  const auto planned = PlanOfConfig({}, Machine({gpu}));
  ASSERT_TRUE(planned);
  EXPECT_EQ(planned->plan.gpus[0].layout, (core::mig::Layout{One("2g.35gb", 4)}));
  EXPECT_TRUE(planned->enabled[0]);
}

TEST(MigConfig, FillsInstancesWithComputeInstances) {
  const auto planned =
      PlanOfConfig(Config("1c.3g.71gb: 2, 2c.3g.71gb: 1, 3g.71gb: 1"), Machine({{"GPU 0", &Gpu("H200")}}));
  // 3, 2 + 1, 1: three instances, and a GPU has two.
  ASSERT_TRUE(planned) << planned.error().ToString();
  ASSERT_EQ(planned->plan.unplaced.size(), 1u);
  const auto two =
      PlanOfConfig(Config("1c.3g.71gb: 1, 2c.3g.71gb: 1, 3g.71gb: 1"), Machine({{"GPU 0", &Gpu("H200")}}));
  ASSERT_TRUE(two);
  EXPECT_TRUE(two->plan.unplaced.empty());
  ASSERT_EQ(two->divided[0].size(), 1u);
  EXPECT_EQ(two->divided[0].begin()->second, (std::vector<uint32_t>{2, 1}));
  EXPECT_EQ(PlanOfConfig(Config("3c.4g.71gb: 1"), Machine({{"GPU 0", &Gpu("H200")}})).error().message,
            "4g.71gb can have no compute instance of 3 slices; of 1, 2 or 4 it can");
}

TEST(MigConfig, WritesWhatItReads) {
  for (const char* instances :
       {"", "\"1g.18gb\": 7", "\"1c.3g.71gb\": 3, \"2g.35gb\": 1, \"1g.18gb+me\": 1", "\"7g.141gb\": 1"}) {
    const auto config = Config(instances);
    const auto planned = PlanOfConfig(config, Machine({{"GPU 0", &Gpu("H200")}, {"GPU 1", &Gpu("H200")}}));
    ASSERT_TRUE(planned) << planned.error().ToString();
    EXPECT_TRUE(planned->plan.unplaced.empty()) << instances;
    std::vector<MigExported> gpus;
    for (uint32_t i = 0; i < 2; ++i)
      gpus.push_back({i, planned->gpus[i].model, planned->enabled[i], planned->plan.gpus[i].layout,
                      planned->divided[i]});
    auto back = ConfigOf(gpus);
    ASSERT_TRUE(back);
    auto sorted = config;
    std::ranges::sort(sorted[0].instances, {}, [](const auto& one) { return one.first.ToString(); });
    EXPECT_EQ(*back, sorted) << instances;
  }
}

TEST(MigConfig, GivesGpusThatAreAlikeOneEntry) {
  const core::mig::Layout whole = {One("7g.141gb", 0)};
  const gpu::MigModel& h200 = Gpu("H200");
  const auto config = ConfigOf({{0, &h200, true, whole}, {1, &h200, false, {}}, {2, &h200, true, whole}});
  ASSERT_TRUE(config);
  EXPECT_EQ(MigFileText({{{"current", *config}}}),
            "version: v1\nmig-configs:\n  \"current\":\n    - devices: [0, 2]\n      mig-enabled: true\n     "
            " mig-devices:\n"
            "        \"7g.141gb\": 1\n    - devices: [1]\n      mig-enabled: false\n");
  // One GPU of several: not all.
  EXPECT_EQ((*ConfigOf({{1, &h200, true, whole}}))[0].devices, (std::vector<uint32_t>{1}));
}

}  // namespace
}  // namespace gpumux::cli
