// SPDX-License-Identifier: Apache-2.0
#include "tui/model.h"

#include <gtest/gtest.h>

#include "tui/testing/scene.h"

namespace gpumux::tui {
namespace {

using namespace std::chrono_literals;
using testing::Machine;
using testing::TakesTurns;
using testing::TenantOn;

Sample Turns(double a_seconds, double b_seconds) {
  TenantSample a = TenantOn("a", 10, 20), b = TenantOn("b", 10, 20);
  TakesTurns(a, a_seconds);
  TakesTurns(b, b_seconds);
  return Machine({a, b});
}

TEST(Model, TellsWhoHeldTheGpuFromTheChangeOfGpuTime) {
  Model model;
  std::string why;
  model.Take(Turns(100, 50), 10s);
  EXPECT_FALSE(model.Of("t-a").Last());
  EXPECT_FALSE(model.HeldOf(model.sample().gpus[0], why));
  EXPECT_EQ(why, "needs a second sample");
  model.Take(Turns(101.2, 50.5), 12s);
  EXPECT_NEAR(*model.Of("t-a").Last(), 0.6, 1e-9);
  EXPECT_NEAR(*model.Of("t-b").Last(), 0.25, 1e-9);
  EXPECT_NEAR(*model.HeldOf(model.sample().gpus[0], why), 0.85, 1e-9);
  model.Take(Turns(103, 50.5), 13s);
  EXPECT_EQ(model.Of("t-a").Last(), 1.0);  // never more than all of it
  EXPECT_EQ(model.Of("t-b").Last(), 0.0);
  EXPECT_EQ(model.Of("t-a").held.size(), 2u);
  EXPECT_EQ(model.spans().back(), Model::Time(1s));
}

TEST(Model, AnotherDaemonsFiguresHaveNoDifference) {
  Model model;
  model.Take(Turns(100, 50), 10s);
  model.Take(Turns(100.5, 50), 11s);
  Sample next = Turns(101, 50);
  next.daemon_pid = 78;
  model.Take(next, 12s);
  EXPECT_FALSE(model.Of("t-a").Last());
  EXPECT_TRUE(model.spans().empty());
  // The same daemon, and a count that went back: a tenant's processes are others.
  model.Take(Turns(1, 50), 13s);
  next = Turns(0.5, 50.5);
  model.Take(next, 14s);
  EXPECT_FALSE(model.Of("t-a").Last());
  EXPECT_NEAR(*model.Of("t-b").Last(), 0.5, 1e-9);
}

TEST(Model, WhatNobodyCountsIsUnknownAndSaysWhy) {
  Model model;
  std::string why;
  for (const char* mode : {"timeslice", "mps", "exclusive", "turns"}) {
    model.Take(Machine({TenantOn("a", 10, 20, mode)}), 1s);
    model.Take(Machine({TenantOn("a", 10, 20, mode)}), 2s);
    EXPECT_FALSE(model.Of("t-a").Last()) << mode;
    EXPECT_FALSE(WhyNotCounted(model.sample().tenants[0]).empty()) << mode;
    EXPECT_FALSE(model.HeldOf(model.sample().gpus[0], why)) << mode;
    EXPECT_EQ(why, WhyNotCounted(model.sample().tenants[0]));
  }
  // One that is latency-critical is counted in every mode.
  TenantSample critical = TenantOn("a", 10, 20, "timeslice");
  critical.gate = GateSample{"holds others back", "", 5.0, std::nullopt, std::nullopt, std::nullopt};
  EXPECT_EQ(GpuSecondsOf(critical), 5.0);
  // One that is held back is not.
  critical.gate = GateSample{"is held back", "gpu", std::nullopt, 3.0, 1, 0};
  EXPECT_FALSE(GpuSecondsOf(critical));
}

TEST(Model, LettersStayAsLongAsATenantAndAreGivenAnew) {
  Model model;
  std::vector<TenantSample> tenants;
  for (int i = 0; i < 30; ++i) tenants.push_back(TenantOn("n" + std::to_string(i), 1, 1));
  model.Take(Machine(tenants), 1s);
  EXPECT_EQ(model.Of("t-n0").key, 'A');
  EXPECT_EQ(model.Of("t-n25").key, 'Z');
  EXPECT_EQ(model.Of("t-n26").key, '*');
  tenants.erase(tenants.begin() + 1);
  model.Take(Machine(tenants), 2s);
  EXPECT_EQ(model.Of("t-n0").key, 'A');
  EXPECT_EQ(model.Of("t-n25").key, 'Z');
  EXPECT_EQ(model.Of("t-n26").key, 'B');
  EXPECT_EQ(model.Of("t-n1").key, History().key);
}

TEST(Model, HistoriesAndEventsHaveAnEnd) {
  Model model;
  for (int i = 0; i < 2000; ++i) {
    model.Take(Turns(i, 0), std::chrono::seconds(i));
    EventsSample events;
    events.events.resize(3);
    events.next_after = static_cast<uint64_t>(i);
    model.TakeEvents(std::move(events));
  }
  EXPECT_EQ(model.Of("t-a").held.size(), Model::kMostSamples);
  EXPECT_EQ(model.spans().size(), Model::kMostSamples);
  EXPECT_EQ(model.events().size(), Model::kMostEvents);
  EXPECT_EQ(model.next_event_after(), 1999u);
}

TEST(Model, LaunchesAreARate) {
  Model model;
  Sample sample = Machine({TenantOn("a", 1, 1, "timeslice")});
  sample.tenants[0].launches = 1000;
  model.Take(sample, 1s);
  EXPECT_FALSE(model.Of("t-a").launches_per_second);
  sample.tenants[0].launches = 3000;
  model.Take(sample, 5s);
  EXPECT_EQ(model.Of("t-a").launches_per_second, 500.0);
  sample.tenants[0].launches.reset();
  model.Take(sample, 6s);
  EXPECT_FALSE(model.Of("t-a").launches_per_second);
}

}  // namespace
}  // namespace gpumux::tui
