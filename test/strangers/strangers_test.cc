// SPDX-License-Identifier: Apache-2.0
//
// A program outside gpumux beside tenants, all of them real processes on the
// software GPU: it is seen, its growth into promises is said, and room can be
// kept for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../support/sandbox.h"
#include "base/units.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;

class Strangers : public ::testing::Test {
 protected:
  // Takes `bytes` and keeps them; `gpumux`: as a tenant with that promise.
  Process Take(const std::string& size, const std::string& promise = "") {
    const std::string ready = box.dir() + "/ready" + std::to_string(next_++);
    std::vector<std::string> argv;
    if (!promise.empty())
      argv = {Sandbox::Program("gpumux"), "run", "--name", "tenant", "--mem", promise, "--"};
    else
      argv = {"/usr/bin/env", "LD_LIBRARY_PATH=" + Sandbox::Program("../lib/gpumux/softgpu")};
    for (const std::string& word :
         {Sandbox::Program("gpumux-workload"), std::string("--alloc"), size, std::string("--hold"),
          std::string("1000"), std::string("--ready"), ready})
      argv.push_back(word);
    Process process = box.Start(argv);
    EXPECT_TRUE(
        WaitUntil("memory is taken", [&] { return std::filesystem::exists(ready) || process.Ended(); }));
    return process;
  }
  nlohmann::json Gpu() { return box.StatusData()["gpus"][0]; }
  nlohmann::json Tenant(const std::string& name) {
    const auto status = box.StatusData();
    for (const auto& tenant : status["tenants"]) {
      if (tenant["name"] == name) return tenant;
    }
    return {};
  }
  size_t Events(const std::string& kind) {
    const auto answer = nlohmann::json::parse(box.RunGpumux({"events", "--json"}).out, nullptr, false);
    size_t count = 0;
    for (const auto& event : answer["data"]["events"]) count += event["kind"] == kind ? 1 : 0;
    return count;
  }

  Sandbox box;
  int next_ = 0;
};

TEST_F(Strangers, GrowIntoAPromiseWhichIsSaidAndWithdrawn) {
  Process tenant = Take("10GiB", "100GiB");
  Process stranger = Take("60GiB");
  ASSERT_TRUE(
      WaitUntil("it is seen", [&] { return Gpu()["strangers"].size() == 1; }, std::chrono::seconds(2)));
  EXPECT_EQ(Gpu()["strangers"][0]["pid"], stranger.pid());
  EXPECT_EQ(Gpu()["strangers"][0]["name"], "gpumux-workload");
  EXPECT_EQ(Gpu()["strangers"][0]["owner_uid"], getuid());
  EXPECT_EQ(Gpu()["mem_promisable_bytes"], 0);
  EXPECT_GT(Tenant("tenant")["mem_at_risk_bytes"], 15 * kGiB);
  EXPECT_EQ(Events("at-risk"), 1u);
  EXPECT_THAT(box.RunGpumux({"status"}).out, HasSubstr("tenant is at risk: up to "));
  EXPECT_THAT(box.RunGpumux({"explain", "tenant"}).out,
              HasSubstr("pid " + std::to_string(stranger.pid()) + " (gpumux-workload of "));
  // Who waits is told for whom.
  const Outcome waits = box.RunGpumux({"run", "--mem", "30GiB", "--no-wait", "--", "true"});
  EXPECT_EQ(waits.exit_code, 4);
  EXPECT_THAT(waits.err,
              HasSubstr("held by unmanaged pid " + std::to_string(stranger.pid()) + " (gpumux-workload of "));
  stranger.Signal(SIGKILL);
  ASSERT_TRUE(WaitUntil("it is covered again", [&] { return Events("covered") == 1; }));
  EXPECT_EQ(Tenant("tenant")["mem_at_risk_bytes"], 0);
  EXPECT_FALSE(tenant.Ended());
}

TEST_F(Strangers, HaveRoomKeptWhileTenantsComeAndGoAndDaemonsDie) {
  Process outside = Take("10GiB");
  const std::string pid = std::to_string(outside.pid());
  const Outcome reserved = box.RunGpumux({"reserve", "--pid", pid, "--mem", "60GiB", "--name", "outside"});
  ASSERT_EQ(reserved.exit_code, 0) << reserved.err;
  EXPECT_THAT(reserved.out, HasSubstr("60.0 GiB on GPU 0 kept for pid " + pid));
  EXPECT_EQ(Gpu()["strangers"].size(), 0u);
  EXPECT_THAT(box.RunGpumux({"status"}).out, HasSubstr("outside is not enforced: outside gpumux"));
  const uint64_t promisable = Gpu()["mem_promisable_bytes"];
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "90GiB", "--no-wait", "--", "true"}).exit_code, 4);
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "70GiB", "--no-wait", "--", "true"}).exit_code, 0);
  ASSERT_TRUE(WaitUntil("the tenant is over", [&] { return Gpu()["mem_promisable_bytes"] == promisable; }));
  EXPECT_EQ(box.RunGpumux({"stop", "outside"}).exit_code, 4);

  // A tenant's `run` starts the next daemon, which keeps both.
  Process tenant = Take("1GiB", "70GiB");
  const pid_t daemon = box.DaemonPid();
  ASSERT_EQ(kill(daemon, SIGKILL), 0);
  ASSERT_TRUE(WaitUntil("the next daemon keeps it", [&] {
    const pid_t next = box.DaemonPid();
    return next != 0 && next != daemon && Tenant("outside")["reservation_pid"] == outside.pid() &&
           Gpu()["strangers"].size() == 0;
  }));
  EXPECT_GE(Tenant("outside")["mem_used_bytes"], 10 * kGiB);
  ASSERT_TRUE(WaitUntil("the GPU is open again", [&] {
    return box.RunGpumux({"run", "--mem", "5GiB", "--no-wait", "--", "true"}).exit_code == 0;
  }));
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "30GiB", "--no-wait", "--", "true"}).exit_code, 4);

  EXPECT_EQ(box.RunGpumux({"reserve", "--release", "--pid", pid}).exit_code, 0);
  EXPECT_EQ(box.RunGpumux({"reserve", "--release", "--pid", pid}).exit_code, 6);
  EXPECT_EQ(Gpu()["strangers"].size(), 1u);
  EXPECT_FALSE(outside.Ended());
}

}  // namespace
}  // namespace gpumux::test
