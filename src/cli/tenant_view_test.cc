// SPDX-License-Identifier: Apache-2.0
#include "cli/tenant_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumux::cli {
namespace {

using ::testing::HasSubstr;

constexpr const char* kStatus =
    R"({"schema":"gpumux.status/1","generated_at":"2026-01-01T00:00:00+00:00","simulated":true,"data":{
 "gpus":[{"uuid":"GPU-a","index":0,"name":"NVIDIA H200","mode":"timeslice","mem_total_bytes":150109880320,
   "mem_guaranteed_bytes":107374182400,"mem_used_bytes":65713209344,"mem_unmanaged_bytes":966367641,"unmanaged_pids":[812],
   "mem_promisable_bytes":41768976384,"owner":{"uid":1000,"pid":55}},
  {"uuid":"GPU-b","index":1,"name":"NVIDIA H200","mode":null,"mode_reason":"no tenant","mem_total_bytes":null,
   "mem_guaranteed_bytes":0,"mem_used_bytes":0,"mem_unmanaged_bytes":null,"unmanaged_pids":[],"mem_promisable_bytes":null,"owner":null}],
 "tenants":[{"id":"t-1","name":"serve","owner":"ann","state":"running","gpus":[{"uuid":"GPU-a","index":0}],"mem_used_bytes":21474836480,
   "mem_limit_bytes":42949672960,"mem_guaranteed_bytes":42949672960,"mem_peak_bytes":26843545600,"idle_seconds":1.2,
   "enforced":{"memory":"guard"},"waiting":null,"command":"python3 serve.py"},
  {"id":"t-2","name":"note","owner":"bob","state":"running","gpus":[{"uuid":"GPU-a","index":0}],"mem_used_bytes":1073741824,
   "mem_limit_bytes":null,"mem_guaranteed_bytes":0,"mem_peak_bytes":1073741824,"idle_seconds":2472.7,
   "enforced":{"memory":"not enforced","memory_reason":"no guard in pid 7"},"waiting":null,
   "above_limit":true,"above_limit_reason":"frees as it goes","command":"jupyter\u001b[2J"},
  {"id":"t-3","name":"train","owner":"ann","state":"waiting","gpus":[],"mem_used_bytes":0,"mem_limit_bytes":64424509440,
   "mem_guaranteed_bytes":64424509440,"mem_peak_bytes":0,"idle_seconds":null,"enforced":{"memory":null},
   "waiting":{"position":1,"reason":"needs 60.0 GiB, 38.9 GiB can be promised","estimated_start_at":"2026-11-30T12:00:00Z"},"command":"python3 train.py"}]}})";

TEST(Status, ShowsGpusTenantsAndNotes) {
  const auto text = RenderStatus(kStatus, {});
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(
      *text,
      "GPU  NAME             MODE       MEM used/guaranteed/total  PROMISABLE  UNMANAGED  TENANTS\n"
      "  0  NVIDIA H200 SIM  timeslice   61.2 / 100.0 / 139.8 GiB    38.9 GiB    922 MiB        2\n"
      "  1  NVIDIA H200 SIM  –                  0.0 / 0.0 / – GiB           –          –        0\n"
      "TENANT   ID   OWNER  STATE    GPU    MEM use/limit  GUARANTEED      PEAK    IDLE  ENFORCED  COMMAND\n"
      "serve    t-1  ann    running  0    20.0 / 40.0 GiB    40.0 GiB  25.0 GiB      no  guard     python3 "
      "serve.py\n"
      "note     t-2  bob    running  0        1.0 / – GiB        none   1.0 GiB  41m12s  NO        "
      "jupyter?[2J\n"
      "train    t-3  ann    waiting  –     0.0 / 60.0 GiB    60.0 GiB       0 B       –  –         python3 "
      "train.py\n"
      "(other)  –    –      running  0        0.9 / – GiB        none         –       –  NO        unmanaged "
      "pid "
      "812\n"
      "note is above its limit and gets no more: frees as it goes\n"
      "note is not enforced: no guard in pid 7\n"
      "train waits (place 1): needs 60.0 GiB, 38.9 GiB can be promised; starts by 2026-11-30T12:00:00Z at "
      "the "
      "latest\n"
      "GPU 0 is managed by the daemon of uid 1000 (pid 55)\n");
}

