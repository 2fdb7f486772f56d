// SPDX-License-Identifier: Apache-2.0
#include "cli/explanation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace gpumux::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

Json Tenant() {
  return Json::parse(R"({"id":"t-1","name":"serve","owner":"ann","state":"running","mode":"timeslice",
    "gpus":[{"uuid":"GPU-a","index":0,"name":"NVIDIA H200","mem_guaranteed_bytes":1000,"mem_limit_bytes":1000}],
    "mem_guaranteed_bytes":1000,"mem_limit_bytes":1000,"share_min_ratio":null,"share_max_ratio":null,"priority":"normal",
    "isolation":"fault","strict":false,"mem_guaranteed_by":"ledger","above_limit":false,
    "enforced":{"memory":"guard","compute":null,"compute_reason":"equal turns"},"waiting":null,"ended":null,
    "neighbours":{"fault":"does not reach this tenant","death":"does not reach this tenant","load":"slows this tenant down"},
    "members":[{"pid":7,"name":"python3","guard":"in force","alive":true,
      "gpus":[{"uuid":"GPU-a","mem_committed_bytes":300,"mem_overhead_bytes":100,"mem_nvml_bytes":512}]}]})");
}

Json MachineStatus() {
  return Json::parse(R"({"gpus":[{"uuid":"GPU-a","index":0,"mem_total_bytes":2000,"mem_guaranteed_bytes":1500,
    "mem_reserve_bytes":100,"mem_unmanaged_bytes":400,"mem_unexplained_bytes":0,"unmanaged_pids":[812]}],
    "tenants":[{"id":"t-1","name":"serve","gpus":[{"uuid":"GPU-a"}]},{"id":"t-2","name":"train","gpus":[{"uuid":"GPU-a"}]},
               {"id":"t-3","name":"far","gpus":[{"uuid":"GPU-b"}]}]})");
}

Json PartOf(const Json& tenant, const Json& status, const std::string& name) {
  const Json explanation = Explanation(tenant, status);
  for (const Json& part : explanation["parts"]) {
    if (part["part"] == name) return part;
  }
  return {};
}

TEST(Explanation, ALimitIsProvenOnlyByAGuardThatSaysSoNow) {
  Json tenant = Tenant();
  EXPECT_EQ(PartOf(tenant, MachineStatus(), "memory limit")["status"], "proven");
  tenant["members"][0]["guard"] = "absent";
  EXPECT_EQ(PartOf(tenant, MachineStatus(), "memory limit")["status"], "unproven");
  tenant["enforced"] = {{"memory", "not enforced"}, {"memory_reason", "no guard in pid 7"}};
  const Json part = PartOf(tenant, MachineStatus(), "memory limit");
  EXPECT_EQ(part["status"], "not enforced");
  EXPECT_EQ(part["why"], "no guard in pid 7");
  EXPECT_THAT(part["remedy"].get<std::string>(), HasSubstr("--strict"));
}

TEST(Explanation, SaysWhatTurnsGave) {
  Json tenant = Tenant();
  tenant["mode"] = "turns";
  tenant["share_min_ratio"] = 0.25;
  tenant["share_max_ratio"] = 1;
  tenant["turns"] = nullptr;
  tenant["enforced"]["compute_reason"] = "nobody else takes turns on its GPUs";
  Json status = MachineStatus();
  EXPECT_EQ(PartOf(tenant, status, "compute")["status"], "not enforced");
  status["gpus"][0]["unmanaged_pids"] = Json::array();
  EXPECT_EQ(PartOf(tenant, status, "compute")["status"], "nothing to enforce");
  tenant["enforced"]["compute"] = "turns";
  tenant["turns"] = {{"state", "holds"}, {"gpu_seconds", 12.34}, {"part_ratio", 0.25},
                     {"turns", 70u},     {"overran", 0u},        {"unused", 2u}};
  const Json part = PartOf(tenant, status, "compute");
  EXPECT_EQ(part["status"], "proven");
  EXPECT_EQ(
      part["why"],
      "at least 25 % and at most 100 % of the GPU's time; 12.3 s of it so far, 70 turn(s) ended while others "
      "wanted it; 2 turn(s) were taken because nothing of it ran");
}

