// SPDX-License-Identifier: Apache-2.0
//
// `gpumux set` on a program that works, under the real guard, and over the death of a daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGiB = 1ull << 30;

// A tenant that holds 10 GiB, and tries for one more whenever it is told to.
class Holder {
 public:
  explicit Holder(Sandbox& box)
      : box_(box),
        process_(box.Gpumux({"run", "--mem", "11GiB", "--name", "holder", "--", "sh", "-c", Script()})) {
    WaitUntil("10 GiB are held", [&] { return Exists("held") || process_.Ended(); });
  }
  ~Holder() { Touch("stop"); }

  // The exit status of a program of the tenant that takes 1 GiB.
  int TryForMore() {
    std::filesystem::remove(box_.dir() + "/tried");
    Touch("try");
    WaitUntil("it has tried", [&] { return Exists("tried"); });
    int status = -1;
    std::ifstream(box_.dir() + "/tried") >> status;
    return status;
  }
  void Free() { Touch("free"); }
  Process& process() { return process_; }

 private:
  std::string Script() const {
    const std::string work = Sandbox::Program("gpumux-workload");
    return "cd " + box_.dir() + "; " + work +
           " --alloc 10GiB --hold 1000 --ready held & holds=$!\n"
           "while [ ! -e stop ]; do\n"
           "  if [ -e free ]; then kill $holds; rm free; fi\n"
           "  if [ -e try ]; then rm try; " +
           work +
           " --alloc 1GiB; echo $? > tried.new; mv tried.new tried; fi\n"
           "  sleep 0.02\n"
           "done\n"
           "kill $holds; wait; exit 0\n";
  }
  bool Exists(const std::string& name) const { return std::filesystem::exists(box_.dir() + "/" + name); }
  void Touch(const std::string& name) const { std::ofstream(box_.dir() + "/" + name).put('\n'); }

  Sandbox& box_;
  Process process_;
};

nlohmann::json TheTenant(Sandbox& box) {
  const Outcome o = box.RunGpumux({"status", "--json"});
  const auto json = nlohmann::json::parse(o.out, nullptr, false);
  if (o.exit_code != 0 || !json.contains("data") || !json["data"]["tenants"].is_array()) return nullptr;
  return json["data"]["tenants"].empty() ? nullptr : json["data"]["tenants"][0];
}

bool IsAboveLimit(Sandbox& box, bool above) {
  const auto tenant = TheTenant(box);
  return tenant.is_object() && tenant["above_limit"] == above;
}

TEST(Set, RaisesAndLowersALivePromiseAndTheNextDaemonKeepsIt) {
  Sandbox box;
  Holder holder(box);
  EXPECT_NE(holder.TryForMore(), 0);

  const Outcome raised = box.RunGpumux({"set", "holder", "--mem", "20GiB", "--time", "4h"});
  EXPECT_EQ(raised.exit_code, 0) << raised.err;
  EXPECT_THAT(raised.out, HasSubstr("20.0 GiB guaranteed; ends after 4h"));
  EXPECT_EQ(holder.TryForMore(), 0);

  const Outcome refused = box.RunGpumux({"set", "holder", "--mem", "5GiB"});
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.err, HasSubstr("more than the limit of 5.0 GiB that is asked for"));
  EXPECT_THAT(refused.err, HasSubstr("--as-it-frees"));
  EXPECT_EQ(TheTenant(box)["mem_limit_bytes"], 20 * kGiB);

  const Outcome lowered = box.RunGpumux({"set", "holder", "--mem", "5GiB", "--as-it-frees"});
  EXPECT_EQ(lowered.exit_code, 0) << lowered.err;
  EXPECT_THAT(lowered.out, HasSubstr("gets no more until it is below"));
  EXPECT_NE(holder.TryForMore(), 0);
  EXPECT_THAT(box.RunGpumux({"explain", "holder"}).out, HasSubstr("frees as it goes"));

  const pid_t daemon = box.DaemonPid();
  ASSERT_GT(daemon, 0);
  kill(daemon, SIGKILL);
  ASSERT_TRUE(WaitUntil("the next daemon knows it", [&] {
    return box.DaemonPid() != 0 && box.DaemonPid() != daemon && IsAboveLimit(box, true);
  }));
  const auto tenant = TheTenant(box);
  EXPECT_EQ(tenant["mem_guaranteed_bytes"], 5 * kGiB);
  EXPECT_EQ(tenant["mem_limit_bytes"], 5 * kGiB);
  EXPECT_EQ(tenant["time_limit_seconds"], 4 * 3600);
  EXPECT_THAT(tenant["above_limit_reason"].dump(), HasSubstr("frees as it goes"));
  EXPECT_NE(holder.TryForMore(), 0);

  holder.Free();
  ASSERT_TRUE(WaitUntil("it is below", [&] { return IsAboveLimit(box, false); }));
  EXPECT_EQ(holder.TryForMore(), 0);
}

}  // namespace
}  // namespace gpumux::test
