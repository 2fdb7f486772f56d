// SPDX-License-Identifier: Apache-2.0
//
// Section B of docs/pitfalls.md: ways to memory, and the ledger.
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "../random/host.h"

namespace gpumux::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;
constexpr uint64_t kContext = 543162368 + 5832704;  // of an H200, on the device
constexpr int kOutOfMemory = 2;

class PitfallsB : public ::testing::Test {
 protected:
  // A tenant "t" of one actor.
  Host::Connection StartTenant(const std::string& mem) {
    run_ = box_.Gpumux({"run", "--name", "t", "--mem", mem, "--", Host::ActorProgram()});
    const auto actor = host_.Accept();
    return actor ? *actor : Host::Connection{};
  }
  Host::Connection Fork(const Host::Connection& parent) {
    host_.Ask(parent.fd, "fork");
    const auto child = host_.Accept();
    return child ? *child : Host::Connection{};
  }
  uint64_t Used() {
    const auto tenant = host_.Tenant("t");
    return tenant.is_null() ? ~0ull : tenant["mem_used_bytes"].get<uint64_t>();
  }
  void ExpectUsed(uint64_t bytes) {
    WaitUntil("used is " + std::to_string(bytes), [&] { return Used() == bytes; });
  }
  uint64_t ToldFree(const Host::Connection& actor) {
    unsigned long free = 0;
    (void)sscanf(host_.Ask(actor.fd, "told").c_str(), "0 %lu", &free);
    return free;
  }

  Sandbox box_;
  Host host_{box_};
  std::optional<Process> run_;
};

TEST_F(PitfallsB, B1_MemoryOfAPoolOfOnesOwnIsChargedAndComesBack) {
  const auto actor = StartTenant("4GiB");
  ASSERT_EQ(host_.Do(actor.fd, "init"), 0);
  ASSERT_EQ(host_.Do(actor.fd, "alloc 1 pool 1073741824 0"), 0);
  ExpectUsed(kContext + kGiB);
  EXPECT_EQ(host_.Do(actor.fd, "alloc 2 pool 3221225472 0"), kOutOfMemory);
  EXPECT_EQ(host_.Do(actor.fd, "free 1"), 0);
  ExpectUsed(kContext);
}

TEST_F(PitfallsB, B2_TakingAndGivingBackForLongLeavesNothing) {
  const auto actor = StartTenant("1GiB");
  ASSERT_EQ(host_.Do(actor.fd, "init"), 0);
  EXPECT_EQ(host_.Do(actor.fd, "churn 30000"), 0);
  ExpectUsed(kContext);
  EXPECT_EQ(host_.Do(actor.fd, "alloc 1 async 335544320 0"), 0);
}

TEST_F(PitfallsB, B16_SharedMemoryIsChargedOnceAndThenToWhoStillHasIt) {
  const auto owner = StartTenant("4GiB");
  const auto importer = Fork(owner);
  ASSERT_EQ(host_.Do(owner.fd, "init"), 0);
  ASSERT_EQ(host_.Do(importer.fd, "init"), 0);
  ASSERT_EQ(host_.Do(owner.fd, "alloc 1 plain 1073741824 0"), 0);
  const std::string handle = host_.Ask(owner.fd, "export 1").substr(2);
  ASSERT_EQ(host_.Do(importer.fd, "import 2 " + handle + " 1 1073741824"), 0);
  ExpectUsed(2 * kContext + kGiB);
  // The owner's end: the driver keeps the memory for the importer.
  host_.Ask(owner.fd, "die kill");
  ExpectUsed(kContext + kGiB);
  EXPECT_EQ(host_.Do(importer.fd, "free 2"), 0);
  ExpectUsed(kContext);
}

TEST_F(PitfallsB, B19_AskingAboutADeviceMakesNoContext) {
  const auto actor = StartTenant("1GiB");
  EXPECT_EQ(host_.Ask(actor.fd, "probe"), "0 0 0");
  EXPECT_EQ(Used(), 0u);
  EXPECT_TRUE(host_.Nvml().empty());
}

TEST_F(PitfallsB, B20_DeviceAttributesAreTheDriversOwn) {
  const Process bare = box_.Start({Host::ActorProgram()});
  const auto outside = host_.Accept();
  ASSERT_TRUE(outside);
  const std::string expected = host_.Ask(outside->fd, "attributes");
  EXPECT_GT(expected.size(), 500u);
  const auto actor = StartTenant("1GiB");
  EXPECT_EQ(host_.Ask(actor.fd, "attributes"), expected);
}

TEST_F(PitfallsB, B21_WhatIsToldAsFreeCanBeHadInOnePiece) {
  const auto actor = StartTenant("8GiB");
  ASSERT_EQ(host_.Do(actor.fd, "init"), 0);
  ASSERT_EQ(host_.Do(actor.fd, "alloc 1 plain 1000 0"), 0);
  const uint64_t free = ToldFree(actor) / (2 * kMiB) * (2 * kMiB);
  EXPECT_GT(free, 7 * kGiB);
  EXPECT_EQ(host_.Do(actor.fd, "alloc 2 plain " + std::to_string(free + 2 * kMiB) + " 0"), kOutOfMemory);
  EXPECT_EQ(host_.Do(actor.fd, "alloc 3 plain " + std::to_string(free) + " 0"), 0);
}

TEST_F(PitfallsB, B10_AGraphDoesNotRunInMemoryThatAnotherUses) {
  // Nor does it get past the limit that way: what it needs has to be free.
  const auto actor = StartTenant("2GiB");
  ASSERT_EQ(host_.Do(actor.fd, "init"), 0);
  ASSERT_EQ(host_.Do(actor.fd, "alloc 1 graph 536870912 0"), 0);
  const uint64_t rest = ToldFree(actor) / (2 * kMiB) * (2 * kMiB) - 32 * kMiB;
  ASSERT_EQ(host_.Do(actor.fd, "alloc 2 plain " + std::to_string(rest) + " 0"), 0);
  EXPECT_EQ(host_.Do(actor.fd, "alloc 3 graph 268435456 0"), kOutOfMemory);
  EXPECT_LE(host_.Nvml()[actor.pid], 2 * kGiB);
  // What the first gives back, another may have.
  EXPECT_EQ(host_.Do(actor.fd, "free 1"), 0);
  EXPECT_EQ(host_.Do(actor.fd, "alloc 4 graph 268435456 0"), 0);
}

TEST_F(PitfallsB, B23_AnotherLibraryPathDoesNotLeadPastTheGuard) {
  const std::string libraries = box_.dir() + "/elsewhere";
  ASSERT_EQ(symlink(Sandbox::Program("../lib/gpumux/softgpu").c_str(), libraries.c_str()), 0);
  const Outcome o =
      box_.RunGpumux({"run", "--mem", "2GiB", "--", "/usr/bin/env", "LD_LIBRARY_PATH=" + libraries,
                      Sandbox::TestProgram("guard_probe"), "lookup", "handle", std::to_string(3 * kGiB)});
  EXPECT_EQ(o.out, "small 0\nlarge 2\n") << o.err;
}

}  // namespace
}  // namespace gpumux::test
