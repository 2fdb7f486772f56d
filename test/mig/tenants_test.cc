// SPDX-License-Identifier: Apache-2.0
//
// Tenants on instances of a partitioned GPU, end to end on the software GPU (docs/design/mig.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class MigTenants : public MigScene {};

TEST_F(MigTenants, ATenantHasTheSmallestInstanceThatHoldsItForItself) {
  MakeInstances();
  Process small = Worker("small", {"--mode", "mig", "--mem", "10GiB"});
  Process large = Worker("large", {"--mode", "mig", "--mem", "40GiB"});
  const Json tenant = TenantOf("small"), other = TenantOf("large");
  EXPECT_EQ(tenant["mode"], "mig");
  EXPECT_EQ(tenant["gpus"][0]["label"], "0:0");
  EXPECT_THAT(tenant["gpus"][0]["uuid"].get<std::string>(), HasSubstr("MIG-"));
  EXPECT_THAT(tenant["gpus"][0]["name"].get<std::string>(), HasSubstr("1g.18gb"));
  // All of the instance, which is less than its name says.
  EXPECT_GT(tenant["mem_limit_bytes"], 14 * kGiB);
  EXPECT_LT(tenant["mem_limit_bytes"], 17 * kGiB);
  EXPECT_EQ(tenant["mem_limit_bytes"], tenant["mem_guaranteed_bytes"]);
  EXPECT_THAT(tenant["enforced"]["memory"].get<std::string>(), HasSubstr("partition"));
  EXPECT_EQ(other["gpus"][0]["label"], "0:2");
  EXPECT_THAT(tenant["enforced"]["compute"].get<std::string>(), HasSubstr("partition"));
  const std::string explained = RunGpumux({"explain", "small"}).out;
  EXPECT_THAT(explained, HasSubstr("compute: proven, by the GPU's partition"));
  EXPECT_THAT(explained, HasSubstr("isolation: unproven, by the GPU's partition"));
  const std::string shown = RunGpumux({"mig", "status"}).out;
  EXPECT_THAT(shown, HasSubstr("small: pid "));
  EXPECT_THAT(shown, HasSubstr("large: pid "));
  StopAndWait(small, "small");
  StopAndWait(large, "large");
}

TEST_F(MigTenants, ItsProgramSeesTheInstanceAndNothingElse) {
  MakeInstances();
  const Outcome run = RunGpumux({"run", "--mode", "mig", "--mem", "10GiB", "--", Program("gpumux-workload"),
                                 "--report-memory", "--alloc", "20GiB", "--json"});
  EXPECT_EQ(run.exit_code, 3) << run.out;  // refused: more than the instance has
  const Json report = Json::parse(run.out);
  EXPECT_LT(report["total_bytes"], 17 * kGiB) << run.out;
}

TEST_F(MigTenants, SeveralShareAnInstanceInTimeSlices) {
  MakeInstances();
  Process a = Tenant("a", {"--gpu", "0:1", "--mem", "6GiB"},
                     {"--alloc", "4GiB", "--kernel-us", "1000", "--seconds", "60"});
  Process b = Tenant("b", {"--gpu", "0:1", "--mem", "6GiB"},
                     {"--alloc", "4GiB", "--kernel-us", "1000", "--seconds", "60"});
  WaitUntil("both work", [&] { return AtWork("a") && AtWork("b"); });
  EXPECT_EQ(TenantOf("a")["gpus"][0]["label"], "0:1");
  EXPECT_EQ(TenantOf("b")["gpus"][0]["label"], "0:1");
  const Json gpu = GpuOf("0:1");
  EXPECT_EQ(gpu["mode"], "timeslice");
  EXPECT_EQ(gpu["mem_guaranteed_bytes"], 12 * kGiB);
  EXPECT_TRUE(gpu["strangers"].empty()) << gpu["strangers"];
  // It is nobody's but theirs, and full.
  const Outcome third = RunGpumux({"run", "--no-wait", "--gpu", "0:1", "--mem", "6GiB", "--", "true"});
  EXPECT_EQ(third.exit_code, 4);
  EXPECT_THAT(third.err, HasSubstr("needs 6.0 GiB"));
  // The GPU itself has none of it.
  EXPECT_TRUE(GpuOf("0")["strangers"].empty());
  EXPECT_EQ(GpuOf("0")["mem_unexplained_bytes"], 0);
  StopAndWait(a, "a");
  StopAndWait(b, "b");
}

TEST_F(MigTenants, TheGpuItselfIsNotGivenNorMpsWithinAnInstance) {
  MakeInstances();
  const Outcome whole = RunGpumux({"run", "--no-wait", "--gpu", "0", "--mem", "6GiB", "--", "true"});
  EXPECT_EQ(whole.exit_code, 7) << whole.err;
  EXPECT_THAT(whole.err, HasSubstr("it is partitioned (MIG)"));
  const Outcome mps = RunGpumux({"run", "--no-wait", "--mode", "mps", "--mem", "6GiB", "--", "true"});
  EXPECT_EQ(mps.exit_code, 7) << mps.err;
  EXPECT_THAT(mps.err, HasSubstr("MPS within a MIG instance was not tried"));
}

TEST_F(MigTenants, InstancesMadeAndRemovedByOthersAreNoticed) {
  const Outcome none = RunGpumux({"run", "--no-wait", "--mode", "mig", "--mem", "6GiB", "--", "true"});
  EXPECT_EQ(none.exit_code, 7) << none.err;
  MakeInstances();
  WaitUntil("it is seen", [&] { return GpuOf("0:2").is_object(); });
  EXPECT_EQ(RunGpumux({"run", "--mode", "mig", "--mem", "6GiB", "--", "true"}).exit_code, 0);
  Tool({"destroy", "1"});
  WaitUntil("it is gone", [&] { return GpuOf("0:1").is_null(); });
  // One at the same place later is the same again.
  Tool({"create", "19:1"});
  WaitUntil("it is back", [&] { return GpuOf("0:1").is_object(); });
  EXPECT_EQ(RunGpumux({"run", "--gpu", "0:1", "--mem", "6GiB", "--", "true"}).exit_code, 0);
  const Json events = Json::parse(RunGpumux({"events", "--json"}).out);
  std::string told;
  for (const Json& event : events["data"]["events"]) {
    if (event["kind"] == "mig-changed") told += event["text"].get<std::string>() + "\n";
  }
  EXPECT_THAT(told, HasSubstr("instances: 0:0 (1g.18gb), 0:1 (1g.18gb), 0:2 (3g.71gb)"));
  EXPECT_THAT(told, HasSubstr("instances: 0:0 (1g.18gb), 0:2 (3g.71gb)"));
}

TEST_F(MigTenants, TheNextDaemonKeepsThem) {
  MakeInstances();
  Process a = Tenant("a", {"--mode", "mig", "--mem", "10GiB"},
                     {"--alloc", "4GiB", "--kernel-us", "1000", "--seconds", "60"});
  WaitUntil("it works", [&] { return AtWork("a"); });
  kill(DaemonPid(), SIGKILL);
  // Whoever comes next starts a daemon.
  EXPECT_EQ(RunGpumux({"run", "--mode", "mig", "--mem", "10GiB", "--", "true"}).exit_code, 0);
  const Json tenant = TenantOf("a");
  EXPECT_EQ(tenant["gpus"][0]["label"], "0:0");
  EXPECT_EQ(tenant["mode"], "mig");
  EXPECT_GE(tenant["mem_used_bytes"], 4 * kGiB);
  StopAndWait(a, "a");
}

}  // namespace
}  // namespace gpumux::test
