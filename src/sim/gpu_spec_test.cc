// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "gpu/mig_models.h"
#include "sim/gpu_spec_parser.h"

namespace gpumux::sim {
namespace {

constexpr uint64_t kGiB = 1ULL << 30;

TEST(GpuModels, TheTableIsConsistent) {
  std::set<std::string> words;
  for (const GpuModelData& model : GpuModels()) {
    SCOPED_TRACE(model.key);
    EXPECT_TRUE(words.insert(std::string(model.key)).second);
    if (!model.alias.empty()) {
      EXPECT_TRUE(words.insert(std::string(model.alias)).second);
    }
    EXPECT_LE(model.name.size(), 56u);
    EXPECT_EQ(FindGpuModel(model.key), &model);
    const GpuSpec spec = SpecOf(model);
    EXPECT_EQ(spec.nvml_total, model.memory_mib << 20);
    EXPECT_LT(spec.usable, spec.nvml_total);
    EXPECT_GT(spec.usable, spec.nvml_total / 100 * 99);
    EXPECT_EQ(spec.sms, model.sms);
    EXPECT_EQ(spec.context_own % (2 << 20), 0u);
    EXPECT_GT(spec.context_device, spec.context_own);
    EXPECT_LT(spec.context_device, spec.usable / 10);
  }
  EXPECT_EQ(FindGpuModel(""), nullptr);
  EXPECT_EQ(FindGpuModel("H201"), nullptr);
  EXPECT_EQ(FindGpuModel("h200")->key, "H200");
  EXPECT_EQ(FindGpuModel("H100")->key, "H100-80");
}

// The models whose partitions are known, and some that have none, with their
// SMs and whether they can be partitioned.
TEST(GpuModels, AllOfThemAreThere) {
  const std::map<std::string, std::pair<int, bool>> expected = {
      {"A100-40", {108, true}},      {"A100-80", {108, true}},      {"A30", {56, true}},
      {"H100-80", {132, true}},      {"H100-PCIe-80", {114, true}}, {"H100-NVL-94", {132, true}},
      {"GH200-96", {132, true}},     {"GH200-144", {132, true}},    {"H20", {78, true}},
      {"H200", {132, true}},         {"B200", {148, true}},         {"GB200", {152, true}},
      {"B300", {148, true}},         {"GB300", {152, true}},        {"RTX-PRO-6000", {188, true}},
      {"RTX-PRO-5000", {110, true}}, {"RTX-PRO-4500", {82, true}},  {"Thor", {20, true}},
      {"A10", {72, false}},          {"L4", {58, false}},           {"L40S", {142, false}},
      {"T4", {40, false}},           {"RTX-4090", {128, false}}};
  EXPECT_EQ(GpuModels().size(), expected.size());
  for (const auto& [key, facts] : expected) {
    const GpuModelData* model = FindGpuModel(key);
    ASSERT_NE(model, nullptr) << key;
    EXPECT_EQ(model->sms, facts.first) << key;
    EXPECT_EQ(model->mig, facts.second) << key;
  }
}

// By the name that NVML gives it, and by its PCI device id where it has one.
TEST(GpuModels, EveryoneThatCanBePartitionedIsInTheTableOfGpusWithMig) {
  for (const GpuModelData& model : GpuModels()) {
    SCOPED_TRACE(model.name);
    const auto table = gpu::FindMigModel(model.name);
    const gpu::MigModel* by_pci = gpu::FindMigModelByPci(static_cast<uint16_t>(model.pci_device));
    EXPECT_EQ(table.has_value(), model.mig);
    EXPECT_EQ(by_pci != nullptr, model.mig && model.pci_device != 0);
    if (!table) continue;
    EXPECT_EQ((*table)->key, model.key);
    EXPECT_TRUE(!by_pci || by_pci == *table);
    EXPECT_EQ((*table)->whole_sms.value_or(20), static_cast<uint32_t>(model.sms));
  }
}

TEST(GpuModels, TheH200IsTheMeasuredOneAndTheRuleGivesItBack) {
  const GpuSpec measured = SpecOf(*FindGpuModel("H200"));
  EXPECT_EQ(measured.usable, 150'109'880'320u);
  EXPECT_EQ(measured.context_own, 543'162'368u);
  const GpuSpec ruled = SpecOf(measured.nvml_total, -1, 132, 2048, 32);
  EXPECT_EQ(ruled.usable, measured.usable);
  EXPECT_EQ(ruled.context_own, measured.context_own);
  EXPECT_EQ(ruled.context_device, measured.context_device);
  // A quarter of the SMs: a context is smaller by their threads' stacks.
  EXPECT_EQ(SpecOf(measured.nvml_total, 0, 33, 2048, 32).context_own, 543'162'368u - 99ull * 2048 * 1024);
}

TEST(GpuList, Accepts) {
  const struct {
    const char* text;
    std::vector<std::string> keys;
  } cases[] = {
      {"H200", {"H200"}},
      {"1xH200", {"H200"}},
      {"3xA30", {"A30", "A30", "A30"}},
      {"2xA30,1xL4", {"A30", "A30", "L4"}},
      {" 2xa30 , l4 ", {"A30", "A30", "L4"}},
      {"RTX4090,RTX-4090", {"RTX-4090", "RTX-4090"}},
      {"2xRTX-PRO-6000", {"RTX-PRO-6000", "RTX-PRO-6000"}},
      {"H100", {"H100-80"}},
  };
  for (const auto& c : cases) {
    const auto machine = ParseGpuList(c.text);
    ASSERT_TRUE(machine) << c.text << ": " << machine.error().message;
    std::vector<std::string> keys;
    for (const auto& gpu : machine->gpus) keys.emplace_back(gpu.model.key);
    EXPECT_EQ(keys, c.keys) << c.text;
  }
  EXPECT_EQ(ParseGpuList("64xT4")->gpus.size(), 64u);
  EXPECT_EQ(ParseGpuList("8xH100-80")->gpus.size(), 8u);
}

TEST(GpuList, Refuses) {
  for (const char* text :
       {"", ",", "H200,", ",H200", "x", "2x", "2", "0xH200", "65xT4", "64xT4,T4", "99999999999xT4", "-1xT4",
        "2x2xT4", "H200 H200", "2 xT4", "H200\n", "H\xff", "2xx", "RTX"}) {
    const auto machine = ParseGpuList(text);
    EXPECT_FALSE(machine) << text;
    if (!machine) {
      for (char c : machine.error().message) EXPECT_TRUE(c >= ' ' && c < 127) << text;
    }
  }
}

TEST(GpuDocument, Overrides) {
  const auto machine = ParseGpuDocument(R"({
    "driver_version": "550.54.15",
    "gpus": [
      {"model": "H100-80", "count": 2},
      {"model": "L4", "memory": "16GiB", "reserved": 1048576, "sms": 10, "name": "Small one",
       "uuid": "GPU-00112233-4455-6677-8899-aabbccddeeff"},
      {"model": "H200", "reserved": 0}
    ]})");
  ASSERT_TRUE(machine) << machine.error().message;
  ASSERT_EQ(machine->gpus.size(), 4u);
  EXPECT_EQ(machine->driver_version, "550.54.15");
  EXPECT_EQ(machine->cuda_version, 12040);
  EXPECT_EQ(machine->gpus[1].name, "NVIDIA H100 80GB HBM3");
  const GpuInstance& small = machine->gpus[2];
  EXPECT_EQ(small.name, "Small one");
  EXPECT_EQ(small.spec.nvml_total, 16 * kGiB);
  EXPECT_EQ(small.spec.usable, 16 * kGiB - 1048576);
  EXPECT_EQ(small.spec.sms, 10);
  ASSERT_TRUE(small.uuid);
  EXPECT_EQ((*small.uuid)[15], 0xff);
  EXPECT_EQ(machine->gpus[3].spec.usable, machine->gpus[3].spec.nvml_total);
}

TEST(GpuDocument, VersionsOfDriverAndCuda) {
  const auto cuda = [](const std::string& members) {
    const auto machine = ParseGpuDocument("{\"gpus\":[{\"model\":\"T4\"}]," + members + "}");
    return machine ? machine->cuda_version : -1;
  };
  EXPECT_EQ(cuda(R"("cuda_version":"12.4")"), 12040);
  EXPECT_EQ(cuda(R"("cuda_version":11080)"), 11080);
  EXPECT_EQ(cuda(R"("driver_version":"535.161.08")"), 12020);
  EXPECT_EQ(cuda(R"("driver_version":"590.10","cuda_version":"13.0")"), 13000);
  EXPECT_EQ(cuda(R"("driver_version":"590.10")"), -1);
  for (const char* wrong : {R"("cuda_version":"13.1")", R"("cuda_version":"12")", R"("cuda_version":"12.4x")",
                            R"("cuda_version":12041)", R"("cuda_version":-1)", R"("cuda_version":1e300)",
                            R"("driver_version":"")", R"("driver_version":"5")", R"("driver_version":"a.b")",
                            R"("driver_version":550.54)", R"("cuda_version":null)"}) {
    EXPECT_EQ(cuda(wrong), -1) << wrong;
  }
}

TEST(GpuDocument, Refuses) {
  const std::string gpu = R"({"model":"T4"})";
  const std::string cases[] = {
      "",
      "{",
      "[]",
      "null",
      "{}",
      R"({"gpus":[]})",
      R"({"gpus":{}})",
      R"({"gpus":[1]})",
      R"({"gpus":[{}]})",
      R"({"gpus":[{"model":"X"}]})",
      R"({"gpus":[{"model":7}]})",
      R"({"gpus":[{"model":"T4","memroy":"1GiB"}]})",
      R"({"gpu":[)" + gpu + "]}",
      R"({"gpus":[{"model":"T4","memory":"1MiB"}]})",
      R"({"gpus":[{"model":"T4","memory":"50%"}]})",
      R"({"gpus":[{"model":"T4","memory":-5}]})",
      R"({"gpus":[{"model":"T4","memory":18446744073709551615}]})",
      R"({"gpus":[{"model":"T4","memory":1.5e10}]})",
      R"({"gpus":[{"model":"T4","reserved":"10GiB"}]})",
      R"({"gpus":[{"model":"T4","sms":0}]})",
      R"({"gpus":[{"model":"T4","sms":99999}]})",
      R"({"gpus":[{"model":"T4","count":0}]})",
      R"({"gpus":[{"model":"T4","count":65}]})",
      R"({"gpus":[{"model":"T4","count":64},{"model":"T4"}]})",
      R"({"gpus":[{"model":"T4","name":""}]})",
      R"({"gpus":[{"model":"T4","name":"a\nb"}]})",
      R"({"gpus":[{"model":"T4","uuid":"GPU-1"}]})",
      R"({"gpus":[{"model":"T4","uuid":"GPU-00112233-4455-6677-8899-AABBCCDDEEFF"}]})",
      R"({"gpus":[{"model":"T4","count":2,"uuid":"GPU-00112233-4455-6677-8899-aabbccddeeff"}]})",
      R"({"gpus":[{"model":"T4","uuid":"GPU-00112233-4455-6677-8899-aabbccddeeff"},
                  {"model":"T4","uuid":"GPU-00112233-4455-6677-8899-aabbccddeeff"}]})",
      R"({"gpus":[{"model":"T4","model":"L4"}]})",
      R"({"gpus":[)" + gpu + "]} x",
      std::string(100'000, '['),
      "{\"gpus\":" + std::string(2 << 20, ' ') + "[]}",
      std::string("\0", 1),
      "\xff\xfe"};
  for (const std::string& text : cases) EXPECT_FALSE(ParseGpuDocument(text)) << text.substr(0, 100);
  EXPECT_TRUE(ParseGpuDocument("{\"gpus\":[" + gpu + "]}"));
}

TEST(GpuDocument, Uuids) {
  EXPECT_TRUE(ParseUuid("GPU-00112233-4455-6677-8899-aabbccddeeff"));
  for (const char* text :
       {"", "GPU-", "MIG-00112233-4455-6677-8899-aabbccddeeff", "GPU-00112233-4455-6677-8899-aabbccddeef",
        "GPU-001122334455-6677-8899-aabbccddeeff-", "GPU-0011223g-4455-6677-8899-aabbccddeeff"}) {
    EXPECT_FALSE(ParseUuid(text)) << text;
  }
}

}  // namespace
}  // namespace gpumux::sim
