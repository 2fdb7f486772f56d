// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "pane.h"

namespace gpumux::test {

// `gpumux top` in a terminal, and tenants for it to show.
class Top : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Pane::Available()) GTEST_SKIP() << "tmux is not installed";
    // Programs by their names: a screen shows how they were called.
    const std::string here = Sandbox::Program("gpumux");
    box_.SetEnv("PATH", here.substr(0, here.rfind('/')) + ":/usr/bin:/bin");
  }
  std::string Command(const std::string& options = "") const {
    return "exec 2>&1; " + Sandbox::Program("gpumux") + " top " + options;
  }
  Process Hold(const std::string& name, const std::string& mem, std::vector<std::string> more = {}) {
    std::vector<std::string> args{"run", "--name", name, "--mem", mem};
    args.insert(args.end(), more.begin(), more.end());
    for (const char* word : {"--", "sh", "-c", "exec sleep 600"}) args.emplace_back(word);
    return box_.Gpumux(args);
  }
  Process TakeTurns(const std::string& name, const std::string& mem, const std::string& alloc,
                    const std::string& share) {
    return box_.Gpumux({"run", "--name", name, "--mem", mem, "--mode", "turns", "--share", share, "--",
                        "gpumux-workload", "--alloc", alloc, "--kernel-us", "5000", "--seconds", "600"});
  }
  Sandbox box_;
};

}  // namespace gpumux::test
