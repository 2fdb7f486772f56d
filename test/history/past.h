// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../support/sandbox.h"

namespace gpumux::test {

using nlohmann::json;

// `gpumux history --json`, its `data`.
inline json History(Sandbox& box, std::vector<std::string> options = {}) {
  std::vector<std::string> args = {"history", "--json"};
  args.insert(args.end(), options.begin(), options.end());
  const Outcome o = box.RunGpumux(args);
  EXPECT_EQ(o.exit_code, 0) << o.err;
  const json answer = json::parse(o.out, nullptr, false);
  return answer.is_object() ? answer["data"] : json();
}

// The past tenant of that name, once it is there.
inline json Past(Sandbox& box, const std::string& name) {
  json found;
  EXPECT_TRUE(WaitUntil("the history has " + name, [&] {
    const json tenants = History(box, {"--name", name})["tenants"];
    if (!tenants.empty()) found = tenants[0];
    return !tenants.empty();
  }));
  return found;
}

inline void KillDaemon(Sandbox& box) {
  const pid_t daemon = box.DaemonPid();
  ASSERT_GT(daemon, 0);
  kill(daemon, SIGKILL);
}

}  // namespace gpumux::test