TEST(Status, FitsANarrowTerminal) {
  const auto text = RenderStatus(kStatus, {.is_tty = true, .color = false, .width = 60});
  ASSERT_TRUE(text);
  EXPECT_THAT(*text, HasSubstr("serve    t-1  running  20.0 / 40.0 GiB    40.0 GiB  guard"));
  EXPECT_THAT(*text, ::testing::Not(HasSubstr("COMMAND")));
}

TEST(Status, OfASoftwareGpuKeepsWhatCanBePromisedAt80Columns) {
  const char* json =
      R"json({"simulated":true,"data":{"gpus":[{"index":0,"name":"NVIDIA H200 (software GPU, simulated)",
    "mode":"timeslice","mem_total_bytes":150754820096,"mem_guaranteed_bytes":0,"mem_used_bytes":0,
    "mem_promisable_bytes":41768976384}],"tenants":[]}})json";
  EXPECT_THAT(*RenderStatus(json, {.is_tty = true, .color = false, .width = 80}),
              ::testing::AllOf(HasSubstr("NVIDIA H200 SIM"), HasSubstr("38.9 GiB")));
  EXPECT_THAT(*RenderStatus(json, {}), HasSubstr("NVIDIA H200 (software GPU, simulated)"));
}

TEST(Status, NamesWhatKeepsAPromiseInTheBackground) {
  const char* json = R"({"data":{"gpus":[],"tenants":[{"id":"t-1","name":"serve","state":"running","pid":5,
    "members":[],"left_behind_pids":[7,8]}]}})";
  EXPECT_THAT(
      *RenderStatus(json, {}),
      HasSubstr("serve has ended, but pid 7,8, left in the background, keeps its promise; gpumux stop t-1"));
  EXPECT_THAT(*RenderProcesses(json, {}), HasSubstr("(in the background)"));
}

TEST(Status, WithoutTenantsOrGpusSaysSo) {
  EXPECT_EQ(*RenderStatus(R"({"data":{"gpus":[],"tenants":[]}})", {}), "no GPUs\nno tenants\n");
  EXPECT_FALSE(RenderStatus("not json", {}));
  EXPECT_FALSE(RenderStatus(R"({"data":[]})", {}));
}

TEST(Processes, ShowsEveryMemberWithItsMemoryAndGuard) {
  const auto text = RenderProcesses(R"({"simulated":false,"data":{"tenants":[
    {"id":"t-1","name":"serve","owner":"ann","state":"running","gpus":[{"uuid":"GPU-a","index":2}],"pid":100,"idle_seconds":75,"command":"sh -c x",
     "members":[{"pid":101,"name":"python3","guard":"in force","gpus":[{"uuid":"GPU-a","mem_committed_bytes":10737418240,
       "mem_overhead_bytes":543162368,"contexts":1}]},{"pid":102,"name":"nvtop","guard":"absent","gpus":[]}]},
    {"id":"t-2","name":"idle","owner":"ann","state":"starting","gpus":[],"pid":null,"command":"sleep 9","members":[]}]}})",
                                    {});
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(*text,
            "TENANT  ID   OWNER  STATE     PID  PROCESS  GPU       MEM  CONTEXTS   IDLE  GUARD\n"
            "serve   t-1  ann    running   101  python3    2  10.5 GiB         1  1m15s  in force\n"
            "serve   t-1  ann    running   102  nvtop      –         –         –  1m15s  absent\n"
            "idle    t-2  ann    starting    –  sleep 9    –         –         –      –  –\n");
}

}  // namespace
}  // namespace gpumux::cli
