// SPDX-License-Identifier: Apache-2.0
//
// `gpumux mode`, and what `auto` chooses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class Mode : public ::testing::Test {
 protected:
  Process Works(const std::string& name, const std::vector<std::string>& options = {}) {
    std::vector<std::string> argv = {"run", "--mem", "4GiB", "--name", name};
    argv.insert(argv.end(), options.begin(), options.end());
    for (const char* word : {"--", "gpumux-workload"}) argv.emplace_back(word);
    argv[argv.size() - 1] = Sandbox::Program("gpumux-workload");
    for (const char* word : {"--kernel-us", "5000", "--seconds", "1000"}) argv.emplace_back(word);
    Process process = box_.Gpumux(argv);
    EXPECT_TRUE(WaitUntil(name + " works", [&] { return Launches(name) > 0 || process.Ended(); }));
    return process;
  }

  Json Tenant(const std::string& name) {
    const Json status = box_.StatusData();
    for (const Json& tenant : status["tenants"]) {
      if (tenant["name"] == name) return tenant;
    }
    return Json::object();
  }
  uint64_t Launches(const std::string& name) { return Tenant(name).value("launches", uint64_t{0}); }

  TurnsBox box_;
};

TEST_F(Mode, ChangesToTurnsAndBackWhileTenantsWork) {
  Process a = Works("a"), b = Works("b");
  EXPECT_THAT(box_.RunGpumux({"mode"}).out, HasSubstr(": timeslice\n"));
  const Outcome changed = box_.RunGpumux({"mode", "0", "turns"});
  EXPECT_EQ(changed.exit_code, 0) << changed.err;
  EXPECT_THAT(changed.out, HasSubstr(": turns\n"));
  EXPECT_THAT(changed.out, HasSubstr("changed from timeslice by"));
  box_.WaitUntilTheyTakeTurns({"a", "b"});
  EXPECT_EQ(box_.RunGpumux({"mode", "0", "timeslice"}).exit_code, 0);
  EXPECT_EQ(Tenant("a")["mode"], "timeslice");
  const uint64_t before = Launches("a");
  EXPECT_TRUE(WaitUntil("they go on", [&] { return Launches("a") > before + 10; }));
}

TEST_F(Mode, StaysAsATenantWasStarted) {
  Process a = Works("a"), b = Works("b", {"--mode", "timeslice"});
  const Outcome refused = box_.RunGpumux({"mode", "0", "turns"});
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.err, HasSubstr("b was started with --mode timeslice"));
  EXPECT_EQ(Tenant("a")["mode"], "timeslice");
  EXPECT_EQ(box_.RunGpumux({"mode", "0", "mps"}).exit_code, 7);
  EXPECT_EQ(box_.RunGpumux({"mode", "7", "turns"}).exit_code, 6);
  EXPECT_EQ(box_.RunGpumux({"mode", "0", "fast"}).exit_code, 2);
}

TEST_F(Mode, AnEmptyGpuHasNone) {
  const Outcome shown = box_.RunGpumux({"mode"});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_THAT(shown.out, HasSubstr("it has no tenant"));
}

TEST_F(Mode, AutoTakesMpsForThoseWhoMayFallTogether) {
  Process a = Works("a", {"--isolate", "none"});
  EXPECT_EQ(Tenant("a")["mode"], "mps");
  EXPECT_THAT(Tenant("a")["mode_reason"].get<std::string>(), HasSubstr("--isolate none"));
}

}  // namespace
}  // namespace gpumux::test
