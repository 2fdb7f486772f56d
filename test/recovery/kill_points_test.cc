// SPDX-License-Identifier: Apache-2.0
//
// kill -9 of the daemon at every point of its code that has a name (base/kill_point.h),
// while tenants allocate, one is being stopped, one waits, and others come and go.
#include "kill_points.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <set>

#include "scene.h"

namespace gpumux::test {
namespace {

class KillPoints : public ::testing::TestWithParam<const char*> {};

// The daemon dies at the point once, wherever in the course of this it is passed.
void LiveThroughADeathAt(Sandbox& box, const std::string& point) {
  const std::string token = box.dir() + "/token", stop = box.dir() + "/stop";
  Touch(token);
  box.SetEnv("GPUMUX_KILL_AT", point + "@" + token);
  // Of 8 GiB a second count of its memory, or of its context, leaves the large one no room.
  Process small = Survivor(box, "small", 1 * kGiB, stop), large = Survivor(box, "large", 7 * kGiB, stop);
  Process ends = Survivor(box, "ends", kGiB / 2, box.dir() + "/never");
  for (Process* each : {&small, &large, &ends}) ASSERT_TRUE(Works(*each));
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "1GiB", "--", "/bin/echo", "short"}).out, "short\n");
  Process waits = box.Gpumux({"run", "--mem", "130GiB", "--name", "waits", "--", "/bin/echo", "served"});
  ASSERT_TRUE(WaitUntil("it waits", [&] { return Tenants(box).contains("waits"); }));
  // Points of a take-over need a death before them.
  if (std::set<std::string>{"lease-taken", "run-resuming", "guard-taken"}.contains(point)) {
    const pid_t daemon = box.DaemonPid();
    ASSERT_NE(daemon, 0);
    kill(daemon, SIGKILL);
    ASSERT_TRUE(
        WaitUntil("a next daemon", [&] { return box.DaemonPid() != 0 && box.DaemonPid() != daemon; }));
  }
  // What ends by this, and how, the daemon that takes over has to go on with.
  ASSERT_TRUE(WaitUntil("a daemon takes the stop",
                        [&] { return box.RunGpumux({"stop", "ends"}).exit_code == 0 || ends.Ended(); }));
  EXPECT_NE(ends.Wait().exit_code, 0);
  ASSERT_TRUE(WaitUntil("the point is passed", [&] { return access(token.c_str(), F_OK) != 0; }));
  ASSERT_TRUE(WaitUntil("the next daemon has them", [&] {
    const auto tenants = Tenants(box);
    return tenants.contains("small") && tenants.contains("large") && tenants.contains("waits");
  }));
  EXPECT_EQ(Gpu(box, "mem_guaranteed_bytes"), 16 * kGiB);
  Touch(stop);
  for (Process* each : {&small, &large}) {
    const Outcome o = each->Wait();
    EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
    EXPECT_NE(o.out.find("rounds"), std::string::npos) << o.out;
  }
  const Outcome o = waits.Wait();
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(o.out, "served\n");
  ExpectEverythingFree(box);
}

TEST_P(KillPoints, UnderLoadTenantsNoticeNothing) {
  Sandbox box;
  LiveThroughADeathAt(box, GetParam());
  if (HasFailure()) std::cerr << "--- log of the daemons\n" << DaemonLog(box);
}

std::string Underlined(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Each, KillPoints, ::testing::ValuesIn(kDaemonKillPoints), Underlined);

}  // namespace
}  // namespace gpumux::test