TEST(Explanation, SaysWhyMemoryWasRefusedAndWhatToDoNow) {
  Json tenant = Tenant();
  EXPECT_EQ(Explanation(tenant, MachineStatus())["out_of_memory"], nullptr);
  EXPECT_THAT(RenderExplanation(Explanation(tenant, MachineStatus())), Not(HasSubstr("Out of memory")));
  tenant["refusals"] = {{"own_limit", 1},
                        {"last_refused_bytes", 1u << 30},
                        {"last",
                         {{"cause", "own_limit"},
                          {"mem_asked_bytes", 1u << 30},
                          {"mem_used_bytes", 0},
                          {"mem_limit_bytes", 1000},
                          {"mem_guaranteed_bytes", 1000}}}};
  Json status = MachineStatus();
  status["gpus"][0]["mem_promisable_bytes"] = 2u << 30;
  const Json explanation = Explanation(tenant, status);
  EXPECT_THAT(explanation["out_of_memory"].dump(), HasSubstr("gpumux set t-1 --mem 1GiB"));
  EXPECT_THAT(RenderExplanation(explanation),
              HasSubstr("Out of memory\n  1 refusal (the last of 1.0 GiB): its limit of 1000 B was"));
}

TEST(Explanation, AGuaranteeIsKeptWhileEverythingFitsByNvml) {
  Json status = MachineStatus();
  EXPECT_EQ(PartOf(Tenant(), status, "memory guarantee")["status"], "proven");  // 1500 + 100 + 400 = 2000
  status["gpus"][0]["mem_unmanaged_bytes"] = 401u;
  EXPECT_EQ(PartOf(Tenant(), status, "memory guarantee")["status"], "not enforced");
  status["gpus"][0]["mem_unmanaged_bytes"] = nullptr;
  EXPECT_EQ(PartOf(Tenant(), status, "memory guarantee")["status"], "unproven");
  Json none = Tenant();
  none["mem_guaranteed_bytes"] = 0u;
  EXPECT_EQ(PartOf(none, status, "memory guarantee")["status"], "not promised");
}

TEST(Explanation, AnExclusiveGpuIsProvenToBeSoOnlyWithoutStrangers) {
  Json tenant = Tenant(), status = MachineStatus();
  tenant["mode"] = "exclusive";
  EXPECT_EQ(PartOf(tenant, status, "isolation")["status"], "unproven");
  status["gpus"][0]["unmanaged_pids"] = Json::array();
  EXPECT_EQ(PartOf(tenant, status, "isolation")["status"], "proven");
}

TEST(Explanation, UnderMpsTellsWhoHoldsItsDescriptors) {
  Json tenant = Tenant();
  EXPECT_TRUE(PartOf(tenant, MachineStatus(), "its death").is_null()) << "no question in other modes";
  tenant["mode"] = "mps";
  tenant["members"][0]["descriptors_held"] = 19u;
  EXPECT_EQ(PartOf(tenant, MachineStatus(), "its death")["status"], "nothing to enforce");
  tenant["members"][0]["gpus"][0]["contexts"] = 1u;
  const Json held = PartOf(tenant, MachineStatus(), "its death");
  EXPECT_EQ(held["status"], "proven");
  EXPECT_THAT(held["why"].get<std::string>(), HasSubstr("19 descriptors of 1 process,"));
  tenant["members"][0]["descriptors_held"] = 0u;
  const Json lost = PartOf(tenant, MachineStatus(), "its death");
  EXPECT_EQ(lost["status"], "not enforced");
  EXPECT_THAT(lost["why"].get<std::string>(), HasSubstr("pid 7"));
}

TEST(Explanation, TellsPeopleWhoIsBesideItAndBothFigures) {
  const std::string text = RenderExplanation(Explanation(Tenant(), MachineStatus()));
  EXPECT_THAT(text, HasSubstr("On its GPU now: train; 1 process outside gpumux."));
  EXPECT_THAT(
      text, HasSubstr("pid 7 (python3): guard in force; 400 B in the ledger, 512 B by NVML's last reading"));
  EXPECT_THAT(text, HasSubstr("compute: not promised\n    equal turns"));
  EXPECT_THAT(text, HasSubstr("A neighbour's load: slows this tenant down."));
}

TEST(Explanation, SaysWhoGivesBackWhatItCachesAndWhatThatWas) {
  Json tenant = Tenant();
  tenant["reclaim"] = {{"listening", 0u}, {"asked", 3u}, {"given_bytes", 2048u}};
  EXPECT_THAT(RenderExplanation(Explanation(tenant, MachineStatus())), Not(HasSubstr("only caches")));
  tenant["reclaim"]["listening"] = 1u;
  EXPECT_THAT(
      RenderExplanation(Explanation(tenant, MachineStatus())),
      HasSubstr(
          "1 process gives back what it only caches when others need it: asked 3 times, gave 2 KiB in all."));
}

TEST(Explanation, OfAnAnswerOfAnotherVersionClaimsNothing) {
  const Json explanation = Explanation(Json::object(), Json::object());
  ASSERT_EQ(explanation["parts"].size(), 5u);
  for (const Json& part : explanation["parts"]) EXPECT_NE(part["status"], "proven") << part;
}

}  // namespace
}  // namespace gpumux::cli
