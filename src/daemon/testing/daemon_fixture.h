// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the daemon share: one daemon over figures of NVML that the
// test makes up, what an H200 shows, and steps between processes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/units.h"
#include "daemon/testing/peers.h"

namespace gpumux::daemon {

inline constexpr uint64_t kContext = 543162368;  // NVML's own figure of a context on an H200
inline constexpr uint64_t kShare = 5832704;      // and what the device shows beyond
inline constexpr uint64_t kAllowance = 64 * kMiB;
inline constexpr uint64_t kUsable = 150754820096 - 644939776 - 3407872;

class DaemonTest : public testing::Test {
 protected:
  DaemonTest() : figures(*FakeFigures::Create()), daemon(figures) {}

  nlohmann::json Status() { return Http(daemon.api, "GET", "/v1/status").body["data"]; }
  nlohmann::json Gpu() { return Status()["gpus"][0]; }
  nlohmann::json TenantOf(const std::string& id) {
    return Http(daemon.api, "GET", "/v1/tenants/" + id).body["data"];
  }

  FakeFigures& figures;
  DaemonProcess daemon;
};

// Waits for a byte from the other side of a fork, or sends one.
struct Baton {
  Baton() { EXPECT_EQ(pipe(fds), 0); }
  ~Baton() {
    close(fds[0]);
    close(fds[1]);
  }
  void Pass() const { EXPECT_EQ(write(fds[1], "x", 1), 1); }
  void Take() const {
    char byte = 0;
    EXPECT_EQ(read(fds[0], &byte, 1), 1);
  }
  int fds[2];
};

}  // namespace gpumux::daemon
