// SPDX-License-Identifier: Apache-2.0
//
// Who holds memory and launches nothing: seen in status, and told once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

Json TenantNamed(Sandbox& box, const std::string& name) {
  const Json data = box.StatusData();
  for (const Json& tenant : data["tenants"])
    if (tenant["name"] == name) return tenant;
  return Json::object();
}

// Nothing while it is not known.
std::optional<double> IdleOf(Sandbox& box, const std::string& name) {
  const Json tenant = TenantNamed(box, name);
  if (!tenant.contains("idle_seconds") || !tenant["idle_seconds"].is_number()) return std::nullopt;
  return tenant["idle_seconds"].get<double>();
}

size_t EventsOf(Sandbox& box, const std::string& tenant, const std::string& kind) {
  const Json answer =
      Json::parse(box.RunGpumux({"events", "--json", "--tenant", tenant}).out, nullptr, false);
  size_t count = 0;
  for (const Json& event : answer["data"]["events"]) count += event["kind"] == kind ? 1 : 0;
  return count;
}

Process Holder(Sandbox& box, const std::vector<std::string>& options = {}) {
  std::vector<std::string> args = {"run", "--mem", "4GiB", "--name", "holder", "--"};
  args.insert(args.end(), {Sandbox::Program("gpumux-workload"), "--alloc", "1GiB", "--hold", "1000"});
  args.insert(args.end(), options.begin(), options.end());
  return box.Gpumux(args);
}

TEST(Idle, IsShownOfWhoHoldsMemoryAndNotOfWhoWorks) {
  Sandbox box;
  std::ofstream(box.ConfigFile()) << "idle.policy = \"notify\"\nidle.after = \"500ms\"\n";
  Process holder = Holder(box);
  Process worker =
      box.Gpumux({"run", "--mem", "4GiB", "--name", "worker", "--", Sandbox::Program("gpumux-workload"),
                  "--kernel-us", "2000", "--seconds", "1000"});
  ASSERT_TRUE(WaitUntil("the worker works",
                        [&] { return TenantNamed(box, "worker").value("launches", Json(0)) > 0; }));
  ASSERT_TRUE(
      WaitUntil("it is told that the holder is idle", [&] { return EventsOf(box, "holder", "idle") > 0; }));
  EXPECT_GE(IdleOf(box, "holder").value_or(0), 0.5);
  EXPECT_THAT(box.RunGpumux({"status"}).out, HasSubstr("IDLE"));
  const auto worker_idle = IdleOf(box, "worker");
  ASSERT_TRUE(worker_idle);
  EXPECT_LT(*worker_idle, 3);
  // Without memory it is not known, and that is said.
  Process sleeper = box.Gpumux({"run", "--name", "sleeper", "--", "sleep", "1000"});
  ASSERT_TRUE(WaitUntil("it was looked at", [&] {
    return TenantNamed(box, "sleeper").value("idle_seconds_reason", "") == "it holds no memory of a GPU";
  }));
  EXPECT_TRUE(TenantNamed(box, "sleeper")["idle_seconds"].is_null());
  EXPECT_EQ(EventsOf(box, "holder", "idle"), 1u) << "once, though it goes on";
}

}  // namespace
}  // namespace gpumux::test
