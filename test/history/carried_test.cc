// SPDX-License-Identifier: Apache-2.0
//
// What the history says of a tenant that had several daemons, one after another.
#include <gtest/gtest.h>
#include <signal.h>

#include "past.h"

namespace gpumux::test {
namespace {

// Figures that no process of the tenant has go with its lease: an upgrade costs none of them.
TEST(History, OfOneThatHadSeveralDaemons) {
  Sandbox box;
  Process run =
      box.Gpumux({"run", "--mem", "2GiB:5GiB", "--name", "long", "--", Sandbox::Program("gpumux-workload"),
                  "--alloc", "1GiB", "--seconds", "0.1", "--hold", "600"});
  const auto tenant = [&] {
    const json status = box.StatusData();
    return status["tenants"].empty() ? json() : status["tenants"][0];
  };
  ASSERT_TRUE(WaitUntil("it is idle", [&] { return tenant()["idle_seconds"] > 0.5; }));
  ASSERT_EQ(box.RunGpumux({"set", "long", "--mem", "3GiB:6GiB"}).exit_code, 0);
  const double idle = tenant()["idle_seconds"];
  const pid_t first = box.DaemonPid();
  kill(first, SIGTERM);
  ASSERT_TRUE(WaitUntil("the next daemon is there",
                        [&] { return box.DaemonPid() != 0 && box.DaemonPid() != first; }));
  ASSERT_TRUE(WaitUntil("it has its tenant", [&] { return tenant()["state"] == "running"; }));
  ASSERT_EQ(box.RunGpumux({"stop", "long"}).exit_code, 0);
  run.Wait();
  const json past = Past(box, "long");
  EXPECT_GE(past["idle_total_seconds"], idle) << past.dump();
  ASSERT_TRUE(past["mem_mean_bytes"].is_number()) << past.dump();
  EXPECT_GE(past["mem_peak_bytes"], uint64_t{1} << 30);
  EXPECT_EQ(past["events"][0]["kind"], "changed") << past["events"].dump();
}

}  // namespace
}  // namespace gpumux::test
