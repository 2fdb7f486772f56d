// SPDX-License-Identifier: Apache-2.0
//
// What the software GPU does not have, on a driver that says yes to everything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

std::vector<std::string> Steps() {
  Sandbox box;
  const std::string fake = std::filesystem::weakly_canonical(Sandbox::TestProgram("fake_driver"));
  const Outcome o = box.RunGpumux({"run", "--mem", "4GiB", "--quiet", "--", "/usr/bin/env",
                                   "LD_LIBRARY_PATH=" + fake, Sandbox::TestProgram("handle_users_probe")});
  EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
  std::vector<std::string> steps;
  std::istringstream in(o.out);
  for (std::string line; std::getline(in, line);) steps.push_back(line);
  return steps;
}

TEST(HandleUsers, KeepTheChargeUntilTheLastIsGone) {
  std::vector<std::string> steps = Steps();
  ASSERT_GE(steps.size(), 13u);
  steps.resize(13);
  EXPECT_THAT(steps, ::testing::ElementsAre("nothing 0", "two released, mapped 128", "one unmapped 64",
                                            "one replaced 64", "array destroyed 0",
                                            "two released, mapped 128", "one unmapped 64", "one replaced 64",
                                            "array destroyed 0", "two released, bound 128", "one unbound 64",
                                            "object released, mapped 64", "object unmapped 0"));
}

TEST(HandleUsers, ADescriptorKeepsTheChargeUntilItIsClosed) {
  Sandbox box;
  const Outcome o = box.RunGpumux(
      {"run", "--mem", "4GiB", "--quiet", "--", Sandbox::TestProgram("handle_users_probe"), "descriptors"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  const size_t last = o.out.find("kept");
  ASSERT_NE(last, std::string::npos) << o.out;
  EXPECT_EQ(o.out.substr(0, last),
            "nothing 0\nreleased, exported 64\nclosed 0\nexported, closed 64\nreleased 0\na hundred 0\n");
  // 4 GiB less a context of 518 MiB, in pieces of 64.
  const int kept = std::stoi(o.out.substr(last + 5));
  EXPECT_LE(kept, (4096 - 518) / 64);
  EXPECT_GE(kept, (4096 - 518 - 128) / 64);
}

TEST(GraphicsContexts, AreChargedAsAnyOther) {
  std::vector<std::string> steps = Steps();
  ASSERT_EQ(steps.size(), 21u);
  for (size_t i = 13; i < steps.size(); i += 2) {
    // At least what an H200's context takes, 518 MiB.
    const int taken = std::stoi(steps[i].substr(steps[i].rfind(' ') + 1));
    EXPECT_GE(taken, 518) << steps[i];
    EXPECT_LT(taken, 700) << steps[i];
    EXPECT_EQ(steps[i + 1], "destroyed 0") << steps[i];
  }
}

}  // namespace
}  // namespace gpumux::test
