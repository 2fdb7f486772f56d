// SPDX-License-Identifier: Apache-2.0
#include "tui/sample.h"

#include <gtest/gtest.h>

namespace gpumux::tui {
namespace {

constexpr const char* kStatus =
    R"({"schema":"gpumux.status/1","generated_at":"2026-11-30T12:00:00Z","simulated":true,"data":{
 "daemon":{"pid":5,"uid":0,"user":"root","version":"0.1"},"driver_version":"580.1",
 "gpus":[{"uuid":"GPU-1","index":0,"name":"NVIDIA H200","mode":"turns","mem_total_bytes":1000,"mem_reserve_bytes":10,
  "mem_guaranteed_bytes":600,"mem_used_bytes":500,"mem_unmanaged_bytes":7,"mem_unexplained_bytes":null,"mem_promisable_bytes":0,
  "mem_promisable_bytes_reason":"closed","busy_ratio":0.25,"unmanaged_pids":[812],"strangers":[{"pid":812,"name":"x","owner":"bob","owner_uid":1,"container":null,"mem_used_bytes":7}],
  "owner":{"uid":1,"pid":99}}],
 "tenants":[{"id":"t-1","name":"a","owner":"ann","state":"running","mode":"turns","mem_guaranteed_bytes":600,"mem_limit_bytes":null,
  "mem_limit_bytes_reason":"no guarantee","mem_used_bytes":500,"mem_peak_bytes":501,"mem_at_risk_bytes":3,"above_limit":true,"above_limit_reason":"frees",
  "enforced":{"memory":"guard","compute":null,"compute_reason":"none"},"refusals":{"own_limit":1,"device_full":2,"own_part":0},"launches":42,
  "turns":{"state":"holds","gpu_seconds":1.5,"part_ratio":0.5,"turns":3,"overran":0,"unused":0},"gate":null,"waiting":null,
  "waited_seconds":0.5,"priority":"normal","command":"x","labels":{"k":"v"},
  "gpus":[{"uuid":"GPU-1","index":0,"mem_guaranteed_bytes":600,"mem_limit_bytes":null,"mem_used_bytes":500,"mem_peak_bytes":501,"mem_at_risk_bytes":3,"at_risk_why":"bob"}],
  "members":[{"pid":1,"name":"p","guard":"in force","alive":true,"waits":null,"gpus":[{"mem_committed_bytes":400,"mem_overhead_bytes":100}]}]},
  {"id":"t-2","name":"b","state":"waiting","gpus":[],"waiting":{"position":1,"reason":"full","priority":0,"estimated_start_at":null,"estimated_start_at_reason":"no time"}}]}})";

TEST(Samples, SayWhatTheAnswerSays) {
  const auto sample = ReadSample(kStatus);
  ASSERT_TRUE(sample) << sample.error().message;
  EXPECT_TRUE(sample->simulated);
  EXPECT_EQ(sample->daemon_pid, 5u);
  const GpuSample& gpu = sample->gpus.at(0);
  EXPECT_EQ(gpu.total, 1000u);
  EXPECT_EQ(gpu.unexplained, std::nullopt);
  EXPECT_EQ(gpu.promisable, 0u);
  EXPECT_EQ(gpu.promisable_reason, "closed");
  EXPECT_EQ(gpu.busy_ratio, 0.25);
  EXPECT_EQ(gpu.other_daemon_pid, 99u);
  ASSERT_EQ(gpu.strangers.size(), 1u);
  EXPECT_EQ(gpu.strangers[0].owner, "bob");
  const TenantSample& tenant = sample->tenants.at(0);
  EXPECT_EQ(tenant.limit, std::nullopt);
  EXPECT_EQ(tenant.refusals, 3u);
  EXPECT_EQ(tenant.turns->gpu_seconds, 1.5);
  EXPECT_EQ(tenant.members.at(0).charged, 500u);
  EXPECT_EQ(tenant.gpus.at(0).at_risk, 3u);
  EXPECT_TRUE(tenant.above_limit);
  EXPECT_FALSE(tenant.waiting);
  EXPECT_EQ(sample->tenants.at(1).waiting->reason, "full");
  EXPECT_EQ(sample->tenants.at(1).launches, std::nullopt);
}

TEST(Samples, PidsAreAllThatNvmlAloneKnows) {
  const auto sample = ReadSample(
      R"({"data":{"gpus":[{"uuid":"GPU-1","unmanaged_pids":[7,"x",8]}],"tenants":[],"daemon":null}})");
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->daemon_pid, std::nullopt);
  ASSERT_EQ(sample->gpus[0].strangers.size(), 2u);
  EXPECT_EQ(sample->gpus[0].strangers[1].pid, 8);
  EXPECT_EQ(sample->gpus[0].strangers[1].used, std::nullopt);
}

// Every value of the answer as something that it should not be: what is read stays
// unknown, nothing else happens.
TEST(Samples, NoAnswerBreaksTheReader) {
  const std::string good = kStatus;
  for (const char* instead : {"null", "-1", "\"x\"", "[]", "{}", "[[1]]", "{\"a\":1}", "true", "1e400"}) {
    for (size_t at = good.find(':'); at != std::string::npos; at = good.find(':', at + 1)) {
      size_t end = good.find_first_of(",}]", at);
      if (end == std::string::npos) break;
      const std::string bad = good.substr(0, at + 1) + instead + good.substr(end);
      const auto sample = ReadSample(bad);
      if (!sample) {
        EXPECT_EQ(sample.error().code, Code::kInternal);
      }
    }
  }
  for (size_t length = 0; length < good.size(); ++length) EXPECT_FALSE(ReadSample(good.substr(0, length)));
  for (const char* text : {"", "[]", "null", "{\"data\":[]}", "{\"data\":{}}", "{\"data\":{\"gpus\":{}}}"}) {
    EXPECT_FALSE(ReadSample(text));
    EXPECT_FALSE(ReadEvents(text));
  }
}

TEST(Samples, EventsGoOnAfterTheLast) {
  const auto events = ReadEvents(
      R"({"data":{"events":[{"id":7,"at_unix_milliseconds":1500,"kind":"granted","severity":"info","tenant":null,"text":"x","user":"ann"}],"next_after":7,"more":true}})");
  ASSERT_TRUE(events);
  EXPECT_EQ(events->next_after, 7u);
  EXPECT_TRUE(events->more);
  EXPECT_EQ(events->events.at(0).kind, "granted");
  EXPECT_EQ(events->events.at(0).tenant, "");
}

}  // namespace
}  // namespace gpumux::tui
